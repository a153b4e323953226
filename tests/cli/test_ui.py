"""What is said where nobody watches a terminal."""

from __future__ import annotations

import json

import pytest

from papm.cli import ui
from papm.cli.training_bar import TrainingBar


def test_what_is_not_finite_is_null(capsys: pytest.CaptureFixture[str]) -> None:
    ui.print_json([{"count": float("nan"), "models": {"a": 1.5, "b": float("inf")}, "frames": (2, None, "nan", True)}])
    expected = [{"count": None, "models": {"a": 1.5, "b": None}, "frames": [2, None, "nan", True]}]
    assert json.loads(capsys.readouterr().out) == expected


def test_square_brackets_in_a_table_are_no_markup(capsys: pytest.CaptureFixture[str]) -> None:
    ui.table(("class [/of]", "papm[train]"), [("cell [/dead]", "[lang]"), ("[red]", 2.0)], "[b]")
    said = capsys.readouterr().out
    for text in ("class [/of]", "papm[train]", "cell [/dead]", "[lang]", "[red]", "2.00", "[b]"):
        assert text in said
    with ui.items("[/photos]", 3) as advance:
        advance.at(1, 3, "[/note]")


@pytest.mark.parametrize(
    ("total", "done", "told"),
    [(3, 0, "1/3, 4 min 0 s left"), (0, 0, "1/?"), (12, 8, "9/12, 6 min 0 s left"), (2, 1, "2/2")],
)
def test_items_are_told_in_a_log(monkeypatch: pytest.MonkeyPatch, total: int, done: int, told: str) -> None:
    said: list[str] = []
    monkeypatch.setattr(ui, "note", said.append)
    with ui.items("counting", total, done) as advance:
        advance.log.said -= 11
        advance.start -= 120  # for one item; those done before took no time
        advance()
    assert said == [f"counting: {told}"]


def test_a_long_evaluation_is_told_in_a_log(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(ui, "note", said.append)
    with ui.bar() as progress:
        watcher = TrainingBar(progress, "p2pnet", 100)
        watcher.on_evaluation(5, {"mae": 3.0})
        assert said == []  # the last line is not yet ten seconds old
        watcher.log.said -= 11
        watcher.on_evaluation(10, {"mae": 2.5})
    assert said == ["p2pnet: step 10/100  MAE 2.50"]
