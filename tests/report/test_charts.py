"""Charts: well-formed whatever they are given, with everything drawn inside the frame and where the numbers say."""

from __future__ import annotations

import itertools
import math
import re
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from papm.report import charts
from papm.report.charts import Bars, Card, Series
from papm.report.svg import Key, told_apart

SVG = "{http://www.w3.org/2000/svg}"
anything = st.floats(allow_nan=True, allow_infinity=True)
EVIL = '<script>alert("x")</script> & \x00\x1b\ud800 ]]>'


def parse(card: Card) -> ElementTree.Element:
    root = ElementTree.fromstring(card.svg)  # noqa: S314 -- our own output
    assert root.tag == f"{SVG}svg"
    assert root.find(f"{SVG}title") is not None and root.get("aria-label")
    return root


def words(root: ElementTree.Element) -> list[str]:
    return [t.text or "" for t in root.iter(f"{SVG}text")]


def tips(root: ElementTree.Element) -> list[str]:
    return [t.text or "" for t in root.iter(f"{SVG}title")][1:]


def all_empty() -> list[Card]:
    bad = [math.nan, math.inf]
    return [
        charts.line_chart([], title="t", x_label="x", y_label="y"),
        charts.line_chart([Series("a", bad, bad)], title="t", x_label="x", y_label="y"),
        charts.line_chart([Series("a", [1, 2], [0, -1])], title="t", x_label="x", y_label="y", log=True),
        charts.scatter_chart([], [], title="t", x_label="x", y_label="y", diagonal=True),
        charts.scatter_chart(bad, [1, 2], title="t", x_label="x", y_label="y", level=0),
        charts.bar_chart([], [], title="t", y_label="y"),
        charts.bar_chart(["g"], [Bars("a", [None])], title="t", y_label="y"),
        charts.histogram(bad, title="t", x_label="x", y_label="y"),
    ]


@pytest.mark.parametrize("card", all_empty())
def test_nothing_to_draw_is_a_note(card: Card) -> None:
    assert words(parse(card)) == [charts.NOTHING]


@given(st.lists(st.tuples(anything, anything), max_size=30), st.booleans() | st.none())
@settings(max_examples=60)
def test_any_numbers_make_a_well_formed_line_chart_inside_its_frame(
    pairs: list[tuple[float, float]], log: bool | None
) -> None:
    series = [Series("a", [x for x, _ in pairs], [y for _, y in pairs], best=True, marks=True)]
    root = parse(charts.line_chart(series, title="t", x_label="x", y_label="y", log=log))
    _, _, width, height = map(float, str(root.get("viewBox")).split())
    for path in root.iter(f"{SVG}path"):
        numbers = [float(n) for n in re.findall(r"-?[\d.]+", str(path.get("d")))]
        assert all(0 <= x <= width for x in numbers[::2]) and all(0 <= y <= height for y in numbers[1::2])


@given(st.lists(anything, max_size=40), st.text(min_size=1, max_size=20))
@settings(max_examples=60)
def test_any_numbers_and_words_make_well_formed_scatter_bars_and_histogram(values: list[float], name: str) -> None:
    other = values[::-1]
    parse(
        charts.scatter_chart(values, other, title=name, x_label=name, y_label=name, tips=[name] * len(values), level=0)
    )
    parse(charts.scatter_chart(values, other, title=name, x_label=name, y_label=name, diagonal=True))
    parse(charts.bar_chart([name] * len(values), [Bars(name, values, other, values)], title=name, y_label=name))
    parse(charts.histogram(values, title=name, x_label=name, y_label=name))


def test_names_are_text_and_never_markup() -> None:
    root = parse(charts.scatter_chart([1], [2], title=EVIL, x_label=EVIL, y_label=EVIL, tips=[EVIL]))
    assert not list(root.iter("script")) and not list(root.iter(f"{SVG}script"))
    assert tips(root) == ['<script>alert("x")</script> & ��� ]]>']


def test_a_line_goes_where_its_numbers_say() -> None:
    card = charts.line_chart([Series("a", [0, 10, 20], [0, 50, 100])], title="t", x_label="x", y_label="y")
    path = next(parse(card).iter(f"{SVG}path"))
    (x0, y0), (x1, y1), (x2, y2) = [tuple(map(float, p.split())) for p in str(path.get("d"))[1:].split("L")]
    assert x0 < x1 < x2 and y0 > y1 > y2  # y grows downwards on a screen
    assert (x1, y1) == pytest.approx(((x0 + x2) / 2, (y0 + y2) / 2), abs=0.02)


