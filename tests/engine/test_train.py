"""What a run does besides going on after a crash: learn, choose, refuse, make do with less memory."""

from __future__ import annotations

import csv
import json
import resource
import signal
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from papm import checkpoint, data
from papm.cli.main import main
from papm.config import TrainConfig
from papm.data.base import Dataset
from papm.data.cache import ImageStore
from papm.data.splits import Splits, choose
from papm.engine import keep, result
from papm.engine import train as engine
from papm.engine.build import build_loss, build_network, resolve
from papm.engine.data import CountingData, training_points
from papm.engine.dry_run import dry_run
from papm.engine.evaluate import Evaluation
from papm.engine.log import Log
from papm.engine.oom import with_memory
from papm.engine.optimizer import Optimizer, build_optimizer, rate_factor
from papm.engine.run_folder import read_metrics
from papm.engine.training import Training
from papm.engine.watch import Watched
from papm.errors import CheckpointError, ConfigError, DataError, PapmError
from papm.files import write_text
from papm.losses import CountingLoss, LossContext
from papm.models import Network
from papm.models.man import MAN
from papm.structures import Batch, LossOutput, PointBatch, PointProposals, Sample
from papm.targets import ADAPTIVE_BETA, touched_cells

SPEC = "synthetic:train=6,test=3,size=96,count=5-10"
RESULT = [
    "dataset",
    "backbone",
    "method",
    "noise",
    "noise_kind",
    "seed",
    "steps",
    "options",
    "select",
    "mae",
    "rmse",
    "mae_last",
    "mae_best_on_test",
    "mae_in_image",
    "weights_sha256",
    "seconds",
    "hardware",
    "precision",
    "revision",
]


def config(**more: Any) -> TrainConfig:
    keys = {"data": SPEC, "device": "cpu", "steps": 4, "crop": 64, "batch": 4, "log_every": 2, "select": "last"}
    return resolve(more.pop("method", "hd-papm"), more.pop("backbone", "tiny"), {**keys, **more})


def test_a_region_of_interest_is_not_read_again_at_each_evaluation(tmp_path: Path) -> None:
    reads: list[str] = []

    def whole(sample: Any) -> Tensor:
        reads.append(sample.name)
        return torch.ones(sample.size, dtype=torch.bool)

    def read_in(eval_every: int) -> int:
        chosen = config(steps=6, eval_every=eval_every)
        splits = {
            k: Dataset([replace(s, roi_source=partial(whole, s)) for s in d]) for k, d in data.open_spec(SPEC).items()
        }
        reads.clear()
        made = engine.train(chosen, tmp_path / str(eval_every), splits=choose(splits, "last", 0.1, 0))
        assert made.result is not None
        rows = [r for r in read_metrics(tmp_path / str(eval_every) / "metrics.csv") if "mae" in r]
        assert len(rows) == 6 // eval_every
        return len(reads)

    assert read_in(eval_every=2) == read_in(eval_every=6)


@pytest.mark.slow
def test_a_network_learns_to_count(tmp_path: Path) -> None:
    spec = "synthetic:look=cells,train=24,test=12,size=128,count=5-40,seed=3"
    made = engine.train(config(data=spec, steps=250, crop=96, batch=6, eval_every=250), tmp_path)
    assert made.result is not None
    test = data.open_spec(spec)["test"]
    counts = torch.tensor([float(s.count) for s in test])
    constant = (counts - counts.median()).abs().mean()  # the best that can be done without looking
    assert made.result["mae"] < 0.5 * constant


@pytest.mark.parametrize(
    "method", ["gaussian", "gaussian-16", "gaussian-adaptive", "hd-papm", "dm-count", "al-papm", "sc"]
)
def test_every_density_method_runs(tmp_path: Path, method: str) -> None:
    made = engine.train(config(method=method, steps=2), tmp_path)
    assert made.result is not None and made.result["method"] == method
    rows = read_metrics(tmp_path / "metrics.csv")
    assert [r["step"] for r in rows if "loss" in r] == [2]


def test_the_result_has_the_fields_of_the_contract(tmp_path: Path) -> None:
    engine.train(config(), tmp_path)
    result = json.loads((tmp_path / "result.json").read_text())
    assert set(RESULT) <= set(result)
    assert result["select"] == "last" and result["mae"] == result["mae_last"]
    assert result["mae_best_on_test"] <= result["mae_last"]
    names = {
        "config.yaml",
        "environment.json",
        "metrics.csv",
        "tensorboard",
        "last.ckpt",
        "best.ckpt",
        "predictions.csv",
    }
    assert names <= {p.name for p in tmp_path.iterdir()}


