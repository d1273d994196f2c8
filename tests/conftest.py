"""Ranks that are started once and used by many tests."""

import hypothesis
import pytest

from arx.testing import Ranks

# A group of ranks on a busy machine has no predictable pace; a hang is what the watchdog of the ranks is for.
hypothesis.settings.register_profile("arx", deadline=None, print_blob=True)
hypothesis.settings.load_profile("arx")


@pytest.fixture(scope="session")
def ranks():
    """``ranks(n)``: n ranks that have called ``arx.init()``; those that a failed test has broken are replaced."""
    started = {}

    def get(n):
        if n not in started or started[n].broken:
            started[n] = Ranks(n)
        return started[n]

    yield get
    for group in started.values():
        group.close()
