"""What every dataset is made of: a reader lists entries, an entry becomes a Sample, samples make a Dataset.

Adding a format is one file in `readers/` that registers a `Reader`: a function from a folder to the entries of each split.
An entry knows its image file and how to parse its annotation; opening a dataset (strict: the first fault raises) and
checking one (every fault is collected) are written once, over entries.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, overload

import torch
from torch import Tensor

from papm import registry
from papm.data import resize
from papm.errors import ConfigError, DataError, unknown
from papm.images import image_size
from papm.registry import Registry
from papm.structures import Sample
from papm.text import Brief, n_of

logger = logging.getLogger(__name__)

HOLDOUT = "holdout"  # option of every dataset: the published test images stay unseen, a share of the training images is tested
BORDER = 1e-3  # px beyond W or H that still mean W or H: what rounding to three decimals leaves


@dataclass(frozen=True, eq=False, repr=False)
class Annotation(Brief):
    """The parsed annotation of one image, in the coordinates of `structures` (pixel centres at +0.5)."""

    points: Tensor  # [n, 2] float32
    labels: Tensor | None = None
    boxes: Tensor | None = None
    extents: Tensor | None = None
    lines: Sequence[int] | None = None  # 1-based line of each point in its file, for messages
    meta: Mapping[str, Any] = field(default_factory=dict)
    annotations: Mapping[str, Tensor] = field(default_factory=dict)  # points of each person, where several clicked


@dataclass(frozen=True)
class Entry:
    """One image of a dataset before anything is read: `load` parses its annotation and raises DataError on a fault."""

    name: str
    image: Path
    annotation: Path | None
    load: Callable[[], Annotation]
    roi: Callable[[], Tensor] | None = None
    file_format: str = ""  # of `annotation`, where a reader knows several
    pixels: Callable[[], Tensor] | None = None  # uint8 [3, H, W], where `read_image` would not do


def file_formats(entries: Iterable[Entry]) -> str:
    """The formats of annotation files among entries, in words; nothing where their reader knows only one."""
    return ", ".join(dict.fromkeys(e.file_format for e in entries if e.file_format))


class Dataset(Sequence[Sample]):
    """The samples of one split. `dataset[i]` and `dataset.samples` give Samples; pixels are decoded on `sample.image`."""

    def __init__(
        self,
        samples: Sequence[Sample],
        name: str = "",
        split: str = "",
        root: Path | None = None,
        file_format: str = "",
    ) -> None:
        self.samples: tuple[Sample, ...] = tuple(samples)
        self.name = name
        self.split = split
        self.root = root
        self.file_format = file_format  # of the annotation files, where the dataset's format has several

    @overload
    def __getitem__(self, index: int) -> Sample: ...
    @overload
    def __getitem__(self, index: slice) -> Dataset: ...
    def __getitem__(self, index: int | slice) -> Sample | Dataset:
        if isinstance(index, slice):
            return self.subset(range(*index.indices(len(self))))
        return self.samples[index]

    def __len__(self) -> int:
        return len(self.samples)

    def __iter__(self) -> Iterator[Sample]:
        return iter(self.samples)

    @property
    def hidden(self) -> bool:
        """Whether the annotations of these images are not published: they can be counted, not evaluated or learned from."""
        return any(s.meta.get("hidden") for s in self.samples)

    def like(self, samples: Sequence[Sample], split: str | None = None) -> Dataset:
        """A dataset of these samples that is otherwise this one."""
        return Dataset(samples, self.name, self.split if split is None else split, self.root, self.file_format)

    def subset(self, indices: Sequence[int], split: str | None = None) -> Dataset:
        """The samples at `indices`, as a dataset."""
        return self.like([self.samples[i] for i in indices], split)

    def __repr__(self) -> str:
        return f"Dataset({self.name or 'unnamed'}/{self.split}, {n_of(len(self), 'image')})"


def require_annotated(dataset: Dataset) -> Dataset:
    """The dataset itself; DataError when its annotations are not published, so that nothing can be compared or learned."""
    if dataset.hidden:
        where = "/".join(w for w in (dataset.name, dataset.split) if w) or "these images"
        raise DataError(
            f"{where}: the annotations of these images are not published, so there is nothing to compare with;"
            " use another split, or 'papm predict' to count them"
        )
    return dataset


Entries = Mapping[str, Sequence[Entry]]
Expected = Mapping[str, tuple[int, int | None]]


@dataclass(frozen=True)
class Reader:
    """A dataset format. `origin` is what is added to a coordinate of the files to reach our pixel convention."""

    name: str
    summary: str
    entries: Callable[..., Entries] | None = None  # (root, **options) -> split -> entries
    make: Callable[..., Mapping[str, Dataset]] | None = None  # instead of entries: datasets that are not files
    recognise: Callable[[Path], bool] = lambda root: False
    origin: float = 0.0
    layout: str = ""  # the folder tree it expects, for messages and docs
    outside_is_error: bool = False  # points outside the image: a fault (own data) or a known blemish (published data)
    # split -> published (images, points or None), "*" is the whole; several where there are several releases
    expected: Expected | tuple[Expected, ...] = field(default_factory=dict)
    blank_is_empty: bool = False  # an annotation file of zero bytes is how the format says "no objects"
    # Whether a check looks for annotations without image and images that do not belong: not where lists say which do
    # ("never"), nor, where options leave some out, with options ("plain").
    strays: Literal["always", "plain", "never"] = "always"


READERS: Registry[Reader] = Registry("dataset")
reader = READERS.get


def register(reader: Reader) -> Reader:
    """Add a format to the registry; the module that calls it is imported by `papm.data`."""
    READERS.register(reader.name, reader)
    return reader


def readers() -> dict[str, Reader]:
    """Every known format by name."""
    return {name: READERS.get(name) for name in READERS}


def settle(points: Tensor, size: tuple[int, int]) -> Tensor:
    """Points of one's own data: a dot on the far border, x = W or y = H, belongs to the image and is put just inside.

    >>> (settle(torch.tensor([[40.0, 7.0], [41.0, 7.0]]), (30, 40))[:, 0] < 40).tolist()
    [True, False]
    """
    limit = points.new_tensor([size[1], size[0]])
    on_border = (points >= limit) & (points <= limit + BORDER)
    return torch.where(on_border, torch.nextafter(limit, torch.zeros_like(limit)), points)


def build_sample(entry: Entry, own_data: bool = False) -> Sample:
    """Parse one entry; raises DataError naming the file. In `own_data` points on the far border are inside (`settle`)."""
    from papm.data.upright import upright

    size = image_size(entry.image)
    a = entry.load() if own_data else upright(entry.load(), entry.image, size)
    points, annotations = a.points.to(torch.float32).reshape(-1, 2), a.annotations
    if own_data:
        points, annotations = settle(points, size), {who: settle(p, size) for who, p in annotations.items()}
    return Sample(
        name=entry.name,
        source=entry.pixels or entry.image,
        points=points,
        size=size,
        labels=a.labels,
        boxes=a.boxes,
        extents=a.extents,
        roi_source=entry.roi,
        meta=dict(a.meta),
        annotations=annotations,
    )


def open(
    name: str, root: str | Path | None = None, *, on_item: Callable[[int, int], None] | None = None, **options: Any
) -> dict[str, Dataset]:
    """Open a dataset: `open("shanghaitech-a", root)` -> {"train": Dataset, "test": Dataset}.

    Annotations are parsed and image headers read here; pixels only when asked for. Besides the options of the format, those
    of `papm.data.resize` show the images at another size, and `holdout=0.3` gives training images alone, that share of them
    as "test", to choose settings without the published test images. `on_item(done, total)` is called after each image.
    """
    if name not in READERS and root is None and _is_path(name):
        raise ConfigError(f"'{name}' is a path, not the name of a dataset; write {_call(name)}")
    rule, options = resize.take(name, options)
    found = _open(reader(name), root, {k: v for k, v in options.items() if k != HOLDOUT}, on_item)
    if (share := options.get(HOLDOUT)) is not None:
        from papm.data.splits import training_only  # here: it divides what this file defines

        found = training_only(found, share, name)
    return found if not rule else {split: d.like([rule.apply(sample) for sample in d]) for split, d in found.items()}


def _is_path(name: str) -> bool:
    try:
        return Path(name).expanduser().exists()
    except (OSError, RuntimeError):  # too long for one, or of a user who is not known
        return False


def _call(path: str) -> str:
    """How to open a path that was given in place of a dataset's name."""
    fits = [r.name for r in readers().values() if r.recognise(Path(path).expanduser())]
    return f'open("{fits[0] if len(fits) == 1 else "folder"}", "{path}")'


