"""The page, from made-up figures: what it shows, and what it warns of."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest

from papm.study.robustness import page, words
from papm.study.robustness.figures import Figure, Table
from papm.study.robustness.images import open_data
from papm.study.robustness.plan import Asked


@pytest.fixture
def asked(tmp_path: Path) -> Asked:
    opened = open_data("synthetic:train=4,test=2,size=64,count=5-9", {}, "last", 0)
    return Asked(opened, ("gaussian", "hd-papm"), (0.0, 4.0, 8.0), "disc", out=tmp_path)


def figures(asked: Asked, images: int = 20) -> Table:
    made = {}
    for k, method in enumerate(asked.methods):
        for distance in asked.distances:
            mae = 10 + distance * (1 + k) / 4
            errors = {f"{i}": mae + (-1) ** i for i in range(images)}
            made[method, distance] = Figure((mae,), (0,), mae + 2, (mae - 1, mae + 1), errors)
    return Table(asked.methods, asked.distances, made)


def write(asked: Asked, table: Table) -> str:
    return page.write_page(asked, table, asked.out / "p.html").read_text(encoding="utf-8")


def test_table_charts_pictures_and_words(asked: Asked) -> None:
    table = figures(asked)
    html = write(asked, table)
    assert words.conclusion(table) in html and "gaussian errs least at 4 and 8 px" in html
    assert "Training dots were moved by 4 and 8 px, each to anywhere within that distance" in html
    assert re.search(r'class="n best">12\.00  \+20\.0 %<br><span class="interval">11\.00 to 13\.00', html)
    assert html.count("<svg") == 2 and html.count("<img ") == 2 and "moved by 8 px: 64 × 64 px of" in html
    assert '<div class="warning"' not in html and "<script" not in html
    assert "tiny, 1,500 steps of 8 crops of 160 px" in html


def test_changes_that_chance_explains_have_a_question_mark(asked: Asked) -> None:
    table = figures(asked, images=5)
    html = write(asked, table)
    assert "+20.0 % ?" in html and 'class="n best"' not in html
    assert "5 test images: with fewer than 6 no difference can be called clear" in html


def test_what_is_missing_is_said(asked: Asked) -> None:
    whole = figures(asked)
    part = dataclasses.replace(whole, figures={k: v for k, v in whole.figures.items() if k != ("hd-papm", 8.0)})
    assert "1 of 6 cells are not measured yet" in write(asked, part)
    nothing = write(asked, dataclasses.replace(whole, figures={}))
    assert "No distance is measured with every method yet" in nothing and "nothing to show yet" in nothing


def test_warnings(asked: Asked) -> None:
    assert page.warnings(asked, figures(asked)) == []
    other = dataclasses.replace(asked, methods=("gaussian", "p2p-papm"), select="test")
    said = page.warnings(other, figures(other))
    assert len(said) == 2 and "chosen on the test images" in said[0] and "another network" in said[1]


def test_names_are_only_text(asked: Asked) -> None:
    nasty = dataclasses.replace(asked, data=dataclasses.replace(asked.data, spec="<script>alert(1)</script>"))
    assert "<script" not in write(nasty, figures(asked))


def test_change_begins_at_zero(asked: Asked) -> None:
    heading, _, svg = page.line_charts(figures(asked))[1]
    assert heading == "Change over distance" and "gaussian: 0 at dots moved by, px 0" in svg
    assert "hd-papm: 40 at dots moved by, px 8" in svg


def test_pictures_are_of_the_dots_that_training_sees(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[Any, Any]] = []

    def draw(image: Any, before: Any, after: Any, place: Any) -> Any:
        seen.append((before, after))
        return image

    monkeypatch.setattr(page, "draw_moved", draw)
    assert len(page.pictures(asked)) == 2
    for (before, after), distance in zip(seen, (4.0, 8.0)):
        far = (after - before).norm(dim=1)
        assert len(far) and float(far.max()) <= distance + 1e-4 and float(far.max()) > 0  # disc: within the distance
