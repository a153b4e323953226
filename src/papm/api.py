"""The front door: `run = papm.train("photos")`, `papm.evaluate(run.counter, "photos")`, `run.counter.predict("a.jpg")`."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

from papm.data.base import Dataset
from papm.data.resize import OPTIONS
from papm.data.spec import open_split
from papm.data.splits import Splits
from papm.engine import run_folder
from papm.engine.calibration import Calibration, add_interval, calibrate
from papm.engine.choice import Choice as Choice
from papm.engine.choice import Data, configure
from papm.engine.choice import choose as choose
from papm.engine.count_split import count_split
from papm.engine.evaluate import Evaluation
from papm.engine.ranks import is_first_process
from papm.engine.start import AUTO as AUTO
from papm.engine.steps import OnStep, Steps
from papm.errors import ConfigError, PapmError, unknown
from papm.extras import MissingExtraError
from papm.predict import localization
from papm.predict.ensemble import Ensemble
from papm.predict.localization import Localization
from papm.predict.predictor import Counter
from papm.predict.tiling import OnTile
from papm.text import Brief

if TYPE_CHECKING:
    from papm.config import TrainConfig
    from papm.engine.log import Watcher
    from papm.models.base import Progress

log = logging.getLogger(__name__)

OnItem = Callable[[], None]
PROTOCOLS = ("counts", "game", "nwpu", "qnrf")


@dataclass(frozen=True, eq=False, repr=False)
class Run(Brief):
    """A training and what came of it; `result` is what result.json holds, nothing where it was interrupted."""

    folder: Path
    result: dict[str, Any]
    step: int
    interrupted: bool = False
    device: str = AUTO
    shown: Dataset | None = None  # what the result was measured on, for pictures

    @functools.cached_property
    def counter(self) -> Counter:
        """The trained model, ready to count."""
        return Counter.load(self.folder, self.device)

    def report(self) -> Path:
        """Write pictures of some test images and report.html to the run folder; gives the page."""
        from papm.report.examples import save_examples
        from papm.report.run import write_report

        try:
            if self.shown is not None:
                save_examples(self.counter, self.shown, self.folder)
            return write_report(self.folder)
        except MissingExtraError:
            raise
        except PapmError as e:
            raise PapmError(f"{e}; the result is written: make room, and --resume adds pictures and report") from None


def train(
    data: Data,
    method: str = AUTO,
    backbone: str = AUTO,
    out: str | Path = "runs/run",
    *,
    resume: bool = False,
    progress: OnStep | None = None,
    **settings: Any,
) -> Run:
    """Train a counter on images with dots, evaluate it, and keep everything in the folder `out`.

    `data` is NAME:FOLDER, the name of a dataset, a folder, or splits as `papm.data.open` gives them. `settings` are those of
    `papm.config.TrainConfig`, with mappings for the options of the loss, the network and the dataset: `steps=1000,
    loss={"sigma": 6}, network={"stride": 4}, options={"origin": 0.5}`. `progress` is called with the step, the number of steps
    and what was measured. Ctrl-C ends the run after the step at hand, and `resume` goes on with it; what is not given then is
    as it was.
    """
    if is_first_process():
        run_folder.check_place(Path(out), resume)
    chosen = configure(data, method, backbone, settings, Path(out) if resume else None)
    for line in chosen.why:
        log.info("%s", line)
    watcher = None if progress is None else Steps(progress, chosen.config.steps)
    return run(chosen.config, Path(out), resume=resume, watcher=watcher, splits=chosen.splits)


def run(
    config: TrainConfig,
    folder: Path,
    *,
    resume: bool = False,
    watcher: Watcher | None = None,
    on_image: OnItem | None = None,
    on_download: Progress | None = None,
    splits: Splits | None = None,
) -> Run:
    """`train` with settings that are resolved, and with more to hear of: images read, weights downloaded."""
    from papm.engine.train import train as fit  # here: it is slow to import, and counting does not need it

    hear: dict[str, Any] = {"watcher": watcher, "on_image": on_image, "on_download": on_download}
    done = fit(config, folder, resume=resume, splits=splits, **hear)
    return Run(folder, done.result or {}, done.step, done.interrupted, config.device, done.shown)


Model = Counter | Ensemble | str | Path


@overload
def evaluate(
    counter: Model,
    dataset: Dataset | str | Path,
    protocol: Literal["counts", "game"] = "counts",
    *,
    split: str = "test",
    options: Mapping[str, Any] | None = None,
    resize: bool | None = None,
    on_item: OnItem | None = None,
    on_tile: OnTile | None = None,
) -> Evaluation: ...
@overload
def evaluate(
    counter: Model,
    dataset: Dataset | str | Path,
    protocol: Literal["nwpu", "qnrf"],
    *,
    split: str = "test",
    options: Mapping[str, Any] | None = None,
    radii: Sequence[float] = (),
    matching: Literal["greedy", "maximum"] = "greedy",
    on_item: OnItem | None = None,
) -> Localization: ...
def evaluate(
    counter: Model,
    dataset: Dataset | str | Path,
    protocol: str = "counts",
    *,
    split: str = "test",
    options: Mapping[str, Any] | None = None,
    resize: bool | None = None,
    radii: Sequence[float] = (),
    matching: Literal["greedy", "maximum"] = "greedy",
    on_item: OnItem | None = None,
    on_tile: OnTile | None = None,
) -> Evaluation | Localization:
    """Count a split, or find its objects, and compare with its annotations.

    `dataset` is a split, or NAME:FOLDER, a name or a folder, opened with `options`, of which `split` is taken. `protocol`:
    "counts" (MAE, RMSE, intervals); "game" (also GAME(0) … GAME(3)); "nwpu" (points within the size of their object, or
    within `radii` px); "qnrf" (points at 1 to 100 px, `matching` "greedy" or "maximum"). Counts are made at the size that the
    model was trained at, unless the split was opened at another, or `resize` is False: then at the size it has.
    """
    if protocol not in PROTOCOLS:
        raise unknown("protocol", protocol, PROTOCOLS)
    chosen = options or {}
    if protocol in ("nwpu", "qnrf"):
        keep_sizes(chosen, f"protocol {protocol}")
    model = Counter.load(counter) if isinstance(counter, str | Path) else counter
    images = dataset if isinstance(dataset, Dataset) else open_split(str(dataset), split, chosen)
    if protocol in ("counts", "game"):
        rule = not set(chosen) & set(OPTIONS) if resize is None else resize
        return count_split(model, images, protocol == "game", rule, on_item, on_tile)
    points = localization.from_model(model, images, protocol == "nwpu" and not radii, on_item)
    return localization.nwpu(points, radii) if protocol == "nwpu" else localization.qnrf(points, matching)


def keep_sizes(options: Mapping[str, Any], command: str) -> None:
    """Refuse options that resize images where the model resizes them itself."""
    for key in options:
        if key in OPTIONS:
            raise ConfigError(f"{key} does not go with {command}: the model sees images at its own size; leave it out")


__all__ = [
    "Calibration",
    "Choice",
    "Evaluation",
    "Localization",
    "Run",
    "add_interval",
    "calibrate",
    "choose",
    "configure",
    "evaluate",
    "run",
    "train",
]