def test_val_selection_never_looks_at_the_test_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watched: list[str] = []
    before = Watched.image

    def spy(self: Watched, index: int) -> Tensor:
        watched.append(self.dataset[index].name)
        return before(self, index)

    monkeypatch.setattr(Watched, "image", spy)
    made = engine.train(config(select="val", eval_every=2), tmp_path)
    test = {s.name for s in data.open_spec(SPEC)["test"]}
    assert watched and not set(watched) & test
    assert made.result is not None and made.result["mae_best_on_test"] is None
    seen = [r["mae"] for r in read_metrics(tmp_path / "metrics.csv") if "mae" in r]
    assert made.result["mae_val"] == pytest.approx(min(seen), rel=1e-5)


def test_best_is_the_lowest_evaluation(tmp_path: Path) -> None:
    engine.train(config(select="test", steps=8, eval_every=2, lr=0.02), tmp_path)
    watched = {r["step"]: r["mae"] for r in read_metrics(tmp_path / "metrics.csv") if "mae" in r}
    assert checkpoint.load(tmp_path / "best.ckpt")[0].step == min(watched, key=lambda k: watched[k])


@pytest.mark.parametrize(("counted", "last"), [(5.0, 0.0), (1e6, 1e6 - 5)])
def test_the_best_on_test_is_the_lowest_of_all_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, counted: float, last: float
) -> None:
    """The last weights are looked at too, though their step is not evaluated."""
    truth = [5.0] * 3
    found = Evaluation(["a", "b", "c"], [counted] * 3, truth, truth)
    monkeypatch.setattr(result, "evaluate", lambda *args, **options: found)
    made = engine.train(config(steps=3, eval_every=2, ema=0), tmp_path).result
    (watched,) = [r["mae"] for r in read_metrics(tmp_path / "metrics.csv") if "mae" in r]
    assert made is not None and made["mae_last"] == last
    assert made["mae_best_on_test"] == pytest.approx(min(watched, last), rel=1e-4)


def test_weights_are_averaged(tmp_path: Path) -> None:
    """One step: decay (1+1)/(10+1), so the average is 2/11 of the start and 9/11 of the stepped weights."""
    keys = {"steps": 1, "log_every": 1}
    start = build_network(config()).state_dict()
    engine.train(config(**keys, ema=0.0), tmp_path / "plain")
    engine.train(config(**keys, ema=0.999), tmp_path / "averaged")
    stepped = checkpoint.load(tmp_path / "plain" / "best.ckpt")[1]
    averaged = checkpoint.load(tmp_path / "averaged" / "best.ckpt")[1]
    for k, w in averaged.items():
        torch.testing.assert_close(w, 2 / 11 * start[k] + 9 / 11 * stepped[k], rtol=1e-5, atol=1e-7)


def test_raw_weights_are_looked_at_and_averaged_ones_kept(tmp_path: Path) -> None:
    averaged, raw = (
        engine.train(config(steps=6, eval_every=2, ema=0.99, lr=0.01, watch=watch), tmp_path / watch)
        for watch in ("averaged", "raw")
    )
    bare = engine.train(config(steps=6, eval_every=2, ema=0, lr=0.01), tmp_path / "bare")
    looks = {
        name: [row["mae"] for row in read_metrics(tmp_path / name / "metrics.csv") if row.get("mae")]
        for name in ("averaged", "raw", "bare")
    }
    assert looks["raw"] == looks["bare"] != looks["averaged"]
    assert averaged.result is not None and raw.result is not None and bare.result is not None
    assert raw.result["mae"] == raw.result["mae_last"] == averaged.result["mae"] != bare.result["mae"]
    assert raw.result["mae_best_on_test"] == pytest.approx(min(*looks["raw"], raw.result["mae"]), rel=1e-5)
    assert raw.result["options"]["training"]["watch"] == "raw"
    with pytest.raises(ConfigError, match="select=last"):
        config(watch="raw", select="val", ema=0.99)
    assert config(watch="raw", select="val", ema=0).ema == 0  # nothing is averaged: what is looked at is what is kept


@pytest.mark.long
@pytest.mark.slow
def test_running_statistics_are_averaged_like_the_weights(tmp_path: Path) -> None:
    keys = {"steps": 1, "log_every": 1, "crop": 32, "batch": 2, "backbone": "msfanet", "method": "dm-count"}
    start = build_network(config(**keys)).state_dict()
    engine.train(config(**keys, ema=0.0), tmp_path / "plain")
    engine.train(config(**keys, ema=0.999), tmp_path / "averaged")
    stepped = checkpoint.load(tmp_path / "plain" / "best.ckpt")[1]
    averaged = checkpoint.load(tmp_path / "averaged" / "best.ckpt")[1]
    means = [k for k in averaged if k.endswith("running_mean")]
    assert means and any(not torch.equal(start[k], stepped[k]) for k in means)
    for k in means:
        torch.testing.assert_close(averaged[k], 2 / 11 * start[k] + 9 / 11 * stepped[k], rtol=1e-5, atol=1e-7)
    counters = [k for k in averaged if k.endswith("num_batches_tracked")]
    assert all(torch.equal(averaged[k], stepped[k]) for k in counters)


