"""The error tree: parents, attributes, pickles."""

from __future__ import annotations

import copy
import pickle

import pytest

from arx import errors

TREE = [
    (errors.InitError, RuntimeError),
    (errors.RendezvousError, ConnectionError),
    (errors.PeerLostError, ConnectionError),
    (errors.CollectiveTimeout, TimeoutError),
    (errors.MismatchError, ValueError),
    (errors.AbortedError, RuntimeError),
    (errors.AuthError, PermissionError),
]


@pytest.mark.parametrize(("error", "builtin"), TREE)
def test_each_is_an_arx_error_and_the_builtin_one(error: type[errors.ArxError], builtin: type[Exception]) -> None:
    assert issubclass(error, errors.ArxError)
    assert issubclass(error, builtin)
    assert issubclass(error, RuntimeError)
    assert str(error("rank 2 said no")) == "rank 2 said no"


@pytest.mark.parametrize(
    "error",
    [
        errors.PeerLostError("rank 2 was killed", ranks=[2]),
        errors.CollectiveTimeout("ranks 0 and 3 did not come", missing=(0, 3)),
        errors.AuthError("rank 1 has another secret"),
        errors.MismatchError("float32 against float64"),
    ],
)
def test_errors_survive_pickle_and_copy(error: errors.ArxError) -> None:
    error.add_note("seen in step 7")
    for twin in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(twin) is type(error)
        assert str(twin) == str(error)
        assert vars(twin) == vars(error)


def test_who_is_at_fault_is_a_tuple_of_ranks() -> None:
    assert errors.PeerLostError("gone", ranks=[2, 1]).ranks == (2, 1)
    assert errors.CollectiveTimeout("late", missing={3}).missing == (3,)
    assert errors.PeerLostError("gone").ranks == errors.CollectiveTimeout("late").missing == ()
