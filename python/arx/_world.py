"""Life of the world: finding this process's place, meeting the others, leaving."""

from __future__ import annotations

import atexit
import os
import sys
from collections import Counter
from typing import TYPE_CHECKING

from arx import _arx, errors
from arx.errors import InitError

if TYPE_CHECKING:
    from arx.launch.place import Place

_place: Place | None = None
_joined: Counter[str] = Counter()
_registered = False
_worker: int | None = None  # the process of multiprocessing that tells the others when it ends


def init(
    *,
    rank: int | None = None,
    world_size: int | None = None,
    master: str | None = None,
    job_id: str | None = None,
    timeout: float | None = None,
    transport: str | None = None,
    secret: str | None = None,
) -> _arx.Group:
    """Join the job that this process was started in and return the group of all ranks, the world.

    The place is found by itself, in this order: these arguments, `ARX_*`, torchrun's variables, `PMI_FD` (MPICH and
    Intel MPI), Open MPI, a Slurm step, and else a world of one, in which every call works and changes nothing.
    `arx env` shows what is found and why.

    On several hosts the ranks meet at `master` and prove to each other that they know `secret`. Launchers mostly say
    the first; the second must be in `ARX_SECRET` unless the launcher is `arx run --hosts`, MPICH's or Intel MPI's.
    `ARX_IFACE` names the network interface to use, `ARX_PORT_RANGE` the ports to listen on, as in 29500-29600, and
    `ARX_HEARTBEAT` the seconds after which a host that does not answer counts as lost (5).

    Calling it again returns the same group. Nothing happens at import.

    Args:
        rank: this process's number, from 0; with `world_size`.
        world_size: how many ranks there are.
        master: HOST:PORT where rank 0 listens, the same on all ranks; several, separated by commas, are tried in turn.
            Not needed on one host.
        job_id: what the ranks of one job have in common and no other job has.
        timeout: seconds without progress after which any call of this group gives up, the forming of it included
            (default 300, or `ARX_TIMEOUT`).
        transport: "auto" (memory inside a host, TCP between hosts), "shm" (one host only) or "tcp" (inside a host
            too); default `ARX_TRANSPORT`, or "auto".
        secret: what only the ranks of this job know, needed unless all connections stay inside a host.

    Raises:
        InitError: the place is not well described, or is taken.
        RendezvousError: not all ranks came in time.
        PeerLostError: a rank died meanwhile.
    """
    global _place
    if _arx.is_initialized():
        _check_again(rank, world_size, job_id)
        return _arx.world()
    for name, text in (("job_id", job_id), ("master", master), ("secret", secret), ("transport", transport)):
        if text is not None and not isinstance(text, str):
            msg = f"{name} must be a string, not {type(text).__name__}"
            raise TypeError(msg)
    # Not at the top: who imports arx only to look at it, or to launch, does not pay for it.
    from arx.launch.blame import teller
    from arx.launch.detect import TAKEN, detect, transport_of
    from arx.launch.master import allowed, ensure_enough

    if rank is None:
        _refuse_heir(os.environ.get(TAKEN, ""))
    limit = _seconds(timeout, "ARX_TIMEOUT", 300.0)
    transport = transport_of(os.environ, transport)
    ports = allowed(os.environ)
    iface, port_range = (os.environ.get(name, "").strip() or None for name in ("ARX_IFACE", "ARX_PORT_RANGE"))
    place = detect(
        os.environ,
        rank=rank,
        world_size=world_size,
        job_id=job_id,
        master=master,
        secret=secret,
        transport=transport,
        timeout=limit,
        listen=lambda address: _arx.listen(address, iface, port_range),
    )
    if port_range and place.master and place.world_size > 1:
        ensure_enough(ports, place.local_size or 1)
    errors.on_loss = teller(os.environ, place)  # now, for ranks can be lost while they meet
    group = _arx.connect(
        {
            "rank": place.rank,
            "world_size": place.world_size,
            "job_id": place.job_id,
            "generation": _joined[place.job_id],
            "timeout": limit,
            "spin_us": _seconds(None, "ARX_SPIN_US", -1.0),
            "tune": os.environ.get("ARX_TUNE") or _tuned(),
            "algo": os.environ.get("ARX_ALGO", "auto"),
            "master": place.master,
            "secret": place.secret,
            "transport": transport,
            "iface": iface,
            "port_range": port_range,
            "heartbeat": _seconds(None, "ARX_HEARTBEAT", 5.0),
            "listening": place.listening,
        }
    )
    _joined[place.job_id] += 1
    _place = place
    if place.world_size > 1:
        os.environ[TAKEN] = f"{os.getpid()} {_identity()}"
    _register()
    return group


def shutdown() -> None:
    """Leave the world. Ranks that still need this one get `PeerLostError` at once. Harmless when called twice.

    Done by itself at the end of the program. `init` may be called again afterwards, on all ranks.
    """
    global _place
    _place = None
    _arx.shutdown()