@pytest.mark.slow
def test_a_smaller_batch_when_memory_is_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    step = Training.take
    found = dry_run(config(), steps=1, warmup=1)
    assert found["batch"] == 4

    def short(self: Training, item: Any) -> None:
        if len(item.rows) > 2:  # the words of a CPU, on which it is an error like any other
            raise RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory")
        if len(item.rows) > 1:
            raise torch.OutOfMemoryError("CUDA out of memory")
        step(self, item)

    monkeypatch.setattr(Training, "take", short)
    assert engine.train(config(), tmp_path).step == 4
    assert "batch: 1" in (tmp_path / "config.yaml").read_text()
    assert "batch=2" in caplog.text and "batch=1" in caplog.text
    assert dry_run(config(), steps=1, warmup=1)["batch"] == 1
    assert engine.train(config(), tmp_path, resume=True).step == 4  # the same command goes on with what memory held
    with pytest.raises(ConfigError, match="was started with batch=1, not 2"):
        engine.train(config(batch=2), tmp_path, resume=True)
    monkeypatch.setattr(Training, "take", lambda *_: (_ for _ in ()).throw(torch.OutOfMemoryError()))
    with pytest.raises(PapmError, match=r"smaller crop$"):
        engine.train(config(), tmp_path / "none")
    with pytest.raises(PapmError, match="smaller crop, or cache=memory"):
        engine.train(config(cache="device"), tmp_path / "none")


def test_images_that_do_not_fit_the_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No smaller batch makes room for them."""
    tried: list[object] = []

    def full(self: ImageStore, device: torch.device) -> ImageStore:
        tried.append(device)
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(ImageStore, "to", full)
    with pytest.raises(PapmError, match=r"training images .* do not fit on the device; use cache=memory"):
        engine.train(config(cache="device"), tmp_path / "run")
    assert len(tried) == 1 and not (tmp_path / "run").exists()


def test_a_run_that_explodes_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PapmError, match=r"smaller lr, or clip=1"):
        engine.train(config(lr=1e18, warmup=0, clip=0.0, steps=20), tmp_path / "weights")
    # On a GPU the map is not looked at in a step; what is logged then tells.
    step = Training.take

    def infinite(self: Training, item: Any) -> None:
        step(self, item)
        assert self.step.sums is not None
        self.step.sums += float("inf")

    monkeypatch.setattr(Training, "take", infinite)
    with pytest.raises(PapmError, match=r"the loss became inf before step 1.*smaller lr"):
        engine.train(config(log_every=1), tmp_path / "logged")


def test_a_full_disk_keeps_the_previous_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Really too small: for a while the process may not write files as large as its checkpoints."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    engine.train(config(steps=2, save_every=2), tmp_path / "measure")
    size = (tmp_path / "measure" / "last.ckpt").stat().st_size
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    step = Training.take

    def shrink(self: Training, item: Any) -> None:
        limit = size // 2 if 3 <= self.done < 5 else soft
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
        step(self, item)

    monkeypatch.setattr(Training, "take", shrink)
    try:
        assert engine.train(config(steps=6, save_every=2), tmp_path / "run").step == 6
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)
    assert "cannot be written (File too large); what was there before is kept" in caplog.text
    assert checkpoint.load(tmp_path / "run" / "last.ckpt")[0].step == 6
    assert not list((tmp_path / "run").glob(".*.tmp"))


def test_a_disk_without_room_for_logs_does_not_end_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    """For a while not a byte can be added to any file: rows are lost, and nothing else."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    step = Training.take

    def shrink(self: Training, item: Any) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 if 3 <= self.done < 6 else soft, hard))
        step(self, item)

    monkeypatch.setattr(Training, "take", shrink)
    try:
        made = engine.train(config(steps=8, save_every=2, log_every=1), tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)
    assert made.step == 8
    assert [r["step"] for r in read_metrics(tmp_path / "metrics.csv") if "loss" in r] == [1, 2, 3, 7, 8]
    assert "metrics.csv: rows are lost (File too large)" in caplog.text and "events end here" in caplog.text
    assert "Traceback" not in capfd.readouterr().err


def test_the_last_weights_are_measured_though_they_could_not_be_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = keep.write_last

    def full(path: Path, values: dict[str, Any]) -> None:
        if values["training"]["step"] > 2:
            raise PapmError("no space left")
        before(path, values)

    monkeypatch.setattr(keep, "write_last", full)
    made = engine.train(config(steps=8, save_every=2, eval_every=2, select="test", lr=0.02), tmp_path)
    watched = {r["step"]: r["mae"] for r in read_metrics(tmp_path / "metrics.csv") if "mae" in r}
    assert checkpoint.load(tmp_path / "last.ckpt")[0].step == 2
    assert made.result is not None and made.result["mae_last"] == pytest.approx(watched[8], rel=1e-5)
    assert made.result["mae_last"] != pytest.approx(watched[2], rel=1e-3)


