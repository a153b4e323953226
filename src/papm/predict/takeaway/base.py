"""What a format of results is: `papm predict --save-as NAME` writes it, and `Prediction.save` knows it by its ending."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from papm.errors import ConfigError
from papm.predict.ground import Homography
from papm.predict.prediction import Prediction
from papm.predict.results import write_all
from papm.registry import Registry


@dataclass(frozen=True)
class Taken:
    """A prediction to take away, and what is known of its image."""

    prediction: Prediction
    file: Path | None = None  # the image, where it is a file
    ground: Homography | None = None  # from its pixels to map coordinates


class ResultFormat:
    """A format of results. The docstring of a subclass says what it is, in a line."""

    name: str
    suffix: str
    needs_points = True

    def files(self, taken: Sequence[Taken], folder: Path) -> Iterator[tuple[Path, bytes]]:
        """The files to write into the folder of a result."""
        raise NotImplementedError

    def content(self, taken: Sequence[Taken]) -> bytes:
        """The bytes of one file of all of these; ConfigError where it holds one image."""
        raise NotImplementedError

    def there(self, folder: Path) -> list[str]:
        """Names of what an earlier result left in the folder."""
        raise NotImplementedError


class OneFile(ResultFormat):
    """A format that holds any number of images in one file."""

    file: str

    def files(self, taken: Sequence[Taken], folder: Path) -> Iterator[tuple[Path, bytes]]:
        yield folder / self.file, self.content(taken)

    def there(self, folder: Path) -> list[str]:
        return [self.file] if (folder / self.file).exists() else []


RESULT_FORMATS: Registry[ResultFormat] = Registry("format of results")
F = TypeVar("F", bound=type[ResultFormat])


def register(kind: F) -> F:
    """Add a format: `@register` above its class."""
    RESULT_FORMATS.register(kind.name, kind())
    return kind


def save(taken: Sequence[Taken], folder: Path, names: Sequence[str]) -> list[Path]:
    """Write these formats into the folder of a result; give the files."""
    return [
        write_all({path: content})[0]
        for name in names
        for path, content in RESULT_FORMATS.get(name).files(taken, folder)
    ]


def save_one(prediction: Prediction, path: Path, ground: Homography | None = None) -> Path | None:
    """Write a prediction to a file whose ending is that of a format; None where there is no such format."""
    for name in RESULT_FORMATS:
        kind = RESULT_FORMATS.get(name)
        if kind.suffix == path.suffix.lower():
            if prediction.points is None and kind.needs_points:
                raise ConfigError(f"{path}: this prediction has no points to write as {name}")
            return write_all({path: kind.content([Taken(prediction, ground=ground)])})[0]
    return None
