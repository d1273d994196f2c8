"""`arx run`: starts a job's ranks on this host and lives as long as they do.

The launcher is two processes, because each can clean up after the other:

    run      what the user started: has the terminal, hears its signals, passes them on; does nothing else, so it can
     │       only die by SIGKILL, which the keeper sees (the lifeline pipe closes) and answers by killing the job
     └─ keeper   does the work; should it die, its ranks get SIGKILL from the kernel (parent-death signal), and their
          │      own children, which become `run`'s because it adopts orphans, get it from `run`
          ├─ rank 0
          └─ rank 1 …
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Mapping, Sequence

from arx.launch import keeper, spawn, tree
from arx.launch.command import Job, UsageError, command


def run(job: Job) -> int:
    """Runs a job to its end; returns the exit code. Raises `UsageError` if the job cannot be started at all."""
    env = spawn.job_environment(os.environ, job.env, job.n, job.timeout)
    argv = command(job, env)
    if job.log_dir is not None:
        try:
            os.makedirs(job.log_dir, exist_ok=True)
        except OSError as error:
            raise UsageError(f"--log-dir {job.log_dir}: {error.strerror}") from None
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ignored, as some parents leave it, it would hide how children end
    tree.adopt_orphans()
    strangers = set(tree.descendants(os.getpid()))  # of a shell that became this process by `exec`
    lifeline, held = os.pipe()
    heard = {signal.SIGCHLD, *keeper.handled()}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, heard)  # none is lost between fork and the loop below
    for stream in filter(None, (sys.stdout, sys.stderr)):
        stream.flush()  # else the child would write it a second time
    child = os.fork()
    if child == 0:
        os.close(held)
        _keep(job, argv, env, lifeline, before)
    os.close(lifeline)
    code = _relay(child, heard)
    tree.kill_all(without=strangers)
    if code < 0:
        print(f"arx run: its keeper (pid {child}) died of signal {-code}, so all ranks were killed", file=sys.stderr)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    os.close(held)
    return code if code >= 0 else 128 - code


def _keep(
    job: Job, argv: Sequence[str], env: Mapping[str, str], lifeline: int, mask: set[int | signal.Signals]
) -> None:
    """The keeper's whole life; never returns."""
    code = 1
    try:
        os.setsid()  # so that the terminal's signals come once, by way of `run`
        tree.adopt_orphans()
        warden = keeper.Keeper(job, argv, env, lifeline)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        code = warden.run()
    except UsageError as error:
        os.write(2, f"arx run: error: {error}\n".encode())
        code = 2
    except BaseException:
        os.write(2, traceback.format_exc().encode())
    finally:
        os._exit(code)


def _relay(child: int, heard: set[signal.Signals]) -> int:
    """Passes every signal on to the keeper until it ends; returns its exit code, negative for a signal."""
    while True:
        number = signal.sigwait(heard)
        if number == signal.SIGCHLD:
            pid, status = os.waitpid(child, os.WNOHANG)
            if pid == child:
                return os.waitstatus_to_exitcode(status)
        else:
            os.kill(child, number)
        if number == signal.SIGTSTP:
            os.kill(os.getpid(), signal.SIGSTOP)
