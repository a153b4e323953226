"""Several kinds of objects: labels reach the loss, maps count their own kind, figures and files tell them apart."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from papm import checkpoint, data
from papm.cli.main import main
from papm.config import TrainConfig
from papm.data.augment import HEAD, Augment, plan
from papm.data.base import Dataset
from papm.data.cache import build_store
from papm.data.classes import class_names, number_of_classes, require_labels
from papm.data.crops import render
from papm.data.splits import Splits
from papm.engine import train as engine
from papm.engine.build import resolve, with_classes
from papm.engine.data import CountingData, training_points
from papm.engine.evaluate import evaluate, write_evaluation
from papm.errors import ConfigError, DataError
from papm.inference import Inference
from papm.predict.predictor import Counter, class_counts, counts
from papm.structures import DensityOutput, PointProposals, Sample

SIZE = 64
NAMES = ("red", "blue")


def picture(points: Tensor, labels: Tensor) -> Callable[[], Tensor]:
    """Red and blue discs on grey."""

    def paint() -> Tensor:
        image = torch.full((3, SIZE, SIZE), 128, dtype=torch.uint8)
        y, x = torch.meshgrid(torch.arange(SIZE) + 0.5, torch.arange(SIZE) + 0.5, indexing="ij")
        for (px, py), label in zip(points.tolist(), labels.tolist()):
            disc = (x - px) ** 2 + (y - py) ** 2 < 9
            image[:, disc] = torch.tensor([[230, 20, 20], [20, 20, 230]][label], dtype=torch.uint8)[:, None]
        return image

    return paint


def two_kinds(number: int, seed: int, named: bool = True) -> Dataset:
    rng = np.random.default_rng(seed)
    samples = []
    for k in range(number):
        n = int(rng.integers(2, 9))
        grid = rng.permutation(36)[:n]  # places 10 px apart: discs do not overlap
        place = np.stack([grid % 6, grid // 6], 1) * 10 + 7 + rng.uniform(-1, 1, (n, 2))
        points = torch.from_numpy(place.astype(np.float32))
        labels = torch.from_numpy((rng.random(n) < rng.uniform(0.1, 0.9)).astype(np.int64))
        meta: dict[str, Any] = {"classes": NAMES} if named else {}
        samples.append(Sample(f"{seed}-{k}", picture(points, labels), points, (SIZE, SIZE), labels, meta=meta))
    return Dataset(samples, "discs", "train" if seed == 0 else "test")


def config(**more: Any) -> Any:
    keys = {"data": "discs", "device": "cpu", "steps": 3, "crop": 64, "batch": 4, "log_every": 2, "select": "last"}
    network = {"num_classes": "auto", **more.pop("network", {})}
    return resolve(more.pop("method", "hd-papm"), more.pop("backbone", "tiny"), {**keys, "network": network, **more})


def splits(train: int = 6, test: int = 3, **more: Any) -> Splits:
    other = two_kinds(test, 1, **more)
    return Splits(two_kinds(train, 0, **more), other, other)


# -- from labels to batches ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("flip", "turn"), [(0.0, False), (1.0, False), (0.5, True)])
def test_labels_travel_with_their_points(flip: float, turn: bool) -> None:
    """Through crop, flip, turn, scale, margin and halo: the colour at a point of the crop is that of its label."""
    dataset = two_kinds(8, 0)
    augment = Augment(crop=48, flip=flip, turn=turn, scale_min=0.7, scale_max=1.4, margin=4, halo=12.0, labelled=True)
    points = [
        np.concatenate([s.points.numpy(), np.ones((len(s.points), 1)), s.labels.numpy()[:, None]], 1).astype(np.float32)
        for s in dataset
        if s.labels is not None
    ]
    store = build_store(dataset.samples)
    seen = 0
    for step in range(4):
        made = render(store, plan(step, augment, [s.size for s in dataset], points, seed=3, batch=8), augment)
        halo = made.halo
        assert halo is not None
        for batch in (made.points, halo):
            assert batch.labels is not None and batch.labels.dtype == torch.int64
            for b in range(8):
                for (x, y), label in zip(batch.xy[b][batch.valid[b]], batch.labels[b][batch.valid[b]]):
                    if 0 <= x < 48 and 0 <= y < 48:
                        red, _, blue = made.images[b, :, int(y), int(x)]
                        assert (blue > red) == bool(label)
                        seen += 1
    assert seen > 100
    assert made.points.valid.sum() < halo.valid.sum()  # the halo's points have labels too


def test_without_labels_plans_are_as_before() -> None:
    dataset = two_kinds(4, 0)
    points = [np.concatenate([s.points.numpy(), np.ones((len(s.points), 1))], 1).astype(np.float32) for s in dataset]
    labelled = [np.concatenate([p, np.full((len(p), 1), 9)], 1).astype(np.float32) for p in points]
    plain = plan(2, Augment(48), [s.size for s in dataset], points, seed=1, batch=3)
    again = plan(2, Augment(48), [s.size for s in dataset], labelled, seed=1, batch=3)
    assert torch.equal(plain.rows, again.rows) and (plain.rows.shape[1] - HEAD) % 3 == 0


@pytest.mark.parametrize("kind", ["missed", "doubled"])
def test_training_points_keep_their_labels_where_some_are_missed_or_doubled(kind: str) -> None:
    xy = torch.rand(300, 2) * 50 + torch.tensor([5.0, 5.0])
    sample = Sample("x", lambda: torch.zeros(3, 60, 60), xy, (60, 60), labels=(xy[:, 0] > 30).long())
    made = training_points(sample, TrainConfig(network={"num_classes": 2}, noise=0.3, noise_kind=kind))  # type: ignore[arg-type]
    assert 190 < len(made) < 230 if kind == "missed" else 370 < len(made) < 410
    known = {(round(x, 3), round(y, 3)): k for (x, y), k in zip(xy.tolist(), sample.labels.tolist())}  # type: ignore[union-attr]
    exact = [(known.get((round(float(x), 3), round(float(y), 3))), k) for x, y, _, k in made]
    assert all(want is None or want == k for want, k in exact) and sum(w is not None for w, _ in exact) >= 190
    far = made[np.abs(made[:, 0] - 30) > 20]  # a second dot lies near the first
    assert ((far[:, 0] > 30) == (far[:, 3] > 0)).all()


def test_training_points_keep_their_labels_under_noise() -> None:
    sample = two_kinds(1, 0)[0]
    several = with_classes(config(noise=2.0, noise_edge="drop"), splits())
    made = training_points(sample, several)
    assert sample.labels is not None and made.shape[1] == 4
    for x, y, _, label in made:
        distance = (sample.points - torch.tensor([x, y])).norm(dim=1)
        near = (distance - 2.0).abs() < 1e-3  # a ring of 2 px around the point it was
        assert bool((sample.labels[near] == int(label)).any())
    one = training_points(sample, config(network={"num_classes": 1}))
    assert one.shape == (len(sample.points), 3)


# -- training --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("method", ["hd-papm", "al-papm"])
def test_each_map_counts_its_class(tmp_path: Path, method: str) -> None:
    made = engine.train(config(method=method, steps=120, crop=64, batch=6), tmp_path, splits=splits(24, 12))
    assert made.result is not None
    apart = made.result["classes"]
    test = two_kinds(12, 1)
    for k, name in enumerate(NAMES):
        truth = torch.tensor([float((s.labels == k).sum()) for s in test])  # type: ignore[union-attr]
        constant = (truth - truth.median()).abs().mean()  # the best without looking
        assert apart[name]["mae"] < 0.5 * constant, (name, apart, constant)
    # A network that has learned one map for all would count everything in both: the sum would be off.
    assert made.result["mae"] < 2.0


@pytest.mark.slow
@pytest.mark.parametrize("method", ["bl", "gl", "dm-count", "kdmg", "noisecc"])
def test_other_methods_run_with_classes(tmp_path: Path, method: str) -> None:
    made = engine.train(config(method=method, steps=2), tmp_path, splits=splits())
    assert made.result is not None and set(made.result["classes"]) == set(NAMES)


def test_points_have_classes_too(tmp_path: Path) -> None:
    network = {"trunk": "tiny"}
    made = engine.train(config(method="p2p-papm", backbone="p2pnet", network=network), tmp_path, splits=splits())
    assert made.result is not None and set(made.result["classes"]) == set(NAMES)
    found = Counter.load(tmp_path, "cpu").predict(two_kinds(1, 1)[0].image)
    assert found.classes == NAMES and sum(found.class_counts) == pytest.approx(found.count, rel=1e-4)
    as_points = Counter.load(tmp_path, "cpu", count="points").predict(two_kinds(1, 1)[0].image)
    assert len(as_points.class_counts) == 2 and sum(as_points.class_counts) == as_points.count


def test_a_number_of_classes(tmp_path: Path) -> None:
    assert with_classes(config(network={"num_classes": 5}), splits()).network["num_classes"] == 5
    with pytest.raises(DataError, match=r"label 1, but network\.num_classes=1|label 1"):
        require_labels(two_kinds(6, 0), 1)
    bad = two_kinds(6, 0)
    assert bad[0].labels is not None
    bad[0].labels[0] = 2
    with pytest.raises(DataError, match=r"a point has label 2, but network\.num_classes=2 means labels 0 to 1"):
        engine.train(config(network={"num_classes": 2}), tmp_path / "a", splits=Splits(bad, None, None))
    assert not (tmp_path / "a").exists()
    plain = data.open("synthetic", train=2, test=1, size=64, count="3-5")
    with pytest.raises(ConfigError, match="auto needs labelled points"):
        with_classes(config(), Splits(plain["train"], None, None))
    with pytest.raises(DataError, match="its points have no label"):
        with_classes(config(network={"num_classes": 2}), Splits(plain["train"], None, None))
    with pytest.raises(ConfigError, match="whole number of at least 1, or auto, not 'many'"):
        number_of_classes("many", ())
    one = with_classes(config(network={"num_classes": 1}), Splits(plain["train"], None, None))
    assert one.network["num_classes"] == 1


def test_names_of_classes() -> None:
    assert class_names(two_kinds(3, 0)) == NAMES
    assert class_names(two_kinds(6, 0, named=False)) == ("0", "1")
    assert class_names(data.open("synthetic", train=1, test=1, size=64, count=3)["train"]) == ()


# -- counting --------------------------------------------------------------------------------------------------------


def test_counts_of_classes_sum_to_the_count() -> None:
    density, contract = torch.rand(2, 3, 4, 5), Inference()
    roi = torch.zeros(32, 40, dtype=torch.bool)
    roi[:, :9] = True
    for region in (None, roi):
        output = DensityOutput(density, 8)
        by_class, in_all = (count(output, contract, region) for count in (class_counts, counts))
        torch.testing.assert_close(by_class.sum(1), in_all)
    torch.testing.assert_close(class_counts(output, contract, roi), density[..., :2].sum((2, 3)))
    logits = torch.tensor([[[0.0, 5, 0], [0, 0, 5], [5, 0, 0], [0, 0, 5]]])
    points = torch.tensor([[[1.0, 1], [2, 2], [3, 3], [30, 30]]])
    proposals = PointProposals(points, logits, points[0])
    contract = Inference(decode="threshold")
    assert class_counts(proposals, contract).tolist() == [[1, 2]]
    assert class_counts(proposals, contract, roi).tolist() == [[1, 1]]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("classes") / "run"
    engine.train(config(steps=2), folder, splits=splits())
    return folder


def test_the_checkpoint_knows_its_classes(run: Path) -> None:
    for name in ("best.ckpt", "last.ckpt"):
        spec, _ = checkpoint.load(run / name)
        assert spec.classes == NAMES and spec.options["num_classes"] == 2
    rows = list(csv.reader((run / "predictions.csv").open(encoding="utf-8")))
    assert rows[0][4:] == ["predicted_red", "truth_red", "predicted_blue", "truth_blue"]
    for row in rows[1:]:
        assert float(row[5]) + float(row[7]) == float(row[2])
        assert abs(float(row[4]) + float(row[6]) - float(row[1])) < 2e-3


def test_a_prediction_tells_classes_apart(run: Path) -> None:
    counter = Counter.load(run, "cpu")
    found = counter.predict(two_kinds(1, 1)[0].image)
    assert found.density is not None and len(found.density) == 2 and found.classes == NAMES
    assert found.class_counts == pytest.approx(found.density.double().sum((1, 2)).tolist())
    assert sum(found.class_counts) == pytest.approx(found.count, rel=1e-5)
    assert found.points is not None and found.labels is not None and len(found.labels) == len(found.points)


def test_files_and_commands(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from papm.draw import save_png

    test = two_kinds(3, 1)
    lines = ["image,x,y,label"]
    for k, sample in enumerate(test):
        save_png(sample.image, tmp_path / "data" / f"{k}.png")
        assert sample.labels is not None
        lines += [f"{k}.png,{x},{y},{NAMES[c]}" for (x, y), c in zip(sample.points.tolist(), sample.labels.tolist())]
    (tmp_path / "data" / "points.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")

    call("predict", run, tmp_path / "data" / "0.png", "--out", tmp_path / "out", "--device", "cpu")
    said = capsys.readouterr().out
    assert "red" in said and "blue" in said
    header = (tmp_path / "out" / "counts.csv").read_text(encoding="utf-8").splitlines()[0]
    assert header == "image,count,count_red,count_blue"
    made = json.loads((tmp_path / "out" / "results.json").read_text(encoding="utf-8"))
    assert set(made[0]["classes"]) == set(NAMES)
    call("predict", run, tmp_path / "data" / "0.png", "--out", tmp_path / "out", "--device", "cpu", "--json")
    assert set(json.loads(capsys.readouterr().out)[0]["classes"]) == set(NAMES)

    # The names of the files are sorted, blue before red: other classes than the model's, in that order.
    assert call("eval", run, f"folder:{tmp_path}/data", "--split", "all", "--device", "cpu") == 2
    said = capsys.readouterr().err
    assert "the model counts red, blue, the data has blue, red" in said and said.count("\n") == 1


def test_figures_of_each_class(run: Path, tmp_path: Path) -> None:
    counter = Counter.load(run, "cpu")
    test = two_kinds(4, 1)
    found = evaluate(counter.network, test, classes=counter.spec.classes)
    assert set(found.class_scores) == set(NAMES)
    for k, name in enumerate(NAMES):
        truth = [float((s.labels == k).sum()) for s in test]  # type: ignore[union-attr]
        assert [row[k] for row in found.truth_by_class] == truth
        wanted = np.mean([abs(row[k] - t) for row, t in zip(found.predicted_by_class, truth)])
        assert found.class_scores[name].mae == pytest.approx(wanted)
    assert [sum(r) for r in found.predicted_by_class] == pytest.approx(found.predicted, rel=1e-5)
    plain = [Sample(s.name, s.source, s.points, s.size) for s in test]
    unlabelled = evaluate(counter.network, Dataset(plain), classes=counter.spec.classes)
    assert not unlabelled.classes and unlabelled.class_scores == {} and unlabelled.predicted == found.predicted
    write_evaluation(tmp_path / "a.csv", unlabelled)
    assert (tmp_path / "a.csv").read_text(encoding="utf-8").startswith("image,predicted,truth,truth_in_image\n")


def test_a_model_without_names_counts_data_with_names(run: Path) -> None:
    counter = Counter.load(run, "cpu")
    named, unnamed = two_kinds(3, 1), two_kinds(3, 1, named=False)
    assert evaluate(counter.network, named, classes=("0", "1")).classes == NAMES
    assert evaluate(counter.network, unnamed, classes=("0", "1")).classes == ("0", "1")
    assert evaluate(counter.network, unnamed, classes=NAMES).classes == NAMES
    with pytest.raises(DataError, match="the model counts blue, red, the data has red, blue"):
        evaluate(counter.network, named, classes=("blue", "red"))


def test_a_broken_evaluation_leaves_the_network_as_it_was(run: Path) -> None:
    def fails() -> Tensor:
        raise DataError("cannot be read")

    network = Counter.load(run, "cpu").network.train()
    with pytest.raises(DataError, match="cannot be read"):
        evaluate(network, Dataset([Sample("a", fails, torch.zeros(0, 2), (SIZE, SIZE))]))
    assert network.training


def call(*words: object) -> int:
    try:
        main([str(w) for w in words])
    except SystemExit as ended:
        return int(ended.code or 0)
    return 0


# -- a dataset with classes ------------------------------------------------------------------------------------------


def test_labels_of_dota_reach_the_loss(tmp_path: Path) -> None:
    from papm.draw import save_png

    root = tmp_path / "dota" / "train"
    for k in range(2):
        save_png(torch.full((3, 64, 64), 90, dtype=torch.uint8), root / "images" / f"P{k:04d}.png")
        boxes = [(10 * i + 2, 20, ("plane", "ship")[i % 2]) for i in range(5)]
        lines = [f"{x} {y} {x + 6} {y} {x + 6} {y + 6} {x} {y + 6} {name} 0" for x, y, name in boxes]
        (root / "labelTxt").mkdir(parents=True, exist_ok=True)
        (root / "labelTxt" / f"P{k:04d}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    opened = data.open("dota", tmp_path / "dota", classes="plane,ship", min_count=0)["train"]
    assert class_names(opened) == ("plane", "ship")
    chosen = with_classes(config(batch=2, flip=0.0, margin=0), Splits(opened, None, None))
    assert chosen.network["num_classes"] == 2
    counting = CountingData(Splits(opened, None, None), chosen)
    counting.load(torch.device("cpu"))
    made = counting.render(counting.plan(0))
    assert made.points.labels is not None
    for b in range(2):
        kept = made.points.valid[b]
        order = made.points.xy[b][kept][:, 0].argsort()
        assert made.points.labels[b][kept][order].tolist() == [0, 1, 0, 1, 0]
