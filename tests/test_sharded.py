"""The sharded optimizer: the bits of the replicated update, a share of the state, and what is refused."""

import numpy as np
import pytest
from rankside import assert_refused, check_usable, outcome

import arx

SHAPES = {"w": (37, 11), "b": (11,), "v": (5, 5, 5), "empty": (0, 3)}
RULES = {
    "sgd": arx.SGD(lr=0.1),
    "momentum": arx.SGD(lr=0.05, momentum=0.9, weight_decay=0.01),
    "adam": arx.Adam(lr=0.01),
    "adamw": arx.Adam(lr=0.01, betas=(0.8, 0.99), weight_decay=0.1),
}


def numbers(seed, shapes=SHAPES, dtype=np.float32):
    rng = np.random.default_rng(seed)
    return {name: rng.standard_normal(shape).astype(dtype) for name, shape in shapes.items()}


def replicated(rule, parameters, gradients, state, step):
    """Every rank updates everything."""
    flat = np.concatenate([x.ravel() for x in parameters.values()])
    grads = np.concatenate([gradients[name].ravel() for name in parameters])
    arx.all_reduce(grads, "avg")
    state = rule.state(flat) if state is None else state
    rule.update(flat, grads, state, step)
    at = 0
    for x in parameters.values():
        x[...] = flat[at : at + x.size].reshape(x.shape)
        at += x.size
    return state


