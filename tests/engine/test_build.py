"""From what a user asked for to the parts of a run."""

from __future__ import annotations

import pytest
import torch

from papm.config import TrainConfig
from papm.engine.build import CPU_BF16, counting_precision, precision_of

CPU = torch.device("cpu")


def only_with(monkeypatch: pytest.MonkeyPatch, units: set[str]) -> None:
    """A CPU that has these units for bf16 and no others."""
    for name in CPU_BF16:
        monkeypatch.setattr(torch.cpu, f"_is_{name}_supported", lambda has=name in units: has, raising=False)


def test_torch_tells_the_units_of_a_cpu() -> None:
    assert all(isinstance(getattr(torch.cpu, f"_is_{name}_supported")(), bool) for name in CPU_BF16)


@pytest.mark.parametrize(("units", "steps"), [({"amx_tile"}, "bf16"), ({"avx512_bf16"}, "bf16"), (set(), "32")])
def test_a_cpu_trains_in_bf16_where_it_has_units_for_it_and_counts_in_float32(
    monkeypatch: pytest.MonkeyPatch, units: set[str], steps: str
) -> None:
    only_with(monkeypatch, units)
    assert precision_of(TrainConfig(), CPU) == steps and counting_precision(TrainConfig(), CPU) == "32"


@pytest.mark.parametrize(("asked", "given"), [("16", "bf16"), ("bf16", "bf16"), ("32", "32")])
def test_a_precision_that_is_asked_for_is_that_of_evaluations_too(asked: str, given: str) -> None:
    config = TrainConfig(precision=asked)
    assert precision_of(config, CPU) == counting_precision(config, CPU) == given


@pytest.mark.parametrize("units", [{"amx_tile"}, set()])
@pytest.mark.parametrize(("asked", "begun"), [("auto", "32"), ("auto", "bf16"), ("16", "bf16")])
def test_a_run_goes_on_in_the_precision_it_began_in(
    monkeypatch: pytest.MonkeyPatch, units: set[str], asked: str, begun: str
) -> None:
    only_with(monkeypatch, units)
    config, gpu = TrainConfig(precision=asked), torch.device("cuda")
    assert precision_of(config, CPU, begun) == precision_of(config, gpu, begun) == begun
    assert counting_precision(config, gpu, begun) == begun
    assert counting_precision(config, CPU, begun) == ("32" if asked == "auto" else begun)
    assert precision_of(TrainConfig(precision="16"), CPU, "16") == "bf16"  # which there is on GPUs only