def _open(
    r: Reader, root: str | Path | None, options: Mapping[str, Any], on_item: Callable[[int, int], None] | None
) -> dict[str, Dataset]:
    name = r.name
    if r.make is not None:
        return dict(r.make(root, **options))
    assert r.entries is not None
    if root is None:
        raise DataError(f"dataset '{name}' needs a folder: write {name}:PATH")
    folder = Path(root).expanduser()
    if not folder.exists():
        raise DataError(f"{folder}: no such folder (for dataset '{name}')")
    check_options(r, options)
    splits = r.entries(folder, **options)
    done, total = itertools.count(1), sum(map(len, splits.values()))

    def build(entry: Entry) -> Sample:
        sample = build_sample(entry, r.outside_is_error)
        if on_item is not None:
            on_item(next(done), total)
        return sample

    found = {s: Dataset([build(e) for e in es], name, s, folder, file_formats(es)) for s, es in splits.items() if es}
    if not options:
        counted = {s: [(x.source, x.count) for x in d] for s, d in found.items()}
        for difference in unexpected(nearest(r.expected, counted), counted):
            logger.warning("%s: %s", folder, difference)
    return found


def nearest(expected: Expected | tuple[Expected, ...], found: Mapping[str, Sequence[object]]) -> Expected:
    """Of the numbers of several releases those that the images are nearest to.

    >>> nearest(({"train": (1411, None)}, {"train": (1830, None)}), {"train": ["P0000.png"] * 1800})
    {'train': (1830, None)}
    """
    releases = expected if isinstance(expected, tuple) else (expected,)
    return min(releases, key=lambda e: sum(abs(n - len(found.get(s, ()))) for s, (n, _) in e.items() if s != "*"))


