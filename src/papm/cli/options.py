"""Arguments and options that several commands share, each declared once."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from papm.errors import ConfigError, unknown

if TYPE_CHECKING:
    from papm.predict.ensemble import Ensemble
    from papm.predict.predictor import Counter

Json = Annotated[bool, Option("--json", help="Print the result as JSON.")]
DATA = "NAME:FOLDER, a dataset name, or a folder whose format is recognised."
MODEL = "A run folder, a checkpoint or a ready model."
Data = Annotated[str, Argument(help=DATA)]
DATASET_OPTIONS = "Options of the dataset (docs/datasets.md), e.g. origin=0.5"
Options = Annotated[list[str] | None, Argument(metavar="KEY=VALUE …", help=DATASET_OPTIONS, show_default=False)]
Model = Annotated[str, Argument(help=MODEL)]  # as typed: ./cells is no name, and Path("./cells") would be

# How a model counts.
Device = Annotated[str, Option(help="auto, cpu or cuda.")]
Tile = Annotated[str, Option(help="Cut large images into tiles: auto, none, or the side of a tile in pixels.")]
PRECISION = "32, or bf16: twice as fast where the device has it, counts differ by about 0.1 %."
Precision = Annotated[str, Option(help=PRECISION)]
COUNT = "How a point network counts: points (scores above 0.5), expected (sum of probabilities); as trained by default."
Count = Annotated[str | None, Option(help=COUNT, show_default=False)]
BESIDE = "Count with this model too and give the mean of the counts; may be repeated."
Beside = Annotated[list[str] | None, Option("--with", metavar="MODEL", help=BESIDE, show_default=False)]

# What several trainings share.
WEIGHTS = "imagenet (the default), none or a file; NETWORK=FILE for one network."
Weights = Annotated[list[str] | None, Option(help=WEIGHTS, show_default=False)]
Jobs = Annotated[int, Option(help="Trainings at a time.")]


@dataclass(frozen=True)
class How:
    """How a model is to count, as a command was told."""

    device: str = "auto"
    tile: str = "auto"
    count: str | None = None
    precision: str = "32"
    beside: Sequence[str] = ()  # more models
    scale: float | None = None  # of images, instead of the model's own rule

    def open(self, model: str) -> Counter | Ensemble:
        """The model, or all of them."""
        from papm.predict.ensemble import Ensemble  # torch is slow to import, and --help does not need it
        from papm.predict.predictor import Counter

        how = (self.device, self.tile, self.count, self.precision)
        if not self.beside:
            return Counter.load(model, *how, self.scale)
        if self.scale is not None:
            raise ConfigError("--scale is for one model: each of several knows objects of its own size; drop --with")
        return Ensemble.load([model, *self.beside], *how)


def height_width(text: str, option: str) -> tuple[int, int]:
    """The (H, W) that an option names.

    >>> height_width("512x768", "--fixed")
    (512, 768)
    """
    found = re.fullmatch(r"\s*(\d{1,5})\s*[xX×]\s*(\d{1,5})\s*", text, re.ASCII)
    if not found or not int(found[1]) or not int(found[2]):
        raise ConfigError(f"{option} is height x width in pixels, such as 512x768; got '{text}'")
    return int(found[1]), int(found[2])


def one_of(what: str, given: str, known: Sequence[str]) -> None:
    """Refuse a word that is not one of those known."""
    if given not in known:
        raise unknown(what, given, known)
