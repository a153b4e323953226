"""What is said where nobody watches a terminal."""

from __future__ import annotations

import pytest

from papm.cli import ui


def test_a_long_evaluation_is_told_in_a_log(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(ui, "note", said.append)
    with ui.bar() as progress:
        watcher = ui.TrainingBar(progress, "p2pnet", 100)
        watcher.on_evaluation(5, {"mae": 3.0})
        assert said == []  # the last line is not yet ten seconds old
        watcher.said -= 11
        watcher.on_evaluation(10, {"mae": 2.5})
    assert said == ["p2pnet: step 10/100  MAE 2.50"]