def unexpected(expected: Expected, found: Mapping[str, Sequence[tuple[object, int]]]) -> list[str]:
    """Where images and points differ from the published numbers; `found` has (image, its points) of each split.

    >>> unexpected({"train": (300, 162707)}, {"train": [("a.jpg", 12)]})
    ["the split 'train' has 1 image, 300 are published", "the split 'train' has 12 points, 162,707 are published"]
    """
    out: list[str] = []
    for split, (images, points) in expected.items():
        pairs = dict(p for ps in found.values() for p in ps) if split == "*" else dict(found.get(split, ()))
        where = "the whole" if split == "*" else f"the split '{split}'"
        for have, want, noun in ((len(pairs), images, "image"), (sum(pairs.values()), points, "point")):
            if want is not None and have != want:
                out.append(f"{where} has {n_of(have, noun)}, {want:,} are published")
    return out


def option_names(r: Reader) -> list[str]:
    """The options that a format has; none of a dataset that is made, whose options stand in its name."""
    bound = getattr(r.entries, "keywords", {})  # of a partial: not the user's
    return [] if r.entries is None else [key for key in registry.options(r.entries) if key not in bound]


def check_options(r: Reader, options: Mapping[str, Any]) -> None:
    """Refuse options that a format does not have, and values that they do not take."""
    if r.entries is None:
        return  # datasets that are made check their own
    known, own = option_names(r), {k: v for k, v in options.items() if k != HOLDOUT}
    for key in (k for k in own if k not in known):
        raise unknown(f"option of dataset '{r.name}'", key, [*known, *resize.OPTIONS, HOLDOUT])
    registry.check_options(f"dataset '{r.name}'", own, r.entries)
