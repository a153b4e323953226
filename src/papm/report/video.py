"""The page about a counted video: the count over time, and the fullest and the emptiest frame."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from torch import Tensor

from papm.predict.prediction import Prediction
from papm.report import charts, page
from papm.report.charts import Series


def write_video_page(
    path: Path,
    name: str,
    seconds: Sequence[float],
    predictions: Sequence[Prediction],
    pictures: Sequence[tuple[str, Tensor]] = (),
    overlay: str | None = None,
) -> Path:
    """One HTML file; `pictures` are frames, drawn on, with their captions, `overlay` the file beside it that shows all."""
    counts = [p.count for p in predictions]
    return page.render(
        "video.html.j2",
        path,
        title=name,
        frames=len(counts),
        seconds=seconds[-1],
        mean=fmean(counts),
        lowest=min(counts),
        highest=max(counts),
        chart=page.chart(over_time(seconds, predictions)),
        pictures=[page.picture(caption, pixels) for caption, pixels in pictures],
        overlay=overlay,
    )


def over_time(seconds: Sequence[float], predictions: Sequence[Prediction]) -> str:
    """The count over time; a line a class or a model as well, where there are several."""
    first = predictions[0]
    lines = [Series("count", seconds, [p.count for p in predictions])]
    apart = [p.class_counts for p in predictions]
    number = max(map(len, apart))
    names = [*(first.classes or tuple(map(str, range(number))))[:number], *first.models]
    each = [[*row, *[0.0] * (number - len(row)), *p.by_model] for p, row in zip(predictions, apart)]
    lines += [Series(n, seconds, [row[k] for row in each], k + 1, 1) for k, n in enumerate(names)]
    return charts.line_chart(lines, title="The count over time", x_label="seconds", y_label="count", log=False)
