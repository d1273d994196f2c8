"""Who may know whom: the picture on the first page of rust/lib.rs, read off the sources. Starts no rank."""

import ast
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
RUST = ROOT / "rust"
PYTHON = ROOT / "python" / "arx"

# Rooms of the core, each with the rooms that it may name; only rooms further up in this list.
ROOMS = {
    "blocks": set(),
    "dtype": set(),
    "error": set(),
    "sync": set(),
    "machine": set(),
    "wait": {"sync"},
    "kernels": {"dtype"},
    "codec": {"dtype", "kernels"},
    "schedule": set(),
    "select": {"schedule"},
    "plan": {"schedule"},
    "arena": {"error", "sync"},
    "transport": {"arena", "error", "kernels", "sync", "wait"},
    # Of `transport` what is set on a socket.
    "admission": {"error", "transport", "wait"},
    # Of `schedule` only the words for buffers and for what happens with what is received.
    "engine": {"error", "kernels", "plan", "schedule", "transport", "wait"},
    "post": {"error", "kernels", "transport"},
    "health": {"admission", "arena", "error", "sync", "transport", "wait"},
    "direct": {"arena", "blocks", "dtype", "error", "kernels", "sync", "wait"},
    "messages": {"engine", "error", "kernels", "plan", "schedule", "transport", "wait"},
    "hierarchy": {
        *("blocks", "codec", "direct", "dtype", "engine", "error", "kernels", "messages", "plan", "schedule"),
        *("transport", "wait"),
    },
    # Of `direct` only the thresholds on which all ranks must agree, of `health` the roster that tells who has come.
    "rendezvous": {"admission", "arena", "direct", "error", "health", "transport", "wait"},
    # It puts the rooms together.
    "communicator": {
        *(
            "admission",
            "arena",
            "blocks",
            "codec",
            "direct",
            "dtype",
            "engine",
            "error",
            "health",
            "hierarchy",
            "kernels",
        ),
        *("machine", "messages", "post", "rendezvous", "schedule", "select", "sync", "transport", "wait"),
    },
    "progress": {"communicator", "error", "wait"},
    # Of `direct` only the names of the algorithms, of `arena` only a piece of memory for a symmetric array.
    "python": {"arena", "blocks", "codec", "communicator", "direct", "dtype", "error", "kernels", "progress", "wait"},
}
UNSAFE_FILES = {
    "arena/segment.rs",
    "direct/board.rs",
    "direct/peers.rs",
    "kernels/cast.rs",
    "kernels/copy.rs",
    "kernels/x86.rs",
    "transport/tcp/sockets.rs",
    "python/arrays.rs",
    "python/dlpack.rs",
    "python/held.rs",
    "python/host.rs",
    "python/interface.rs",
    "python/memory.rs",
    "python/strided.rs",
    "transport/shm/ring.rs",
}
# Modules of the Python side, each with those that it may import; a package stands for all that is in it.
MODULES = {
    "errors": set(),
    "launch": {"errors", "launch"},
    "_operations": set(),
    "_memory": {"_arx"},
    "_groups": {"_arx"},
    "functional": {"_arx"},
    "_work": {"_arx"},
    "_objects": {"_arx"},
    "compression": {"_arx", "compression"},
    "_agreement": {"_arx", "_objects", "errors"},
    "_overlap": set(),
    "_many": {"_agreement", "_arx", "_overlap", "_work", "compression"},
    "_sharded": {"_agreement", "_arx", "_memory", "_overlap"},
    "_bucketer": {"_agreement", "_arx", "_memory", "_overlap", "compression"},
    "_world": {"_arx", "errors", "launch"},
    "": {
        *("_arx", "_bucketer", "_groups", "_many", "_memory", "_objects", "_operations", "_sharded", "_work", "_world"),
        *("compression", "errors", "functional"),
    },
    "_testing_rank": {""},
    "testing": {"_testing_rank"},
    "tune": {"", "_world"},
    "cli": {"", "errors", "launch", "tune"},
    "__main__": {"cli"},
}


def code(text):
    """A Rust source without comments, and without what a string literal says."""
    return re.sub(r"//[^\n]*", "", re.sub(r'"(?:\\.|[^"\\\n])*"', '""', text))


def room(path):
    return path.relative_to(RUST).parts[0].removesuffix(".rs")


def named_rooms(text):
    """The rooms of the crate that a source names."""
    text = code(text)
    found = set(re.findall(r"\bcrate::(\w+)", text))
    for group in re.findall(r"\bcrate::\{([^;]*)\}", text):
        found |= set(re.findall(r"(?:^|,)\s*(\w+)", re.sub(r"\{[^{}]*\}", "", group)))
    return found


def forbidden(name, text, rooms=ROOMS):
    """The rooms that a source in room ``name`` names and may not."""
    return named_rooms(text) - rooms[name] - {name}


def undocumented(text):
    """Numbers of the lines that open an unsafe block, function or impl without saying why it is sound."""
    lines = text.splitlines()
    found = []
    for number, line in enumerate(lines):
        if not re.search(r"\bunsafe\s*(\{|impl\b|fn \w|trait\b)", code(line)):
            continue
        above = number - 1
        while (
            above >= 0
            and re.match(r"\s*(#\[|//)", lines[above]) is None
            and not re.search(r"(^\s*|[;{}])$", lines[above])
        ):
            above -= 1  # the statement began further up
        comment = []
        while above >= 0 and re.match(r"\s*(#\[|//)", lines[above]):
            comment.append(lines[above])
            above -= 1
        if not re.search(r"SAFETY:|# Safety", "\n".join(comment)):
            found.append(number + 1)
    return found


