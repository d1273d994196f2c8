"""One rank of any library: rank.py BACKEND PLAN OUTPUT. Rank 0 writes a line of JSON per size and form to OUTPUT."""

from __future__ import annotations

import contextlib
import faulthandler
import json
import sys
from importlib import import_module

from workloads.method import Backend, Plan, measure, settle


def main(name: str, plan: Plan, output: str) -> None:
    # A launcher that is killed may leave its ranks behind, waiting for one another.
    faulthandler.dump_traceback_later(plan.timeout, exit=True)
    backend: Backend = import_module(f"workloads.with_{name}").Backend()
    module = "all_reduce" if plan.collective == "all_reduce" else "family"
    cases = import_module(f"workloads.{module}").cases
    settle(backend)
    with open(output, "w") if backend.rank == 0 else contextlib.nullcontext() as lines:
        for nbytes in plan.sizes:
            for case in cases(backend, plan, nbytes):
                sample = measure(backend, case, nbytes, plan.seconds)
                if lines:
                    print(json.dumps(sample), file=lines, flush=True)
    backend.close()
    faulthandler.cancel_dump_traceback_later()


if __name__ == "__main__":
    main(sys.argv[1], Plan(**json.loads(sys.argv[2])), sys.argv[3])
