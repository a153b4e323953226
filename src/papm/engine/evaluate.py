"""Counting a whole split with a model: raw and in-image counts, errors with intervals."""

from __future__ import annotations

import csv
import dataclasses
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from papm.data.base import Dataset, require_annotated
from papm.data.classes import class_names, require_labels
from papm.data.resize import resized_region
from papm.data.several import origin
from papm.errors import DataError
from papm.files import guarded, write_text
from papm.inference import Inference
from papm.metrics import game
from papm.metrics.counting import CountingScore, bootstrap, counting_errors
from papm.predict.outputs import COUNTS, class_counts, counts, require_finite, tally
from papm.predict.prediction import Prediction
from papm.predict.restore import restore
from papm.predict.tiling import OnTile, Tile, contract_of, infer
from papm.structures import DensityOutput, PointProposals, Sample


@dataclass(frozen=True)
class Evaluation:
    """Counts of every image of a split. Published figures count every annotated point; some lie outside their image."""

    names: list[str]
    predicted: list[float]
    truth: list[float]  # all annotated points (of the region of interest)
    inside: list[float]  # those inside the image
    grid: list[dict[int, float]] = field(default_factory=list)  # GAME of each image by level, where it was asked for
    classes: tuple[str, ...] = ()  # by name, where there are several and the points have labels
    predicted_by_class: list[list[float]] = field(default_factory=list)  # a row an image
    truth_by_class: list[list[float]] = field(default_factory=list)
    readings: dict[str, list[float]] = field(
        default_factory=dict
    )  # of a point network, not calibrated: both ways to count
    by_model: dict[str, list[float]] = field(default_factory=dict)  # where several counted; `predicted` is their mean
    raw: list[float] = field(default_factory=list)  # of a calibrated model: its counts before calibration
    origins: list[str] = field(default_factory=list)  # of each image, where several datasets are counted: its dataset

    @property
    def score(self) -> CountingScore:
        return counting_errors(self.predicted, self.truth)

    @property
    def mae(self) -> float:
        """Mean absolute error of the counts."""
        return self.score.mae

    @property
    def rmse(self) -> float:
        """Root of the mean squared error; what the field calls MSE."""
        return self.score.rmse

    @property
    def score_in_image(self) -> CountingScore:
        return counting_errors(self.predicted, self.inside)

    @property
    def class_scores(self) -> dict[str, CountingScore]:
        """Errors of every class by itself; none where there is one class only."""
        sides = zip(zip(*self.predicted_by_class), zip(*self.truth_by_class))
        return {name: counting_errors(list(p), list(t)) for name, (p, t) in zip(self.classes, sides)}

    @property
    def dataset_scores(self) -> dict[str, CountingScore]:
        """Errors of every dataset by itself; none where there is one only."""
        if len(names := list(dict.fromkeys(self.origins))) < 2:
            return {}
        rows = list(zip(self.origins, self.predicted, self.truth))
        apart = {name: [(p, t) for o, p, t in rows if o == name] for name in names}
        return {name: counting_errors([p for p, _ in found], [t for _, t in found]) for name, found in apart.items()}

    @property
    def game(self) -> dict[int, float]:
        """GAME of the split by level: the mean over its images."""
        return {k: float(np.mean([g[k] for g in self.grid])) for k in (self.grid[0] if self.grid else ())}

    @property
    def mae_by_count(self) -> dict[str, float]:
        """MAE of both ways to count proposals; none for a density network."""
        return {how: counting_errors(found, self.truth).mae for how, found in self.readings.items()}

    def intervals(self) -> dict[str, tuple[float, float]]:
        """95 % bootstrap intervals over images; NaN where there are too few."""
        return bootstrap(self.predicted, self.truth)


def evaluate(
    network: torch.nn.Module,
    dataset: Dataset,
    *,
    precision: str = "32",
    tile: Tile = "auto",
    grid: bool = False,
    classes: Sequence[str] = (),
    on_item: Callable[[], None] | None = None,
    on_tile: OnTile | None = None,
    strict: bool = False,
) -> Evaluation:
    """Count every image whole, at the size the dataset gives it, inside its region of interest where it has one.

    Large images are counted in tiles (`papm.predict.tiling`). The truth is that of the files: resizing changes neither a
    count nor which points lie in a region. `grid` also measures GAME of each image.
    The counts of a calibrated model are multiplied by its factor.
    Where the network counts several classes and the points have labels, each class is counted too; `classes` names them.
    `strict`: a count that is not a finite number raises CheckpointError; otherwise it stands in the result, as the end of a
    training reports it.
    """
    require_annotated(dataset)
    names = _classes_of(network, dataset, classes)
    was_training = network.training
    network.eval()
    # Every image has its own size: searching the fastest convolution for each costs more than it gives.
    benchmark, torch.backends.cudnn.benchmark = torch.backends.cudnn.benchmark, False
    made = Evaluation([], [], [], [], classes=names)
    contract = contract_of(network)
    factor = contract.factor
    predicted, apart = [], []
    readings: dict[str, list[Tensor]] = {}
    try:
        for sample in dataset:
            truth = sample.published
            region = truth.roi  # decoded once: it may be a file
            roi = region if region is None or truth is sample else resized_region(region, sample.size)
            output = infer(network, sample.image, tile, on_tile, precision)
            if strict:
                require_finite(output, contract, sample.name)
            predicted.append(counts(output, contract, roi)[0])
            if isinstance(output, PointProposals) and contract.calibration is None:
                for how, decode in COUNTS.items():
                    other = dataclasses.replace(contract, decode=decode)
                    readings.setdefault(how, []).append(counts(output, other, roi)[0])
            if names:
                apart.append(class_counts(output, contract, roi)[0])
            if grid:
                made.grid.append(grid_errors(output, contract, sample, region))
            counted = truth.counted_in(region)
            made.names.append(sample.name)
            made.origins.append(origin(sample))
            made.truth.append(float(counted.sum()))
            made.inside.append(float((counted & truth.inside).sum()))
            if names:
                made.truth_by_class.append(_labels_of(truth, counted, len(names)))
            if on_item is not None:
                on_item()
    finally:
        torch.backends.cudnn.benchmark = benchmark
        network.train(was_training)
    raw = torch.stack(predicted).tolist() if predicted else []  # counts stay on the device until the last image
    return dataclasses.replace(
        made,
        predicted=[factor * count for count in raw],
        predicted_by_class=(factor * torch.stack(apart)).tolist() if apart else [],
        readings={how: torch.stack(found).tolist() for how, found in readings.items()},
        raw=[] if contract.calibration is None else raw,
    )