def test_the_seconds_of_a_run_hold_its_final_evaluation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    count = result.evaluate

    def slow(*given: Any, **more: Any) -> Any:
        clock[0] += 100.0
        return count(*given, **more)

    monkeypatch.setattr(result, "evaluate", slow)
    made = engine.train(config(), tmp_path)
    assert made.result is not None and made.result["seconds"] == 100.0


def test_a_loss_that_is_no_number_reaches_no_weight(tmp_path: Path) -> None:
    """The map is finite here, its squared error is not."""
    with pytest.raises(PapmError, match="the loss became inf at step 0"):
        engine.train(config(loss={"scale": 1e30}, save_every=1), tmp_path)
    assert not (tmp_path / "last.ckpt").exists()


@pytest.mark.parametrize("precision", ["bf16", "16"])
def test_half_precision_on_a_cpu(tmp_path: Path, precision: str, caplog: pytest.LogCaptureFixture) -> None:
    made = engine.train(config(precision=precision), tmp_path)
    assert made.result is not None and made.result["mae"] is not None
    assert ("precision=16 is for GPUs; this run uses bf16" in caplog.text) == (precision == "16")


def test_a_run_that_ran_out_of_memory_later_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = Watched.image

    def short(self: Watched, index: int) -> Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory")

    keys = {"steps": 4, "save_every": 2, "eval_every": 3}
    monkeypatch.setattr(Watched, "image", short)
    with pytest.raises(PapmError, match=r"memory ran out; what was saved is kept"):
        engine.train(config(**keys), tmp_path)
    assert checkpoint.load(tmp_path / "last.ckpt")[0].step == 2
    with pytest.raises(PapmError, match=r"memory ran out; what was saved is kept"):
        engine.train(config(**keys), tmp_path, resume=True)
    assert (tmp_path / "last.ckpt").exists()
    monkeypatch.setattr(Watched, "image", before)
    assert engine.train(config(**keys), tmp_path, resume=True).step == 4


class Crash:
    """A watcher that ends the process's part of a run at a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step(self, step: int, total: int, values: dict[str, float]) -> None:
        if step == self.step:
            raise MemoryError

    def on_start(self, sizes: dict[str, int]) -> None: ...

    def on_evaluation(self, step: int, values: dict[str, float]) -> None: ...


def test_the_best_of_a_resumed_run_is_the_best_of_the_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = {4: 1.0, 8: 3.0, 12: 2.0}
    evaluated = Log.evaluation

    def scripted(self: Log, step: int, values: dict[str, float]) -> None:
        evaluated(self, step, {**values, "mae": wanted[step]})

    monkeypatch.setattr(Log, "evaluation", scripted)
    keys = {"steps": 12, "save_every": 4, "eval_every": 4, "log_every": 1, "select": "val"}
    with pytest.raises(MemoryError):
        engine.train(config(**keys), tmp_path, watcher=Crash(6))
    engine.train(config(**keys), tmp_path, resume=True)
    assert checkpoint.load(tmp_path / "best.ckpt")[0].step == 4


@pytest.mark.parametrize(("select", "every", "looks"), [("val", 100, [4]), ("test", 3, [3, 4]), ("last", 3, [3])])
def test_the_last_step_is_evaluated_where_weights_are_chosen(
    tmp_path: Path, select: str, every: int, looks: list[int]
) -> None:
    asked = config(select=select, eval_every=every)
    made = engine.train(asked, tmp_path)
    assert [row["step"] for row in read_metrics(tmp_path / "metrics.csv") if "mae" in row] == looks
    assert made.result is not None and made.result["selected_step"] in (looks if select != "last" else [4])
    assert (made.result["mae_val"] is None) == (select != "val")
    assert dry_run(asked, steps=1, warmup=1)["evaluations"] == len(looks) + 1


def test_what_cannot_be_trained_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no label, which network\.num_classes=3 needs"):
        engine.train(config(network={"num_classes": 3}), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_dropout_belongs_to_the_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A resumed run draws what the whole one drew."""
    build = build_network

    def with_dropout(c: TrainConfig, *given: Any) -> Any:
        network = build(c)
        network.down8 = torch.nn.Sequential(network.down8, torch.nn.Dropout2d(0.5))
        return network

    monkeypatch.setattr(engine, "build_network", with_dropout)
    monkeypatch.setattr(engine, "finish", lambda *a: {})
    keys = {"steps": 5, "save_every": 2, "log_every": 1}
    engine.train(config(**keys), tmp_path / "whole")
    with pytest.raises(MemoryError):
        engine.train(config(**keys), tmp_path / "cut", watcher=Crash(3))
    engine.train(config(**keys), tmp_path / "cut", resume=True)
    whole, cut = (
        [r["loss"] for r in read_metrics(tmp_path / n / "metrics.csv") if "loss" in r] for n in ("whole", "cut")
    )
    assert whole == cut and len(whole) == 5


