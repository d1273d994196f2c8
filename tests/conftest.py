"""Ranks that are started once and used by many tests."""

import contextlib
import signal

import hypothesis
import pytest
from hostjob import Launcher
from hostranks import Crews, at_home, on_hosts
from netlab import Lab

from arx.testing import Ranks

# A group of ranks on a busy machine has no predictable pace; a hang is what the watchdog of the ranks is for.
hypothesis.settings.register_profile("arx", deadline=None, print_blob=True)
hypothesis.settings.load_profile("arx")

# What a shell starts in the background ignores the keyboard's signals, and so would all ranks.
for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGQUIT, signal.SIG_DFL)):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, handler)


@pytest.fixture(scope="session")
def ranks():
    """``ranks(n)``: n ranks that have called ``arx.init()``; those that a failed test has broken are replaced."""
    started = {}
    with contextlib.ExitStack() as closing:

        def get(n):
            if n not in started or started[n].broken:
                started[n] = closing.enter_context(Ranks(n))
            return started[n]

        yield get


@pytest.fixture(scope="module")
def lab():
    """Three hosts."""
    with Lab(3) as lab:
        yield lab


@pytest.fixture(scope="module")
def crew():
    """``crew("h0 h1")`` or ``crew("3")``: ranks on hosts or at home that have called ``arx.init()`` (`hostranks`)."""
    with Crews() as crews:
        yield crews


@pytest.fixture
def run(ranks, crew):
    """``run("shared 3", fn, *args)``, or with a site of hosts."""

    def run(where, fn, *args, **options):
        kind, _, count = where.partition(" ")
        party = ranks(int(count)) if kind == "shared" else crew(where)
        return party.run(fn, *args, **options)

    return run


@pytest.fixture
def site(request):
    """``site("h0 h1")`` or ``site("3")``: where ranks are, on hosts of the lab or at home (`hostranks`)."""
    return lambda where: at_home(int(where)) if where.isdecimal() else on_hosts(request.getfixturevalue("lab"), where)


@pytest.fixture
def launch_hosts(lab, tmp_path):
    """``arx run`` on the first of them."""
    return Launcher(lab, tmp_path)