def test_log_axis_makes_a_power_law_straight_and_is_chosen_by_itself() -> None:
    root = parse(charts.line_chart([Series("a", [0, 1, 2], [1000, 100, 10])], title="t", x_label="x", y_label="y"))
    path = next(root.iter(f"{SVG}path"))
    ys = [float(p.split()[1]) for p in str(path.get("d"))[1:].split("L")]
    assert ys[1] - ys[0] == pytest.approx(ys[2] - ys[1], abs=0.02)
    assert {"10", "100", "1,000"} <= set(words(root))


def test_nan_is_skipped_and_the_rest_is_drawn() -> None:
    x, y = [0, 1, 2, 3], [5.0, math.nan, math.inf, 7.0]
    root = parse(charts.line_chart([Series("a", x, y)], title="t", x_label="step", y_label="y"))
    assert tips(root) == ["a: 5 at step 0", "a: 7 at step 3"]
    assert str(next(root.iter(f"{SVG}path")).get("d")).count("L") == 1
    dots = parse(charts.scatter_chart(x, y, title="t", x_label="x", y_label="y"))
    assert len(list(dots.iter(f"{SVG}circle"))) == 2


def test_the_best_point_is_the_lowest() -> None:
    root = parse(
        charts.line_chart(
            [Series("MAE", [1, 2, 3], [9.0, 4.0, 6.0], best=True)], title="t", x_label="step", y_label="y"
        )
    )
    assert "MAE, lowest: 4 at step 2" in tips(root)


def test_long_curves_are_thinned_and_keep_both_ends() -> None:
    n = 20_001
    card = charts.line_chart(
        [Series("a", range(n), [float(k) for k in range(n)])], title="t", x_label="step", y_label="y"
    )
    assert len(card.svg) < 60_000
    seen = tips(parse(card))
    assert seen[0] == "a: 0 at step 0" and seen[-1] == "a: 20,000 at step 20,000"


def test_legend_names_lines_and_not_their_noise() -> None:
    series = [Series("raw", [1, 2], [1, 2], faint=True), Series("one", [1, 2], [1, 2]), Series("two", [1, 2], [2, 1])]
    shown = words(parse(charts.line_chart(series, title="t", x_label="x", y_label="y")))
    assert "one" in shown and "two" in shown and "raw" not in shown
    keys = [Key("method"), Key("group", dash=1, neutral=True)]
    shown = words(parse(charts.line_chart(series, title="t", x_label="x", y_label="y", keys=keys)))
    assert "method" in shown and "group" in shown and "one" not in shown


def test_a_long_legend_makes_the_chart_taller() -> None:
    def tall(n: int) -> float:
        series = [Series(f"method number {k}", [1, 2], [k, k]) for k in range(n)]
        return float(
            str(parse(charts.line_chart(series, title="t", x_label="x", y_label="y")).get("viewBox")).split()[3]
        )

    assert tall(2) < tall(6) < tall(20)


def test_bars_stand_on_zero_in_proportion_with_whiskers() -> None:
    bars = [Bars("a", [10.0, None], [8.0, None], [13.0, None]), Bars("b", [20.0, 5.0])]
    root = parse(charts.bar_chart(["clean", "noisy"], bars, title="t", y_label="MAE"))
    drawn = [r for r in root.iter(f"{SVG}rect") if float(str(r.get("height"))) != 11]  # 11: the boxes of the legend
    heights = [float(str(r.get("height"))) for r in drawn]
    feet = {round(float(str(r.get("y"))) + float(str(r.get("height"))), 1) for r in drawn}
    assert len(feet) == 1
    assert heights == pytest.approx([heights[2] * 2, heights[2] * 4, heights[2]], abs=0.05)
    assert {"a, clean: 10 (8 to 13)", "b, clean: 20", "b, noisy: 5"} <= set(tips(root))


