"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from papm.errors import ConfigError

if TYPE_CHECKING:
    from papm.predict.ensemble import Ensemble
    from papm.predict.predictor import Counter

Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
Tile = Annotated[str, typer.Option(help="Cut large images into tiles: auto, none, or the side of a tile in pixels.")]
Precision = Annotated[
    str, typer.Option(help="32, or bf16: twice as fast where the device has it, counts differ by about 0.1 %.")
]
Count = Annotated[
    str | None,
    typer.Option(
        help="How a point network counts: points (scores above 0.5), expected (sum of probabilities); as trained by default.",
        show_default=False,
    ),
]
Beside = Annotated[
    list[Path] | None,
    typer.Option(
        "--with", help="Count with this model too and give the mean of the counts; may be repeated.", show_default=False
    ),
]


@dataclass(frozen=True)
class How:
    """How a model is to count, as a command was told."""

    device: str = "auto"
    tile: str = "auto"
    count: str | None = None
    precision: str = "32"
    beside: Sequence[Path] = ()  # more models
    scale: float | None = None  # of images, instead of the model's own rule

    def open(self, model: Path) -> Counter | Ensemble:
        """The model, or all of them."""
        from papm.predict.ensemble import Ensemble

        if not self.beside:
            return self.load(model)
        if self.scale is not None:
            raise ConfigError(
                "--scale is for one model: each of several knows objects of its own size; leave out --with"
            )
        return Ensemble.load([model, *self.beside], self.device, self.tile, self.count, self.precision)

    def load(self, model: Path) -> Counter:
        """The model, ready to count so."""
        from papm.predict.predictor import Counter  # torch is slow to import, and --help does not need it

        return Counter.load(model, self.device, self.tile, self.count, self.precision, self.scale)
