from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from papm.errors import DataError
from papm.metrics import CountingMetrics, bootstrap, counting_errors

PREDICTED = torch.tensor([12.0, 7.5, 1.25, 300.0, 41.0, 9.0])
TRUTH = torch.tensor([10.0, 10.0, 0.0, 280.0, 50.0, 8.0])


def test_batches_add_up_to_the_whole() -> None:
    metric = CountingMetrics()
    metric.update(PREDICTED[:2], TRUTH[:2])
    metric.update(PREDICTED[2:], TRUTH[2:].long())
    score = counting_errors(PREDICTED, TRUTH)
    computed = metric.compute()
    for name in ("mae", "rmse", "nae", "bias"):
        assert computed[name].shape == ()
        assert computed[name].item() == pytest.approx(getattr(score, name), rel=1e-6)
    assert metric.score() == score
    assert metric.interval(samples=100) == bootstrap(PREDICTED, TRUTH, samples=100)


def test_reset_forgets() -> None:
    metric = CountingMetrics()
    metric.update(PREDICTED, TRUTH)
    metric.reset()
    metric.update(torch.tensor([5.0]), torch.tensor([2.0]))
    assert metric.compute()["mae"].item() == 3.0
    assert metric.score().n == 1


def test_batches_of_unequal_length_are_refused() -> None:
    with pytest.raises(DataError, match="2 predicted counts for 1"):
        CountingMetrics().update(torch.zeros(2), torch.zeros(1))


SCRIPT = """
import sys
import torch, torch.distributed as dist
from papm.metrics import CountingMetrics
rank, store = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
def check(predicted, truth, mae, n):
    metric = CountingMetrics()
    if len(truth):
        metric.update(torch.tensor(predicted), torch.tensor(truth))
    assert abs(metric.compute()["mae"].item() - mae) < 1e-6, metric.compute()
    assert metric.score().n == n
    assert metric.interval(samples=50) == metric.interval(samples=50)
    metric.update(torch.tensor([1.0]), torch.tensor([1.0]))  # states are the process's own again
    assert metric.score().n == n + 2
    return metric
check([[1.0, 2.0, 3.0], [9.0]][rank], [[0.0, 0.0, 0.0], [3.0]][rank], 3.0, 4)   # uneven shards, no padding
check([[4.0], []][rank], [[1.0], []][rank], 3.0, 1)                             # a process without images
dist.destroy_process_group()
"""


@pytest.mark.long
@pytest.mark.slow
def test_two_processes_give_one_figure(tmp_path: Path) -> None:
    store = tmp_path / "store"
    run = [
        subprocess.Popen([sys.executable, "-c", SCRIPT, str(rank), str(store)], stderr=subprocess.PIPE, text=True)
        for rank in (0, 1)
    ]
    errors = [process.communicate(timeout=120)[1] for process in run]
    assert [process.returncode for process in run] == [0, 0], errors
