"""Check and time every transport solver on one GPU.

    PYTHONPATH=src python3 benchmarks/transport_gpu.py results/transport_gpu.json [--quick]

Each variant is compared with the float64 scaling solver on the same random problem (points at random and in clumps, images
with different counts, one empty), then timed with CUDA events (median). Then the whole losses, forward and backward, eagerly
and recorded in a CUDA graph, with their peak memory. Groups of variants run in processes of their own with a time limit, so
that one that fails, or leaves the device in a bad state, does not stop the others.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gpu_timing import device_ms
from papm.losses import create
from papm.structures import PointBatch
from papm.transport import create_cost, cuda, graphs, grid_sinkhorn, reference
from papm.transport.windows import WindowProblem, window_for

REG, FLOOR, STRIDE, ITERATIONS = 10.0, 1e-16, 8, 100
DEVICE = torch.device("cuda", 0)
LIMIT = 100  # seconds to a group


def scene(images: int, n: int, crop: int, clumped: bool, seed: int) -> tuple[PointBatch, Tensor]:
    """Points of each image (the last has none when there are several) and a noisy density with a background leak."""
    rng = torch.Generator().manual_seed(seed)
    lists = []
    for k in range(images):
        count = 0 if images > 2 and k == images - 1 and clumped else max(1, n - (k * n) // (4 * images))
        xy = torch.rand(count, 2, generator=rng) * crop
        if clumped and count > 4:
            half = count // 2
            xy[:half] = (xy[:1] + torch.randn(half, 2, generator=rng) * 20).clamp(0, crop - 0.01)
        lists.append(xy)
    side = crop // STRIDE
    density = torch.rand(images, side, side, generator=rng) ** 4 * 0.5 + 0.002
    density = density * (torch.rand(images, side, side, generator=rng) > 0.3)
    return PointBatch.from_list(lists, DEVICE), density.to(DEVICE)


def milliseconds(function: Callable[[], Any], repeats: int = 30) -> float:
    """Median time on the device of one call, after a warm-up."""
    return device_ms(function, warm=5, least=repeats, most=repeats)


def variants(group: str, quick: bool) -> dict[str, Callable[..., tuple[Tensor, ...]]]:
    """Solvers by name, all called as backends: (problem, a, b, u, floor, iterations)."""
    if group == "torch":
        return {"sparse": reference.scaling, "graph": graphs.solve}
    cluster = int(group.removeprefix("cuda"))
    return {
        f"cuda c{cluster} l{lanes}": functools.partial(cuda.solve, lanes=lanes, cluster=cluster)
        for lanes in ((8,) if quick else (1, 2, 4, 8, 16))
    } | {f"cuda c{cluster} eager": functools.partial(cuda.solve, cluster=cluster, record=False)}


def solvers(
    report: list[dict[str, Any]], images: int, n: int, crop: int, name: str, clumped: bool, group: str, quick: bool
) -> None:
    """One problem, all solvers."""
    cost = create_cost(name)
    points, density = scene(images, n, crop, clumped, seed=n + clumped)
    exact = grid_sinkhorn(
        PointBatch(points.xy.double(), points.valid), density.double(), STRIDE, cost, solver="reference"
    )
    beta = exact.potentials[1]
    window = window_for(cost, REG, STRIDE, FLOOR, torch.float32)
    assert window is not None
    problem = WindowProblem(points.xy.float(), (crop // STRIDE, crop // STRIDE), STRIDE, cost, REG, window)
    a, b = exact.a.float(), exact.b.float()
    for variant, solve in variants(group, quick).items():
        row: dict[str, Any] = {
            "what": "solver", "variant": variant, "images": images, "n": n, "crop": crop, "cost": name, "clumped": clumped,
        }  # fmt: skip
        try:
            u, v, *value = solve(problem, a, b, a, FLOOR, ITERATIONS)
            again = solve(problem, a, b, a, FLOOR, ITERATIONS)[1]
            got = REG * torch.log(v.double() + FLOOR)
            row["error"] = float(((got - beta).abs().max() / beta.abs().max()).cpu())
            if value:
                row["value_error"] = float(((value[0].double() - exact.value).abs().max() / exact.value.max()).cpu())
            row["finite"] = bool(torch.isfinite(u).all() and torch.isfinite(v).all())
            row["repeatable"] = bool(torch.equal(v, again))
            row["right"] = row["finite"] and max(row["error"], row.get("value_error", 0.0)) < 1e-3
            fresh = functools.partial(
                lambda solve: solve(
                    WindowProblem(problem.xy, problem.size, STRIDE, cost, REG, window), a, b, a, FLOOR, ITERATIONS
                ),
                solve,
            )
            row["ms"] = milliseconds(fresh, 10 if variant == "sparse" else 30)
        except Exception as failure:
            row["failed"] = f"{type(failure).__name__}: {failure}"[-600:]
            traceback.print_exc()
        report.append(row)
        show(row)


def losses(report: list[dict[str, Any]], images: int, n: int, crop: int, name: str, solver: str) -> None:
    """The whole loss, forward and backward, eager and recorded; gradient against the float64 loss."""
    row: dict[str, Any] = {"what": "loss", "variant": solver, "images": images, "n": n, "crop": crop, "cost": name}
    try:
        points, density = scene(images, n, crop, False, seed=n)
        z = density[:, None].clone().requires_grad_()
        loss = create("dm-count", stride=STRIDE, cost=name, solver=solver)

        def step() -> Tensor:
            z.grad = None
            out = loss(z, points)
            out.total.backward()
            return out.total

        step()
        grad = z.grad.clone() if z.grad is not None else torch.zeros(())
        exact = density[:, None].double().requires_grad_()
        wide = PointBatch(points.xy.double(), points.valid)
        create("dm-count", stride=STRIDE, cost=name, solver="reference")(exact, wide).total.backward()
        assert exact.grad is not None
        row["gradient_error"] = float(((grad.double() - exact.grad).norm() / exact.grad.norm()).cpu())
        del exact
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        step()
        torch.cuda.synchronize()
        row["peak_mb"] = (torch.cuda.max_memory_allocated() - before) / 2**20
        row["ms"] = milliseconds(step)
        torch.cuda.set_sync_debug_mode("error")  # a training step must not wait for the device
        try:
            step()
            row["no_sync"] = True
        except RuntimeError as error:
            row["no_sync"] = str(error)[:200]
        finally:
            torch.cuda.set_sync_debug_mode("default")
        if solver in ("cuda", "auto"):
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                for _ in range(3):
                    step()
            torch.cuda.current_stream().wait_stream(stream)
            z.grad = None
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                out = loss(z, points)
                out.total.backward()
            graph.replay()
            torch.cuda.synchronize()
            assert z.grad is not None
            row["recorded_error"] = float(((z.grad - grad).norm() / grad.norm()).cpu())
            row["recorded_ms"] = milliseconds(graph.replay)
    except Exception as failure:
        row["failed"] = f"{type(failure).__name__}: {failure}"[-600:]
        traceback.print_exc()
    report.append(row)
    show(row)


def show(row: dict[str, Any]) -> None:
    """One line of the table."""
    head = f"{row['what']:6} {row['variant']:12} {row['cost']:7} {row['images']}x{row['crop']} n={row['n']:<5}"
    head += " clumped" if row.get("clumped") else ""
    rest = {k: v for k, v in row.items() if k not in ("what", "variant", "cost", "images", "crop", "n", "clumped")}
    print(head, "  ".join(f"{k}={v:.3g}" if isinstance(v, float) else f"{k}={v}" for k, v in rest.items()), flush=True)


GROUPS = ("torch", "cuda1", "cuda2", "cuda4", "cuda8", "losses", "losses-fallback")
PROBLEMS = ((256, 200, True), (512, 1000, False), (512, 1000, True), (512, 3000, False), (512, 3000, True))


def run_group(group: str, quick: bool) -> list[dict[str, Any]]:
    """The rows of one group, in this process."""
    torch.backends.cuda.matmul.allow_tf32 = False
    report: list[dict[str, Any]] = []
    if group == "losses":
        print("nvrtc kernel:", cuda.available(DEVICE), "cluster:", cuda.default_cluster(DEVICE), flush=True)
        for n in (20, 200, 1000, 3000, 5000):
            losses(report, 8, n, 512, "ggd-l2", "auto")
        for crop, n, name in ((512, 1000, "l2"), (512, 3000, "l2"), (256, 200, "ggd-l2"), (256, 1000, "ggd-l2")):
            losses(report, 8, n, crop, name, "auto")
    elif group == "losses-fallback":
        for n in (1000, 3000):
            losses(report, 8, n, 512, "ggd-l2", "graph")
    else:
        for crop, n, clumped in PROBLEMS:
            for name in ("ggd-l2", "l2"):
                solvers(report, 8, n, crop, name, clumped, group, quick)
    return report


def main() -> None:
    """Run all groups; the table is printed as it grows, the figures go to the JSON file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path, nargs="?", default=Path("transport_gpu.json"))
    parser.add_argument("--quick", action="store_true", help="fewer variants")
    parser.add_argument("--group", choices=GROUPS, help="only this group, in this process")
    given = parser.parse_args()
    given.out.parent.mkdir(parents=True, exist_ok=True)
    if given.group:
        given.out.write_text(json.dumps(run_group(given.group, given.quick)))
        return
    hardware = torch.cuda.get_device_name(DEVICE)
    print(hardware, torch.__version__, flush=True)
    report: list[dict[str, Any]] = []
    for group in GROUPS:
        part = given.out.with_suffix(f".{group}.part")
        command = [sys.executable, __file__, str(part), "--group", group, *(["--quick"] if given.quick else [])]
        try:
            subprocess.run(command, timeout=LIMIT, check=True)
            report += json.loads(part.read_text())
        except (subprocess.SubprocessError, OSError, ValueError) as failure:
            print(f"group {group} failed: {failure}", flush=True)
            report.append({"what": "group", "variant": group, "failed": str(failure)})
        part.unlink(missing_ok=True)
    best: dict[str, tuple[float, str]] = {}
    for row in report:
        if row["what"] == "solver" and row.get("right") and "ms" in row:
            key = f"{row['cost']} {row['crop']} n={row['n']}{' clumped' if row['clumped'] else ''}"
            best[key] = min(best.get(key, (math.inf, "")), (row["ms"], row["variant"]))
    print("\nfastest right solver")
    for key, (ms, variant) in best.items():
        print(f"  {key:28} {variant:12} {ms:.3f} ms")
    print("losses, forward and backward")
    for row in report:
        if row["what"] == "loss":
            show(row)
    wrong = [r for r in report if r.get("failed") or r.get("right") is False or r.get("gradient_error", 0) > 1e-3]
    print(f"{len(wrong)} of {len(report)} rows failed or were wrong")
    given.out.write_text(json.dumps({"hardware": hardware, "torch": torch.__version__, "rows": report}, indent=1))


if __name__ == "__main__":
    main()
