"""What counts in images, one or many: a model, several together, or (`papm serve` without a model) nobody yet."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol, TypeVar, overload

from torch import Tensor

from papm.errors import ConfigError, DataError
from papm.images import find_images
from papm.predict.pixels import pixels
from papm.predict.prediction import Prediction
from papm.predict.tiling import OnTile

T = TypeVar("T")
R = TypeVar("R")
Many = list[Any] | tuple[Any, ...]


class Source(Protocol):
    """What counts in one image."""

    def predict(
        self,
        image: Any,
        *,
        points: bool = True,
        name: str = "",
        roi: Tensor | None = None,
        on_tile: OnTile | None = None,
        limit: int | None = None,
    ) -> Prediction: ...


class Predictor(ABC):
    """`predict` of one image or of many, for whatever counts in the pixels of one."""

    @overload
    def predict(
        self,
        image: Many,
        *,
        points: bool = True,
        on_tile: OnTile | None = None,
        limit: int | None = None,
        batch: int = 1,
    ) -> list[Prediction]: ...
    @overload
    def predict(
        self,
        image: str | Path,
        *,
        points: bool = True,
        name: str = "",
        roi: Tensor | None = None,
        on_tile: OnTile | None = None,
        limit: int | None = None,
        batch: int = 1,
    ) -> Any: ...
    @overload
    def predict(
        self,
        image: Any,
        *,
        points: bool = True,
        name: str = "",
        roi: Tensor | None = None,
        on_tile: OnTile | None = None,
        limit: int | None = None,
    ) -> Prediction: ...
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
        if isinstance(image, str | Path):
            name = name or Path(image).name
        return self._predict(pixels(image), points, name, roi, on_tile, limit)

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
        if batch < 1:
            raise ConfigError(f"batch is a number of images, 1 or more, not {batch}")
        listed = _in_folder(Path(images)) if isinstance(images, str | Path) else images
        group: list[tuple[Tensor, str]] = []
        for image, decoding in read_ahead(pixels, listed, batch):
            pixel = decoding.result()
            if group and (len(group) == batch or pixel.shape != group[0][0].shape):
                yield from self._predict_several(group, points, on_tile, limit)
                group = []
            group.append((pixel, Path(image).name if isinstance(image, str | Path) else ""))
        if group:
            yield from self._predict_several(group, points, on_tile, limit)

    @abstractmethod
    def _predict(
        self,
        image: Tensor,
        points: bool,
        name: str,
        roi: Tensor | None,
        on_tile: OnTile | None,
        limit: int | None,
    ) -> Prediction:
        """The prediction of pixels, uint8 [3, H, W]."""

    def _predict_several(
        self, images: Sequence[tuple[Tensor, str]], points: bool, on_tile: OnTile | None, limit: int | None
    ) -> list[Prediction]:
        """Predictions of named images of one size."""
        return [self._predict(image, points, name, None, on_tile, limit) for image, name in images]


def read_ahead(read: Callable[[T], R], items: Iterable[T], depth: int = 1) -> Iterator[tuple[T, Future[R]]]:
    """Each item and the future of reading it, in a thread that is `depth` items ahead.

    >>> [(k, square.result()) for k, square in read_ahead(lambda k: k * k, [1, 2, 3])]
    [(1, 1), (2, 4), (3, 9)]
    """
    waiting: deque[tuple[T, Future[R]]] = deque()
    with ThreadPoolExecutor(1) as pool:
        for item in items:
            waiting.append((item, pool.submit(read, item)))
            if len(waiting) > depth:
                yield waiting.popleft()
        yield from waiting


def _in_folder(folder: Path) -> list[Path]:
    """The images of a folder."""
    found = find_images(folder)
    if not found:
        raise DataError(f"{folder}: there are no images in this folder")
    return found
