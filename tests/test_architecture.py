"""The shape of the code: imports go downward only, nothing prints, everything public says what it is."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import papm

ROOT = Path(papm.__file__).parent

# From the bottom up. A module imports from layers below its own; parts of one layer do not know each other.
LAYERS: tuple[tuple[str, ...], ...] = (
    (
        "errors",
        "registry",
        "extensions",
        "version",
        "text",
        "compiled",
        "graphs",
        "files",
        "png",
        "rgb",
        "images",
        "imagenet",
        "config",
        "structures",
        "neighbours",
        "draw",
        "ggd",
        "points",
        "untrusted",
        "_kernel_maps",
    ),
    ("targets", "transport", "matching", "data"),
    ("inference",),
    ("losses", "models", "metrics", "localize"),
    ("methods", "checkpoint"),
    ("predict", "export"),
    ("engine",),
    ("report",),
    ("study", "bench", "serve"),
    ("api",),
    ("cli",),
)
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
EXEMPT = {"__init__", "__main__"}  # the front doors
LONGEST = 450

FILES = sorted(ROOT.rglob("*.py"))
assert len(FILES) > 30


def part_of(path: Path) -> str:
    """The module or package directly under papm that a file belongs to."""
    first = path.relative_to(ROOT).parts[0]
    return first.removesuffix(".py")


def imports(path: Path) -> Iterator[tuple[str, int]]:
    """Parts of papm that a file imports, wherever in the file, with the line."""
    package = ("papm", *path.relative_to(ROOT).parts[:-1])
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [a.name for a in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = list(package[: len(package) - node.level + 1]) if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            names = [f"{module}.{a.name}" for a in node.names] if module == "papm" else [module]
        for name in names:
            head, _, rest = name.partition(".")
            if head == "papm":
                yield rest.partition(".")[0], node.lineno


def short(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def test_every_part_has_its_layer() -> None:
    parts = {part_of(p) for p in FILES} - EXEMPT
    assert parts <= set(LEVEL), f"say in which layer these are: {sorted(parts - set(LEVEL))}"


@pytest.mark.parametrize("path", FILES, ids=short)
def test_imports_go_downward(path: Path) -> None:
    own = part_of(path)
    if own in EXEMPT:
        pytest.skip("a front door")
    for other, line in imports(path):
        where = f"{short(path)}:{line}"
        assert other in LEVEL, f"{where} imports from the package itself: {other or 'papm'}"
        if other == own:
            continue
        assert LEVEL[other] <= LEVEL[own], f"{where} imports upward: {own} → {other}"
        if LEVEL[own] > 0:
            assert LEVEL[other] < LEVEL[own], f"{where} imports its neighbour: {own} → {other}"


def test_the_bottom_has_no_cycles() -> None:
    edges = {name: {o for o, _ in imports(ROOT / f"{name}.py")} - {name} for name in LAYERS[0]}
    done: set[str] = set()
    while len(done) < len(edges):
        free = {n for n, below in edges.items() if n not in done and below <= done}
        assert free, f"these import each other in a circle: {sorted(set(edges) - done)}"
        done |= free


@pytest.mark.parametrize("path", FILES, ids=short)
def test_nothing_prints(path: Path) -> None:
    calls = [n for n in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(n, ast.Call)]
    lines = [c.lineno for c in calls if isinstance(c.func, ast.Name) and c.func.id in ("print", "pprint", "breakpoint")]
    assert not lines, f"{short(path)} prints on line {lines}; library code logs, commands use papm.cli.ui"


@pytest.mark.parametrize("path", FILES, ids=short)
def test_everything_public_says_what_it_is(path: Path) -> None:
    """Modules, classes and functions; methods often do what their base class says."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    if not tree.body:
        return
    assert ast.get_docstring(tree), f"{short(path)} does not say what it is for"
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) and not node.name.startswith("_"):
            if part_of(path) == "cli" and node.name == "add":
                continue  # every command's file has one: it registers the command
            if any(ast.unparse(d) == "overload" for d in node.decorator_list):
                continue  # what follows it says it
            assert ast.get_docstring(node), f"{short(path)}:{node.lineno} {node.name} has no docstring"


@pytest.mark.parametrize("path", FILES, ids=short)
def test_nothing_is_asserted_at_import_and_frozen_means_frozen(path: Path) -> None:
    """What must always hold is a test; what is frozen is changed by no one but its own `__post_init__`."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    lines = [node.lineno for node in tree.body if isinstance(node, ast.Assert)]
    assert not lines, f"{short(path)} asserts on line {lines} when it is imported"
    functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name != "__post_init__"]
    calls = [c for f in functions for c in ast.walk(f) if isinstance(c, ast.Call)]
    lines = [c.lineno for c in calls if ast.unparse(c.func) == "object.__setattr__"]
    assert not lines, f"{short(path)} changes something frozen on line {lines}; use dataclasses.replace"


@pytest.mark.parametrize("path", FILES, ids=short)
def test_a_file_holds_one_idea(path: Path) -> None:
    lines = len(path.read_text(encoding="utf-8").splitlines())
    assert lines <= LONGEST, f"{short(path)} has {lines} lines; split it"


@pytest.mark.parametrize("path", FILES, ids=short)
def test_unsafe_reading_is_nowhere(path: Path) -> None:
    """torch.load always says weights_only=True; nobody unpickles, evaluates or loads YAML with objects."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func)
        where = f"{short(path)}:{node.lineno}"
        if name in ("torch.load", "torch.jit.load"):
            options = {k.arg: ast.unparse(k.value) for k in node.keywords}
            assert options.get("weights_only") == "True", f"{where} {name} without weights_only=True"
        assert name not in ("eval", "exec", "pickle.load", "pickle.loads", "yaml.load", "os.system"), f"{where} {name}"
        if name in ("np.load", "numpy.load"):
            assert "allow_pickle" not in {k.arg for k in node.keywords}, f"{where} allows pickles"
