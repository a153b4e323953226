"""Losses, networks, methods and datasets from outside the package: code that registers them when it is imported.

An installed package names its modules in `[project.entry-points."papm"]`, the variable `PAPM_IMPORT` names files or modules.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Callable
from functools import partial
from importlib.metadata import entry_points
from pathlib import Path

from papm.errors import ConfigError, PapmError

GROUP = "papm"
VARIABLE = "PAPM_IMPORT"


def load_extensions(names: str | None = None) -> tuple[str, ...]:
    """Import what installed packages declare, then what the variable names, in its order; say what was imported.

    The variable, or `names` in its place, holds Python files or modules, divided as the parts of PATH are. Processes that a
    command starts inherit it, and so know what it knows. What is imported already is not imported again.
    """
    text = os.environ.get(VARIABLE, "") if names is None else names
    wanted = tuple(w.strip() for w in text.split(os.pathsep) if w.strip())
    installed = sorted(entry_points(group=GROUP)) if names is None else []
    for point in installed:
        package = point.dist.name if point.dist else "a package"
        _guarded(
            point.load, f"entry point '{point.name}' of {package}", point.value, f"mend it, or uninstall {package}"
        )
    for name in wanted:
        _guarded(partial(_load, name), VARIABLE, name, "mend it, or unset the variable")
    return (*(point.value for point in installed), *wanted)


def _guarded(load: Callable[[], object], whose: str, name: str, remedy: str) -> None:
    """Import something; an error is one sentence that says whose code it is."""
    try:
        load()
    except PapmError as error:
        raise ConfigError(f"{whose}: {name}: {error}") from error
    except (Exception, SystemExit) as error:  # code of somebody else may raise anything, or end the program
        lines = str(error).splitlines() or [""]
        raise ConfigError(
            f"{whose}: {name} cannot be imported ({type(error).__name__}: {lines[0]}){_line(error, name)}; {remedy}"
        ) from error


def _load(name: str) -> None:
    path = Path(name).expanduser()
    if path.suffix != ".py":
        importlib.import_module(name)
        return
    if not path.is_file():
        raise ConfigError(f"no such file in {Path.cwd()}; a full path works from every folder")
    module = f"papm_import_{path.resolve().stem}"
    if module in sys.modules and getattr(sys.modules[module], "__file__", None) == str(path.resolve()):
        return
    spec = importlib.util.spec_from_file_location(module, path.resolve())
    assert spec is not None and spec.loader is not None  # it ends in .py
    made = importlib.util.module_from_spec(spec)
    sys.modules[module] = made
    try:
        spec.loader.exec_module(made)
    except BaseException:
        del sys.modules[module]
        raise


def _line(error: BaseException, name: str) -> str:
    """Where in the file it went wrong: the innermost line of that file."""
    found = ""
    trace = error.__traceback__
    while trace is not None:
        if Path(trace.tb_frame.f_code.co_filename).name == Path(name).name:
            found = f" on line {trace.tb_lineno}"
        trace = trace.tb_next
    return found  # a SyntaxError says it itself
