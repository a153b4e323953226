"""What counts in images, one or many: a model, several together, or (`papm serve` without a model) nobody yet."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, Protocol, TypedDict, TypeVar, Unpack, overload

from torch import Tensor

from papm.errors import ConfigError, DataError
from papm.images import find_images, find_unread, passed_over
from papm.predict.pixels import pixels
from papm.predict.prediction import Prediction
from papm.predict.tiling import OnTile
from papm.text import Brief

log = logging.getLogger(__name__)

T = TypeVar("T")
R = TypeVar("R")
Many = list[Any] | tuple[Any, ...]


@dataclass(frozen=True, eq=False, repr=False)
class Asked(Brief):
    """What is asked about an image."""

    points: bool = True
    name: str = ""
    roi: Tensor | None = None  # bool [H, W]
    on_tile: OnTile | None = None
    limit: int | None = None  # pixels, as the network would see the image


class Options(TypedDict, total=False):
    """The same as keywords of `predict`."""

    points: bool
    name: str
    roi: Tensor | None
    on_tile: OnTile | None
    limit: int | None


class Source(Protocol):
    """What counts in one image."""

    def predict(self, image: Any, **asked: Unpack[Options]) -> Prediction: ...


class Predictor(ABC):
    """`predict` of one image or of many, for whatever counts in the pixels of one."""

    @overload
    def predict(self, image: Many, *, batch: int = 1, **asked: Unpack[Options]) -> list[Prediction]: ...
    @overload
    def predict(self, image: str | Path, *, batch: int = 1, **asked: Unpack[Options]) -> Any: ...
    @overload
    def predict(self, image: Any, **asked: Unpack[Options]) -> Prediction: ...
    def predict(
        self,
        image: Any,
        *,
        points: bool = True,
        name: str = "",
        roi: Tensor | None = None,
        on_tile: OnTile | None = None,
        limit: int | None = None,
        batch: int = 1,
    ) -> Any:
        """Count in a file, a Pillow image, an array [H, W, 3] or a tensor [3, H, W] (uint8, RGB); a list of them or a folder
        of images gives a list of predictions (`predict_many`).

        With `points`, the prediction also says where the model sees objects. An image is resized by the rule that the model was
        trained with, if any (`Prediction.scale`, and `warning` where that shrinks it much more than any training image); the
        prediction is in pixels of the image given. With `roi`, bool [H, W], only what lies in that region is counted, mapped
        and pointed at. `on_tile` hears (done, all) of a large image. An image that the network would see with more pixels than
        `limit` (`papm.images.max_pixels()` where None), resized and padded, is refused.
        """
        if isinstance(image, list | tuple) or (isinstance(image, str | Path) and Path(image).is_dir()):
            if name or roi is not None:
                raise ConfigError("name and roi are of one image; give images one by one")
            return list(self.predict_many(image, points=points, batch=batch, on_tile=on_tile, limit=limit))
        name = name or _name(image)
        return self._predict(pixels(image), Asked(points, name, roi, on_tile, limit))

    def predict_many(
        self,
        images: Iterable[Any] | str | Path,
        *,
        points: bool = True,
        batch: int = 1,
        on_tile: OnTile | None = None,
        limit: int | None = None,
    ) -> Iterator[Prediction]:
        """Predictions of images, or of those in a folder, in their order; files are decoded while others are counted.

        Up to `batch` images that follow each other and have one size go through the network together.
        """
        listed = _in_folder(Path(images)) if isinstance(images, str | Path) else images
        asked = Asked(points, "", None, on_tile, limit)
        for made in self.predict_each(listed, pixels, asked=asked, batch=batch):
            if isinstance(made, Exception):
                raise made
            yield made

    def predict_each(
        self, images: Iterable[Any], read: Callable[[Any], Tensor], *, asked: Asked, batch: int = 1, threads: int = 1
    ) -> Iterator[Prediction | Exception]:
        """A prediction for each image, or the error that it cannot be read or counted for, in their order.

        `read` gives the pixels of an image in as many `threads`, ahead of the network.
        """
        if batch < 1:
            raise ConfigError(f"batch is a number of images, 1 or more, not {batch}")
        group: list[tuple[Tensor, Asked]] = []
        for image, pixel in _read_each(read, images, batch, threads):
            if group and (isinstance(pixel, Exception) or len(group) == batch or pixel.shape != group[0][0].shape):
                yield from self._each(group)
                group = []
            if isinstance(pixel, Exception):
                yield pixel
            else:
                group.append((pixel, replace(asked, name=_name(image))))
        if group:
            yield from self._each(group)

    def _each(self, group: Sequence[tuple[Tensor, Asked]]) -> Iterator[Prediction | Exception]:
        """Images of one size together; where one of them cannot be counted, each by itself."""
        try:
            yield from self._predict_several(group)
        except Exception as error:
            if len(group) == 1:
                yield error
                return
            for one in group:
                yield from self._each([one])

    @abstractmethod
    def _predict(self, image: Tensor, asked: Asked) -> Prediction:
        """The prediction of pixels, uint8 [3, H, W]."""

    def _predict_several(self, images: Sequence[tuple[Tensor, Asked]]) -> list[Prediction]:
        """Predictions of images of one size."""
        return [self._predict(image, asked) for image, asked in images]


def _name(image: Any) -> str:
    return Path(image).name if isinstance(image, str | Path) else ""


def _read_each(
    read: Callable[[T], R], items: Iterable[T], batch: int, threads: int
) -> Iterator[tuple[T, R | Exception]]:
    """Each item and what reading it gave, or the error.

    One thread hands over a batch at a time: for small images a hand-over takes longer than what is handed over.
    """

    def several(chunk: Sequence[T]) -> list[R | Exception]:
        found: list[R | Exception] = []
        for item in chunk:
            try:
                found.append(read(item))
            except Exception as error:
                found.append(error)
        return found

    size, left = (batch if threads == 1 else 1), iter(items)
    chunks = iter(lambda: list(islice(left, size)), [])
    for chunk, reading in read_ahead(several, chunks, 1 if threads == 1 else max(batch, 2 * threads), threads):
        yield from zip(chunk, reading.result())


def read_ahead(
    read: Callable[[T], R], items: Iterable[T], depth: int = 1, threads: int = 1
) -> Iterator[tuple[T, Future[R]]]:
    """Each item and the future of reading it, in threads that are `depth` items ahead.

    >>> [(k, square.result()) for k, square in read_ahead(lambda k: k * k, [1, 2, 3])]
    [(1, 1), (2, 4), (3, 9)]
    """
    waiting: deque[tuple[T, Future[R]]] = deque()
    with ThreadPoolExecutor(threads) as pool:
        for item in items:
            waiting.append((item, pool.submit(read, item)))
            if len(waiting) > depth:
                yield waiting.popleft()
        yield from waiting


def _in_folder(folder: Path) -> list[Path]:
    """The images of a folder."""
    found, other = find_images(folder), passed_over(find_unread(folder))
    if not found:
        raise DataError(f"{folder}: there are no images in this folder{other and f'; {other}'}")
    if other:
        log.warning("%s: %s", folder, other)
    return found
