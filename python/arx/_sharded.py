"""`ShardedOptimizer`: every rank keeps the optimizer's state of, and updates, only its share of the parameters.

                                                     over the wire    to update    to keep
    all-reduce, then everybody updates everything         2 n             n           n
    reduce-scatter, update the share, all-gather          n + n           n/p         n/p

Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", SC 2020 (stage 1 with
sharded gradients).
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any, Protocol

from arx import _arx
from arx._agreement import agree
from arx._memory import empty
from arx._overlap import ensure_apart

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    Array = NDArray[Any]


class Rule(Protocol):
    """How parameters change: element by element, so that it does not matter how they are cut."""

    def state(self, like: Array) -> dict[str, Array]:
        """Return the state of parameters like these, before the first step."""
        ...

    def update(self, parameters: Array, gradients: Array, state: dict[str, Array], step: int) -> None:
        """Do step number `step`, from 1, in place; `gradients` may be overwritten."""
        ...


@dataclasses.dataclass(frozen=True)
class SGD:
    """Stochastic gradient descent with momentum: v = momentum v + g; p = p - lr v (as torch.optim.SGD does it).

    Attributes:
        lr: step length.
        momentum: from 0 to 1.
        weight_decay: times p is added to g.
    """

    lr: float = 0.01
    momentum: float = 0.0
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        """Check the numbers."""
        _ensure_from_0(lr=self.lr, momentum=self.momentum, weight_decay=self.weight_decay)

    def state(self, like: Array) -> dict[str, Array]:
        """Return a velocity of zeros, if there is momentum."""
        import numpy as np

        return {"velocity": np.zeros_like(like)} if self.momentum else {}

    def update(self, parameters: Array, gradients: Array, state: dict[str, Array], step: int) -> None:
        """Do one step in place."""
        import numpy as np

        del step
        direction, kind = gradients, parameters.dtype.type
        if self.weight_decay:
            gradients += kind(self.weight_decay) * parameters
        if self.momentum:
            direction = state["velocity"]
            direction *= kind(self.momentum)
            direction += gradients
        np.multiply(direction, kind(self.lr), out=gradients)
        parameters -= gradients


@dataclasses.dataclass(frozen=True)
class Adam:
    """Adam (Kingma and Ba, ICLR 2015, algorithm 1).

    Attributes:
        lr: step length.
        betas: decay of the first and the second moment.
        eps: added to the root of the second moment.
        weight_decay: times lr p is taken from p (Loshchilov and Hutter, ICLR 2019: AdamW).
    """

    lr: float = 0.001
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        """Check the numbers."""
        _ensure_from_0(lr=self.lr, eps=self.eps, weight_decay=self.weight_decay)
        if len(self.betas) != 2 or not all(0.0 <= beta < 1.0 for beta in self.betas):
            msg = f"betas must be two numbers of at least 0 and less than 1, not {self.betas!r}"
            raise ValueError(msg)

    def state(self, like: Array) -> dict[str, Array]:
        """Return moments of zeros."""
        import numpy as np

        return {"first": np.zeros_like(like), "second": np.zeros_like(like)}

    def update(self, parameters: Array, gradients: Array, state: dict[str, Array], step: int) -> None:
        """Do one step in place."""
        import numpy as np

        kind = parameters.dtype.type
        (b1, b2), first, second = self.betas, state["first"], state["second"]
        if self.weight_decay:
            parameters *= kind(1 - self.lr * self.weight_decay)
        first *= kind(b1)
        first += kind(1 - b1) * gradients
        second *= kind(b2)
        np.square(gradients, out=gradients)
        gradients *= kind(1 - b2)
        second += gradients
        root = np.sqrt(second, out=gradients)
        root /= kind(math.sqrt(1 - b2**step))
        root += kind(self.eps)
        np.divide(first, root, out=root)
        root *= kind(self.lr / (1 - b1**step))
        parameters -= root


def _ensure_from_0(**numbers: float) -> None:
    for name, number in numbers.items():
        if not 0.0 <= number < math.inf:
            msg = f"{name} must be a finite number from 0, not {number!r}"
            raise ValueError(msg)


class ShardedOptimizer:
    """An optimizer of which each rank keeps a share: 1/size of the state, and 1/size of the work of an update.

    On one host the parameters after a step have the bits that `arx.all_reduce(gradient, "avg")` and the same rule on
    every rank would give them.

        optimizer = arx.ShardedOptimizer(parameters, arx.Adam(lr=1e-3))     # a dict or list of float arrays
        for batch in batches:
            gradients = backward(...)                                       # the same names and shapes
            optimizer.step(gradients)

    Args:
        parameters: numpy arrays of one float dtype, by name or as a list, or a single one; the same on all ranks, in
            the same order, where they must hold the same values. They are changed in place; no two may have an element
            in common.
        rule: `arx.SGD(...)`, `arx.Adam(...)`, or an object with their two methods.
        group: whose ranks share the work; instead of the world. Making an optimizer is a collective call.

    Raises:
        TypeError, ValueError: no numpy arrays, no float dtype, more than one dtype, or no rule; the other ranks raise
            `MismatchError`.
        MismatchError: ranks have other names, another order, other shapes or dtypes, or a rule of another kind. It says
            which.
    """

    def __init__(self, parameters: Any, rule: Rule, *, group: _arx.Group | None = None) -> None:
        """Prepare to optimize `parameters`, once all ranks have the same."""
        self._group = _arx.world() if group is None else group
        try:
            self._prepare(parameters, rule)
        except Exception as error:
            raise self._group._refuse(error) from None
        kinds = [(name, f"{x.dtype} {x.shape}") for name, x in zip(self._names, self._parameters, strict=True)]
        agree(f"ShardedOptimizer with {type(rule).__name__}", kinds, self._group)

    def _prepare(self, parameters: Any, rule: Rule) -> None:
        """Do what needs no other rank."""
        if isinstance(rule, type) or not all(callable(getattr(rule, name, None)) for name in ("state", "update")):
            given = f"the class {rule.__name__}" if isinstance(rule, type) else type(rule).__name__
            msg = f"rule must be arx.SGD(...), arx.Adam(...) or an object with their two methods, not {given}"
            raise TypeError(msg)
        self._names, self._parameters = _listed(parameters)
        ensure_apart("ShardedOptimizer", self._parameters, self._names)
        self._rule, self._steps = rule, 0
        dtype = _dtype_of(self._parameters)
        count = sum(x.size for x in self._parameters)
        self._share = -(-count // self._group.size)
        padded = self._share * self._group.size
        # In memory that the ranks of a host read from each other; the last share may be longer than what is left.
        self._flat, self._gradients = empty(padded, dtype), empty(padded, dtype)
        mine = slice(self._group.rank * self._share, (self._group.rank + 1) * self._share)
        self._mine, self._reduced = self._flat[mine], self._gradients[mine]
        _copy_in(self._flat, self._parameters)
        self._state = rule.state(self._mine)
        # One array that needs no padding takes the parameters as they come; others are filled from what has come.
        (first, *more), plain = self._parameters, type(self._flat)
        straight = count == padded and not more and type(first) is plain and first.flags.c_contiguous
        self._updated = first.reshape(-1) if straight else self._flat

    def step(self, gradients: Mapping[str, Array] | Sequence[Array] | Array) -> None:
        """Average `gradients` over all ranks and change the parameters; a collective call.

        Args:
            gradients: as the parameters: the same names or order, and shapes. They are only read.

        Raises:
            ValueError: names or shapes are not those of the parameters.
            ArxError: as `arx.all_reduce`. The parameters are then unspecified.
        """
        try:
            listed = self._checked(gradients)
        except (TypeError, ValueError) as error:
            raise self._group._refuse(error) from None
        _copy_in(self._gradients, listed)
        self._group.reduce_scatter(self._gradients, "avg", out=self._reduced, name="sharded gradients")
        self._steps += 1
        self._rule.update(self._mine, self._reduced, self._state, self._steps)
        self._group.all_gather(self._mine, out=self._updated, name="sharded parameters")
        if self._updated is self._flat:
            _copy_out(self._parameters, self._flat)

    @property
    def state_bytes(self) -> int:
        """Bytes of optimizer state on this rank."""
        return sum(x.nbytes for x in self._state.values())

    def state_dict(self) -> dict[str, Any]:
        """Return this rank's share of the state, to be saved beside those of the others."""
        return {"steps": self._steps, "state": {name: x.copy() for name, x in self._state.items()}}

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` of the same rank, among as many, returned; the parameters as they are now.

        Raises:
            ValueError: it is the state of other parameters, of another rule, or among another number of ranks.
        """
        shapes = {name: x.shape for name, x in self._state.items()}
        found = {name: x.shape for name, x in saved["state"].items()}
        if shapes != found:
            msg = f"this is the state of something else: it has {found}, expected {shapes}"
            raise ValueError(msg)
        self._steps = saved["steps"]
        for name, x in saved["state"].items():
            self._state[name][...] = x
        _copy_in(self._flat, self._parameters)

    def _checked(self, gradients: Any) -> list[Array]:
        names, listed = _listed(gradients, self._names)
        wanted = {name: x.shape for name, x in zip(self._names, self._parameters, strict=True)}
        found = {name: x.shape for name, x in zip(names, listed, strict=True)}
        if found != wanted:
            differ = [name for name in wanted | found if wanted.get(name) != found.get(name)]
            words = ", ".join(f"{n!r}: {found.get(n, 'none')} instead of {wanted.get(n, 'none')}" for n in differ)
            msg = f"gradients are not of the shapes of the parameters: {words}"
            raise ValueError(msg)
        return listed


def _listed(arrays: Any, order: Sequence[str] | None = None) -> tuple[list[str], list[Array]]:
    """Return names and arrays; of a dict in the order of `order`, if it has the same names."""
    import numpy as np

    if isinstance(arrays, np.ndarray):
        arrays = [arrays]
    if hasattr(arrays, "keys"):
        names = list(order) if order is not None and set(order) == set(arrays) else list(arrays)
        listed = [arrays[name] for name in names]
    else:
        listed = list(arrays)
        names = [str(k) for k in range(len(listed))]
    for name, x in zip(names, listed, strict=True):
        if not isinstance(x, np.ndarray):
            msg = f"ShardedOptimizer takes numpy arrays; {name!r} is a {type(x).__name__}"
            raise TypeError(msg)
    return names, listed


def _dtype_of(arrays: Sequence[Array]) -> Any:
    dtypes = {x.dtype for x in arrays}
    if len(dtypes) != 1:
        msg = f"ShardedOptimizer takes parameters of one dtype, not {', '.join(map(str, dtypes)) or 'none'}"
        raise ValueError(msg)
    (dtype,) = dtypes
    if dtype.kind != "f" and dtype.name != "bfloat16":
        msg = f"ShardedOptimizer takes floats, not {dtype}"
        raise TypeError(msg)
    return dtype


def _copy_in(flat: Array, arrays: Sequence[Array]) -> None:
    at = 0
    for x in arrays:
        flat[at : at + x.size].reshape(x.shape)[...] = x
        at += x.size


def _copy_out(arrays: Sequence[Array], flat: Array) -> None:
    at = 0
    for x in arrays:
        x[...] = flat[at : at + x.size].reshape(x.shape)
        at += x.size
