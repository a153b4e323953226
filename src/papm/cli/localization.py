"""What `papm eval --localization` does: points from a model or from files, the protocols, and how they are shown."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from papm.cli.options import How
from papm.errors import ConfigError, DataError, unknown
from papm.text import n_of

if TYPE_CHECKING:
    from torch import Tensor

    from papm.data.base import Dataset
    from papm.metrics.localization import QnrfScore, RadiusScore
    from papm.predict.ensemble import Ensemble
    from papm.predict.predictor import Counter
    from papm.structures import Sample

SHOWN = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 100.0)  # thresholds in the table of UCF-QNRF
IN_FILE = (4.0, 8.0, 16.0, 100.0)  # and in the CSV of its images


def open_split(data: str, split: str, options: Mapping[str, Any] | None = None) -> tuple[Dataset, str]:
    """The split asked for; data without splits is evaluated whole."""
    from papm import data as datasets
    from papm.cli import ui

    with ui.err.status("reading annotations"):
        splits = datasets.open_spec(data, **(options or {}))
    if split not in splits:
        if set(splits) != {"all"} or split != "test":
            raise unknown("split", split, splits)
        ui.note(
            "This data has no split 'test': all images are counted, also those a model was trained on (papm data split)."
        )
        split = "all"
    return splits[split], split


def keep_sizes(options: Mapping[str, Any], command: str) -> None:
    """Refuse options that resize images where the model resizes them itself."""
    from papm.data.resize import OPTIONS

    for key in options:
        if key in OPTIONS:
            raise ConfigError(f"{key} does not go with {command}: the model sees images at its own size; leave it out")


@dataclass(frozen=True)
class PointSet:
    """What the protocols compare: per image a name, predicted and annotated points, and sizes where they are known."""

    names: Sequence[str]
    predicted: Sequence[Any]
    truth: Sequence[Any]
    sigma_s: Sequence[Any] = ()
    sigma_l: Sequence[Any] = ()
    levels: Sequence[Any] = ()
    scores: Sequence[Any] | None = None  # of the predicted points, where they have some


def from_files(predictions: Path, ground_truth: Path) -> PointSet:
    """Two text files of the NWPU protocol; an image without predictions has none."""
    import numpy as np

    from papm.data.nwpu_files import read_ground_truth, read_predictions

    truth = read_ground_truth(ground_truth)
    found = read_predictions(predictions, truth)
    if absent := len(truth.keys() - found.keys()):
        from papm.cli import ui

        ui.note(f"WARNING: {absent} of {len(truth)} images have no line in {predictions}; they count as without points")
    objects = truth.values()
    return PointSet(
        [str(image) for image in truth],
        [found.get(image, np.zeros((0, 2))) for image in truth],
        [o.points for o in objects],
        [o.sigma_s for o in objects],
        [o.sigma_l for o in objects],
        [o.levels for o in objects],
    )


def from_model(
    model: Path,
    data: str,
    split: str,
    how: How,
    sized: bool,
    options: Mapping[str, Any] | None = None,
) -> tuple[PointSet, dict[str, Any]]:
    """Points that a model finds in a split, within regions of interest; `sized` asks for the sizes of the objects.

    Everything is in pixels of the files: a model that was trained on resized images resizes them itself.
    """
    from papm.cli import ui
    from papm.data import require_annotated

    keep_sizes(options or {}, "--localization")
    counter = how.open(model)
    dataset, split = open_split(data, split, options)
    require_annotated(dataset)
    if not len(dataset):
        raise DataError(f"{data}: the split '{split}' has no images")
    sizes = [_sizes(s, data) for s in dataset] if sized else []
    predicted, scores, truth, kept = [], [], [], []
    with ui.items("locating", len(dataset)) as advance:
        for sample in dataset:
            roi = sample.roi
            found, score = _found(counter, sample)
            keep, seen = _in_region(sample.points, roi), _in_region(found, roi)
            predicted.append(found[seen])
            scores.append(score[seen])
            truth.append(sample.points[keep])
            kept.append(keep.numpy())
            advance()
    columns = [[column[k] for column, k in zip(part, kept)] for part in zip(*sizes)] if sizes else [[], [], []]
    small, large, levels = columns
    about: dict[str, Any] = {"data": data, "split": split, "model": str(model), "method": counter.spec.method}
    if how.beside:
        about["with"] = [str(p) for p in how.beside]
    return PointSet([s.name for s in dataset], predicted, truth, small, large, levels, scores), about


def _found(counter: Counter | Ensemble, sample: Sample) -> tuple[Tensor, Tensor]:
    """Points [n, 2] and their scores [n]."""
    from papm import models

    # Chances outside the region would ask for more points inside it; the peaks of a map are found in the whole of it.
    by_points = models.info(counter.spec.backbone).kind == "points"
    made = counter.predict(sample.image, roi=sample.roi if by_points else None)
    if made.points is None or made.scores is None:
        raise DataError(f"{sample.name}: this model gives no points")
    return made.points.cpu(), made.scores.cpu()


def _in_region(points: Tensor, roi: Tensor | None) -> Tensor:
    """bool [n]: which points count; without a region all do, with one those outside the image do not."""
    import torch

    if roi is None:
        return torch.ones(len(points), dtype=torch.bool)
    h, w = roi.shape
    x, y = points.floor().long().unbind(-1)
    inside = (x >= 0) & (x < w) & (y >= 0) & (y < h)
    return inside & roi[y.clamp(0, h - 1), x.clamp(0, w - 1)].bool()


def _sizes(sample: Sample, data: str) -> tuple[Any, Any, Any]:
    """σ_s, σ_l and level of each object, from its box or its extent (as a square box)."""
    import torch

    from papm.metrics.localization import box_sigmas

    if sample.boxes is not None:
        return box_sigmas(sample.boxes)
    if sample.extents is not None:
        half = sample.extents[:, None] / 2
        return box_sigmas(torch.cat([-half, -half, half, half], 1))
    if not len(sample.points):
        return box_sigmas(torch.zeros(0, 4))
    raise DataError(
        f"{data}: {sample.name} has points without sizes, and nwpu needs the size of each object; "
        "give --radius 4,8 for fixed distances, or use --localization qnrf"
    )


def show_nwpu(points: PointSet, about: dict[str, str], radii: Sequence[float], out: Path | None, json: bool) -> None:
    """Pairs within the size of the object, or within fixed radii."""
    from papm.cli import ui
    from papm.metrics import localization

    with ui.items("matching", len(points.names) * (len(radii) or 2)) as advance:
        if radii:
            scores = {
                f"{r:g} px": localization.within(points.predicted, points.truth, r, on_item=advance) for r in radii
            }
        else:
            sizes = (points.sigma_s, points.sigma_l, points.levels)
            scores = localization.nwpu(points.predicted, points.truth, *sizes, on_item=advance)
    if out is not None:
        found = {f"matched_{k.removesuffix(' px')}": [i.tp for i in s.images] for k, s in scores.items()}
        _write(out, points, found)
    if json and radii:
        ui.print_json({**about, "radius": {k.removesuffix(" px"): s.to_dict() for k, s in scores.items()}})
    elif json:
        ui.print_json({**about, **{k: s.to_dict() for k, s in scores.items()}})
    else:
        _tables(points, scores)


def _tables(points: PointSet, scores: Mapping[str, RadiusScore]) -> None:
    from papm.cli import ui

    rows = [
        [name, 100 * s.total.precision, 100 * s.total.recall, 100 * s.total.f1, s.total.tp, s.total.fp, s.total.fn]
        for name, s in scores.items()
    ]
    columns = ["within", "precision %", "recall %", "F1 %", "found", "false", "missed"]
    ui.table(columns, rows, title=_title(points))
    counted = next(iter(scores.values())).levels
    if counted:
        recalls = {name: s.recall_by_level for name, s in scores.items()}
        ui.table(
            ["level", "objects", *(f"recall % {name}" for name in scores)],
            [[k, n, *(100 * r[k] for r in recalls.values())] for k, (_, n) in counted.items() if n],
            title="By size: level k is an area of 10^k to 10^(k+1) px",
        )


def show_qnrf(points: PointSet, about: dict[str, str], matching: str, out: Path | None, json: bool) -> None:
    """Pairs at 1 to 100 px."""
    from papm.cli import ui
    from papm.metrics import localization

    with ui.items("matching", len(points.names)) as advance:
        score: QnrfScore = localization.qnrf(
            points.predicted,
            points.truth,
            matching="maximum" if matching == "maximum" else "greedy",
            on_item=advance,
            scores=points.scores,
        )
    if out is not None:
        places = {f"{t:g}": int((score.thresholds == t).argmax()) for t in IN_FILE}
        _write(out, points, {f"matched_{t}": score.pairs[:, k].tolist() for t, k in places.items()})
    made = score.to_dict()
    if json:
        ui.print_json({**about, **made})
        return
    at = [(t, score.at(t)) for t in SHOWN]
    rows: list[list[object]] = [[f"{t:g} px", 100 * s.precision, 100 * s.recall, 100 * s.f1] for t, s in at]
    rows.append(["mean of 1…100 px", *(100 * float(str(made[k])) for k in ("precision", "recall", "f1"))])
    ui.table(["within", "precision %", "recall %", "F1 %"], rows, title=f"{_title(points)}; {matching} matching")
    if score.auc is None:
        ui.say("AUC, precision over recall: not comparable, the predictions have no scores")
    else:
        ui.say(f"AUC, precision over recall as the score falls, mean of 1…100 px: {score.auc:.4f}")
    ui.say(f"AUC, mean of F1 over the thresholds: {score.auc_threshold:.4f}")


def _title(points: PointSet) -> str:
    predicted, objects = (sum(map(len, part)) for part in (points.predicted, points.truth))
    return f"{n_of(len(points.names), 'image')}: {n_of(predicted, 'point')} for {n_of(objects, 'object')}"


def _write(path: Path, points: PointSet, matched: Mapping[str, Sequence[int]]) -> None:
    """One line an image: how many points, how many objects, how many of them paired."""
    from papm.files import guarded, write_text

    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(["image", "predicted", "objects", *matched])
    for name, p, t, *found in zip(points.names, points.predicted, points.truth, *matched.values()):
        writer.writerow([guarded(name), len(p), len(t), *found])
    write_text(path, buffer.getvalue())
