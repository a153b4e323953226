"""One test image at the command line: its error is told, and no interval is made of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from papm.metrics.counting import FEWEST

Papm = Callable[..., tuple[int, str, str]]


def test_one_image_is_one_image_and_gives_no_interval(run_papm: Papm, tmp_path: Path) -> None:
    scenes = "synthetic:look=cells,train=6,test=1,size=48,count=3-6"
    words = ("--backbone", "tiny", "--out", tmp_path / "run", "steps=2", "crop=32", "batch=2", "device=cpu")
    code, out, _ = run_papm("train", scenes, *words)
    line = next(line for line in out.splitlines() if "MAE" in line)
    assert code == 0 and "1 image," in line and "95 %" not in line and "nan" not in line
    assert json.loads((tmp_path / "run" / "result.json").read_text(encoding="utf-8"))["intervals"] == {}
    assert "interval" not in (tmp_path / "run" / "report.html").read_text(encoding="utf-8").partition("</style>")[2]

    code, out, _ = run_papm("eval", tmp_path / "run", scenes, "--device", "cpu")
    assert code == 0 and "test: 1 image\n" in out and "–" in out and " to " not in out and "nan" not in out

    enough = scenes.replace("test=1", f"test={FEWEST}")
    code, out, _ = run_papm("eval", tmp_path / "run", enough, "--device", "cpu")
    assert code == 0 and f"test: {FEWEST} images\n" in out and " to " in out
