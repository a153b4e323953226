from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from papm.metrics import NormalizedAP, NwpuLocalization, QnrfLocalization, RadiusLocalization, nap, nwpu, qnrf, within


def made(seed: int, images: int = 5) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """Predictions, truth, sizes; the first image has no objects, the second no predictions."""
    g = torch.Generator().manual_seed(seed)
    truth = [torch.rand(0 if k == 0 else 20, 2, generator=g) * 60 for k in range(images)]
    predicted = [t + 4 * torch.randn(t.shape, generator=g) for t in truth]
    predicted[0], predicted[1] = torch.rand(3, 2, generator=g), torch.zeros(0, 2)
    return predicted, truth, [1 + 9 * torch.rand(len(t), generator=g) for t in truth]


def test_batches_add_up_to_the_whole() -> None:
    predicted, truth, sizes = made(0)
    half = [s / 2 for s in sizes]
    levels = [torch.arange(len(t)) % 6 for t in truth]
    scores = [torch.linspace(1, 0, len(p)) for p in predicted]
    radius, boxes, sweep, average = RadiusLocalization((4, 8)), NwpuLocalization(), QnrfLocalization(), NormalizedAP()
    for part in (slice(0, 2), slice(2, 2), slice(2, 5)):
        radius.update(predicted[part], truth[part])
        boxes.update(predicted[part], truth[part], half[part], sizes[part], levels[part])
        sweep.update(predicted[part], truth[part], scores[part])
        average.update(predicted[part], scores[part], truth[part])
    eight = within(predicted, truth, 8.0).total
    assert radius.compute()["f1_8"].item() == pytest.approx(eight.f1)
    assert radius.sums[1].tolist() == [
        eight.tp,
        eight.fp,
        eight.fn,
    ]
    whole = nwpu(predicted, truth, half, sizes, levels)
    found = boxes.compute()
    for name, score in whole.items():
        for figure in ("precision", "recall", "f1"):
            assert found[f"{figure}_{name}"].item() == pytest.approx(getattr(score.total, figure))
        for level, recall in score.recall_by_level.items():
            assert found[f"recall_{name}_level_{level}"].item() == pytest.approx(recall)
    plain = qnrf(predicted, truth, scores=scores).to_dict()
    assert set(sweep.compute()) == {"precision", "recall", "f1", "auc", "auc_threshold"}
    for key, value in sweep.compute().items():
        assert value.item() == pytest.approx(plain[key])
    sweep.update(predicted, truth)  # from now on some points have no score
    assert "auc" not in sweep.compute()
    assert average.compute()["nap"].item() == pytest.approx(nap(predicted, scores, truth).mean)


def test_reset_forgets() -> None:
    predicted, truth, _ = made(1)
    for metric in (RadiusLocalization(), QnrfLocalization(matching="maximum")):
        metric.update(predicted, truth)
        metric.reset()
        metric.update(truth[1:2], truth[1:2])
        assert all(v.item() == 1 for v in metric.compute().values())


@pytest.mark.filterwarnings("ignore:The ``compute`` method")
def test_nothing_seen() -> None:
    assert NormalizedAP().compute()["nap"].item() == 0
    assert QnrfLocalization().compute()["f1"].item() == 1  # nothing was there and nothing was said


SCRIPT = """
import sys
import torch, torch.distributed as dist
from papm.metrics import NormalizedAP, NwpuLocalization, QnrfLocalization, nap, nwpu, qnrf
rank, store = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
g = torch.Generator().manual_seed(0)
truth = [torch.rand(15, 2, generator=g) * 60 for _ in range(3)]
predicted = [t[:12] + 4 * torch.randn(12, 2, generator=g) for t in truth]
sizes = [torch.full((15,), 5.0) for t in truth]
scores = [torch.rand(12, generator=g) for _ in truth]
for mine in ([slice(0, 2), slice(2, 3)][rank], [slice(0, 3), slice(0, 0)][rank]):   # uneven; one process without images
    boxes, sweep, average = NwpuLocalization(), QnrfLocalization(), NormalizedAP()
    boxes.update(predicted[mine], truth[mine], sizes[mine], sizes[mine])
    sweep.update(predicted[mine], truth[mine], scores[mine])
    average.update(predicted[mine], scores[mine], truth[mine])
    assert abs(boxes.compute()["f1_sigma_l"].item() - nwpu(predicted, truth, sizes, sizes)["sigma_l"].total.f1) < 1e-6
    assert abs(sweep.compute()["auc"].item() - qnrf(predicted, truth, scores=scores).auc) < 1e-6
    assert abs(average.compute()["nap"].item() - nap(predicted, scores, truth).mean) < 1e-6
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
