"""Any op, dtype, layout, shape, memory and number of ranks: equal to numpy, bit for bit."""

import layouts
import oracle
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

RANKS = st.integers(1, 9)
MEMORY = st.sampled_from(["private", "symmetric"])
LAYOUTS = st.sampled_from([*layouts.LAYOUTS, "each"])
# Small shapes of any kind, and long ones that take the staged and the symmetric path.
SHAPES = st.one_of(
    st.lists(st.integers(0, 6), max_size=5).map(tuple),
    st.integers(0, 200_000).map(lambda n: (n,)),
    st.tuples(st.integers(1, 400), st.integers(1, 400)),
)
REDUCTIONS = st.sampled_from([(op, name) for op in oracle.OPS for name in oracle.DTYPES if oracle.allowed(op, name)])


@pytest.mark.timeout(900)
@settings(max_examples=400)
@given(RANKS, REDUCTIONS, SHAPES, LAYOUTS, MEMORY)
@example(4, ("sum", "float16"), (3, 0), "fortran", "symmetric")
@example(9, ("prod", "complex64"), (), "reversed_", "private")
def test_all_reduce_in_place(ranks, p, reduction, shape, layout, memory):
    op, name = reduction
    ranks(p).run(layouts.in_place, layout, memory, name, shape, op)


@pytest.mark.timeout(900)
@settings(max_examples=200)
@given(RANKS, REDUCTIONS, SHAPES, LAYOUTS, MEMORY)
def test_all_reduce_into_out(ranks, p, reduction, shape, layout, memory):
    op, name = reduction
    ranks(p).run(layouts.into_out, layout, memory, name, shape, op)


@pytest.mark.timeout(900)
@settings(max_examples=200)
@given(RANKS, st.integers(0, 8), st.sampled_from(list(oracle.DTYPES)), SHAPES, LAYOUTS, MEMORY)
def test_broadcast(ranks, p, root, name, shape, layout, memory):
    ranks(p).run(layouts.broadcast, layout, memory, name, shape, root)
