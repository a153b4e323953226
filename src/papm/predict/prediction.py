"""What was counted in one image: the number, where the objects are, pictures and files of it."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from PIL import Image
from torch import Tensor

from papm.draw import LARGEST, figure, overlay, to_pil
from papm.errors import ConfigError
from papm.neighbours import spacing
from papm.predict.pixels import pixels
from papm.text import Brief

if TYPE_CHECKING:
    from papm.predict.ground import Homography

BOX = (4.0, 64.0)  # least and most side of the box around a point, in pixels


@dataclass(frozen=True, eq=False, repr=False)
class Prediction(Brief):
    """What was counted in one image, in the coordinates of that image."""

    count: float
    size: tuple[int, int]  # (H, W)
    density: Tensor | None = None  # [C, ceil(H/stride), ceil(W/stride)]
    stride: int = 1
    points: Tensor | None = None  # [n, 2]
    scores: Tensor | None = None  # [n]
    labels: Tensor | None = None  # [n] int64
    name: str = ""
    classes: tuple[str, ...] = ()  # what is counted, by name, where there are several kinds
    by_class: tuple[float, ...] = ()  # counts of several classes, where they are not those of the map or the points
    models: tuple[str, ...] = ()  # who counted, by name, where several models did
    by_model: tuple[float, ...] = ()  # what each of them counted; `count` is the mean
    scale: float = 1.0  # factor that the sides of the image were resized by before counting
    raw_count: float | None = None  # what was counted before the calibration of the model; None where it has none
    interval: tuple[float, float] | None = None  # that holds the truth nine times in ten, where the model knows one
    unlike: tuple[str, ...] = ()  # in what the image is unlike those of the training: size, scale, sharpness, colour, …
    warning: str = ""  # why the count may be far off, in a sentence that goes after the image's name

    @property
    def class_counts(self) -> list[float]:
        """Counts of the classes; empty where there is one class only, or none is known."""
        if self.by_class:
            return list(self.by_class)
        if self.density is not None:
            if self.density.ndim != 3 or len(self.density) < 2:
                return []
            return [float(c) for c in self.density.detach().double().sum((1, 2))]
        if self.labels is None or (len(self.classes) < 2 and not (len(self.labels) and int(self.labels.max()) > 0)):
            return []
        return [float(c) for c in torch.bincount(self.labels.detach().cpu(), minlength=len(self.classes))]

    def __len__(self) -> int:
        """The number of points; `count` may be a fraction, and a prediction may have no points."""
        return 0 if self.points is None else len(self.points)

    def __bool__(self) -> bool:
        return True  # also where nothing was found

    @property
    def kinds(self) -> Tensor | None:
        """The classes of the points, where there are several."""
        return self.labels if self.points is not None and len(self.class_counts) > 1 else None

    def draw(
        self, image: Any, max_side: int | None = LARGEST, *, density: bool = True, legend: bool = True
    ) -> Image.Image:
        """Density and points over the image (a file, a Pillow image, uint8 [H, W, 3] or [3, H, W]), and the `legend`: the
        name and the count above it, and what the colours mean beside it.

        The longer side of the image is drawn with at most `max_side` pixels; a small image is drawn larger.
        """
        shown, ground = self.density if density else None, pixels(image)
        if not legend:
            return to_pil(overlay(ground, shown, self.stride, self.points, labels=self.kinds, max_side=max_side))
        apart = self.class_counts
        classes = list(zip(self.classes or map(str, range(len(apart))), apart))
        told: dict[str, Any] = {"labels": self.kinds, "classes": classes, "count": self.count, "name": self.name}
        return to_pil(figure(ground, shown, self.stride, self.points, max_side=max_side, **told))

    def save(self, path: str | Path, ground: Homography | None = None) -> list[Path]:
        """Write the prediction and give the files: points to a .csv, .geojson (in the map coordinates of `ground`, where
        given) or .zip (ImageJ), counts and points to an .xlsx, everything but the map to a .json, the map to a .npy; all of
        them to a folder where the path has no such ending.
        """
        from papm.predict import results  # here: it writes what this file defines
        from papm.predict.takeaway import save_one

        path = Path(path)
        if path.suffix.lower() == ".csv":
            return [results.write_points([self], path)]
        if path.suffix.lower() == ".json":
            return [results.write_json([self], path, classes=self.classes or None)]
        if path.suffix.lower() == ".npy":
            return [results.write_density(self, path)]
        if path.suffix and not path.is_dir():
            if saved := save_one(self, path, ground):
                return [saved]
            raise ConfigError(
                f"{path}: a prediction is saved as .csv, .json, .npy, .xlsx, .geojson, .zip, or to a folder"
            )
        return results.write_results([self], path, density=self.density is not None)

    def to_supervision(self, box: float | None = None) -> Any:
        """The points as `supervision.Detections`: a square box around each, of side `box`, else the distance to its
        neighbours; scores and labels go along.
        """
        try:
            supervision = importlib.import_module("supervision")
        except ImportError:
            raise ConfigError("to_supervision needs the package supervision: pip install supervision") from None
        xy = torch.zeros(0, 2) if self.points is None else self.points.detach().cpu().float()
        side = spacing(xy, alone=BOX[1]).clamp(*BOX) if box is None else torch.full((len(xy),), float(box))
        half = side[:, None] / 2
        return supervision.Detections(
            xyxy=torch.cat([xy - half, xy + half], 1).numpy(),
            confidence=None if self.scores is None else self.scores.detach().cpu().float().numpy(),
            class_id=None if self.labels is None else self.labels.detach().cpu().numpy(),
        )
