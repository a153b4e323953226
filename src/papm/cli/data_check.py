"""`papm data check`: what is wrong with a dataset."""

from __future__ import annotations

import logging
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

from typer import Exit, Option, echo

from papm.cli import ui
from papm.cli.options import Data, Json, Options
from papm.text import n_of

if TYPE_CHECKING:
    from papm.data.check import Finding

SHOWN = 50  # findings listed without --all


def check(
    data: Data,
    options: Options = None,
    strict: Annotated[bool, Option("--strict", help="Warnings fail the check too.")] = False,
    everything: Annotated[bool, Option("--all", help=f"List every finding, not the first {SHOWN}.")] = False,
    headers: Annotated[bool, Option("--quick", help="Read image headers only, decode nothing.")] = False,
    json: Json = False,
) -> None:
    """Read every image and annotation and list what is wrong; exit code 2 when something is.

    Example: papm data check photos/
    """
    from papm.data import base
    from papm.data import check as checks
    from papm.data.spec import parse, reader_options

    name, root = parse(data)
    chosen = reader_options(data, options)
    images, files = 0, ""
    with ui.items("checking", 0) as advance, _findings_only():

        def on_item(done: int, total: int) -> None:
            nonlocal images
            images = done
            advance.at(done, total)

        def on_entries(splits: base.Entries) -> None:
            nonlocal files
            files = base.file_formats(e for es in splits.values() for e in es)

        findings = checks.check(name, root, decode=not headers, on_item=on_item, on_entries=on_entries, **chosen)
    if base.reader(name).entries is None:  # made on the spot: opening it is the whole check
        images = sum(map(len, base.open(name, root, **chosen).values()))
    n = {kind: sum(f.severity == kind for f in findings) for kind in ("error", "warning", "info")}
    failed = checks.has_errors(findings, strict)
    if json:
        keys = ("severity", "file", "line", "message")
        listed = [dict(zip(keys, (f.severity, f.file and str(f.file), f.line, f.message))) for f in findings]
        known = {"data": data, "format": name, **({"file_format": files} if files else {})}
        ui.print_json(known | {"images": images, "ok": not failed, "found": n, "findings": listed})
    else:
        _list(findings, everything)
        numbers = ", ".join(map(n_of, n.values(), ("error", "warning", "note")))
        said = f"Checked {n_of(images, 'image')} as '{name}'{f' ({files})' if files else ''}: {numbers}."
        echo(f"{said} {_advice(data, options or (), findings, strict)}")
    if failed:
        raise Exit(2)


def _list(findings: Sequence[Finding], everything: bool) -> None:
    """What was found; totals come last: after many warnings they count most."""
    for notes in (False, True):
        part = [f for f in findings if (f.severity == "info") == notes]
        shown = part if everything else part[:SHOWN]
        for finding in shown:
            echo(str(finding))
        if rest := len(part) - len(shown):
            echo(f"… and {rest} more; --all lists them")


def _advice(data: str, options: Sequence[str], findings: Sequence[Finding], strict: bool) -> str:
    """What to do next."""
    errors = [f for f in findings if f.severity == "error"]
    if errors and not all(f.outside for f in errors):
        return "Mend the errors, then check again."
    if errors:  # stray clicks
        again = "".join(f" {shlex.quote(o)}" for o in options)
        return f"Mend the errors, or: papm data convert {shlex.quote(data)} --out NEW --inside-only{again}"
    verdict = "Good to use"
    if any(f.severity == "warning" for f in findings):
        verdict = "--strict fails on warnings: mend them, then" if strict else "Usable; look at the warnings, then"
    given = "".join(f" {shlex.quote(f'data.{o}')}" for o in options)
    return f"{verdict}: papm train {shlex.quote(data)}{given}"


@contextmanager
def _findings_only() -> Iterator[None]:
    """What the reader of folders warns of while it opens is among the findings: it is said once.

    What other readers warn of (boxes or images that are left out) is not.
    """
    told = [logging.getLogger(f"papm.data.readers.{name}") for name in ("folder", "layout")]
    levels = [log.level for log in told]
    for log in told:
        log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for log, level in zip(told, levels):
            log.setLevel(level)
