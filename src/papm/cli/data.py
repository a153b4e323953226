"""`papm data list`, `info`, and what the commands of `papm data` share; the others are in `data_….py`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from typer import echo

from papm.cli import ui
from papm.cli.options import Data, Json, Options
from papm.text import n_of

if TYPE_CHECKING:
    from papm.data.base import Dataset

FACTS = {  # of a split, as `papm.data.summary` names them
    "images": "images",
    "points": "points",
    "count_min": "count per image: least",
    "count_mean": "mean",
    "count_median": "median",
    "count_max": "most",
    "without_points": "images without points",
    "outside": "points outside their image",
    "duplicates": "points repeated exactly",
    "neighbour_distance": "nearest neighbour, px",
    "size_min": "smallest image, H×W",
    "size_max": "largest image, H×W",
}


def opened(data: str, options: Sequence[str] | None = None, split: str | None = None) -> dict[str, Dataset]:
    """The splits of a dataset, or one of them, with a bar while they are read."""
    from papm.data.spec import open_splits

    with ui.items("reading annotations", 0) as advance:
        return open_splits(data, options, split, advance.at)


def list_formats(json: Json = False) -> None:
    """Name every dataset that can be read and the files it expects.

    Example: papm data list
    """
    from papm.data import base
    from papm.data.formats import formats as known_formats

    known, formats = (
        [{"name": f.name, "summary": f.summary, "layout": f.layout} for f in part]
        for part in (list(base.readers().values()), known_formats())
    )
    if json:
        ui.print_json([r | ({"formats": formats} if r["name"] == "folder" else {}) for r in known])
        return
    own = "What a folder of your own may hold (recognised, or format=NAME; papm data convert --to NAME writes it):"
    for title, part in (("", known), (f"\n{own}\n", formats)):
        lines = (f"{f['name']:16}{f['summary']}\n" + (f"{'':16}{f['layout']}\n" if f["layout"] else "") for f in part)
        echo(title + "".join(lines), nl=False)
    echo("\nWrite NAME:FOLDER, e.g. papm data info folder:photos; a bare folder is recognised by its files.")


def info(data: Data, options: Options = None, json: Json = False) -> None:
    """Sum up a dataset: images, points, counts, spacing, sizes and blemishes of each split.

    Example: papm data info photos/
    """
    from papm.data.agreement import agreement
    from papm.data.summary import summary

    splits = opened(data, options)
    with ui.err.status("measuring distances"):
        found = summary(splits)
        people = {s: a for s, d in splits.items() if (a := agreement(d)) is not None}
    if json:
        more = {s: {"file_format": d.file_format} if d.file_format else {} for s, d in splits.items()}
        ui.print_json({s: more[s] | f | ({"agreement": people[s]} if s in people else {}) for s, f in found.items()})
        return
    rows: list[list[object]] = [[what, *(_shown(found[s], key) for s in found)] for key, what in FACTS.items()]
    if any(d.file_format for d in splits.values()):
        rows.insert(0, ["read as", *(d.file_format for d in splits.values())])
    ui.table(["", *found], rows)
    for s, a in people.items():
        near, off = (_shown(a, k) for k in ("distance_median", "click_error"))
        ui.say(
            f"{s}: {n_of(a['images'], 'image')} marked by {len(a['annotators'])} people: two clicks "
            f"on one object are {near} px apart (median), which one person's error of {off} px along each axis explains; "
            f"{100 * a['unpaired']:.1f} % of the points have no partner; counts differ by {a['count_difference']:.1f} "
            f"({100 * a['count_difference_relative']:.1f} %)."
        )


def _shown(facts: Mapping[str, Any], key: str) -> str:
    value = facts.get(key)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "×".join(map(str, value))
    return "–" if value is None else f"{value:.1f}" if isinstance(value, float) else str(value)
