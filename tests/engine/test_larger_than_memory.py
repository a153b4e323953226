"""A dataset that neither memory nor the cache on disk holds trains the same network."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from papm import checkpoint, data
from papm.data.convert import write_folder
from papm.engine import train as engine
from papm.engine.build import resolve


@pytest.mark.slow
def test_a_cache_that_holds_half_of_the_images_changes_no_weight(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for split, dataset in data.open("synthetic", train=6, test=1, size=64, count="3-8").items():
        write_folder(dataset, tmp_path / "photos" / split)
    settings = {"data": f"folder:{tmp_path}/photos", "steps": 3, "crop": 64, "batch": 2, "device": "cpu"}
    settings |= {"select": "last", "workers": 0}
    weights = []
    for name, room in (("memory", ""), ("disk", str(3.5 * 64 * 64 * 3 / 1e9))):
        monkeypatch.setenv("PAPM_CACHE", str(tmp_path / name))
        monkeypatch.setenv("PAPM_CACHE_GB", room)
        engine.train(resolve("hd-papm", "tiny", {**settings, "cache": name}), tmp_path / "runs" / name)
        weights.append(checkpoint.load(tmp_path / "runs" / name / "best.ckpt")[1])
    assert len(list((tmp_path / "disk" / "images").rglob("*.rgb"))) == 3  # a file for each image that there is room for
    assert "beyond the limit of the cache" in caplog.text
    assert all(torch.equal(weights[1][key], value) for key, value in weights[0].items())
