"""Counting in the frames of a video: counts over time, and a video of what was seen."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from torch import Tensor

from papm.draw import overlay, stamped
from papm.errors import DataError
from papm.predict.folder import dimmed
from papm.predict.journal import light
from papm.predict.prediction import Prediction
from papm.predict.results import summary, write_frames, write_points
from papm.predict.source import Source
from papm.predict.tiling import OnTile
from papm.predict.video import Frame, Video, VideoWriter, playing_rate
from papm.text import Brief, n_of

log = logging.getLogger(__name__)
VIDEOS = "videos"  # a folder a video in it
COUNTS, POINTS, OVERLAY = "counts.csv", "points.csv", "overlay.webm"


@dataclass(eq=False, repr=False)
class CountedVideo(Brief):
    """What was counted in one video, frame by frame."""

    name: str
    folder: Path
    frames: list[tuple[int, float]] = field(default_factory=list)  # number and seconds
    predictions: list[Prediction] = field(default_factory=list)
    shown: dict[str, tuple[float, float, Tensor]] = field(default_factory=dict)  # most, least: count, seconds, picture

    @property
    def counts(self) -> list[float]:
        return [p.count for p in self.predictions]

    def summary(self) -> dict[str, Any]:
        """As JSON types."""
        each = [{"frame": n, "seconds": round(s, 3), **summary(p)} for (n, s), p in zip(self.frames, self.predictions)]
        figures = {"mean": fmean(self.counts), "lowest": min(self.counts), "highest": max(self.counts)}
        return {"video": self.name, **{k: round(v, 3) for k, v in figures.items()}, "frames": each}

    def sentence(self) -> str:
        """Mean, lowest and highest count."""
        counts, times = self.counts, [s for _, s in self.frames]
        low, high = (counts.index(f(counts)) for f in (min, max))
        return (
            f"{fmean(counts):9.1f}  {self.name}: mean of {self.number}, {counts[low]:.1f} at {times[low]:.1f} s"
            f" to {counts[high]:.1f} at {times[high]:.1f} s"
        )

    @property
    def number(self) -> str:
        """How many frames were counted, in words."""
        return n_of(len(self.frames), "frame")

    def keep(self, frame: Frame, found: Prediction, picture: Tensor | None) -> None:
        """Remember a frame, and its picture where it is the fullest or the emptiest so far."""
        self.frames.append((frame.number, frame.seconds))
        self.predictions.append(light(found))
        if picture is None:
            return
        if "most" not in self.shown or found.count > self.shown["most"][0]:
            self.shown["most"] = (found.count, frame.seconds, picture)
        if "least" not in self.shown or found.count < self.shown["least"][0]:
            self.shown["least"] = (found.count, frame.seconds, picture)


def count_video(
    made: CountedVideo,
    video: Video,
    counter: Source,
    *,
    every: float = 1.0,
    points: bool = True,
    overlays: bool = True,
    region: Tensor | None = None,
    on_item: Callable[[], None] | None = None,
    on_tile: OnTile | None = None,
) -> None:
    """Count one frame every so many seconds; what was counted before an interruption is written too."""
    try:
        with VideoWriter(made.folder / OVERLAY, playing_rate(video, every)) as drawn:
            for frame in video.read(every):
                if region is not None and tuple(region.shape) != tuple(frame.image.shape[1:]):
                    raise DataError(f"{video.path}: the frames change their size, which a region cannot follow")
                name = f"{frame.number:06d}"
                found = counter.predict(frame.image, points=points, name=name, roi=region, on_tile=on_tile)
                picture = _drawn(dimmed(frame.image, region), found) if overlays else None
                made.keep(frame, found, picture)
                if picture is not None:
                    drawn.write(picture)
                if on_item is not None:
                    on_item()
        if not made.frames:
            raise DataError(f"{video.path}: not one frame of this video can be read")
        if video.frames_read < 0.9 * video.frames:
            read, said = video.frames_read, video.frames
            log.warning("%s ends after %d of %d frames; the rest cannot be read", made.name, read, said)
    finally:
        if made.frames:
            write_frames(made.frames, made.predictions, made.folder / COUNTS)
            if points:
                write_points(made.predictions, made.folder / POINTS)


def _drawn(image: Tensor, found: Prediction) -> Tensor:
    """The frame at its own size, with the density, the points and the count on it."""
    shown = overlay(image, found.density, found.stride, found.points, labels=found.kinds, min_side=None)
    return stamped(shown, found.count)
