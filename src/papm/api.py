"""The front door: `run = papm.train("photos")`, `papm.evaluate(run.counter, "photos")`, `run.counter.predict("a.jpg")`."""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

import torch

from papm import methods, models
from papm.config import group
from papm.data.base import Dataset
from papm.data.resize import OPTIONS
from papm.data.spec import open_spec, open_split
from papm.data.splits import Splits
from papm.data.splits import choose as choose_splits
from papm.engine import auto
from papm.engine.build import resolve, with_bounds
from papm.engine.calibration import Calibration, add_interval, calibrate
from papm.engine.count_split import count_split
from papm.engine.evaluate import Evaluation
from papm.engine.head_start import head_start
from papm.engine.resumed import going_on
from papm.engine.start import implied
from papm.engine.steps import OnStep, Steps
from papm.errors import ConfigError, PapmError, unknown
from papm.extras import MissingExtraError
from papm.models.weights import held, read_weights
from papm.predict import localization
from papm.predict.ensemble import Ensemble
from papm.predict.localization import Localization
from papm.predict.predictor import Counter, pick_device
from papm.predict.tiling import OnTile
from papm.text import Brief

if TYPE_CHECKING:
    from papm.config import TrainConfig
    from papm.engine.log import Watcher
    from papm.models.base import Progress

log = logging.getLogger(__name__)

Data = str | Path | Mapping[str, Dataset]  # NAME:FOLDER, a name, a folder; or splits that were opened
OnItem = Callable[[], None]
AUTO = "auto"
USUAL = {True: "dinov2", False: "tiny"}  # the network of a machine with a GPU, and without
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


def choose(
    machine: torch.device, method: str = AUTO, backbone: str = AUTO, wanted: str | None = None
) -> tuple[str, str]:
    """What `auto` means on this machine: a method and a backbone that fit each other; `wanted`: in place of the usual one.

    >>> choose(torch.device("cuda")), choose(torch.device("cpu")), choose(torch.device("cpu"), method="p2p-papm")
    (('al-papm', 'dinov2'), ('hd-papm', 'tiny'), ('p2p-papm', 'p2pnet'))
    """
    if backbone == AUTO:
        points = method != AUTO and methods.method(method).network == "points"
        backbone = "p2pnet" if points else wanted or USUAL[machine.type == "cuda"]
    if method == AUTO:
        points = models.info(backbone).kind == "points"
        method = "p2p-papm" if points else "al-papm" if backbone == "dinov2" else "hd-papm"
    return method, backbone


def _wanted(given: Mapping[str, Any], machine: torch.device) -> tuple[str | None, dict[str, Any]]:
    """The density network that weights in hand are of, or that has what the usual one of the machine lacks; and its options."""
    options, weights = group(given, "network"), given.get("weights")
    if weights == "imagenet" and machine.type != "cuda":
        return "lite", options  # the one that has such weights and that a CPU can train
    arch = None if weights in (None, "imagenet") else held(read_weights(Path(str(weights)).expanduser()))
    if arch is not None:
        return (arch, options) if arch in models.names() else ("vgg19", {"trunk": arch, **options})
    usual, paper = (set(models.info(name).options) for name in (USUAL[True], "vgg19"))
    lacks = machine.type == "cuda" and not set(options) <= usual and set(options) <= paper
    return "vgg19" if lacks else None, options


@dataclass(frozen=True, eq=False, repr=False)
class Choice(Brief):
    """All settings of a run, why those that `auto` chose are what they are, and the splits that were opened to choose."""

    config: TrainConfig
    why: tuple[str, ...] = ()
    splits: Splits | None = None


def configure(
    data: Data,
    method: str,
    backbone: str,
    settings: Mapping[str, Any],
    resumed: Path | None = None,
    on_download: Progress | None = None,
) -> Choice:
    """All settings of a run: the recipe of method and backbone, over it what is given, and `auto` for what is left open.

    A run that is `resumed` from its folder has its own where nothing is given. `on_download` hears of weights that are fetched.
    """
    given = {k: v for k, v in settings.items() if not (k in auto.CHOSEN and v == AUTO)}
    named = next((d.name for d in data.values()), "") if isinstance(data, Mapping) else str(data)
    if resumed is not None and (resumed / "config.yaml").exists():
        config = with_bounds(going_on(resumed, {**given, "method": method, "backbone": backbone, "data": named}))
        opened = data if isinstance(data, Mapping) else open_spec(config.data, **config.options)
        return Choice(config, (), choose_splits(opened, config.select, config.val_fraction, config.seed))
    why: list[str] = []
    open_to_all = method == backbone == AUTO and not {"init", "weights", "network"} & set(given)
    if given.get("init"):
        method, backbone, given = implied(method, backbone, given)
    if AUTO in (method, backbone):
        machine, free = pick_device(str(given.get("device", AUTO))), backbone == AUTO
        wanted, options = _wanted(given, machine) if free else (None, {})
        method, backbone = choose(machine, method, backbone, wanted)
        if free:
            if backbone == wanted and options:
                given["network"] = options
            here = f"for a {'GPU' if machine.type == 'cuda' else 'CPU'}"
            reason = "as its weights or options are given" if backbone == wanted else here
            why.append(f"{method} with {backbone}: {reason}")
        if free and machine.type != "cuda" and backbone == "p2pnet":
            given["network"] = {"trunk": "tiny", **group(given, "network")}
        if free and models.info(backbone).trunk is not None and "trunk" not in group(given, "network"):
            given = {"weights": "imagenet", **given}
    config = with_bounds(resolve(method, backbone, {**given, "data": named}))
    starts = open_to_all and config.backbone == USUAL[False]
    if not starts and not isinstance(data, Mapping) and set(auto.CHOSEN) <= set(given):
        return Choice(config, tuple(why))
    opened = data if isinstance(data, Mapping) else open_spec(config.data, **config.options)
    config, more = auto.select(config, given, opened)
    why += more
    splits = choose_splits(opened, config.select, config.val_fraction, config.seed)
    seen = auto.look(splits.train, "turn" not in given)
    if starts:
        added, reasons = head_start(splits.train, on_download)
        backbone = added.pop("backbone", backbone)
        given = {**added, **given}
        config = dataclasses.replace(
            with_bounds(resolve(method, backbone, {**given, "data": named})), select=config.select
        )
        why[:1] = [f"{config.method} with {config.backbone}: for a CPU", *reasons]
    config, more = auto.choose(config, given, seen)
    return Choice(config, (*why, *more), splits)


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
