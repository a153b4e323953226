"""`papm data stats`: how counts and distances are spread."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Option, echo

from papm.cli import ui
from papm.cli.data import opened
from papm.cli.options import Data, Json, Options
from papm.errors import ConfigError

if TYPE_CHECKING:
    from papm.data.base import Dataset


def stats(
    data: Data,
    options: Options = None,
    split: Annotated[str | None, Option(help="Only this split.")] = None,
    html: Annotated[
        Path | None, Option(help="Write a page with charts and the images that deserve a look to this file.")
    ] = None,
    json: Json = False,
) -> None:
    """Draw how counts and distances between neighbours are spread, as bars of text or as a page.

    Examples:

    papm data stats photos/ --split train

    papm data stats photos/ --html photos.html
    """
    from papm.data.summary import spread

    splits = opened(data, options, split)
    if html is not None:
        _page(html, data, splits)
        if not json:
            return
    with ui.err.status("measuring distances"):
        result = spread(splits)
    if json:
        ui.print_json(result)
        return
    for name, parts in result.items():
        for what, bins in parts.items():
            echo(f"{name}: {what}" + ("" if bins else ": nothing to show"))
            top = max((int(b["n"]) for b in bins), default=1)
            for b in bins:
                drawn = "█" * max(round(40 * int(b["n"]) / top), 1 if b["n"] else 0)
                echo(f"{b['from']:>10g} to {b['to']:<10g}{b['n']:>8}  {drawn}")


def _page(path: Path, data: str, opened: Mapping[str, Dataset]) -> None:
    """The page of a dataset; its images are looked at once for those that occur in two splits."""
    from papm.data.near_duplicates import near_duplicates
    from papm.report.dataset import write_dataset_page

    if path.is_dir():
        raise ConfigError(f"{path}: is a folder; --html is the file to write")
    with ui.items("looking at images", sum(map(len, opened.values()))) as advance:
        pairs = near_duplicates(opened, on_item=advance) if len(opened) > 1 else []
    with ui.err.status("drawing"):
        write_dataset_page(path, data, opened, pairs)
    ui.note(f"Page: {path}")
