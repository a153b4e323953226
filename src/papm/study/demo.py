"""The demo: a ready model counts in scenes with exactly known objects; then small networks learn from dots as a careful and
as a careless person sets them, one table."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from papm import data, ready
from papm.data.click_model import Annotator, annotate_dataset
from papm.data.scenes import LOOKS
from papm.data.splits import Splits
from papm.draw import save_png
from papm.engine import train as engine
from papm.engine.build import resolve
from papm.engine.log import Watcher
from papm.errors import ConfigError, unknown
from papm.files import write_json
from papm.predict.predictor import Counter
from papm.predict.unlike import compared
from papm.report.compare import ComparedRun, write_comparison
from papm.report.examples import example, save_examples
from papm.report.page import require_pages
from papm.report.run import write_report
from papm.text import interval

# method → network and its options; the trunk of the point network is as small as the other one
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "gaussian": ("tiny", {}),
    "hd-papm": ("tiny", {}),
    "al-papm": ("tiny", {}),
    "p2p-papm": ("p2pnet", {"trunk": "tiny"}),
}
STEPS = 450
READY = "cells"
SCENES = ((10, 120), (18, 60), (34, 15))  # that it counts in: size of the cells in pixels, how many
CLEAN, DISPLACED = "exact dots", "misplaced dots"


@dataclass(frozen=True)
class Demo:
    """What the demo does; the numbers keep it under three minutes on two cores."""

    out: Path
    look: str = "crowd"
    steps: int = STEPS
    seed: int = 0
    train: int = 80
    test: int = 40
    # A click anywhere on the object: σ = 0.35 × its size at shape 8 is nearly uniform over a round object.
    annotator: Annotator = field(default_factory=lambda: Annotator("extent", 0.35, missed=0.02, doubled=0.01))

    def prepare(self, force: bool) -> None:
        """Refuse a folder that holds something else; replace an earlier demo only when told to."""
        require_pages()  # now, and not after minutes of training
        if self.steps < 1:
            raise ConfigError(f"--steps must be at least 1, not {self.steps}")
        if self.look not in LOOKS:
            raise unknown("look", self.look, LOOKS)
        if self.out.exists() and not self.out.is_dir():
            raise ConfigError(f"{self.out}: is a file, not a folder")
        if not self.out.exists() or not any(self.out.iterdir()):
            return
        if not any((self.out / name).exists() for name in ("demo.json", "runs", "ready")):
            raise ConfigError(f"{self.out}: is not empty and not a demo; choose another --out")
        if not force:
            raise ConfigError(f"{self.out}: holds an earlier demo; replace it with --force, or choose another --out")
        shutil.rmtree(self.out)


@dataclass(frozen=True)
class FirstLook:
    """What a ready model counted in a few scenes, against the truth, and the pictures of it."""

    counted: list[float]
    truth: list[int]
    pictures: list[Path]
    seconds: float

    @property
    def words(self) -> str:
        """One line a scene."""
        head = f"The ready model '{READY}' counts cells in {len(self.truth)} new scenes ({self.seconds:.1f} s):"
        rows = zip(self.counted, self.truth, self.pictures)
        return "\n".join([head, *(f"{count:9.1f} of {true:3d}   {picture}" for count, true, picture in rows)])

    def to_mapping(self) -> dict[str, Any]:
        return {"counted": self.counted, "truth": self.truth, "pictures": list(map(str, self.pictures))}


def first_look(plan: Demo) -> FirstLook:
    """Count cells in scenes that are drawn now, with a model that is ready: nothing is trained."""
    began = time.monotonic()
    counter = Counter.load(ready.find(READY).path, "cpu")
    rows: list[tuple[float, int, Path]] = []
    for extent, count in SCENES:
        scene: dict[str, Any] = {"look": "cells", "extent": extent, "count": count, "seed": 10_000 + plan.seed}
        sample = data.open("synthetic", **scene, train=0, test=1, clutter=0.1)["test"][0]
        image = sample.image
        found = counter.predict(image, name=f"cells of {extent} px")
        picture = save_png(example(image, sample, found), plan.out / "ready" / f"{extent}px.png")
        rows.append((found.count, sample.count, picture))
    counted, truth, pictures = (list(column) for column in zip(*rows))
    return FirstLook(counted, truth, pictures, time.monotonic() - began)


@dataclass(frozen=True)
class Outcome:
    """The comparison as printed."""

    columns: list[str]
    rows: list[list[object]]
    mean_count: float
    words: str
    report: Path
    best: Path
    results: list[dict[str, Any]]

    def to_mapping(self) -> dict[str, Any]:
        return {"report": str(self.report), "mean_count": self.mean_count, "results": self.results}


def run_demo(plan: Demo, watch: Callable[[str], Watcher | None]) -> Outcome:
    """Train every method on exact and on misplaced dots of the same scenes, test against the truth."""
    spec = f"synthetic:look={plan.look},train={plan.train},test={plan.test},seed={plan.seed}"
    splits = data.open_spec(spec)
    trains = {CLEAN: splits["train"], DISPLACED: annotate_dataset(splits["train"], plan.annotator, plan.seed)}
    runs: list[ComparedRun] = []
    settings = {"data": spec, "steps": plan.steps, "eval_every": max(1, plan.steps // 7), "select": "last"}
    for method, (backbone, options) in METHODS.items():
        config = resolve(method, backbone, {**settings, "network": options, "seed": plan.seed, "device": "cpu"})
        for group, dataset in trains.items():
            folder = plan.out / "runs" / f"{method}-{'clean' if group == CLEAN else 'displaced'}"
            chosen = Splits(dataset, splits["test"], splits["test"])
            made = engine.train(config, folder, watcher=watch(f"{method}, {group}"), splits=chosen)
            if made.result is None:
                raise KeyboardInterrupt
            runs.append(ComparedRun(label=method, group=group, folder=folder, result=made.result))
    return conclude(plan, runs, splits["test"])


def conclude(plan: Demo, runs: list[ComparedRun], test: data.Dataset) -> Outcome:
    """Table, pictures, page."""
    mean = sum(s.count for s in test) / len(test)
    groups = [CLEAN, DISPLACED]
    cells = {(r.label, r.group): r.result for r in runs}

    def figure(result: dict[str, Any]) -> str:
        between = interval(result["intervals"].get("mae"), to="–")
        return f"{result['mae']:.2f}" + (f" ({between})" if between else "")

    rows: list[list[object]] = [[m, *(figure(cells[m, g]) for g in groups)] for m in METHODS]
    best = min((r for r in runs if r.group == DISPLACED), key=lambda r: r.result["mae"])
    examples = []
    with compared():
        for run in runs:
            if run.group == DISPLACED:
                pictures = save_examples(Counter.load(run.folder, "cpu"), test, run.folder, count=3)
                examples += [(f"{run.label}, trained on {run.group}", p) for p in pictures]
            write_report(run.folder)
    words = (
        f"Mean error per scene, 95 % interval over {len(test)} scenes. Misplaced dots: anywhere on the object, "
        f"{100 * plan.annotator.missed:.0f} % missed, {100 * plan.annotator.doubled:.0f} % doubled."
    )
    report = write_comparison(
        plan.out / "report.html",
        title=f"papm demo: {plan.look}",
        intro=f"{plan.train} training and {plan.test} test scenes of {mean:.0f} objects on average, drawn with exactly known "
        f"centres; a small network trained from nothing for {plan.steps} steps on each kind of dots.",
        runs=runs,
        examples=examples,
        notes=[
            words,
            "One seed of a small network on easy scenes: a demonstration of the tool, not of the paper's claim.",
        ],
    )
    results = [{"label": r.label, "group": r.group, **r.result} for r in runs]
    write_json(plan.out / "demo.json", results)
    return Outcome(["method", *groups], rows, mean, words, report, best.folder, results)
