"""Time every network and every loss on one GPU.

    PYTHONPATH=src python3 benchmarks/networks_gpu.py results/speed/networks-h200.json
    PYTHONPATH=src python3 benchmarks/networks_gpu.py /tmp/try.json --device cpu --tiny

Networks: forward and backward of a sum of squares in training mode with auxiliary losses, bfloat16 autocast, channels-last,
8 crops of 256² and of 512²; median milliseconds (CUDA events) and the most memory above the weights. With --compile also under
torch.compile, which takes longer than the rest together. Losses: forward and backward on 8 maps of 512² pixels at stride 8
with 1000 points each, launched kernel by kernel and as one recorded graph; point losses on 32 crops of 128 px with 100 points.
A case that fails says why and the rest goes on; cases that would begin after --budget seconds are left out and named.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from papm import losses, models
from papm.losses.base import LossContext, PointLoss
from papm.structures import DensityOutput, PointBatch, PointProposals

VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("vgg19", {}),
    ("csrnet", {}),
    ("mcnn", {}),
    ("msfanet", {}),
    ("msfanet", {"checkpoint": True}),
    ("msfanet", {"form": "qnrf"}),
    ("man", {}),
    ("man", {"checkpoint": True}),
    ("p2pnet", {}),
    ("tiny", {}),
]
STRIDE = 8
Row = dict[str, Any]


@dataclass(frozen=True)
class Plan:
    """What is timed: sizes that suit a GPU, or tiny ones that only show that everything runs."""

    device: torch.device
    sides: tuple[int, ...] = (256, 512)
    batch: int = 8
    loss_side: int = 512
    points: int = 1000
    crops: int = 32  # of the point losses, with 1024 proposals each
    near: int = 100  # points of such a crop
    seconds: float = 0.25  # of timed calls a case
    most: int = 20

    @property
    def cuda(self) -> bool:
        return self.device.type == "cuda"


def timed(plan: Plan, step: Callable[[], Any], warmup: int = 3) -> Row:
    """Median milliseconds of a call and the most memory it takes."""
    for _ in range(warmup):
        step()
    if plan.cuda:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    held = torch.cuda.memory_allocated() if plan.cuda else 0
    times: list[float] = []
    while len(times) < 3 or (sum(times) < 1e3 * plan.seconds and len(times) < plan.most):
        if plan.cuda:
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            step()
            end.record()
            torch.cuda.synchronize()
            times.append(start.elapsed_time(end))
        else:
            began = time.perf_counter()
            step()
            times.append(1e3 * (time.perf_counter() - began))
    row: Row = {"ms": round(statistics.median(times), 3), "least_ms": round(min(times), 3), "calls": len(times)}
    if plan.cuda:
        row["memory_mib"] = round((torch.cuda.max_memory_allocated() - held) / 2**20, 1)
    return row


def points_of(plan: Plan, batch: int, side: int, number: int) -> PointBatch:
    g = torch.Generator().manual_seed(0)
    xy = [side * torch.rand(number, 2, generator=g) for _ in range(batch)]
    extents = [4 + 20 * torch.rand(number, generator=g) for _ in range(batch)]
    return PointBatch.from_list(xy, plan.device, extents=extents)


def network_case(plan: Plan, name: str, options: dict[str, Any], side: int, compiled: bool) -> Row:
    """Forward and backward of one network at one size."""
    torch.manual_seed(0)
    network = models.create(name, **options).to(plan.device, memory_format=torch.channels_last).train()  # type: ignore[call-overload]
    images = torch.randn(plan.batch, 3, side, side, device=plan.device).contiguous(memory_format=torch.channels_last)
    points = points_of(plan, plan.batch, side, 50)
    mask = torch.ones(plan.batch, side, side, dtype=torch.bool, device=plan.device)
    if compiled:
        network.compile(dynamic=False)

    def step() -> None:
        network.zero_grad(set_to_none=True)
        with torch.autocast(plan.device.type, torch.bfloat16):
            output = network(images)
        made = output.density if isinstance(output, DensityOutput) else output.points + output.logits.sum(-1, True)
        extra: list[Tensor] = list(network.auxiliary_losses(output, points, mask).values())
        torch.stack([made.square().sum(), *extra]).sum().backward()

    row = timed(plan, step, warmup=5 if compiled else 3)
    return {"parameters": sum(p.numel() for p in network.parameters()), **row}


def loss_case(plan: Plan, name: str, recorded: bool) -> Row:
    """Forward and backward of one loss."""
    torch.manual_seed(0)
    loss = losses.create(name, stride=STRIDE).to(plan.device)
    alone = loss.needs_images or isinstance(loss, PointLoss) or any(True for _ in loss.parameters())
    loss.recordable = recorded and loss.recordable and not alone
    if recorded and not loss.recordable:
        return {"left_out": "this loss is not recorded"}
    if isinstance(loss, PointLoss):
        return timed(plan, _point_step(plan, loss), warmup=6)
    side, cells = plan.loss_side, plan.loss_side // STRIDE
    points = points_of(plan, plan.batch, side, plan.points)
    density = (
        torch.rand(plan.batch, 1, cells, cells, device=plan.device) * 2 * plan.points / cells**2
    ).requires_grad_()
    size = torch.tensor([[side, side]] * plan.batch, device=plan.device)
    context = LossContext(
        mask=torch.ones(plan.batch, side, side, dtype=torch.bool, device=plan.device),
        offsets=torch.zeros(plan.batch, 2, device=plan.device),
        sizes=size.float(),
        halo=points,
        images=torch.randn(plan.batch, 3, side, side, device=plan.device) if loss.needs_images else None,
    )

    def step() -> None:
        density.grad = None
        loss(DensityOutput(density, STRIDE), points, context=context).total.backward()

    return timed(plan, step, warmup=6)


def _point_step(plan: Plan, loss: PointLoss) -> Callable[[], None]:
    grid = (torch.arange(32, device=plan.device) + 0.5) * 4
    reference = torch.cartesian_prod(grid, grid).flip(-1).contiguous()
    count = plan.crops
    shift = torch.randn(count, len(reference), 2, device=plan.device).requires_grad_()
    logits = torch.randn(count, len(reference), 2, device=plan.device).requires_grad_()
    points = points_of(plan, count, 128, plan.near)

    def step() -> None:
        shift.grad = logits.grad = None
        loss(PointProposals(reference + shift, logits, reference), points).total.backward()

    return step


def cases(plan: Plan, compiled: bool) -> list[tuple[str, Callable[[], Row]]]:
    """Everything to time, by name: losses first, then networks, compiled ones last."""
    found: list[tuple[str, Callable[[], Row]]] = []
    for name in losses.names():
        for recorded in (False, True) if plan.cuda else (False,):
            way = "recorded" if recorded else "eager"
            found.append((f"loss/{name}/{way}", lambda n=name, r=recorded: loss_case(plan, n, r)))  # type: ignore[misc]
    for under in (False, True) if compiled else (False,):
        for name, options in VARIANTS:
            for side in plan.sides:
                chosen = ",".join(f"{k}={v}" for k, v in options.items())
                title = "/".join(["network", name + (f"[{chosen}]" if chosen else ""), str(side)])
                run = lambda n=name, o=options, s=side, c=under: network_case(plan, n, o, s, c)  # noqa: E731
                found.append((title + ("/compiled" if under else "/eager"), run))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--compile", action="store_true", help="networks under torch.compile too")
    parser.add_argument("--tiny", action="store_true", help="sizes that only show that everything runs")
    parser.add_argument("--budget", type=float, default=85.0, help="seconds after which no case begins")
    parser.add_argument(
        "--only", default="", help="cases whose name contains this, or one of these, separated by commas"
    )
    given = parser.parse_args()
    device = torch.device(given.device)
    plan = Plan(device, (64,), 2, 64, 20, 2, 10, 0.0, 3) if given.tiny else Plan(device)
    torch.backends.cudnn.benchmark = plan.cuda
    began = time.perf_counter()
    rows: dict[str, Row] = {}
    for name, run in cases(plan, given.compile):
        if not any(part in name for part in given.only.split(",")):
            continue
        if time.perf_counter() - began > given.budget:
            rows[name] = {"left_out": "the time was up"}
            continue
        try:
            rows[name] = run()
        except Exception as error:  # one case must not take the others with it
            rows[name] = {"error": f"{type(error).__name__}: {error}"[:300]}
        gc.collect()
        if plan.cuda:
            torch.cuda.empty_cache()
        print(f"{time.perf_counter() - began:6.1f} s  {name:44s} {rows[name]}", flush=True)
        write(given.out, plan, rows, time.perf_counter() - began)
    write(given.out, plan, rows, time.perf_counter() - began)


def write(path: Path, plan: Plan, rows: dict[str, Row], seconds: float) -> None:
    """Everything so far: a run that is cut short keeps what it has."""
    about = {
        "device": torch.cuda.get_device_name(plan.device) if plan.cuda else "cpu",
        "torch": torch.__version__,
        "batch": plan.batch,
        "loss": {"side": plan.loss_side, "stride": STRIDE, "points": plan.points},
        "point_loss": {"crops": plan.crops, "proposals": 1024, "points": plan.near},
        "seconds": round(seconds, 1),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**about, "cases": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
