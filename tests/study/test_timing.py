"""What is known is not timed again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from papm.study import run, timing, training
from papm.study.results import Result
from papm.study.robustness.images import open_data
from papm.study.robustness.plan import Asked


def test_a_result_with_as_many_steps_says_how_long_it_took(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "_timed", lambda task, splits: 1000.0)
    opened = open_data("synthetic:train=4,test=2,size=64,count=5-9", {}, "last", 0)
    asked = Asked(opened, ("gaussian", "hd-papm"), (0.0, 4.0), out=tmp_path, settings={"steps": 9})
    study = asked.study
    tasks = run.plan(study, [], asked.request)

    def result(settings: dict[str, Any], seconds: float) -> Result:
        values = {
            **{k: settings[k] for k in training.NAMED},
            "seed": 7,
            "select": "last",
            "mae": 2.0,
            "seconds": seconds,
        }
        return Result(Path("x.json"), values, training.asked(settings))

    known = [result(dict(study.cells[0].settings), 20.0), result({**study.cells[2].settings, "steps": 99}, 30.0)]
    found = timing.seconds_each(tasks, known, opened.splits)
    assert found == {"gaussian": timing.START + 20, "hd-papm": timing.START + 1000}  # that of hd-papm has other steps
