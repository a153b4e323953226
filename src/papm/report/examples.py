"""Pictures of what a model sees, on a few images from the emptiest to the fullest."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from papm.data.base import Dataset
from papm.draw import figure, number, overlay, panel, save_png, title_size
from papm.predict.prediction import Prediction
from papm.predict.predictor import Counter
from papm.predict.results import file_names
from papm.structures import Sample

LONGEST = 900  # px, the longer side of each picture of a panel


def save_examples(counter: Counter, dataset: Dataset, folder: Path, count: int = 6) -> list[Path]:
    """Write folder/examples/NN_name.png for `count` images spread over the counts, the fewest objects first.

    Examples of an earlier call are removed, so that a report never shows those of two models side by side.
    """
    place = folder / "examples"
    for old in place.glob("[0-9][0-9]_*.png"):
        old.unlink()
    samples = [dataset[i] for i in spread([s.count for s in dataset.samples], count)]
    files = []
    for k, (sample, name) in enumerate(zip(samples, file_names([s.name for s in samples]))):
        image = sample.image
        picture = example(image, sample, counter.predict(image, name=sample.name))
        files.append(save_png(picture, place / f"{k:02d}_{name}.png"))
    return files


def spread(counts: list[int], want: int) -> list[int]:
    """Indices of `want` images evenly over the order of their counts: the smallest, … the median, … the largest.

    >>> spread([30, 10, 50, 20, 40], 3), spread([7, 3], 6), spread([], 6)
    ([1, 0, 2], [1, 0], [])
    """
    order = sorted(range(len(counts)), key=lambda i: counts[i])
    want = min(want, len(order))
    if want < 2:
        return order[len(order) // 2 :][:want]
    return [order[round(k * (len(order) - 1) / (want - 1))] for k in range(want)]


def example(image: Tensor, sample: Sample, prediction: Prediction) -> Tensor:
    """uint8 [3, h, w]: the image with its true points, the predicted density over it, the predicted points on it."""
    found, true = number(prediction.count), number(sample.count)
    pictures = [overlay(image, truth=sample.points, max_side=LONGEST)]
    titles = [f"annotated: {true}"]
    if prediction.density is not None:
        text = title_size(pictures[0].shape[-2])
        shown = figure(image, prediction.density, prediction.stride, headed=False, text=text, max_side=LONGEST)
        pictures.append(shown)
        titles.append(f"density: {found}")
    if prediction.points is not None:
        # Beside a map the number of points; a network that gives points alone may sum probabilities, which is not their number.
        said = found if prediction.density is None else number(len(prediction.points))
        pictures.append(overlay(image, points=prediction.points, labels=prediction.kinds, max_side=LONGEST))
        titles.append(f"points: {said}")
    return panel(pictures, titles)
