"""The bench of prediction: every way counts the same image, and a wrong count is told."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from papm.bench.predict import agree, run
from papm.errors import ConfigError
from papm.models import layers


def test_ways_count_the_same_and_settings_are_left_alone() -> None:
    before = torch.get_num_threads(), layers.SPAN
    rows = run("tiny", (40, 50), threads=1, repeat=1, onnx=False, bf16=True)
    assert [r.timing.name for r in rows] == ["papm", "PyTorch, eager", "papm, bf16"]
    assert agree(rows) and rows[0].count > 0 and all(r.first_ms > 0 and r.cpu_ms > 0 for r in rows)
    assert (torch.get_num_threads(), layers.SPAN) == before
    assert not agree([dataclasses.replace(rows[0], difference=0.01), rows[1]])


def test_networks_that_give_points_are_refused() -> None:
    with pytest.raises(ConfigError, match="density network"):
        run("p2pnet", (40, 50))
