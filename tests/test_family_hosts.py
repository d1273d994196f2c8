"""The family between hosts, and over TCP on one: the same exact values as on one host."""

import familycases
import pytest

SITES = ["1", "2", "3", "4", "5", "7", "h0 h1", "h0 h1 h0", "h0 h0 h1 h1", "h0 h0 h0 h1 h2 h2"]


@pytest.mark.parametrize("where", SITES)
def test_all_gather_and_gather(crew, where):
    for name in ("uint8", "float32"):
        crew(where).run(familycases.gathers, name, "private", "all")


@pytest.mark.parametrize("where", SITES)
def test_scatter(crew, where):
    for name in ("uint8", "float32"):
        crew(where).run(familycases.scatters, name, "private")


@pytest.mark.parametrize("where", SITES)
def test_all_to_all(crew, where):
    for name in ("uint8", "float32"):
        crew(where).run(familycases.alltoalls, name, "private")


@pytest.mark.parametrize("where", SITES)
def test_reduce(crew, where):
    for op, name in (("sum", "float32"), ("avg", "float16"), ("bxor", "uint8")):
        crew(where).run(familycases.reductions, name, op, "private")


@pytest.mark.parametrize("where", SITES)
def test_reduce_scatter(crew, where):
    for op, name in (("sum", "float32"), ("sum", "bfloat16"), ("bxor", "uint8")):
        crew(where).run(familycases.scatterings, name, op, "private")


@pytest.mark.parametrize("where", SITES)
def test_scan_and_exscan(crew, where):
    for op, name in (("sum", "float32"), ("sum", "bfloat16"), ("prod", "int32")):
        crew(where).run(familycases.scans, name, op, "private")