def trains(name, dtype):
    world, rule = arx.world(), RULES[name]
    mine, theirs = numbers(1, dtype=dtype), numbers(1, dtype=dtype)
    optimizer = arx.ShardedOptimizer(mine, rule)
    count = sum(x.size for x in mine.values())
    full = sum(x.nbytes for x in rule.state(np.zeros(count, dtype)).values())
    share = -(-count // world.size) / count
    assert optimizer.state_bytes == round(full * share)
    state = None
    for step in range(1, 5):
        gradients = numbers(100 * step + world.rank, dtype=dtype)
        kept = {key: x.copy() for key, x in gradients.items()}
        optimizer.step(dict(reversed(gradients.items())) if world.rank % 2 else gradients)
        assert all((gradients[key] == kept[key]).all() for key in kept), "gradients are only read"
        state = replicated(rule, theirs, gradients, state, step)
        for key in mine:
            assert mine[key].tobytes() == theirs[key].tobytes(), (name, step, key)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("p", [1, 2, 3, 4, 7])
def test_the_bits_of_the_replicated_update(ranks, p, name, dtype):
    ranks(p).run(trains, name, dtype)


@pytest.mark.parametrize("where", ["3", "h0 h1 h0", "h0 h0 h1 h1"])
def test_the_bits_of_the_replicated_update_between_hosts(crew, where):
    crew(where).run(trains, "adam", np.float32)


def forms():
    world = arx.world()
    one = np.ones(10)
    optimizer = arx.ShardedOptimizer(one, arx.SGD(lr=1.0))
    optimizer.step(np.full(10, world.rank + 1.0))
    assert (one == 1 - (world.size + 1) / 2).all()
    several = [np.ones(3), np.ones((2, 2))]
    optimizer = arx.ShardedOptimizer(several, arx.SGD(lr=0.5))
    optimizer.step([np.full(3, 2.0), np.full((2, 2), 4.0)])
    assert several[0].tolist() == [0.0] * 3
    assert several[1].tolist() == [[-1.0, -1.0]] * 2


def test_an_array_or_a_list(ranks):
    ranks(3).run(forms)


def one_array():
    """Row-major and divisible, so that it takes the parameters as they come; and what it does not do for others."""
    world = arx.world()
    shapes = {"plain": (4 * world.size, 3), "padded": (4 * world.size + 1, 3), "empty": (0, 3)}
    makers = {"C": np.ascontiguousarray, "F": np.asfortranarray, "view": lambda x: np.repeat(x, 2, axis=1)[:, ::2]}
    for rows, columns in shapes.values():
        start = np.arange(rows * columns, dtype=np.float32).reshape(rows, columns)
        for maker in makers.values():
            x = maker(start.copy())
            optimizer = arx.ShardedOptimizer(x, arx.SGD(lr=0.5, momentum=0.5))
            for step in range(2):
                optimizer.step(start * (world.rank + 1 + step))
            # The mean of the gradients is start * ((size + 1) / 2 + step); the velocity keeps half of it.
            first, second = (world.size + 1) / 2, (world.size + 1) / 2 + 1
            np.testing.assert_array_equal(x, start - start * (0.5 * first) - start * (0.5 * (0.5 * first + second)))


def test_one_array_of_any_layout(ranks):
    ranks(2).run(one_array)
    ranks(4).run(one_array)


def saved():
    world = arx.world()
    first, second = numbers(3), numbers(3)
    a = arx.ShardedOptimizer(first, RULES["adam"])
    for step in range(2):
        a.step(numbers(50 + 10 * step + world.rank))
    state = a.state_dict()
    for name, x in second.items():
        x[...] = first[name]
    b = arx.ShardedOptimizer(second, RULES["adam"])
    b.load_state_dict(state)
    gradients = numbers(99 + world.rank)
    a.step(gradients)
    b.step(gradients)
    assert all(first[name].tobytes() == second[name].tobytes() for name in first)
    other = arx.ShardedOptimizer(numbers(3), RULES["momentum"])
    assert_refused(outcome(other.load_state_dict, state), "ValueError", "something else")


def test_state_is_saved_and_loaded(ranks):
    ranks(2).run(saved)


@pytest.mark.parametrize("bad", [-0.1, float("nan"), float("inf")])
@pytest.mark.parametrize(
    ("rule", "name"),
    [(arx.SGD, "lr"), (arx.SGD, "momentum"), (arx.SGD, "weight_decay"), (arx.Adam, "lr"), (arx.Adam, "eps")],
)
def test_a_rule_takes_finite_numbers_from_0(rule, name, bad):
    assert getattr(rule(**{name: 0}), name) == 0
    with pytest.raises(ValueError, match=f"^{name} must be a finite number from 0, not {bad!r}$"):
        rule(**{name: bad})


@pytest.mark.parametrize("bad", [(0.9, 1.0), (-0.1, 0.9), (0.9,)])
def test_the_betas_of_adam_are_less_than_1(bad):
    with pytest.raises(ValueError, match="betas"):
        arx.Adam(betas=bad)


def refused():
    world = arx.world()
    optimizer = arx.ShardedOptimizer(numbers(1), arx.SGD())
    wrong = numbers(2)
    if world.rank == 0:
        wrong["w"] = wrong["w"].T
    refusal = outcome(optimizer.step, wrong)
    if world.rank == 0:
        assert_refused(refusal, "ValueError", "'w'", "(11, 37)", "(37, 11)")
    else:
        assert_refused(refusal, "MismatchError", "'w'")
    check_usable()
    assert_refused(outcome(arx.ShardedOptimizer, np.ones(3, int), arx.SGD()), "TypeError", "int64")
    assert_refused(outcome(arx.ShardedOptimizer, [np.ones(3), np.ones(3, "f4")], arx.SGD()), "ValueError", "one dtype")
    assert_refused(outcome(arx.ShardedOptimizer, [3.0], arx.SGD()), "TypeError", "float")


def test_what_is_refused(ranks):
    ranks(2).run(refused)


# What rank 1 of three has instead of "a", "b" and "c"; and what all of them then say.
DISAGREEMENTS = {
    "order": (lambda: named("cab"), ["another order", "'a' on ranks 0, 2", "'c' on rank 1"]),
    "name": (lambda: named("abz"), ["rank 1: extra 'z', missing 'c'"]),
    "shape": (
        lambda: named("ab") | {"c": np.ones((4, 1))},
        ["'c' is", "float64 (4,) on ranks 0, 2", "(4, 1) on rank 1"],
    ),
    "list": (lambda: list(named("abc").values()), ["rank 1: extra '0', '1', '2', missing 'a', 'b', 'c'"]),
}


def named(letters):
    return {letter: np.full(4, 100.0 * (ord(letter) - 96)) for letter in letters}


def optimizes(kind):
    parameters = DISAGREEMENTS[kind][0]() if arx.rank() == 1 else named("abc")
    refusal = outcome(arx.ShardedOptimizer, parameters, arx.SGD(lr=1.0))
    check_usable()
    return refusal


@pytest.mark.parametrize("kind", DISAGREEMENTS)
def test_parameters_that_differ_between_ranks_are_named(ranks, kind):
    for refusal in ranks(3).run(optimizes, kind):
        assert_refused(refusal, "MismatchError", "ShardedOptimizer", *DISAGREEMENTS[kind][1])


# What one rank is refused, with the reason that all ranks hear.
BAD_ARGUMENTS = {
    "None": (lambda: (None, arx.SGD()), "TypeError", "NoneType"),
    "integers": (lambda: (np.ones(3, int), arx.SGD()), "TypeError", "int64"),
    "one twice": (lambda: ([np.ones(3)] * 2, arx.SGD()), "ValueError", "arrays '0' and '1' have memory in common"),
    "a rule's name": (lambda: (np.ones(3), "sgd"), "TypeError", "arx.SGD(...)"),
    "a rule's class": (lambda: (np.ones(3), arx.SGD), "TypeError", "arx.SGD(...)"),
}


def refused_on_one_rank(kind):
    parameters, rule = BAD_ARGUMENTS[kind][0]() if arx.rank() == 1 else (np.ones(3), arx.SGD())
    refusal = outcome(arx.ShardedOptimizer, parameters, rule)
    check_usable()
    return refusal


@pytest.mark.parametrize("kind", BAD_ARGUMENTS)
def test_an_argument_refused_on_one_rank_raises_on_all(ranks, kind):
    _, error, word = BAD_ARGUMENTS[kind]
    for rank, refusal in enumerate(ranks(3).run(refused_on_one_rank, kind)):
        if rank == 1:
            assert_refused(refusal, error, word)
        else:
            assert_refused(refusal, "MismatchError", "rank 1", "could not take part", word)


def other_rules():
    refusal = outcome(arx.ShardedOptimizer, np.ones(3), arx.Adam() if arx.rank() else arx.SGD())
    check_usable()
    return refusal


def test_rules_that_differ_between_ranks(ranks):
    for refusal in ranks(2).run(other_rules):
        assert_refused(refusal, "MismatchError", "SGD", "Adam")


def by_name():
    """Gradients are matched by name on each rank; a rank that has others tells them."""
    world = arx.world()
    parameters = named("abc")
    optimizer = arx.ShardedOptimizer(parameters, arx.SGD(lr=1.0))
    letters = "cab" if world.rank else "abc"
    optimizer.step({letter: np.full(4, float(ord(letter) - 96)) for letter in letters})
    assert {name: x.tolist() for name, x in parameters.items()} == {"a": [99.0] * 4, "b": [198.0] * 4, "c": [297.0] * 4}
    refusal = outcome(optimizer.step, named("abz" if world.rank else "abc"))
    check_usable()
    if world.rank:
        assert_refused(refusal, "ValueError", "'z': (4,) instead of none", "'c': none instead of (4,)")
    else:
        assert_refused(refusal, "MismatchError", "rank 1", "'z'")


def test_gradients_are_matched_by_name(ranks):
    ranks(2).run(by_name)
