"""The matching benchmark: its scenes, what it calls an excess, and that every way finds the optimum."""

from __future__ import annotations

import json

import pytest
import torch

from papm.bench import matching as bench
from papm.cli.main import main
from papm.errors import ConfigError


@pytest.mark.slow
def test_rows_start_with_ours_and_agree() -> None:
    rows = bench.run("ggd-literal", problems=2, points=10, crop=32, repeat=1, warmup=0)
    assert rows[0].timing.name == "papm" and rows[0].timing.ratio == 1 and len(rows) == 3
    assert bench.agree(rows) and not bench.agree([*rows, bench.Row(rows[0].timing, 2e-5)])


@pytest.mark.parametrize("kind", ["l2", "ggd", "ggd-literal"])
def test_scenes(kind: bench.Kind) -> None:
    costs = bench.scene(kind, 2, 7, crop=32, seed=3)
    assert costs.shape == (2, 7, 64) and torch.isfinite(costs).all() and costs.max() <= bench.CAP
    assert torch.equal(costs, bench.scene(kind, 2, 7, crop=32, seed=3))
    assert not torch.equal(costs, bench.scene(kind, 2, 7, crop=32, clumped=True, seed=3))


def test_excess_is_of_a_pair() -> None:
    costs = torch.tensor([[[0.0, 1.0, 5.0], [0.0, 3.0, 5.0]]])
    best = bench.optimum(costs)
    assert best.tolist() == [1.0]
    assert bench.excess(costs, torch.tensor([[1, 0]]), best) == 0
    assert bench.excess(costs, torch.tensor([[0, 1]]), best) == 1.0  # two more, over two pairs
    for wrong in ([[0, 0]], [[0, -1]]):
        assert bench.excess(costs, torch.tensor(wrong), best) == float("inf")


def test_wrong_input() -> None:
    with pytest.raises(ConfigError, match="did you mean 'ggd'"):
        bench.scene("gdg", 1, 1)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="needs a problem"):
        bench.scene("l2", 1, 0)


def test_command(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, code in (
        (["--points", "9", "--problems", "2", "--crop", "32", "--cost", "l2", "--repeat", "1", "--json"], 0),
        (["--cost", "l3"], 2),
    ):
        with pytest.raises(SystemExit) as stopped:
            main(["bench", "matching", *arguments])
        assert int(stopped.value.code or 0) == code
        said = capsys.readouterr()
        if code:
            assert said.err.startswith("papm: unknown matching cost 'l3'") and said.err.count("\n") == 1
        else:
            found = json.loads(said.out)
            assert found["agree"] is True and found["cost"] == "l2" and len(found["rows"]) == 3
            assert all(row["excess_per_pair"] <= bench.PAIR for row in found["rows"])
