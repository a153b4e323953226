"""Counting a whole split with a model: raw and in-image counts, errors with intervals."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from papm.data.base import Dataset, require_annotated
from papm.files import write_text
from papm.metrics.counting import CountingScore, bootstrap, counting_errors
from papm.predict.predictor import counts, infer


@dataclass(frozen=True)
class Evaluation:
    """Counts of every image of a split. Published figures count every annotated point; some lie outside their image."""

    names: list[str]
    predicted: list[float]
    truth: list[float]  # all annotated points (of the region of interest)
    inside: list[float]  # those inside the image

    @property
    def score(self) -> CountingScore:
        return counting_errors(self.predicted, self.truth)

    @property
    def score_in_image(self) -> CountingScore:
        return counting_errors(self.predicted, self.inside)

    def intervals(self) -> dict[str, tuple[float, float]]:
        """95 % bootstrap intervals over images."""
        return bootstrap(self.predicted, self.truth)


def evaluate(
    network: torch.nn.Module,
    dataset: Dataset,
    *,
    precision: str = "32",
    on_item: Callable[[], None] | None = None,
) -> Evaluation:
    """Count every image whole, at its own size, inside its region of interest where it has one."""
    require_annotated(dataset)
    was_training = network.training
    network.eval()
    device = next(network.parameters()).device
    half = {"bf16": torch.bfloat16, "16": torch.float16}.get(precision)
    # Every image has its own size: searching the fastest convolution for each costs more than it gives.
    benchmark, torch.backends.cudnn.benchmark = torch.backends.cudnn.benchmark, False
    predicted = []
    try:
        for sample in dataset:
            with torch.autocast(device.type, dtype=half, enabled=half is not None):
                predicted.append(counts(infer(network, sample.image), roi=sample.roi)[0])
            if on_item is not None:
                on_item()
    finally:
        torch.backends.cudnn.benchmark = benchmark
    network.train(was_training)
    return Evaluation(
        [s.name for s in dataset],
        [float(p) for p in torch.stack(predicted).tolist()] if predicted else [],
        [float(s.counted.sum()) for s in dataset],
        [float((s.counted & s.inside).sum()) for s in dataset],
    )


def write_evaluation(path: Path, found: Evaluation) -> None:
    """predictions.csv: one line an image, worst first, so that the file opens at what is worth looking at."""
    rows = zip(found.names, found.predicted, found.truth, found.inside)
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(["image", "predicted", "truth", "truth_in_image"])
    for name, p, t, i in sorted(rows, key=lambda r: -abs(r[1] - r[2])):
        writer.writerow([name, f"{p:.3f}", f"{t:.0f}", f"{i:.0f}"])
    write_text(path, buffer.getvalue())
