"""A study as one HTML file: the table, and its first figure drawn."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean

from papm.report import charts, page
from papm.report.charts import Bars, Card
from papm.report.svg import WIDTH
from papm.study.show import View, caption, columns, notes, rows

MOST = 24  # bars that a chart has room for


def write_page(shown: View, path: Path) -> Path:
    """The table with its remarks and notes; a chart where there is something to compare."""
    chart = bars(shown)
    return page.render(
        "study.html.j2",
        path,
        title=shown.study.title,
        kind=f"Study: {shown.study.where}" if shown.study.where else "Study",
        lead=shown.remarks,
        columns=columns(shown),
        rows=rows(shown),
        caption=caption(shown),
        charts=[] if chart is None else [chart],
        notes=notes(shown),
    )


def bars(shown: View) -> Card | None:
    """The first metric: a group of bars per row, a bar per column, whiskers over seeds; None of one bar, or of too many."""
    found = {key: group.values(0) for key, group in shown.groups().items() if group is not None}
    names, places = (list(dict.fromkeys(each)) for each in zip(*found)) if found else ([], [])
    if shown.everything or not 2 <= len(names) * len(places) <= MOST:
        return None
    series = []
    for place in places:
        values = [found.get((name, place), []) for name in names]
        several = [v if len(v) > 1 else [] for v in values]
        means = [fmean(v) if v else None for v in values]
        low, high = [min(v, default=None) for v in several], [max(v, default=None) for v in several]
        series.append(Bars(place, means, low, high))
    title = shown.study.figures[0].title
    words = "Bars: mean over seeds. Whiskers: lowest and highest seed, where there are several."
    return charts.bar_chart(names, series, title=title, remark=words, y_label=title, width=2 * WIDTH)