def test_whole_values_of_bars_are_written_whole() -> None:
    words = [
        t.text
        for t in parse(charts.bar_chart(["a", "b"], [Bars("n", [12, 7.5])], title="t", y_label="n")).iter(f"{SVG}text")
    ]
    assert "12" in words and "7.50" in words and "12.00" not in words


@pytest.mark.parametrize(
    "names",
    [
        [f"IMG{k:04d}" for k in range(1, 13)],
        [f"IMG{k:04d}.jpg (train)" for k in range(1, 13)],
        [f"plant_{k:02d}.jpg" for k in range(1, 13)],
        ["runs/vgg19-al-papm-steps=3000-s0", "runs/vgg19-al-papm-steps=3000-s1", "runs/vgg19-sc-steps=3000-s1"],
    ],
)
def test_names_of_bars_are_short_and_differ(names: list[str]) -> None:
    root = parse(charts.bar_chart(names, [Bars("n", [1.0] * len(names))], title="t", y_label="n"))
    shown = [w for w in words(root) if "…" in w]
    assert len(shown) == len(set(shown)) == len(names)


def test_names_and_figures_of_bars_do_not_touch_and_none_is_left_out() -> None:
    names = [f"cells-test-{k:05d}" for k in range(8)]
    errors = [-0.394, -0.338, 0.219, 0.17, 0.104, 0.096, 0.022, -0.022]
    root = parse(charts.bar_chart(names, [Bars("error", errors)], title="t", y_label="predicted − true"))
    shown = {str(t.text): float(str(t.get("x"))) for t in root.iter(f"{SVG}text") if str(t.text).startswith("…")}
    places = sorted(shown.values())
    wide = max(7.63 * (len(s) - 1) + 12 for s in shown)  # DejaVu Sans: a digit 7.63 px, the ellipsis 12 px
    assert len(shown) == 8 and wide < min(b - a for a, b in itertools.pairwise(places))
    assert set(shown) == {f"…000{k}" for k in range(8)}
    assert {"−0.394", "−0.338", "0.170", "0.0960", "−0.0220"} <= set(words(root))


@given(names=st.lists(st.text("ab1_.", min_size=1, max_size=20), max_size=6), room=st.integers(2, 25))
def test_names_are_told_apart_in_their_room(names: list[str], room: int) -> None:
    shown = told_apart(names, room)
    assert len(shown) == len(names) and all(len(s) <= room for s in shown)
    assert len(set(shown)) <= len(set(names))
    if all(len(n) <= room for n in names):
        assert shown == names


def test_histogram_counts_every_value_once() -> None:
    values = [-3.0, -1.0, -1.0, 0.0, 0.5, 2.0, 2.0, 9.0, math.nan]
    seen = tips(parse(charts.histogram(values, title="t", x_label="x", y_label="n")))
    assert sum(int(t.rpartition(": ")[2]) for t in seen) == 8


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=50))
@settings(max_examples=80)
def test_bins_enclose_the_values(values: list[float]) -> None:
    edges = charts.bin_edges(sorted(values))
    width = edges[1] - edges[0]
    assert edges[0] <= min(values) + 1e-6 * width and edges[-1] >= max(values) - 1e-6 * width
    assert len(edges) <= 44


def test_forty_values_have_more_than_two_bins() -> None:
    assert 6 <= len(charts.bin_edges([66 * k / 39 for k in range(40)])) <= 12


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30), st.integers(1, 9))
@settings(max_examples=50)
def test_smoothing_stays_within_the_values_and_keeps_constants(values: list[float], window: int) -> None:
    smooth = charts.smoothed(values, window)
    assert len(smooth) == len(values)
    assert min(values) - 1e-6 <= min(smooth) and max(smooth) <= max(values) + 1e-6
    assert charts.smoothed([4.0, math.nan, 4.0], 3) == [4.0, 4.0, 4.0]


@pytest.mark.parametrize(("values", "ticks"), [([1.0], "01"), ([1.0, 1.0], "012"), ([1.0, 1.0, 1.0], "0123")])
def test_a_histogram_of_few_values_counts_in_whole_numbers(values: list[float], ticks: str) -> None:
    card = charts.histogram(values, title="t", x_label="x", y_label="y")
    words = re.findall(r"text-anchor=\"end\"[^>]*>([^<]+)<", card.svg)
    assert "".join(words) == ticks