def mean_of(by_model: Mapping[str, Evaluation]) -> Evaluation:
    """What the mean of the counts of several models is worth, on the images that all of them counted."""
    found = list(by_model.values())
    first = found[0]
    if any(f.names != first.names or f.classes != first.classes for f in found):
        raise DataError("the models counted different images or classes; their counts have no mean")
    return dataclasses.replace(
        first,
        predicted=np.mean([f.predicted for f in found], axis=0).tolist(),
        predicted_by_class=np.mean([f.predicted_by_class for f in found], axis=0).tolist(),
        grid=[],
        readings={},
        by_model={name: f.predicted for name, f in by_model.items()},
        raw=np.mean([f.raw or f.predicted for f in found], axis=0).tolist() if any(f.raw for f in found) else [],
    )


def _classes_of(network: torch.nn.Module, dataset: Dataset, names: Sequence[str]) -> tuple[str, ...]:
    """Names of the classes to compare; none where there is one, or a point without label.

    A model that was trained on labels without names has numbers for them, which go with any names of the data.
    """
    number = int(getattr(network, "num_classes", 1))
    truth = [s.published for s in dataset]
    if number < 2 or any(s.labels is None for s in truth if len(s.points)):
        return ()
    require_labels(truth, number)
    own, numbers = class_names(truth), tuple(str(k) for k in range(number))
    known = tuple(names) if tuple(names) != numbers else ()
    if known and any(s.meta.get("classes") for s in truth) and known != own:
        raise DataError(
            f"the model counts {', '.join(known)}, the data has {', '.join(own)}; open it with the same classes in that order"
        )
    return (known or own) if len(known or own) == number else numbers


def _labels_of(sample: Sample, counted: Tensor, classes: int) -> list[float]:
    """Objects of each class among those that count."""
    if sample.labels is None:
        return [0.0] * classes
    return [float(c) for c in torch.bincount(sample.labels[counted], minlength=classes)]


def grid_errors(
    output: DensityOutput | PointProposals, contract: Inference, sample: Sample, region: Tensor | None
) -> dict[int, float]:
    """GAME(0) … GAME(3) of one image, in pixels of its file and inside its region of interest, which is of that size too."""
    truth, factor = sample.published, contract.factor
    if isinstance(output, DensityOutput):
        density = factor * output.density[0].float().cpu()
        made = restore(Prediction(0.0, sample.size, density, output.stride), truth.size)
        assert made.density is not None
        return game.game(made.density, truth.points, size=truth.size, stride=made.stride, roi=region, whole_cells=True)
    # Every proposal by what it adds to the count, so that GAME(0) is the error of the count.
    weights, found = factor * tally(output, contract)[0].sum(-1).cpu(), output.points[0].float().cpu()
    # A proposal that was moved across the border belongs to an object at it, as when it is counted.
    limit = found.new_tensor([sample.size[1], sample.size[0]])
    found = found.clamp(min=0).minimum(torch.nextafter(limit, torch.zeros_like(limit)))
    made = restore(Prediction(0.0, sample.size, points=found), truth.size)
    assert made.points is not None
    return game.game_points(made.points, truth.points, size=truth.size, roi=region, weights=weights)


def write_evaluation(path: Path, found: Evaluation) -> None:
    """predictions.csv: one line per image, worst first, so that the file opens at what is worth looking at.

    Where there are several classes, two more columns for each: predicted_NAME and truth_NAME; where several models counted,
    one for each: by_NAME; of a calibrated model raw_count, what it predicted before.
    """
    each = [list(zip(p, t)) for p, t in zip(found.predicted_by_class, found.truth_by_class)]
    models = list(zip(*found.by_model.values())) or [()] * len(found.names)
    models = [(*alone, raw) for alone, raw in zip(models, found.raw)] or models
    rows = zip(found.names, found.predicted, found.truth, found.inside, each or [[]] * len(found.names), models)
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    more = [f"{side}_{name}" for name in found.classes for side in ("predicted", "truth")]
    more += [*(f"by_{m}" for m in found.by_model), *["raw_count"] * bool(found.raw)]
    writer.writerow(["image", "predicted", "truth", "truth_in_image", *more])
    for name, p, t, i, apart, alone in sorted(rows, key=lambda r: -abs(r[1] - r[2])):
        of_class = [cell for a, b in apart for cell in (f"{a:.3f}", f"{b:.0f}")]
        writer.writerow([guarded(name), f"{p:.3f}", f"{t:.0f}", f"{i:.0f}", *of_class, *(f"{m:.3f}" for m in alone)])
    write_text(path, buffer.getvalue())
