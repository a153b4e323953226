"""The figures of docs/networks.md are those of the networks: parameters, operations, strides, receptive fields."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from papm import models

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "networks.md").read_text(encoding="utf-8")
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in models.names()),
    ("msfanet", {"form": "qnrf"}),
    ("tiny", {"width": 2}),
]
IDS = ["-".join([name, *(str(v) for v in options.values())]) for name, options in VARIANTS]


def row(name: str, options: dict[str, Any]) -> list[str]:
    """Cells of the network's line in the first table."""
    first = (
        f"`{name}`, `" + ", ".join(f"{k}={v}" for k, v in options.items()) + "`" if options else f"[`{name}`](#{name})"
    )
    line = next(x for x in PAGE.splitlines() if x.startswith(f"| {first} |"))
    return [cell.strip() for cell in line.split("|")[1:-1]]


@pytest.mark.parametrize(("name", "options"), VARIANTS, ids=IDS)
def test_the_table_tells_the_truth(name: str, options: dict[str, Any]) -> None:
    network = models.create(name, **options).eval()
    _, _, parameters, gflop, _, _, stride, reach = row(name, options)
    number = sum(p.numel() for p in network.parameters())
    assert parameters == (f"{number / 1e6:.2f} M" if number > 1e6 else f"{number / 1e6:.3f} M")
    assert f"{number:,}".replace(",", " ") in PAGE
    counter = FlopCounterMode(display=False)
    with counter, torch.no_grad():
        network(torch.zeros(1, 3, 256, 256))
    assert gflop == f"{counter.get_total_flops() / 1e9:.1f}"
    assert int(stride.split()[0]) == network.stride
    assert reach == ("whole image" if network.receptive_field is None else f"{network.receptive_field} px")
    if network.receptive_field is not None:
        section = PAGE.partition(f"\n## {name}\n")[2].partition("\n## ")[0]
        found = re.search(r"an output sees (\d+) px", section)
        assert found is not None and int(found[1]) == network.stride + 2 * network.receptive_field


def test_every_network_has_a_section_with_what_was_measured() -> None:
    for name in models.names():
        section = PAGE.partition(f"\n## {name}\n")[2].partition("\n## ")[0]
        assert "GFLOP at 256²" in section, name
        assert re.search(r"^(Measured: |.*Not in the paper\.)", section, flags=re.M), name
