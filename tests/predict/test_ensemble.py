"""Several models that count together: the mean of their counts, at the places that the first one sees."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import torch
from torch import Tensor

import papm
from papm import checkpoint, models
from papm.checkpoint import ModelSpec
from papm.data.resize import Resize
from papm.errors import ConfigError
from papm.inference import Inference
from papm.predict.ensemble import Ensemble
from papm.predict.predictor import Counter
from papm.predict.results import summary, write_results


def counter(
    backbone: str = "tiny", seed: int = 0, lift: float = 0.0, classes: tuple[str, ...] = (), **options: Any
) -> Counter:
    """A network whose last bias is raised by `lift`: it sees more."""
    torch.manual_seed(seed)
    if len(classes) > 1:
        options["num_classes"] = len(classes)
    if backbone == "p2pnet":
        options["trunk"] = "tiny"
    network = models.create(backbone, **options)
    last = [p for name, p in network.named_parameters() if name.endswith("bias") and "offsets" not in name][-1]
    with torch.no_grad():
        last.add_(lift * torch.arange(last.numel()).clamp(max=1) if backbone == "p2pnet" else lift)
    inference = replace(network.inference, classes=classes)
    return Counter(network, ModelSpec(backbone, options, inference=inference), "cpu")


def picture(h: int = 45, w: int = 70) -> Tensor:
    return torch.randint(0, 256, (3, h, w), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))


def test_the_count_is_the_mean_and_the_first_map_is_scaled_to_it() -> None:
    members = [counter(seed=0, lift=0.2), counter(seed=1, lift=0.5, stride=8), counter("p2pnet", 2)]
    alone = [m.predict(picture()).count for m in members]
    assert max(alone) > 1.1 * min(alone)  # else nothing is shown
    found = Ensemble(members, ["a", "b", "c"]).predict(picture())
    assert found.by_model == pytest.approx(alone) and found.models == ("a", "b", "c")
    assert found.count == pytest.approx(fmean(alone))
    assert found.density is not None and float(found.density.sum()) == pytest.approx(found.count, rel=1e-5)
    own = members[0].predict(picture()).density
    assert own is not None and torch.allclose(found.density, own * (found.count / alone[0]))
    assert found.points is not None and len(found.points) == round(found.count)


@pytest.mark.parametrize("expected", [True, False])
def test_a_point_network_gives_as_many_points_as_are_counted(expected: bool) -> None:
    first, second = counter("p2pnet", 0), counter("tiny", 1, lift=0.8)
    first = Counter(first.network, first.spec, "cpu", count="expected" if expected else "points")
    found = Ensemble([first, second]).predict(picture())
    own = first.predict(picture())
    assert own.points is not None and found.points is not None and found.scores is not None
    assert len(own.points) != round(found.count) == len(found.points) > 10
    assert bool((found.scores.diff() <= 0).all()) and found.density is None
    assert bool(((found.points >= 0) & (found.points < torch.tensor([70.0, 45.0]))).all())


def test_classes_have_means_of_their_own() -> None:
    names = ("car", "bus")
    members = [counter(seed=0, lift=0.3, classes=names), counter("p2pnet", 1, classes=names)]
    apart = [m.predict(picture(), points=False).class_counts for m in members]
    for order in (members, members[::-1]):
        found = Ensemble(order).predict(picture())
        assert found.class_counts == pytest.approx([fmean(x) for x in zip(*apart)], rel=1e-5)
        assert found.count == pytest.approx(sum(found.class_counts), rel=1e-5) and found.classes == names


def test_a_model_that_sees_nothing_keeps_its_empty_map() -> None:
    nothing, some = counter(lift=-1e3), counter(seed=1, lift=0.5)
    assert nothing.predict(picture()).count == 0
    found = Ensemble([nothing, some]).predict(picture())
    assert found.count == pytest.approx(found.by_model[1] / 2) and found.count > 0
    assert found.density is not None and not found.density.any()


def test_a_class_that_the_first_model_does_not_see_is_counted() -> None:
    members = [counter(seed=k, lift=0.3, classes=("car", "bus")) for k in (0, 1)]
    last = [p for name, p in members[0].network.named_parameters() if name.endswith("bias")][-1]
    with torch.no_grad():
        last[1] = -1e3
    apart = [m.predict(picture()).class_counts for m in members]
    assert apart[0][1] == 0 and apart[1][1] > 1
    found = Ensemble(members).predict(picture())
    assert found.class_counts == pytest.approx([fmean(x) for x in zip(*apart)], rel=1e-5)
    assert found.count == pytest.approx(sum(found.class_counts), rel=1e-5)


def test_one_model_alone_is_itself() -> None:
    member = counter(lift=0.3)
    found, own = Ensemble([member]).predict(picture()), member.predict(picture())
    assert found.count == own.count and found.by_model == found.models == own.models == ()
    assert summary(found) == summary(own) and Ensemble([member]).columns == member.columns
    assert found.density is not None and own.density is not None and torch.equal(found.density, own.density)


def test_each_model_resizes_by_its_own_rule_and_counts_in_the_region() -> None:
    plain, shrunk = counter(lift=0.2), counter(seed=1, lift=0.4)
    shrunk = Counter(shrunk.network, ModelSpec("tiny", {}, inference=Inference(resize=Resize(max_side=40))), "cpu")
    assert shrunk.resize.size(45, 70) != (45, 70)
    roi = torch.zeros(45, 70, dtype=torch.bool)
    roi[:, 30:] = True
    for order in ([plain, shrunk], [shrunk, plain]):
        found = Ensemble(order).predict(picture(), roi=roi)
        assert found.count == pytest.approx(fmean(m.predict(picture(), roi=roi).count for m in order))
        assert found.density is not None and float(found.density.sum()) == pytest.approx(found.count, rel=1e-4)
        assert found.size == (45, 70) and found.points is not None


def test_what_does_not_go_together_is_refused() -> None:
    with pytest.raises(ConfigError, match="a counts car, bus, b one kind of object"):
        Ensemble([counter(classes=("car", "bus")), counter()], ["a", "b"])
    with pytest.raises(ConfigError, match="in one order"):
        Ensemble([counter(classes=("car", "bus")), counter(classes=("bus", "car"))])
    with pytest.raises(ConfigError, match="one model or more"):
        Ensemble([])
    with pytest.raises(ConfigError, match="1 names for 2 models"):
        Ensemble([counter(), counter()], ["a"])


def test_it_is_loaded_from_run_folders(tmp_path: Path) -> None:
    for name, seed in (("first", 0), ("second", 1)):
        made = counter(seed=seed, lift=0.3)
        (tmp_path / name).mkdir()
        checkpoint.save(tmp_path / name / "best.ckpt", made.spec, made.network.state_dict())
    folders = [tmp_path / "first", str(tmp_path / "second" / "best.ckpt")]
    found = papm.Ensemble.load(folders, "cpu").predict(picture(), name="x.png")
    assert found.models == ("first", "second")
    with pytest.raises(ConfigError, match="named twice"):
        papm.Ensemble.load([tmp_path / "first", tmp_path / "first" / "best.ckpt"], "cpu")
    write_results([found], tmp_path)
    row = next(csv.DictReader((tmp_path / "counts.csv").open()))
    assert list(row) == ["image", "count", "by_first", "by_second"]
    assert float(row["count"]) == pytest.approx((float(row["by_first"]) + float(row["by_second"])) / 2, abs=1e-3)
    (kept,) = json.loads((tmp_path / "results.json").read_text())
    assert kept["models"] == {m: pytest.approx(c, abs=1e-4) for m, c in zip(found.models, found.by_model)}