def rust_files():
    return sorted(path for path in RUST.rglob("*.rs") if path != RUST / "lib.rs")


@pytest.mark.parametrize("path", rust_files(), ids=lambda path: str(path.relative_to(RUST)))
def test_a_room_names_only_rooms_below_it(path):
    assert forbidden(room(path), path.read_text()) == set()


def test_the_rooms_are_the_modules_of_the_crate():
    assert set(re.findall(r"^(?:pub )?mod (\w+);", (RUST / "lib.rs").read_text(), re.MULTILINE)) == set(ROOMS)


def test_the_rooms_are_in_layers():
    names = list(ROOMS)
    assert all(names.index(below) < names.index(name) for name, rooms in ROOMS.items() for below in rooms)


def test_only_one_room_names_pyo3():
    assert {room(path) for path in rust_files() if re.search(r"\bpyo3\b", code(path.read_text()))} == {"python"}


def test_unsafe_stays_in_its_files():
    texts = {str(path.relative_to(RUST)): code(path.read_text()) for path in rust_files()}
    assert "#![deny(unsafe_code)]" in (RUST / "lib.rs").read_text()
    assert {name for name, text in texts.items() if "#![allow(unsafe_code)]" in text} == UNSAFE_FILES
    assert {name for name, text in texts.items() if re.search(r"\bunsafe\b", text)} == UNSAFE_FILES


@pytest.mark.parametrize("name", sorted(UNSAFE_FILES))
def test_every_unsafe_says_why_it_is_sound(name):
    assert undocumented((RUST / name).read_text()) == []


@pytest.mark.parametrize(
    ("name", "line", "wrong"),
    [
        ("kernels", "use crate::direct::Board;", {"direct"}),
        ("kernels", "    let x = crate::wait::Wait::new();", {"wait"}),
        ("direct", "use crate::{arena::{Segment, heap::Heap}, communicator::Call};", {"communicator"}),
        ("direct", "use crate::{\n    kernels,\n    python,\n};", {"python"}),
        ("arena", "pub use crate::rendezvous::join;", {"rendezvous"}),
        ("direct", "use crate::kernels::Reducer; // not crate::python", set()),
        ("error", 'let x = "crate::python";', set()),
        ("health", "use crate::health::Roster;", set()),
    ],
)
def test_the_checker_sees_an_arrow_that_is_not_in_the_picture(name, line, wrong):
    assert forbidden(name, line) == wrong


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("fn f() {\n    unsafe { g() }\n}", [2]),
        ("fn f() {\n    // SAFETY: h checked it.\n    unsafe { g() }\n}", []),
        ("    // SAFETY: h checked it.\n    let x =\n        unsafe { g() };", []),
        ("    // SAFETY: h checked it.\n    h();\n    let x = unsafe { g() };", [3]),
        ("// Fast.\nunsafe impl Send for X {}", [2]),
        ("/// # Safety\n/// `p` is valid.\n#[inline]\nunsafe fn f(p: *const u8) {}", []),
        ("// an unsafe { } in a comment", []),
    ],
)
def test_the_checker_sees_an_unsafe_without_a_reason(text, lines):
    assert undocumented(text) == lines


def module(path):
    """The entry of ``MODULES`` that a file belongs to."""
    name = path.relative_to(PYTHON).parts[0].removesuffix(".py")
    return "" if name == "__init__" else name


def imported_modules(text, package):
    """What a Python source in the package with that dotted name imports, by full name."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*parents, *([node.module] if node.module else [])])
            # `from arx import errors` imports a module, `from arx.errors import ArxError` a name of one.
            found |= {f"{base}.{alias.name}" for alias in node.names} if base == "arx" else {base}
    return found


def forbidden_imports(name, text, package="arx"):
    """The modules of arx that a source in module ``name`` imports and may not."""
    parts = [full.split(".") for full in imported_modules(text, package) if full.split(".")[0] == "arx"]
    known = {*MODULES, "_arx"}
    found = {part[1] if len(part) > 1 and part[1] in known else "" for part in parts}
    return found - MODULES[name]


def python_files():
    return sorted(PYTHON.rglob("*.py"))


def package_of(path):
    return ".".join(["arx", *path.relative_to(PYTHON).parent.parts])


@pytest.mark.parametrize("path", python_files(), ids=lambda path: str(path.relative_to(PYTHON)))
def test_a_module_imports_only_modules_below_it(path):
    assert forbidden_imports(module(path), path.read_text(), package_of(path)) == set()


@pytest.mark.parametrize("path", python_files(), ids=lambda path: str(path.relative_to(PYTHON)))
def test_numpy_is_all_that_is_imported_besides_the_standard_library(path):
    roots = {full.split(".")[0] for full in imported_modules(path.read_text(), package_of(path))}
    assert roots - set(sys.stdlib_module_names) <= {"arx", "numpy"}


@pytest.mark.parametrize(
    ("name", "package", "text", "wrong"),
    [
        ("errors", "arx", "from arx.launch import detect", {"launch"}),
        ("errors", "arx", "def f():\n    from arx import launch", {"launch"}),
        ("launch", "arx.launch", "from ..cli import main", {"cli"}),
        ("launch", "arx.launch", "from . import pmi\nfrom .. import errors\nfrom arx.errors import InitError", set()),
        ("launch", "arx.launch", "import arx", {""}),
    ],
)
def test_the_checker_sees_an_import_that_is_not_allowed(name, package, text, wrong):
    assert forbidden_imports(name, text, package) == wrong
