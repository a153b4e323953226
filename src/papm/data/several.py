"""Several datasets as one: `DATA+DATA`, each image with the name of its dataset, none of them drowned by a larger one."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from papm.data.base import READERS, Dataset
from papm.errors import DataError
from papm.structures import Sample

ORIGIN = "dataset"  # key of Sample.meta: which of several datasets an image is of


def _exists(part: str) -> bool:
    try:
        return Path(part).expanduser().exists()
    except (OSError, RuntimeError):  # longer than names are, or of a user that is not here
        return False


def parts_of(spec: str, exists: Callable[[str], bool] = _exists) -> list[str]:
    """What is joined by + in what a user wrote: names of datasets, NAME:FOLDER, folders. A folder's name may hold a +.

    >>> parts_of("carpk:data/CARPK+pucpr:data/PUCPR+_devkit/data")
    ['carpk:data/CARPK', 'pucpr:data/PUCPR+_devkit/data']
    """
    parts: list[str] = []
    for part in [spec] if "+" not in spec or exists(spec) else spec.split("+"):
        if parts and not (part and (part.partition(":")[0] in READERS or exists(part))):
            parts[-1] += f"+{part}"
        else:
            parts.append(part)
    return parts


def join(opened: Sequence[tuple[str, Mapping[str, Dataset]]]) -> dict[str, Dataset]:
    """The splits of several datasets as one: train with train, test with test.

    Of a dataset without training images all are trained on: give it splits (`papm data split`) to test on some.
    """
    number = Counter(name for name, _ in opened)
    seen: Counter[str] = Counter()
    made: dict[str, list[Sample]] = {}
    for name, splits in opened:
        seen[name] += 1
        label = name if number[name] == 1 else f"{name}-{seen[name]}"
        for split, dataset in _as_splits(name, splits).items():
            made.setdefault(split, []).extend(_of(sample, label) for sample in dataset)
    whole = "+".join(dict.fromkeys(name for name, _ in opened))
    return {split: Dataset(samples, whole, split) for split, samples in made.items()}


def _as_splits(name: str, splits: Mapping[str, Dataset]) -> Mapping[str, Dataset]:
    if "train" in splits:
        return {split: dataset for split, dataset in splits.items() if split in ("train", "val", "test")}
    if "all" in splits:
        return {"train": splits["all"]}
    if set(splits) <= {"val", "test"}:
        return splits
    raise DataError(f"{name}: has the splits {', '.join(splits)}; data that is joined has train, val and test, or all")


def _of(sample: Sample, label: str) -> Sample:
    original = None if sample.original is None else _of(sample.original, label)
    return replace(sample, name=f"{label}/{sample.name}", meta={**sample.meta, ORIGIN: label}, original=original)


def origin(sample: Sample) -> str:
    """Which of several datasets an image is of; nothing where there is one."""
    return str(sample.meta.get(ORIGIN, ""))


def turns(samples: Sequence[Sample]) -> list[int]:
    """Images of one epoch by their numbers: each once, those of a smaller dataset several times.

    A dataset is shown in proportion to the root of its number of images: 50 beside 400 are one image in four, not one in nine,
    and each of them is seen three times as often, not eight.

    >>> few, many = ([_of(Sample("", Path(), None, (1, 1)), name)] for name in ("few", "many"))
    >>> Counter(turns(few * 50 + many * 400)[:51]).most_common(1), len(turns(few * 50 + many * 400))
    ([(0, 3)], 550)
    """
    names = [origin(sample) for sample in samples]
    sizes = Counter(names)
    if len(sizes) < 2:
        return list(range(len(samples)))
    largest = max(sizes.values())
    times = {name: max(1, round(math.sqrt(largest / size))) for name, size in sizes.items()}
    return [k for k, name in enumerate(names) for _ in range(times[name])]
