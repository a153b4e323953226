"""The page about a counted video: the count over time, and the fullest and the emptiest frame."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from papm.extras import missing, sentence
from papm.predict.prediction import Prediction
from papm.predict.video_counts import OVERLAY, CountedVideo
from papm.report import charts, page
from papm.report.charts import Card, Series

PAGE = "video.html"
log = logging.getLogger(__name__)


def write_film_page(film: CountedVideo, overlays: bool = True) -> Path | None:
    """One HTML file beside the tables of the video: the count over time, the fullest and the emptiest frame, and the video of
    what was seen where it was drawn (`overlays`). None, and a warning, where pages cannot be written: the tables are."""
    if missing("report"):
        log.warning("%s: %s", film.name, sentence("its tables are written; a page needs", "report", "jinja2"))
        return None
    shown = film.shown.items() if len(film.frames) > 1 else ()
    drawn = OVERLAY if overlays and (film.folder / OVERLAY).is_file() else None
    seconds = [s for _, s in film.frames]
    return page.render(
        "video.html.j2",
        film.folder / PAGE,
        title=film.name,
        frames=len(film.frames),
        seconds=seconds[-1],
        mean=fmean(film.counts),
        lowest=min(film.counts),
        highest=max(film.counts),
        chart=over_time(seconds, film.predictions),
        pictures=[page.picture(f"The {word}: {c:.1f} at {s:.1f} s", picture) for word, (c, s, picture) in shown],
        overlay=drawn,
    )


def over_time(seconds: Sequence[float], predictions: Sequence[Prediction]) -> Card:
    """The count over time; a line per class or model as well, where there are several."""
    first = predictions[0]
    lines = [Series("count", seconds, [p.count for p in predictions])]
    apart = [p.class_counts for p in predictions]
    number = max(map(len, apart))
    names = [*(first.classes or tuple(map(str, range(number))))[:number], *first.models]
    each = [[*row, *[0.0] * (number - len(row)), *p.by_model] for p, row in zip(predictions, apart)]
    lines += [Series(n, seconds, [row[k] for row in each], k + 1, 1) for k, n in enumerate(names)]
    remark = "Each frame counted by itself."
    return charts.line_chart(lines, title="Over time", remark=remark, x_label="seconds", y_label="count", log=False)