def test_nothing_is_written_when_the_data_cannot_be_read(tmp_path: Path) -> None:
    photos = tmp_path / "photos"
    photos.mkdir()
    for k in range(3):
        (photos / f"{k}.png").write_bytes(b"\x89PNG\r\n\x1a\n not a picture")
        write_text(photos / f"{k}.txt", "1 2\n")
    with pytest.raises(DataError, match=r"0\.png"):
        engine.train(config(data=f"folder:{photos}"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_starting_from_a_checkpoint(tmp_path: Path) -> None:
    engine.train(config(), tmp_path / "first")
    network = build_network(config(init=str(tmp_path / "first")))
    saved = checkpoint.load(tmp_path / "first" / "best.ckpt")[1]
    assert all(torch.equal(saved[k], v) for k, v in network.state_dict().items())
    with pytest.raises(ConfigError, match="is a 'tiny', the run trains a 'vgg19'"):
        build_network(resolve("hd-papm", "vgg19", {"init": str(tmp_path / "first")}))
    with pytest.raises(CheckpointError, match="another network"):
        build_network(config(init=str(tmp_path / "first"), network={"stride": 8}))


def test_chances_are_of_points() -> None:
    with pytest.raises(ConfigError, match="count=expected is for networks that give points"):
        config(count="expected")
    assert config(count="points").count == "points"


def test_unknown_names_are_named(tmp_path: Path) -> None:
    for more, message in (
        ({"method": "hd-pamp"}, "unknown method 'hd-pamp'; did you mean 'hd-papm'"),
        ({"stepz": 3}, "unknown key 'stepz'; did you mean 'steps'"),
        ({"loss": {"sigm": 3}}, "unknown option of loss 'hd-papm' 'sigm'; did you mean 'sigma'"),
        ({"network": {"strid": 3}}, "unknown option of network 'tiny' 'strid'; did you mean 'stride'"),
        ({"network": "vgg19"}, "network is a mapping, not 'vgg19'"),
        ({"loss": 5}, "loss is a mapping, not '5'"),
    ):
        with pytest.raises(ConfigError, match=message):
            config(**more)
    # Read when the network is built, before there is a loss to refuse it.
    for value, message in (("much", "is a finite number"), (-1, "not be negative"), (0, "use count=points")):
        with pytest.raises(ConfigError, match=message):
            resolve("p2pnet", "p2pnet", {"loss": {"background_weight": value}})
    assert resolve("p2pnet", "p2pnet", {"loss": {"background_weight": 0}, "count": "points"}).count == "points"


def test_an_empty_group_of_a_file_holds_nothing(tmp_path: Path) -> None:
    """`loss:` with nothing after it is how YAML writes an empty group."""
    (tmp_path / "settings.yaml").write_text("loss:\nnetwork: ~\n")
    words = ["train", SPEC, "--backbone", "tiny", "--dry-run", "--config", str(tmp_path / "settings.yaml")]
    keys = ["loss.sigma=5", "network.stride=8", "steps=2", "crop=64", "batch=2", "device=cpu"]
    with pytest.raises(SystemExit) as ended:
        main([*words, *keys])
    assert ended.value.code == 0


def photographs(folder: Path, count: int) -> None:
    for k, sample in enumerate(data.open_spec(SPEC)["train"][:count]):
        Image.fromarray(sample.image.permute(1, 2, 0).numpy()).save(folder / f"{k}.png")
        (folder / f"{k}.txt").write_text("\n".join(f"{x} {y}" for x, y in sample.points.tolist()))


@pytest.mark.parametrize("workers", [0, 2])
def test_an_image_that_vanishes_during_training_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    """Also where another process reads it: its traceback is none of the user's business."""
    (tmp_path / "photos").mkdir()
    photographs(tmp_path / "photos", 4)
    monkeypatch.setenv("PAPM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PAPM_CACHE_GB", "0")  # every image is decoded when it is needed
    load = CountingData.load

    def vanish(self: CountingData, device: torch.device) -> None:
        load(self, device)
        for file in (tmp_path / "photos").glob("*.png"):
            file.unlink()

    monkeypatch.setattr(CountingData, "load", vanish)
    with pytest.raises(DataError, match=r"^\S+\.png: no such image file$"):
        engine.train(config(data=str(tmp_path / "photos"), cache="disk", workers=workers), tmp_path / "run")


@pytest.mark.parametrize(
    "error",
    [RuntimeError("DataLoader worker (pid 7) is killed by signal: Bus error."), ConnectionResetError(), EOFError()],
)
def test_a_loader_that_was_killed_is_told_in_a_sentence(error: Exception) -> None:
    def attempt(config: TrainConfig) -> None:
        raise error

    with pytest.raises(PapmError, match="fewer workers"):
        with_memory(config(), attempt)


def test_an_error_inside_a_loader_keeps_its_words() -> None:
    """PyTorch begins them with "DataLoader worker process", which is not the end of one."""

    def attempt(config: TrainConfig) -> None:
        raise RuntimeError(
            "Caught RuntimeError in DataLoader worker process 0.\nOriginal Traceback …: sizes must match"
        )

    with pytest.raises(RuntimeError, match="sizes must match"):
        with_memory(config(), attempt)


def test_an_empty_cache_variable_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PAPM_CACHE", "")
    made = CountingData(choose(data.open_spec(SPEC), "last", 0.1, 0), config())
    assert made.cache_folder == tmp_path / ".cache" / "papm" / "images"


def test_noise_moves_training_points_and_is_repeatable() -> None:
    sample = data.open_spec(SPEC)["train"][0]
    still, moved = training_points(sample, config()), training_points(sample, config(noise=8))
    distance = ((moved - still)[:, :2] ** 2).sum(1) ** 0.5
    assert distance == pytest.approx(8, rel=1e-4)
    assert (training_points(sample, config(noise=8)) == moved).all()
    assert not (training_points(sample, config(noise=8, seed=1)) == moved).all()


def left_half(size: tuple[int, int]) -> Tensor:
    mask = torch.zeros(size, dtype=torch.bool)
    mask[:, : size[1] // 2] = True
    return mask


def with_region(dataset: Dataset) -> Dataset:
    """Only the left half of every image counts."""
    return Dataset([replace(s, roi_source=partial(left_half, s.size)) for s in dataset], dataset.name, dataset.split)


@pytest.mark.parametrize("noise", [0.0, 12.0])
def test_a_network_learns_from_points_that_count(noise: float) -> None:
    """Those outside the region teach nothing, nor those that noise has moved out of it."""
    found = 0
    for sample in with_region(data.open_spec(SPEC)["train"]):
        made = training_points(sample, config(noise=noise))
        assert (made[:, 0] < 48).all() and len(made) <= int((sample.points[:, 0] < 48).sum())
        if not noise:
            assert len(made) == int((sample.points[:, 0] < 48).sum())
        found += len(made)
    assert found > 10


@pytest.mark.parametrize("beta", [ADAPTIVE_BETA, 0.6])
def test_the_spacing_of_a_point_alone_is_that_of_its_adaptive_kernel(
    beta: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("papm.targets.ADAPTIVE_BETA", beta)
    sample = data.open_spec(SPEC)["train"][0]
    made = training_points(sample.keep(torch.tensor([0])), config())
    assert beta * made[0, 2] == pytest.approx(96 / 4)


@pytest.mark.parametrize("backbone", ["tiny", "p2pnet"])
def test_what_is_watched_is_what_is_measured(tmp_path: Path, backbone: str) -> None:
    """Inside the region of interest: the figure of the last evaluation is the result's."""
    parts = data.open_spec(SPEC)
    splits = choose({name: with_region(part) for name, part in parts.items()}, "last", 0.1, 0)
    more = {"method": "p2pnet", "network": {"trunk": "tiny"}, "count": "expected"} if backbone == "p2pnet" else {}
    made = engine.train(config(backbone=backbone, ema=0, steps=2, eval_every=2, **more), tmp_path, splits=splits)
    watched = [row["mae"] for row in read_metrics(tmp_path / "metrics.csv") if "mae" in row]
    assert made.result is not None and made.result["mae"] == pytest.approx(watched[-1], rel=1e-4)
    truth = [float((s.points[:, 0] < 48).sum()) for s in parts["test"]]
    with (tmp_path / "predictions.csv").open() as lines:
        assert sorted(float(row["truth"]) for row in csv.DictReader(lines)) == sorted(truth)


class Listener(CountingLoss):
    """Keeps what it was called with."""

    def compute(self, density: Tensor, points: PointBatch, context: LossContext | None) -> LossOutput:
        self.heard = (points, context, self.progress)
        return LossOutput(density.sum(), {"sum": density.sum().detach()})


def step_of(c: TrainConfig, loss: CountingLoss, network: Network) -> tuple[Training, Batch]:
    """A training and the first batch of its run, both on the CPU; only the left half of the images counts."""
    parts = {name: with_region(part) for name, part in data.open_spec(SPEC).items()}
    counting = CountingData(choose(parts, "last", 0.1, 0), c, halo=8.0)
    counting.load(torch.device("cpu"))
    mode = network.training
    made = Training(c, network, loss, counting, torch.device("cpu"))
    network.train(mode)
    return made, counting.render(counting.plan(0))


def test_a_step_tells_the_loss_all_that_is_known_of_the_crops() -> None:
    c = config(margin=16, crop=64)
    network = build_network(c)
    loss = Listener(network.stride)
    training, made = step_of(c, loss, network)
    training.take(made)
    points, context, progress = loss.heard
    assert isinstance(context, Batch) and progress == 0  # the first of the steps
    for key in ("mask", "offsets", "sizes", "images"):
        assert getattr(context, key) is not None and torch.equal(getattr(context, key), getattr(made, key))
    assert context.halo is not None and points is context.points
    assert int(context.halo.valid.sum()) > int(made.points.valid.sum())


def test_attention_is_kept_away_from_the_padding_of_crops(monkeypatch: pytest.MonkeyPatch) -> None:
    """Images of 96 px in crops of 160: what the crops hold beyond them changes no token inside. A margin is no padding."""
    c = config(backbone="man", method="dm-count", crop=160, margin=16, batch=2, scale_max=1.0, scale_min=1.0)
    network = build_network(c).eval()  # no dropout,
    monkeypatch.setattr(MAN, "frame", 0)  # and no frame, as in training
    assert isinstance(network, MAN)
    monkeypatch.setattr(network, "features", Mosaic())
    training, made = step_of(c, build_loss(c, network.stride), network)
    tokens: list[Tensor] = []
    network.head.register_forward_pre_hook(lambda _, given: tokens.append(given[0].detach()))
    assert made.real is not None and made.mask is not None
    inside = touched_cells(made.real, 32)
    assert 0 < int(inside.sum()) < inside.numel() and int(touched_cells(made.mask, 32).sum()) < int(inside.sum())
    beyond = ~inside.repeat_interleave(32, 1).repeat_interleave(32, 2)[:, None]
    for images in (made.images, torch.where(beyond, 3.0, made.images)):
        training.objective(replace(made, images=images))
    first, second = (t.permute(0, 2, 3, 1) for t in tokens)
    torch.testing.assert_close(first[inside], second[inside])
    assert not torch.allclose(first[~inside], second[~inside])
    seen = made.images + made.real[:, None] * ~made.mask[:, None]  # the margin and what lies outside the region
    training.objective(replace(made, images=seen))
    assert not torch.allclose(tokens[2].permute(0, 2, 3, 1)[inside], first[inside], rtol=1e-3)


class Mosaic(torch.nn.Module):
    """A trunk whose tokens see nothing of each other: the mean of 32 × 32 pixels."""

    strides = (32,)

    def forward(self, images: Tensor) -> list[Tensor]:
        return [F.avg_pool2d(images, 32).repeat(1, 171, 1, 1)[:, :512]]


def test_what_a_network_asks_of_itself_is_part_of_the_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    c = config()
    network = build_network(c)
    training, batch = step_of(c, build_loss(c, network.stride), network)
    alone = float(training.objective(batch)[0].detach())
    given: list[Any] = []

    def own(output: Any, points: PointBatch, mask: Tensor | None = None) -> dict[str, Tensor]:
        given.append(mask)
        return {"own": 2 * output.density.new_ones(())}

    monkeypatch.setattr(network, "auxiliary_losses", own)
    total, values = training.objective(batch)
    assert float(total.detach()) == pytest.approx(alone + 2) and given[0] is batch.mask
    logged = dict(zip(training.objective.names, values.tolist()))
    assert logged["own"] == 2 and logged["loss"] == pytest.approx(alone + 2)


@pytest.mark.parametrize("backbone", ["tiny", "p2pnet"])
def test_the_logged_error_of_the_count_is_of_the_pixels_that_count(backbone: str) -> None:
    more = {"method": "p2pnet", "network": {"trunk": "tiny"}, "count": "expected"} if backbone == "p2pnet" else {}
    c = config(backbone=backbone, crop=96, margin=16, precision="32", **more)
    network = build_network(c)
    training, made = step_of(c, build_loss(c, network.stride), network)
    values = training.objective(made)[1].tolist()
    logged = dict(zip(training.objective.names, values))
    with torch.no_grad():
        output = network(made.images)
    assert made.mask is not None
    if isinstance(output, PointProposals):
        x, y = output.reference.long().unbind(-1)
        chances = output.probabilities(network.inference.background).sum(-1)
        found = torch.stack([(p * m[y, x]).sum() for p, m in zip(chances, made.mask)])
    else:
        cells = made.mask.view(len(made.mask), 96 // output.stride, output.stride, -1, output.stride).any(4).any(2)
        found = (output.density[:, 0] * cells).sum((1, 2))
    assert logged["count_error"] == pytest.approx(float((found - made.points.counts).abs().mean()), rel=1e-4)


def test_trunk_head_and_loss_have_their_own_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    c = config(method="kdmg", lr=1e-3, trunk_lr=1e-5, loss_lr=2e-4, weight_decay=0.125, optimizer="adam", warmup=0)
    network = build_network(c)
    first, *rest = network.parameters()
    monkeypatch.setattr(network, "parameter_groups", lambda: {"trunk": [first], "head": rest})
    loss = build_loss(c, network.stride)
    cpu = torch.device("cpu")
    made = build_optimizer(c, network, loss, cpu, half=False)
    assert not made.decoupled and made.weight_decay == 0.125
    assert [lr for _, lr in made.groups] == [1e-5, 1e-3, 2e-4]
    assert [len(p) for p, _ in made.groups] == [1, len(rest), len(list(loss.parameters()))]
    made = build_optimizer(replace(c, loss_lr=None), network, loss, cpu, half=False)
    assert [lr for _, lr in made.groups] == [1e-5, 1e-3, 1e-3]
    plain = config(lr=1e-3, optimizer="adamw", trunk_lr=None)
    made = build_optimizer(plain, network, build_loss(plain, network.stride), cpu, half=False)
    assert made.decoupled and [lr for _, lr in made.groups] == [1e-3, 1e-3]


def test_the_rate_warms_up_and_falls() -> None:
    c = config(steps=100, warmup=10)
    factors = [rate_factor(k, c) for k in range(101)]
    assert factors[0] == pytest.approx(0.1, rel=0.01) and max(factors) == factors[9]
    assert factors[100] == pytest.approx(0.01)
    assert rate_factor(50, config(schedule="constant", warmup=10)) == 1


def test_a_margin_trains(tmp_path: Path) -> None:
    made = engine.train(config(method="al-papm", crop=96, margin=16, steps=2), tmp_path)
    assert made.result is not None


def test_a_run_that_fails_before_its_first_checkpoint_leaves_its_folder_free(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with pytest.raises(PapmError, match="smaller lr"):
        engine.train(config(lr=1e30, steps=20, log_every=1), folder)
    assert not folder.exists()
    engine.train(config(steps=2), folder)
    assert (folder / "best.ckpt").exists()


def test_a_failed_run_takes_nothing_of_somebody_elses(tmp_path: Path) -> None:
    (tmp_path / "tensorboard").mkdir()
    (tmp_path / "tensorboard" / "mine").write_text("x")
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(PapmError, match="smaller lr"):
        engine.train(config(lr=1e30, steps=20, log_every=1), tmp_path)
    assert (tmp_path / "tensorboard" / "mine").exists() and (tmp_path / "notes.txt").exists()
    assert not (tmp_path / "config.yaml").exists()


def test_what_was_saved_before_a_failure_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "run"
    plain = Training.take

    def break_down(self: Training, item: Any) -> None:
        if self.done == 3:
            raise PapmError("the loss became nan")
        plain(self, item)

    monkeypatch.setattr(Training, "take", break_down)
    with pytest.raises(PapmError, match="became nan"):
        engine.train(config(steps=6, save_every=2), folder)
    assert (folder / "last.ckpt").exists() and (folder / "config.yaml").exists()


def test_gradients_are_clipped_in_half_precision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    norms: list[float] = []
    update = Optimizer._update

    def watched(self: Optimizer, gradients: list[Tensor], skipped: Tensor) -> None:
        norms.append(float(torch.stack([g.norm() for g in gradients]).norm()))
        update(self, gradients, skipped)

    monkeypatch.setattr(Optimizer, "_update", watched)
    engine.train(config(precision="bf16", clip=0.01, steps=2), tmp_path)
    assert len(norms) == 2 and all(n == pytest.approx(0.01, rel=0.02) for n in norms)


@pytest.mark.slow
@pytest.mark.parametrize("who", ["one process", "papm train"])
def test_one_cpu_process_trains_without_lightning(tmp_path: Path, who: str) -> None:
    """Importing it takes seconds; `lightning.pytorch` is never needed."""
    words = ["train", SPEC, "--backbone", "tiny", "--out", str(tmp_path / "run"), "device=cpu", "steps=2", "crop=64"]
    code = f"import sys; from papm.cli.main import main\ntry: main({words!r})\nexcept SystemExit as end: assert not end.code\n"
    if who == "one process":
        code = f"""if True:
            import sys
            from pathlib import Path
            from papm.engine import train as engine
            from papm.engine.build import resolve
            config = resolve("hd-papm", "tiny", dict(data={SPEC!r}, device="cpu", steps=2, crop=64, select="last"))
            assert engine.train(config, Path({str(tmp_path)!r}) / "run").step == 2
        """
    code = f"{code}\nprint([m for m in sys.modules if m.split('.')[0] in ('lightning', 'lightning_fabric', 'torchmetrics')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240, check=True)
    assert done.stdout.splitlines()[-1] == "[]" and (tmp_path / "run" / "last.ckpt").exists()


def test_a_dry_run_refuses_fractions_as_the_run_would() -> None:
    sample = Sample("one", lambda: torch.zeros(3, 64, 64, dtype=torch.uint8), torch.rand(6, 2), (64, 64))
    splits = Splits(Dataset([sample], "mine", "train"), None, None)
    with pytest.raises(PapmError, match="fractions of the image"):
        dry_run(config(), steps=1, warmup=1, splits=splits)
