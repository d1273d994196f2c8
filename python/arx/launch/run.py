"""`arx run`: starts a job's ranks and lives as long as they do (see `guard` for the two processes that it is)."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

from arx.errors import InitError
from arx.launch import detect, guard, keeper, master, near, output, share, spawn
from arx.launch.command import Job, UsageError, command
from arx.launch.hosts import Hosts
from arx.launch.ranks import Crew, Ranks


def run(job: Job) -> int:
    """Runs a job to its end; returns the exit code. Raises `UsageError` if the job cannot be started at all."""
    env = spawn.job_environment(os.environ, job.env, job.timeout)
    console = output.Console()
    try:
        crew, mine = _on_hosts(job, env, console) if job.hosts else _here(job, env)
    except InitError as error:
        raise UsageError(str(error)) from None
    if job.log_dir is not None:
        try:
            os.makedirs(job.log_dir, exist_ok=True)
        except OSError as error:
            raise UsageError(f"--log-dir {job.log_dir}: {error.strerror}") from None

    def work(lifeline: int) -> Callable[[], int]:
        return keeper.Keeper(job, crew, mine, console, lifeline).run

    return guard.guarded(work, "arx run")


def _here(job: Job, env: Mapping[str, str]) -> tuple[Crew, share.Share]:
    """The ranks of this host, which are all or, with launchers on other hosts, some of them."""
    mine = share.one_of(job.nodes, job.node_rank, job.n)
    if job.nodes == 1:
        identity = share.fresh()
    else:
        assert job.master is not None  # the command line says so
        identity = share.in_common(master.checked(job.master, "--master"), _secret(job.master))
    env = {**env, **mine.environment(), **identity.environment()}
    streams = (job.prefix == "auto" and mine.world > 1) or job.log_dir is not None
    ranks = Ranks(command(job, env), env, mine, streams=streams, bind=job.bind, stdin=True)
    return ranks, mine


def _secret(address: str) -> str | None:
    secret = os.environ.get("ARX_SECRET")
    if not secret and not master.is_loopback(address):
        raise UsageError(
            "--nnodes: the launchers must have a secret in common, the same on every host, by which their ranks know "
            f"each other: {detect.MAKE_A_SECRET} on one, and the same value on the others"
        )
    return secret or None


def _on_hosts(job: Job, env: Mapping[str, str], console: output.Console) -> tuple[Crew, share.Share]:
    """The ranks of all hosts, by way of an agent on each."""
    identity = share.fresh()
    hosts = [host for host, _ in job.hosts]
    address = job.master or near.master_for(hosts, identity.job_id, master.allowed(env))
    identity = share.Identity(identity.job_id, identity.secret, address and master.checked(address, "--master"))
    return Hosts(job, env, identity, console), share.alone(sum(n for _, n in job.hosts))