def monitored_barrier(timeout: float | None = None, *, group: _arx.Group | None = None) -> None:
    """Return when every rank of the group has called it; otherwise raise, on every rank that has, and name the others.

    What `arx.barrier` does, under the name that torch.distributed has for it: here every barrier is monitored.

    Args:
        timeout: seconds to wait for the others, instead of the group's.
        group: instead of the world.

    Raises:
        CollectiveTimeout: its `missing` are the ranks that did not come in time. The group is closed.
        PeerLostError: its `ranks` are gone.
    """
    _arx.barrier(group=group, timeout=timeout)


def rank() -> int:
    """Return this process's number in the world, from 0."""
    return _arx.world().rank


def size() -> int:
    """Return the number of ranks in the world."""
    return _arx.world().size


def local_rank() -> int:
    """Return this process's number among the ranks of its host."""
    return _told(_here().local_rank, _arx.world().local_rank)


def local_size() -> int:
    """Return the number of ranks on this host."""
    return _told(_here().local_size, _arx.world().local_size)


def node_rank() -> int:
    """Return the number of this host."""
    return _told(_here().node_rank, _arx.world().node_rank)


def num_nodes() -> int:
    """Return the number of hosts."""
    return _told(_here().num_nodes, _arx.world().num_nodes)


def _here() -> Place:
    _arx.world()  # raises the right error where there is none
    assert _place is not None
    return _place


def _told(by_launcher: int | None, found: int) -> int:
    """Return what the launcher said, or else what the ranks found out when they met."""
    return found if by_launcher is None else by_launcher


def _check_again(rank: int | None, world_size: int | None, job_id: str | None) -> None:
    here = _here()
    asked = {"rank": rank, "world_size": world_size, "job_id": job_id}
    for key, value in asked.items():
        if value is not None and value != getattr(here, key):
            now = getattr(here, key)
            msg = f"arx is already initialised with {key}={now!r}; init({key}={value!r}) needs arx.shutdown() first"
            raise InitError(msg)


def _identity() -> str:
    """Return what distinguishes this launch from another one that this process might make for its children."""
    names = ("ARX_JOB_ID", "ARX_RANK", "RANK", "MASTER_PORT", "PMI_FD", "PMI_RANK", "PMIX_NAMESPACE", "PMIX_RANK",
             "SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_PROCID")  # fmt: skip
    return "|".join(os.environ.get(name, "") for name in names)


def _refuse_heir(taken: str) -> None:
    """Raise in a child process that inherited the variables of a rank: the place they describe is its parent's."""
    pid, _, identity = taken.partition(" ")
    if pid and pid != str(os.getpid()) and identity == _identity():
        msg = (
            f"process {os.getpid()} inherited the environment of a rank whose place is already taken by process {pid}: "
            "a child of a rank is not a rank. Call arx.init() under `if __name__ == '__main__':`, or start ranks with "
            "`arx run`"
        )
        raise InitError(msg)


def _seconds(given: float | None, variable: str, default: float) -> float:
    text = os.environ.get(variable)
    if given is not None:
        if isinstance(given, str) or not hasattr(given, "__float__"):
            msg = f"timeout must be a number of seconds, not {type(given).__name__}"
            raise TypeError(msg)
        return float(given)
    if not text:
        return default
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if number < 0 or number != number:
        msg = f"{variable}={text!r} is not a number from 0"
        raise InitError(msg)
    return number


def tune_file() -> str:
    """Return where `arx tune` leaves what it found."""
    return os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "arx", "tune")


def _tuned() -> str | None:
    try:
        with open(tune_file(), encoding="ascii") as file:
            return file.read().strip() or None
    except (OSError, UnicodeDecodeError):  # nobody has tuned here
        return None


def _register() -> None:
    global _registered, _worker
    if not _registered:
        _registered = True
        atexit.register(_at_exit)
        os.register_at_fork(after_in_child=_after_fork_in_child)
    starter = sys.modules.get("multiprocessing.process")
    if starter is not None and starter.parent_process() is not None and _worker != os.getpid():
        # It runs nothing that is registered above, and forgets what its parent has registered here.
        from multiprocessing import util

        _worker = os.getpid()
        util.Finalize(None, _at_end_of_worker, exitpriority=0)


def _at_exit() -> None:
    """Leave the world with the program; the others are told if it ends with an exception."""
    # At a prompt the last exception is some earlier line's.
    _arx.shutdown(getattr(sys, "last_value", None) is not None and not hasattr(sys, "ps1"))


def _at_end_of_worker() -> None:
    """Do the same in a process that multiprocessing has started."""
    error = sys.exc_info()[1]
    _arx.shutdown(error is not None and not isinstance(error, SystemExit))


def _after_fork_in_child() -> None:
    errors.on_loss = None  # a child of a rank is not a rank
    for descriptor in _arx._after_fork_in_child():
        os.close(descriptor)
