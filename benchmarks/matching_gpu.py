"""Check and time every way to assign points to proposals on one GPU machine.

    PYTHONPATH=src python3 benchmarks/matching_gpu.py results/matching_gpu.json

32 crops of 128 px with 1024 proposals each; 20, 100 and 400 points, at random and in a clump; the costs of P2PNet (l2) and of
P2P-PAPM (ggd: τ=1e-3, ggd-literal: τ=1e-5). Every result is compared with scipy's optimum, every time is a median with the
costs already on the device: CUDA events for the kernel, the clock for the ways over the host, copies included. Then variants
of the kernel, a batch of the largest size, a CUDA graph and the absence of waiting. The kernel runs in processes of its own
with a time limit: one that hangs does not stop the rest.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gpu_timing import device_ms
from papm.bench import matching as bench
from papm.matching import assign_batch, cuda, native

DEVICE = torch.device("cuda", 0)
PROBLEMS = 32
SCENES = list(itertools.product(("l2", "ggd", "ggd-literal"), (False, True), (20, 100, 400)))
BARS = {20: 4.0, 100: 8.0, 400: 40.0}  # ms
GROUPS = {"host": 40, "kernel": 25, "variants": 25, "extra": 25}  # seconds each may take
Row = dict[str, Any]


def clock_ms(function: Callable[[], Any], budget: float = 0.4, most: int = 15) -> float:
    """Median wall time of a call that ends with the device idle."""
    function()
    times: list[float] = []
    while len(times) < 3 or (sum(times) < budget * 1e3 and len(times) < most):
        torch.cuda.synchronize()
        start = time.perf_counter()
        function()
        torch.cuda.synchronize()
        times.append(1e3 * (time.perf_counter() - start))
    return statistics.median(times)


def optimum(costs: Tensor) -> Tensor:
    """The least totals, by scipy in float64 on threads."""
    exact = costs.double().cpu()
    columns = assign_batch(exact, solver="scipy").columns
    return exact.gather(2, columns[..., None]).squeeze(2).sum(1)


def attempt(row: Row, work: Callable[[Row], None], rows: list[Row]) -> None:
    """Fill a row; a failure is written into it."""
    try:
        work(row)
    except Exception as failure:
        row["failed"] = f"{type(failure).__name__}: {failure}"[-500:]
        traceback.print_exc()
    rows.append(row)
    print("  ".join(f"{k}={v:.4g}" if isinstance(v, float) else f"{k}={v}" for k, v in row.items()), flush=True)


def named(variant: str, scene: tuple[Any, ...]) -> Row:
    """The head of a row."""
    return {"variant": variant, "cost": scene[0], "clumped": scene[1], "points": scene[2]}


def host() -> list[Row]:
    """The ways over the host: compiled and scipy, on threads, from costs on the device to columns on the device."""
    rows: list[Row] = []
    print(f"threads {torch.get_num_threads()}, compiled {native.available()}", flush=True)
    for scene in SCENES:
        kind, clumped, points = scene
        costs = bench.scene(kind, PROBLEMS, points, clumped=clumped, device="cuda", seed=points)
        best = optimum(costs)
        for solver in ("native", "scipy"):

            def work(row: Row, solver: Any = solver, costs: Tensor = costs, best: Tensor = best) -> None:
                row["excess"] = bench.excess(costs, assign_batch(costs, solver=solver).columns, best)
                row["ms"] = clock_ms(lambda: assign_batch(costs, solver=solver), budget=0.2, most=7)

            attempt(named(solver, scene), work, rows)
    return rows


def kernel_row(row: Row, costs: Tensor, best: Tensor, **options: Any) -> None:
    """Check and time the kernel with some options."""
    counts = torch.tensor([list(costs.shape[1:])] * len(costs), dtype=torch.int32, device=DEVICE)
    columns, steps = cuda.solve(costs, counts, **options)
    again = cuda.solve(costs, counts, **options)[0]
    row["excess"] = bench.excess(costs, columns, best)
    row["repeatable"] = bool(torch.equal(columns, again))
    row["most_steps"] = steps.max(0).values.tolist()  # rounds of bids, rounds of growth, rows scanned
    row["ms"] = device_ms(lambda: cuda.solve(costs, counts, **options))


def kernel() -> list[Row]:
    """The kernel as it is used, on every scene."""
    rows: list[Row] = []
    for scene in SCENES:
        kind, clumped, points = scene
        costs = bench.scene(kind, PROBLEMS, points, clumped=clumped, device="cuda", seed=points)
        best = optimum(costs)
        attempt(named("cuda", scene), lambda row, c=costs, b=best: kernel_row(row, c, b), rows)  # type: ignore[misc]
    return rows


def variants() -> list[Row]:
    """Other numbers of threads and rounds, and shuffles in place of warp-wide minima."""
    rows: list[Row] = []
    choices: list[Row] = [{"threads": t} for t in (128, 256, 512)] + [{"rounds": r} for r in (0, 2, 6, 40)]
    choices.append({"redux": False})
    for scene in (("ggd", False, 100), ("ggd-literal", False, 100), ("ggd", False, 400), ("ggd-literal", False, 400)):
        kind, clumped, points = scene
        costs = bench.scene(kind, PROBLEMS, points, clumped=clumped, device="cuda", seed=points)  # type: ignore[arg-type]
        best = optimum(costs)
        for options in choices:
            name = "cuda " + " ".join(f"{k}={v}" for k, v in options.items())
            attempt(named(name, scene), lambda row, c=costs, b=best, o=options: kernel_row(row, c, b, **o), rows)  # type: ignore[misc]
    return rows


def extra() -> list[Row]:
    """No waiting, a CUDA graph, counts of all kinds, and the largest problems."""
    rows: list[Row] = []
    costs = bench.scene("ggd", PROBLEMS, 100, device="cuda")
    counts = torch.arange(PROBLEMS, device=DEVICE, dtype=torch.int32) * 3

    def no_waiting(row: Row) -> None:
        want = assign_batch(costs, counts).columns
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        try:
            got = assign_batch(costs, counts).columns
        finally:
            torch.cuda.set_sync_debug_mode("default")
        row["equal"] = bool(torch.equal(got, want))
        host_columns = assign_batch(costs.cpu(), counts.cpu()).columns
        row["matched_as_on_the_host"] = bool(torch.equal((want >= 0).cpu(), host_columns >= 0))
        totals = [
            costs.cpu().double().gather(2, c.clamp(min=0)[..., None]).squeeze(2).where(c >= 0, torch.zeros(1).double())
            for c in (want.cpu(), host_columns)
        ]
        row["excess"] = float((totals[0].sum(1) - totals[1].sum(1)).abs().max())
        row["ms"] = device_ms(lambda: assign_batch(costs, counts))

    def graph(row: Row) -> None:
        want = assign_batch(costs, counts).columns
        torch.cuda.synchronize()
        recorded = torch.cuda.CUDAGraph()
        with torch.cuda.graph(recorded):
            got = assign_batch(costs, counts).columns
        recorded.replay()
        torch.cuda.synchronize()
        row["equal"] = bool(torch.equal(got, want))
        row["ms"] = device_ms(recorded.replay)

    def turned(row: Row) -> None:
        many = bench.scene("l2", 4, 300, crop=64, device="cuda")  # 300 points, 256 proposals
        made = assign_batch(many).columns
        row["excess"] = bench.excess(many, made, bench.optimum(many))
        row["ms"] = device_ms(lambda: assign_batch(many))

    def largest(row: Row) -> None:
        large = bench.scene("ggd", 8, 1000, crop=360, device="cuda")
        made = assign_batch(large, solver="cuda").columns
        exact = assign_batch(large, solver="native").columns
        total = [large.double().gather(2, c[..., None]).squeeze(2).sum(1) for c in (made, exact)]
        row["proposals"] = large.shape[2]
        row["excess"] = float((total[0] - total[1]).abs().max()) / 1000
        row["ms"] = device_ms(lambda: assign_batch(large, solver="cuda"))
        row["native_ms"] = clock_ms(lambda: assign_batch(large, solver="native"), most=3)

    for name, work in (
        ("no waiting", no_waiting), ("graph", graph), ("turned", turned), ("largest", largest)
    ):  # fmt: skip
        attempt({"variant": name}, work, rows)
    return rows


def table(report: list[Row]) -> None:
    """Times by scene, and whether they are right."""
    ways = ("cuda", "native", "scipy")
    print(f"\n{'cost':12} {'points':>14} " + " ".join(f"{w + ' ms':>11}" for w in ways) + "   bar   cuda steps")
    for kind, clumped, points in SCENES:
        cells, steps = [], ""
        for way in ways:
            found = [
                r
                for r in report
                if r.get("variant") == way and named(way, (kind, clumped, points)).items() <= r.items()
            ]
            row = found[0] if found else {}
            right = row.get("excess", 1.0) <= bench.PAIR and row.get("repeatable", True)
            cells.append(f"{row['ms']:10.3f}{' ' if right else '!'}" if "ms" in row else f"{'failed':>11}")
            steps = str(row.get("most_steps", steps))
        print(f"{kind:12} {points:4} {'clumped' if clumped else '':9} {' '.join(cells)}  {BARS[points]:4}   {steps}")
    print("variants")
    for row in report:
        if row.get("variant", "") not in ways:
            print("  " + "  ".join(f"{k}={v:.4g}" if isinstance(v, float) else f"{k}={v}" for k, v in row.items()))
    wrong = [r for r in report if "failed" in r or r.get("excess", 0) > bench.PAIR or r.get("equal") is False]
    print(f"{len(wrong)} of {len(report)} rows failed or were wrong (! marks them)")


def main() -> None:
    """Run all groups; the table comes last, the figures go to the JSON file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path, nargs="?", default=Path("matching_gpu.json"))
    parser.add_argument("--group", choices=list(GROUPS), help="only this group, in this process")
    given = parser.parse_args()
    given.out.parent.mkdir(parents=True, exist_ok=True)
    if given.group:
        if given.group != "host":
            print("kernel built:", cuda.available(DEVICE), flush=True)
        given.out.write_text(
            json.dumps({"host": host, "kernel": kernel, "variants": variants, "extra": extra}[given.group]())
        )
        return
    report: list[Row] = []
    for group, limit in GROUPS.items():
        part = given.out.with_suffix(f".{group}.part")
        began = time.perf_counter()
        try:
            subprocess.run([sys.executable, __file__, str(part), "--group", group], timeout=limit, check=True)
            report += json.loads(part.read_text())
        except (subprocess.SubprocessError, OSError, ValueError) as failure:
            report.append({"variant": f"group {group}", "failed": str(failure)[-300:]})
        part.unlink(missing_ok=True)
        print(f"group {group}: {time.perf_counter() - began:.1f} s", flush=True)
    hardware = torch.cuda.get_device_name(DEVICE)
    given.out.write_text(json.dumps({"hardware": hardware, "torch": torch.__version__, "rows": report}, indent=1))
    print(hardware, torch.__version__, torch.get_num_threads(), "threads")
    table(report)


if __name__ == "__main__":
    main()
