"""Options that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
Tile = Annotated[str, typer.Option(help="Cut large images into tiles: auto, none, or the side of a tile in pixels.")]
Count = Annotated[
    str | None,
    typer.Option(
        help="How a point network counts: points (scores above 0.5), expected (sum of chances); as trained when not given.",
        show_default=False,
    ),
]
