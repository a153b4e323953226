"""The page of a run that was calibrated since."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from papm import checkpoint, models
from papm.checkpoint import ModelSpec
from papm.inference import Calibration, CountInterval, Inference
from papm.report import page
from papm.report.load import read_counted
from papm.report.run import write_report


def test_the_page_says_what_a_calibration_is_worth(
    tmp_path: Path, make_run: Any, read_page: Callable[[Path], Any]
) -> None:
    run = tmp_path / "run"
    make_run(run)
    network = models.create("tiny")
    (run / "best.ckpt").unlink(missing_ok=True)
    assert "calibrated since" not in read_page(write_report(run)).text
    contract = Inference(calibration=Calibration(2.0, 1.5, 2.5, 8, 9.0, 4.0), interval=CountInterval(3.0, 12))
    checkpoint.save(run / "best.ckpt", ModelSpec("tiny", inference=contract), network.state_dict())
    counted = read_counted(run / "predictions.csv")
    errors = [abs(2 * c.predicted - c.truth) for c in counted]
    held = [e <= 3 * (2 * c.predicted) ** 0.5 for e, c in zip(errors, counted)]
    said = read_page(write_report(run)).text
    assert "calibrated since × 2.000 (95 % 1.500 to 2.500), from 8 checked images" in said
    assert f"MAE with that {page.figure(sum(errors) / len(errors))}" in said
    assert f"intervals of 90 % hold the truth of {100 * sum(held) / len(held):.0f} % of these images" in said


@pytest.mark.parametrize("content", [b"", b"no checkpoint"])
def test_a_model_that_cannot_be_read_leaves_the_page_as_it_is(tmp_path: Path, make_run: Any, content: bytes) -> None:
    make_run(tmp_path / "run")
    (tmp_path / "run" / "best.ckpt").write_bytes(content)
    assert "calibrated since" not in write_report(tmp_path / "run").read_text(encoding="utf-8")
