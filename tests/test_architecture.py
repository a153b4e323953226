"""The shape of the code: imports go downward only, nothing prints, everything public says what it is."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import papm

ROOT = Path(papm.__file__).parent

# From the bottom up. A module imports from layers below its own; parts of one layer do not know each other.
LAYERS: tuple[tuple[str, ...], ...] = (
    (
        "errors",
        "registry",
        "extensions",
        "extras",
        "version",
        "text",
        "c_sources",
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
        "marks",
        "legend",
        "draw",
        "ggd",
        "points",
        "untrusted",
        "likeness",
        "_kernel_maps",
    ),
    ("targets", "transport", "matching", "data"),
    ("inference",),
    ("losses", "models", "metrics", "localize"),
    ("methods", "ready"),
    ("checkpoint",),
    ("exported",),
    ("predict", "export"),
    ("engine",),
    ("report",),
    ("study", "bench", "serve"),
    ("api",),
    ("cli",),
)
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
EXEMPT = {"__init__", "__main__"}  # the front doors
LONGEST = 300
LONGER = {  # and why
    "config.py": "every setting of a run, and how settings are read, in one place",
    "structures.py": "what all layers hand to each other",
}

FILES = sorted(ROOT.rglob("*.py"))
assert len(FILES) > 30


def part_of(path: Path) -> str:
    """The module or package directly under papm that a file belongs to."""
    first = path.relative_to(ROOT).parts[0]
    return first.removesuffix(".py")


@functools.cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def nodes(path: Path, *kinds: type[ast.AST]) -> Iterator[Any]:
    """The nodes of these kinds of a file, wherever they are."""
    return (node for node in ast.walk(tree(path)) if isinstance(node, kinds))


def imports(path: Path) -> Iterator[tuple[str, int]]:
    """Parts of papm that a file imports, wherever in the file, with the line."""
    package = ("papm", *path.relative_to(ROOT).parts[:-1])
    for node in nodes(path, ast.Import, ast.ImportFrom):
        names = [a.name for a in node.names]
        if isinstance(node, ast.ImportFrom):
            base = list(package[: len(package) - node.level + 1]) if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            names = [f"{module}.{name}" for name in names] if module == "papm" else [module]
        for name in names:
            head, _, rest = name.partition(".")
            if head == "papm":
                yield rest.partition(".")[0], node.lineno


def short(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def test_every_part_has_its_layer() -> None:
    parts = {part_of(p) for p in FILES} - EXEMPT
    assert parts <= set(LEVEL), f"say in which layer these are: {sorted(parts - set(LEVEL))}"


def complaint_about_import(own: str, other: str) -> str:
    if other not in LEVEL:
        return "imports from the package itself"
    if other == own or LEVEL[other] < LEVEL[own] or LEVEL[other] == LEVEL[own] == 0:
        return ""
    return "imports its neighbour" if LEVEL[other] == LEVEL[own] else "imports upward"


def test_imports_go_downward() -> None:
    found = ((path, *found) for path in FILES if part_of(path) not in EXEMPT for found in imports(path))
    wrong = [
        f"{short(path)}:{line} {complaint}: {other or 'papm'}"
        for path, other, line in found
        if (complaint := complaint_about_import(part_of(path), other))
    ]
    assert not wrong


def test_the_bottom_has_no_cycles() -> None:
    edges = {name: {o for o, _ in imports(ROOT / f"{name}.py")} - {name} for name in LAYERS[0]}
    done: set[str] = set()
    while len(done) < len(edges):
        free = {n for n, below in edges.items() if n not in done and below <= done}
        assert free, f"these import each other in a circle: {sorted(set(edges) - done)}"
        done |= free


def test_nothing_prints() -> None:
    """Library code logs, commands use papm.cli.ui."""
    named = ("print", "pprint", "breakpoint")
    calls = ((path, call) for path in FILES for call in nodes(path, ast.Call))
    assert not [f"{short(p)}:{c.lineno}" for p, c in calls if isinstance(c.func, ast.Name) and c.func.id in named]


def test_everything_public_says_what_it_is() -> None:
    """Modules, classes and functions; methods often do what their base class says."""
    silent = [short(path) for path in FILES if tree(path).body and not ast.get_docstring(tree(path))]
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    public = ((p, n) for p in FILES for n in tree(p).body if isinstance(n, kinds) and not n.name.startswith("_"))
    for path, node in public:
        registers = part_of(path) == "cli" and node.name == "add"
        overloaded = any(ast.unparse(d) == "overload" for d in node.decorator_list)  # what follows it says it
        if not (registers or overloaded or ast.get_docstring(node)):
            silent.append(f"{short(path)}:{node.lineno} {node.name}")
    assert not silent


def test_nothing_is_asserted_at_import_and_frozen_means_frozen() -> None:
    """What must always hold is a test; what is frozen is changed by no one but its own `__post_init__`."""
    assert not [f"{short(p)}:{n.lineno}" for p in FILES for n in tree(p).body if isinstance(n, ast.Assert)]
    functions = ((p, f) for p in FILES for f in nodes(p, ast.FunctionDef) if f.name != "__post_init__")
    calls = ((p, c) for p, f in functions for c in ast.walk(f) if isinstance(c, ast.Call))
    assert not [f"{short(p)}:{c.lineno}" for p, c in calls if ast.unparse(c.func) == "object.__setattr__"]


def test_a_file_holds_one_idea() -> None:
    lines = {short(path): len(path.read_text(encoding="utf-8").splitlines()) for path in FILES}
    assert not {path: number for path, number in lines.items() if number > LONGEST and path not in LONGER}


def test_unsafe_reading_is_nowhere() -> None:
    """torch.load always says weights_only=True; nobody unpickles, evaluates or loads YAML with objects."""
    never = ("eval", "exec", "pickle.load", "pickle.loads", "yaml.load", "os.system")
    for path, call in ((p, c) for p in FILES for c in nodes(p, ast.Call)):
        name, where = ast.unparse(call.func), f"{short(path)}:{call.lineno}"
        assert name not in never, f"{where} {name}"
        if name in ("torch.load", "torch.jit.load"):
            options = {k.arg: ast.unparse(k.value) for k in call.keywords}
            assert options.get("weights_only") == "True", f"{where} {name} without weights_only=True"
        if name in ("np.load", "numpy.load"):
            assert "allow_pickle" not in {k.arg for k in call.keywords}, f"{where} allows pickles"
