"""The page of a video where pages cannot be written."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from papm.predict.video_counts import CountedVideo
from papm.report.video import write_film_page


def test_without_templates_the_tables_stay_and_a_sentence_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    assert write_film_page(CountedVideo("gate.mp4", tmp_path / "gate")) is None
    assert "gate.mp4: its tables are written" in caplog.text and "pip install 'papm[report]'" in caplog.text
    assert not (tmp_path / "gate").exists()
