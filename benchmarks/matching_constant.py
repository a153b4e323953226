"""Which matching cost trains a point network best, with dots where they belong and with dots moved away?

    PYTHONPATH=src python3 benchmarks/matching_constant.py OUT.json
    PYTHONPATH=src python3 benchmarks/matching_constant.py OUT.json shanghaitech-a:data/ShanghaiTech --trunk vgg16 \
        --noise 0 16 --seeds 0 --variants p2pnet p2p-papm 'p2p-papm loss.kappa=0.1' steps=20000 weights=imagenet

One training for each variant, noise (px, training dots only) and seed, through `papm.engine.train`; a variant is a method
and, after it, settings of its own; `key=value` at the end are settings of all runs. The test dots are never moved, and the
weights are the last. OUT.json is written after every run, and what it holds is not trained again: interrupt it and go on.
`mae` counts the scores above ½; `mae_expected` sums the probabilities behind all scores (`PointProposals.probabilities`).
`offset` is how far proposals have gone from their references: above some 12 px a network has chosen references by the border
of the crop, which a whole image does not have, and counts by no reading.
"""

from __future__ import annotations

import argparse
import json
import logging
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from papm import config as configuration
from papm.data.base import Dataset
from papm.engine import train as engine
from papm.engine.build import resolve
from papm.errors import PapmError
from papm.files import write_json
from papm.metrics.counting import counting_errors
from papm.predict.predictor import Counter, within
from papm.predict.tiling import infer
from papm.structures import PointProposals

SCENES = "synthetic:train=80,test=40,count=20-80,seed=0"
VARIANTS = (
    "p2pnet",
    "p2p-papm",
    "p2p-papm loss.kappa=0.1",
    "p2p-papm loss.kappa=1.6",
    "p2p-papm loss.l2_warmup=0",
    "p2p-papm-literal",
    "p2p-papm-literal loss.l2_warmup=0.3",
)
Row = dict[str, Any]


@torch.inference_mode()
def expected_errors(run: Path, dataset: Dataset) -> Row:
    """MAE and bias of the expected counts of a trained model, and the mean length of its offsets in pixels."""
    model = Counter.load(run)
    found, lengths = [], 0.0
    for sample in dataset:
        output = infer(model.network, sample.image)
        output = output if sample.roi is None else within(output, sample.roi)
        assert isinstance(output, PointProposals)
        chance = output.probabilities(model.inference.background).sum(-1)
        found.append(float(chance.sum()))
        lengths += float((chance * (output.points - output.reference).norm(dim=-1)).sum())
    score = counting_errors(found, [float(s.published.counted.sum()) for s in dataset])
    return {"mae_expected": score.mae, "bias_expected": score.bias, "offset": lengths / max(sum(found), 1e-9)}


def train(data: str, variant: str, noise: float, seed: int, settings: list[str], trunk: str, folder: Path) -> Row:
    """One training; its result with the name of the variant."""
    method, *own = variant.split()
    given = configuration.parse_overrides([f"network.trunk={trunk}", "select=last", *settings, *own])
    given |= {"data": data, "noise": noise, "seed": seed, "eval_every": 10**9, "count": "points"}
    config = resolve(method, "p2pnet", given)
    made = engine.train(config, folder)
    if made.result is None or made.shown is None:
        raise KeyboardInterrupt
    return {"variant": variant, **made.result, **expected_errors(folder, made.shown)}


def summary(rows: list[Row]) -> list[Row]:
    """Mean and spread of the test MAE over seeds, for each variant and noise."""
    groups: dict[tuple[str, float], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["variant"], row["noise"]), []).append(row)
    return [
        {
            "variant": variant,
            "noise": noise,
            "seeds": len(found),
            "mae": round(statistics.mean(r["mae"] for r in found), 3),
            "spread": round(statistics.stdev(r["mae"] for r in found), 3) if len(found) > 1 else None,
            "bias": round(statistics.mean(r["bias"] for r in found), 4),
        }
        for (variant, noise), found in groups.items()
    ]


def show(rows: list[Row]) -> str:
    """The summary as a table: a line a variant, a column a noise."""
    table = {(r["variant"], r["noise"]): r for r in summary(rows)}
    noises = sorted({noise for _, noise in table})
    names = list(dict.fromkeys(variant for variant, _ in table))
    wide = max(map(len, names), default=0)
    lines = [f"{'test MAE':{wide}s}" + "".join(f"{f'{n:g} px':>16s}" for n in noises)]
    for name in names:
        cells = [table.get((name, n)) for n in noises]
        spreads = ["" if c is None or c["spread"] is None else f" ± {c['spread']:.2f}" for c in cells]
        words = ["–" if c is None else f"{c['mae']:.2f}{spread}" for c, spread in zip(cells, spreads)]
        lines.append(f"{name:{wide}s}" + "".join(f"{w:>16s}" for w in words))
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="the table, JSON")
    parser.add_argument("data", nargs="?", default=SCENES, help="NAME:ROOT, a folder, or scenes (default: %(default)s)")
    parser.add_argument("--variants", nargs="+", default=list(VARIANTS), help="'METHOD key=value …' each")
    parser.add_argument("--noise", nargs="+", type=float, default=[0.0, 8.0, 16.0])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--trunk", default="tiny", help="of p2pnet: tiny, vgg16, vgg16-bn or vgg19")
    parser.add_argument("--runs", type=Path, help="keep the run folders here")
    args, rest = parser.parse_known_args()
    # argparse takes a key=value after --variants for one more variant, and one before DATA for the data
    variants = [v for v in args.variants if "=" not in v.split()[0]]
    settings = [s for s in [*args.variants, *rest] if "=" in s.split()[0]]
    logging.disable(logging.WARNING)
    given = {"data": args.data, "trunk": args.trunk, "settings": settings}
    rows: list[Row] = []
    if args.out.exists():
        known = json.loads(args.out.read_text(encoding="utf-8"))
        if known["given"] != given:
            raise SystemExit(f"{args.out}: holds runs of other settings, {known['given']}; give another file")
        rows = known["runs"]
    done = {(r["variant"], r["noise"], r["seed"]) for r in rows}
    wanted = [(v, n, s) for s in args.seeds for n in args.noise for v in variants if (v, n, s) not in done]
    for k, (variant, noise, seed) in enumerate(wanted):
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch) / "run"
            if args.runs is not None:
                folder = args.runs / f"{variant.replace(' ', '_')}-{noise:g}-{seed}"
            try:
                rows.append(train(args.data, variant, noise, seed, settings, args.trunk, folder))
            except PapmError as error:
                raise SystemExit(f"{variant}: {error}") from None
        write_json(args.out, {"given": given, "summary": summary(rows), "runs": rows})
        took = time.monotonic() - began
        print(
            f"{k + 1}/{len(wanted)}  {variant}, {noise:g} px, seed {seed}: MAE {rows[-1]['mae']:.2f}  ({took:.0f} s)",
            flush=True,
        )
    print(show(rows))


if __name__ == "__main__":
    main()
