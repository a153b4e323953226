"""What `papm predict` does with a video: counts over time, a page, and a video of what was seen."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from papm.cli.counted import Unreadable, by_class, by_model, dimmed, resized
from papm.errors import DataError
from papm.text import n_of

if TYPE_CHECKING:
    from torch import Tensor

    from papm.predict.prediction import Prediction
    from papm.predict.predictor import Source

VIDEOS = "videos"  # a folder a video in it
COUNTS, POINTS, PAGE, OVERLAY = "counts.csv", "points.csv", "video.html", "overlay.webm"


@dataclass
class CountedVideo:
    """What was counted in one video, frame by frame."""

    name: str
    folder: Path
    frames: list[tuple[int, float]] = field(default_factory=list)  # number and seconds
    predictions: list[Prediction] = field(default_factory=list)

    @property
    def counts(self) -> list[float]:
        return [p.count for p in self.predictions]

    def summary(self) -> dict[str, Any]:
        """As JSON types."""
        each = [
            {"frame": n, "seconds": round(s, 3), "count": round(p.count, 3), **by_class(p), **by_model(p), **resized(p)}
            for (n, s), p in zip(self.frames, self.predictions)
        ]
        figures = {"mean": fmean(self.counts), "lowest": min(self.counts), "highest": max(self.counts)}
        return {"video": self.name, **{k: round(v, 3) for k, v in figures.items()}, "frames": each}

    def sentence(self) -> str:
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


def count_video(
    made: CountedVideo,
    path: Path,
    counter: Source,
    *,
    every: float,
    points: bool = True,
    overlays: bool = True,
    region: Tensor | None = None,
) -> None:
    """Count one frame every so many seconds; what was counted before an interruption is written too."""
    from papm.cli import ui
    from papm.draw import overlay
    from papm.predict.video import Video, VideoWriter, playing_rate

    shown: dict[str, tuple[float, float, Tensor]] = {}  # the fullest and the emptiest frame: count, seconds, picture
    try:
        opened = Video(path)
    except DataError as error:
        raise Unreadable(str(error)) from error
    with opened as video:
        try:
            with (
                VideoWriter(made.folder / OVERLAY, playing_rate(video, every)) as drawn,
                ui.items(f"counting {made.name}", video.expected(every)) as advance,
            ):
                for frame in video.read(every):
                    if region is not None and tuple(region.shape) != tuple(frame.image.shape[1:]):
                        raise Unreadable(
                            f"{path}: the frames change their size, and a region of interest cannot follow"
                        )
                    name = f"{frame.number:06d}"
                    found = counter.predict(frame.image, points=points, name=name, roi=region, on_tile=advance.part)
                    made.frames.append((frame.number, frame.seconds))
                    made.predictions.append(replace(found, density=None, by_class=tuple(found.class_counts)))
                    if overlays:
                        image = dimmed(frame.image, region)
                        picture = overlay(
                            image,
                            found.density,
                            found.stride,
                            points=found.points,
                            count=found.count,
                            corner="top left",
                        )
                        drawn.write(picture)
                        if "most" not in shown or found.count > shown["most"][0]:
                            shown["most"] = (found.count, frame.seconds, picture)
                        if "least" not in shown or found.count < shown["least"][0]:
                            shown["least"] = (found.count, frame.seconds, picture)
                    advance()
            if not made.frames:
                raise Unreadable(f"{path}: not one frame of this video can be read")
            if video.frames_read < 0.9 * video.frames:
                ui.note(
                    f"WARNING: {made.name} ends after {video.frames_read} of {video.frames} frames; the rest cannot be read"
                )
        finally:
            if made.frames:
                _write(made, points, overlays, shown)


def _write(made: CountedVideo, points: bool, overlays: bool, shown: dict[str, tuple[float, float, Tensor]]) -> None:
    from papm.predict.results import write_frames, write_points
    from papm.report.video import write_video_page

    write_frames(made.frames, made.predictions, made.folder / COUNTS)
    if points:
        write_points(made.predictions, made.folder / POINTS)
    pictures = (
        [(f"The {word}: {c:.1f} at {s:.1f} s", p) for word, (c, s, p) in shown.items()] if len(made.frames) > 1 else []
    )
    seconds = [s for _, s in made.frames]
    drawn = OVERLAY if overlays and (made.folder / OVERLAY).is_file() else None
    write_video_page(made.folder / PAGE, made.name, seconds, made.predictions, pictures, drawn)
