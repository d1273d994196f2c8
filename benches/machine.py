"""The machine that a figure comes from."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path


def describe() -> dict[str, str]:
    cpuinfo = _cpuinfo()
    return {
        "processor": cpuinfo.get("model name") or platform.machine(),
        "cores": f"{len(os.sched_getaffinity(0))} usable of {os.cpu_count()}",
        "caches": ", ".join(_caches()) or "unknown",
        "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / (1 << 30):.0f} GiB",
        "virtual": "yes" if "hypervisor" in cpuinfo.get("flags", "").split() else "not known to be",
        "system": f"{platform.system()} {platform.release()}, {' '.join(platform.libc_ver())}",
        "python": platform.python_version(),
        "load at the start": f"{os.getloadavg()[0]:.2f}",
    }


def commit() -> str:
    """The commit that this file belongs to, with a plus sign if files have changed since."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--exclude=*", "--dirty=+"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return "unknown"


def _cpuinfo() -> dict[str, str]:
    """What /proc/cpuinfo says of the first processor."""
    try:
        first, _, _ = Path("/proc/cpuinfo").read_text().partition("\n\n")
    except OSError:
        return {}
    return {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in first.splitlines())}


def _caches() -> list[str]:
    """As in 'L2 1024K, CPUs 0'; of the first processor, without those for instructions."""
    found = []
    for folder in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        kind, level, size, shared = ((folder / name).read_text().strip() for name in _ABOUT_A_CACHE)
        if kind != "Instruction":
            found.append(f"L{level} {size} (CPUs {shared})")
    return found


_ABOUT_A_CACHE = ("type", "level", "size", "shared_cpu_list")
