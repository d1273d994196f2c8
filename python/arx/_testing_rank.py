"""The process of a rank that ``arx.testing`` has started: takes calls, answers them, leaves."""

from __future__ import annotations

import faulthandler
import fcntl
import functools
import importlib
import importlib.util
import os
import pickle
import signal
import sys
import traceback
from multiprocessing import connection
from pathlib import Path
from types import ModuleType
from typing import Any


def serve(link: int, life: int) -> None:
    """Answer calls until the last one, or until one raises: a rank that has failed leaves, so that its peers notice."""
    _end_with_the_runner(life)
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)
    os.set_inheritable(link, False)
    calls = connection.Connection(link)
    process = os.getpid()
    last = False
    while not last:
        try:
            module, path, qualname, args, last = pickle.loads(calls.recv_bytes())
        except EOFError:
            return
        try:
            fn = member(_module(module, path), qualname)
            answer = pickle.dumps((fn(*pickle.loads(args)), None))
        except SystemExit:
            raise
        except BaseException as error:
            if os.getpid() != process:
                raise
            where = error.__traceback__.tb_next if error.__traceback__ else None
            text = "".join(traceback.format_exception(error.with_traceback(where)))
            calls.send_bytes(pickle.dumps((None, text)))
            sys.exit(1)
        if os.getpid() != process:
            return  # a fork that came back from `fn`: the rank itself answers
        calls.send_bytes(answer)


def member(module: ModuleType | None, qualname: str) -> Any:
    """What ``module`` has under a dotted name."""
    return functools.reduce(getattr, qualname.split("."), module)


def join() -> None:
    """Make this process a rank of its group."""
    import arx

    arx.init()


def leave() -> None:
    """Take this process out of its group."""
    import arx

    arx.shutdown()


def _end_with_the_runner(life: int) -> None:
    """Ask for SIGKILL to this rank and all that it starts, when the other end of ``life`` closes.

    Not PR_SET_PDEATHSIG: that comes when the *thread* that started the rank ends, and spares what the rank has started.
    """
    os.set_inheritable(life, False)
    fcntl.fcntl(life, fcntl.F_SETOWN, -os.getpgrp())
    fcntl.fcntl(life, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(life, fcntl.F_SETFL, fcntl.fcntl(life, fcntl.F_GETFL) | os.O_ASYNC)


def _module(name: str, path: str | None) -> ModuleType:
    """The module that the runner knows as ``name``: imported where the same file is found, else loaded from it."""
    # A script is not run again as "__main__", which would start ranks in its turn, but under multiprocessing's name.
    wanted = "__mp_main__" if name == "__main__" else name
    known = sys.modules.get(wanted)
    if known is not None and getattr(known, "__file__", None) == path:
        return known
    spec = importlib.util.find_spec(name) if name != "__main__" else None
    if path is None or (spec and spec.origin and Path(spec.origin).exists() and Path(spec.origin).samefile(path)):
        return importlib.import_module(name)
    spec = importlib.util.spec_from_file_location(wanted, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"cannot load {path}")
    module = importlib.util.module_from_spec(spec)
    # Under both names, so that pickles made on either side find their classes.
    sys.modules[wanted] = sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
