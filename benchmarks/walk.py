"""How large the code is, and how many of its files one walk through it opens: one column per source tree.

    python3 benchmarks/walk.py . /tmp/before   (git worktree add /tmp/before REVISION; without trees: this one; --json: data)

Sizes are read from the sources. A public name is one in `__all__` of `papm` or of a part of it that `papm` hands out; of a
part without `__all__` every public function and class. The walks are commands run under a profiler: a file counts when one
of its functions is called, other than by an import. Complexity is McCabe's; nested functions belong to the one around them.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import dataclasses
import inspect
import io
import json
import os
import subprocess
import sys
import tempfile
import threading
import tokenize
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from PIL import Image

FORKS = (ast.If, ast.IfExp, ast.For, ast.While, ast.comprehension, ast.ExceptHandler, ast.Assert, ast.match_case)
NO_CODE = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)


def code_lines(text: str) -> int:
    """Lines that hold code: neither blank, nor comment, nor docstring."""
    tokens = [t for t in tokenize.generate_tokens(io.StringIO(text).readline) if t.type not in NO_CODE]
    lines = {line for token in tokens for line in range(token.start[0], token.end[0] + 1)}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines -= set(range(node.lineno, node.end_lineno + 1))
    return len(lines)


def functions_of(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Functions and methods, without those inside another function."""
    for node in ast.iter_child_nodes(tree):
        yield from [node] if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else functions_of(node)


def complexity(function: ast.AST) -> int:
    """One path, and one more for each place where it may fork."""
    nodes = list(ast.walk(function))
    conditions = sum(len(n.values) - 1 if isinstance(n, ast.BoolOp) else len(getattr(n, "ifs", ())) for n in nodes)
    return 1 + sum(isinstance(node, FORKS) for node in nodes) + conditions


def length(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of a function, without its docstring."""
    docstring = 0 if ast.get_docstring(function) is None else function.body[0].end_lineno - function.body[0].lineno + 1
    return function.end_lineno - function.lineno + 1 - docstring


def sizes(root: Path) -> dict[str, Any]:
    """What the sources alone tell."""
    src, tests = ({p: p.read_text() for p in sorted((root / f).rglob("*.py"))} for f in ("src/papm", "tests"))
    places = [
        (f, path.relative_to(root / "src/papm")) for path, text in src.items() for f in functions_of(ast.parse(text))
    ]
    functions = {f"{path}:{f.lineno} {f.name}": f for f, path in places}
    longest, longest_name = max((length(f), name) for name, f in functions.items())
    highest, highest_name = max((complexity(f), name) for name, f in functions.items())
    return {
        "files in src": len(src),
        "lines in src": sum(text.count("\n") for text in src.values()),
        "code lines in src": sum(map(code_lines, src.values())),
        "files above 300 lines": sum(text.count("\n") > 300 for text in src.values()),
        "lines in tests": sum(text.count("\n") for text in tests.values()),
        "longest function": f"{longest} ({longest_name})",
        "mean complexity": round(sum(map(complexity, functions.values())) / len(functions), 2),
        "highest complexity": f"{highest} ({highest_name})",
    }


def public_names() -> int:
    """Names that users may rely on; see the top of this file."""
    import papm

    files = {p.stem for p in Path(papm.__file__).parent.iterdir()}
    parts = [getattr(papm, name) for name in dir(papm) if name in files - {"__init__", "version", "extensions"}]
    total = len(set(papm.__all__) - files)
    for part in parts:
        own = [k for k, v in vars(part).items() if getattr(v, "__module__", None) == part.__name__ and callable(v)]
        total += len(getattr(part, "__all__", [k for k in own if not k.startswith("_")]))
    return total


def options() -> dict[str, int]:
    """How many things a user can set, by kind; options of one name count once per kind."""
    import typer

    from papm import losses, models
    from papm.cli.main import build
    from papm.config import TrainConfig
    from papm.data.base import readers

    def of(command: Any) -> int:
        own = [p for p in command.params if p.param_type_name == "option" and "--help" not in p.opts]
        return len(own) + sum(map(of, getattr(command, "commands", {}).values()))

    readings = [inspect.signature(r.entries or r.make) for r in readers().values()]
    return {
        "command line options": of(typer.main.get_command(build())),
        "settings of a training": len(dataclasses.fields(TrainConfig)),
        "options of losses": len({key for name in losses.names() for key in losses.options(name)}),
        "options of networks": len({key for name in models.names() for key in models.info(name).options}),
        "options of readers": len({key for reading in readings for key in list(reading.parameters)[1:]}),
    }


def files_run(words: tuple[str, ...]) -> int:
    """Files of the package with a function that this command calls."""
    from papm.cli.main import build, main

    package = f"{os.sep}src{os.sep}papm{os.sep}"
    seen: set[str] = set()

    def note(frame: Any, event: str, _: Any) -> None:
        name = frame.f_code.co_filename
        if event != "call" or package not in name or name in seen:
            return
        while frame is not None and not (frame.f_code.co_name == "<module>" and package in frame.f_code.co_filename):
            frame = frame.f_back
        if frame is None:  # no import is under way
            seen.add(name)

    build()  # every command adds itself, also those that are not run
    threading.setprofile(note)
    sys.setprofile(note)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            main(list(words))
    except SystemExit as stop:
        if stop.code:
            raise
    return len(seen)


def photos(folder: Path) -> None:
    """Six pictures of noise, each with a text file of nine dots beside it."""
    folder.mkdir()
    for k in range(6):
        Image.effect_noise((128, 96), 64).convert("RGB").save(folder / f"{k}.jpg")
        (folder / f"{k}.txt").write_text("".join(f"{10 + 12 * i} {8.5 + (k + 5 * i) % 80}\n" for i in range(9)))


INSIDE = {
    "names": public_names,
    "options": options,
    "info": partial(files_run, ("data", "info", "photos")),
    "train": partial(files_run, ("train", "photos", "--backbone", "tiny", "--out", "run", "steps=2", "crop=64")),
}


def measure(root: Path) -> dict[str, Any]:
    """All figures of one tree; what needs its imports runs in processes of their own."""
    environment = {**os.environ, "PYTHONPATH": str(root.resolve() / "src")}
    command = [sys.executable, str(Path(__file__).resolve()), "--inside"]
    with tempfile.TemporaryDirectory() as folder:
        photos(Path(folder) / "photos")
        found = {k: json.loads(subprocess.check_output([*command, k], env=environment, cwd=folder)) for k in INSIDE}
    return {
        **sizes(root),
        "public names": found["names"],
        **found["options"],
        "options in all": sum(found["options"].values()),
        "files run by `papm data info` on a folder of txt dots": found["info"],
        "files run by a two-step training of tiny": found["train"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("roots", nargs="*", type=Path, default=[Path(__file__).resolve().parents[1]])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--inside", choices=list(INSIDE), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.inside:
        print(json.dumps(INSIDE[given.inside]()))
        return
    columns = {str(root): measure(root) for root in given.roots}
    rows = [["", *columns], ["---"] * (1 + len(columns))]
    rows += [[row, *(str(column[row]) for column in columns.values())] for row in next(iter(columns.values()))]
    print(json.dumps(columns, indent=2) if given.json else "\n".join(f"| {' | '.join(row)} |" for row in rows))


if __name__ == "__main__":
    main()
