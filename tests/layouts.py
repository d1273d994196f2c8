"""Ways for an array to lie in memory, and calls that check the array and all that lies around it."""

import numpy as np
import oracle

import arx

EMPTY = {"private": np.empty, "symmetric": arx.empty}


def plain(shape, dtype, empty):
    base = empty(int(np.prod(shape)) + 2, dtype)
    return base, base[1:-1].reshape(shape)


def fortran(shape, dtype, empty):
    base = empty(int(np.prod(shape)) + 2, dtype)
    return base, base[1:-1].reshape(shape[::-1]).T


def reversed_(shape, dtype, empty):
    base, view = plain(shape, dtype, empty)
    return base, view[*(slice(None, None, -1) for _ in shape), ...]


def last_reversed(shape, dtype, empty):
    base, view = plain(shape, dtype, empty)
    return base, view[..., ::-1] if shape else view


def column(shape, dtype, empty):
    base = empty(int(np.prod(shape)) * 3, dtype)
    return base, base.reshape(*shape, 3)[..., 1]


def every_second(shape, dtype, empty):
    doubled = tuple(2 * n for n in shape)
    base = empty(int(np.prod(doubled)), dtype)
    return base, base.reshape(doubled)[*(slice(1, None, 2) for _ in shape), ...]


def last_axis_first(shape, dtype, empty):
    base, view = plain((*shape[-1:], *shape[:-1]), dtype, empty)
    return base, np.moveaxis(view, 0, -1) if shape else view


def unaligned(shape, dtype, empty):
    base = empty(int(np.prod(shape)) * dtype.itemsize + 2, np.uint8)
    return base, base[1:-1].view(dtype).reshape(shape)


LAYOUTS = {
    layout.__name__: layout
    for layout in (plain, fortran, reversed_, last_reversed, column, every_second, last_axis_first, unaligned)
}


def laid_out(layout, x, empty, seed):
    """``x`` in that layout, in memory full of other bytes; returns the memory and the view."""
    base, view = LAYOUTS[layout](x.shape, x.dtype, empty)
    base.view(np.uint8)[...] = oracle.values("uint8", base.nbytes, arx.rank(), seed)
    view[...] = x
    return base, view


def after(layout, base, x, want):
    """What the memory has to hold when the view holds ``want``."""
    copy, view = LAYOUTS[layout](x.shape, x.dtype, np.empty)
    copy.view(np.uint8)[...] = base.view(np.uint8)
    view[...] = want
    return copy


def choose(layout, rank, step=0):
    """The layout of this rank; ``each`` gives every rank another one."""
    return list(LAYOUTS)[(rank + step) % len(LAYOUTS)] if layout == "each" else layout


def in_place(layout, memory, name, shape, op):
    """all_reduce in place on an array of that layout."""
    world = arx.world()
    empty = EMPTY[memory]
    mine = choose(layout, world.rank)
    count = int(np.prod(shape))
    x = oracle.values(name, count, world.rank).reshape(shape)
    base, view = laid_out(mine, x, empty, seed=5)
    want = oracle.reduced(op, name, count, world.size).reshape(shape)
    memory_wanted = after(mine, base, view, want)
    case = f"{op} of {name} {shape}, {mine}"
    assert arx.all_reduce(view, op) is view, case
    oracle.check(view, want, case)
    assert base.tobytes() == memory_wanted.tobytes(), f"{case}: bytes around the view have changed"


def into_out(layout, memory, name, shape, op):
    """all_reduce into an array of another layout, a different one on every rank."""
    world = arx.world()
    empty = EMPTY[memory]
    mine, other = choose(layout, world.rank), choose("each", world.rank, step=3)
    count = int(np.prod(shape))
    x = oracle.values(name, count, world.rank).reshape(shape)
    base, view = laid_out(mine, x, empty, seed=5)
    before = base.tobytes()
    out_base, out = laid_out(other, np.zeros_like(x), empty, seed=6)
    want = oracle.reduced(op, name, count, world.size).reshape(shape)
    memory_wanted = after(other, out_base, out, want)
    case = f"{op} of {name} {shape}, {mine} into {other}"
    assert arx.all_reduce(view, op, out=out) is out, case
    oracle.check(out, want, case)
    assert base.tobytes() == before, f"{case}: x, or what is around it, has changed"
    assert out_base.tobytes() == memory_wanted.tobytes(), f"{case}: bytes around out have changed"


def broadcast(layout, memory, name, shape, root):
    """broadcast from ``root``, a number that is taken modulo the size of the world."""
    world = arx.world()
    empty = EMPTY[memory]
    root %= world.size
    mine = choose(layout, world.rank)
    count = int(np.prod(shape))
    base, view = laid_out(mine, oracle.values(name, count, world.rank).reshape(shape), empty, seed=5)
    want = oracle.values(name, count, root).reshape(shape)
    memory_wanted = after(mine, base, view, want)
    case = f"broadcast of {name} {shape} from {root}, {mine}"
    assert arx.broadcast(view, root) is view, case
    oracle.check(view, want, case)
    assert base.tobytes() == memory_wanted.tobytes(), f"{case}: bytes around the view have changed"
