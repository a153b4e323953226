"""The figures: what they measure on answers that are known, and files that can be opened."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from torch import Tensor

from papm import data
from papm.config import TrainConfig
from papm.data.click_model import Annotator, annotate_dataset
from papm.engine import used_images
from papm.errors import ConfigError, DataError
from papm.methods import RECIPE
from papm.predict.prediction import Prediction
from papm.predict.predictor import Counter
from papm.report.charts import Series
from papm.study.figures import FIGURES, Asked, click_positions, consistency, response_difference, sweep, vehicle_maps
from papm.study.figures.base import tasks_of
from papm.study.figures.runs import Trained, images, read_runs
from papm.study.figures.sheet import curves, sheet
from papm.study.results import read


def parsed(picture: Any) -> ElementTree.Element:
    return ElementTree.fromstring(str(picture))  # noqa: S314 -- our own


def words_of(root: ElementTree.Element) -> str:
    return " ".join(t for e in root.iter() if e.tag.endswith("text") and (t := e.text))


@pytest.mark.parametrize(
    "name", ["kernel-shapes", "cost-shapes", pytest.param("click-positions", marks=pytest.mark.slow), "sweep"]
)
def test_charts_are_whole_svg_files_without_variables(name: str, tmp_path: Path) -> None:
    made = FIGURES.get(name).draw(Asked())
    file = made.save(tmp_path / "new" / f"{name}.svg")
    root = parsed(file.read_text(encoding="utf-8"))
    assert root.tag.endswith("svg") and "var(" not in file.read_text(encoding="utf-8")
    assert ("half sides" if name == "click-positions" else "px") in words_of(root) and float(root.attrib["width"]) > 400
    with pytest.raises(ConfigError, match=r"written as \.svg"):
        made.save(tmp_path / "a.png")


def test_a_sheet_puts_charts_in_rows_that_do_not_overlap() -> None:
    cards = [curves([Series(str(k), [0, 1], [0, 1])], f"chart {k}", "a remark " * 20, "x, px", "y") for k in range(3)]
    root = parsed(sheet(cards, "three", columns=2))
    inner = [e for e in root if e.tag.endswith("svg")]
    boxes = [[float(e.attrib[k]) for k in ("x", "y", "width", "height")] for e in inner]
    (ax, ay, aw, ah), (bx, by, *_), (cx, cy, *_) = boxes
    assert by == ay and bx >= ax + aw and cx == ax and cy > ay + ah
    assert all(x + w <= float(root.attrib["width"]) and y + h <= float(root.attrib["height"]) for x, y, w, h in boxes)


def test_networks_are_compared_inside_the_regions_of_images(monkeypatch: pytest.MonkeyPatch) -> None:
    """TRANCOS: dots and evaluation end at the region's border, and so must what a figure shows and measures."""
    whole = data.open("synthetic", train=1, test=1)["test"][0]
    region = torch.zeros(whole.size, dtype=torch.bool)
    region[:, : whole.size[1] // 2] = True
    sample = replace(whole, roi_source=lambda: region)

    class Everything:
        def predict(self, image: Tensor, *, name: str, roi: Tensor | None = None) -> Prediction:
            assert roi is not None and roi.equal(region)
            return Prediction(1.0, whole.size, None, 1, whole.points, name=name)

    monkeypatch.setattr(Counter, "load", lambda *_: Everything())
    (found,) = Trained(Path("run"), TrainConfig(), "cpu").predict([sample])
    inside = int(sample.counted.sum())
    assert 0 < inside < whole.count and consistency.offsets([found], [sample]).sums[0, 4] == inside


# -- responses -----------------------------------------------------------------------------------------------------------


def fake(
    folder: str, method: str, noise: float, seed: int, shift: float, kind: str = "map", moved: str = "ring"
) -> Any:
    """A network whose responses lie `shift` px right of every centre."""

    def predict(samples: Any) -> list[Prediction]:
        out = []
        for s in samples:
            points = s.points + torch.tensor([shift, 0.0])
            density = torch.zeros(1, *s.size)
            column, row = points.long().unbind(-1)
            density[0, row.clamp(0, s.size[0] - 1), column.clamp(0, s.size[1] - 1)] += 1.0
            out.append(
                Prediction(float(len(points)), s.size, density if kind == "map" else None, 1, points, name=s.name)
            )
        return out

    config = SimpleNamespace(
        method=method, noise=noise, noise_kind=moved, seed=seed, backbone="tiny", data="synthetic", options={}
    )
    return SimpleNamespace(folder=Path(folder), config=config, name=method, predict=predict)


SCENES = data.open("synthetic", train=1, test=6, size="64", count="3-6", occlusion=0)["test"]


def drawn(monkeypatch: pytest.MonkeyPatch, module: Any, runs: list[Any]) -> Any:
    monkeypatch.setattr("papm.study.figures.runs.read_runs", lambda asked: runs)
    monkeypatch.setattr(module, "images", lambda asked, found: SCENES)
    return module.draw(Asked())


def test_difference_of_maps() -> None:
    a = torch.rand(1, 4, 5)
    assert response_difference.difference(a, a) == 0
    assert response_difference.difference(a, 3 * a) == pytest.approx(1.0)
    assert response_difference.difference(torch.zeros(2, 2), torch.zeros(2, 2)) == 0


def test_responses_that_moved_differ_and_those_that_stayed_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [fake("a", "hd-papm", 0, 0, 0), fake("b", "hd-papm", 0, 1, 0), fake("c", "hd-papm", 8, 0, 3)]
    made = drawn(monkeypatch, response_difference, runs)
    values = made.values["hd-papm"]
    assert values["0 px, other seed"]["mean"] == 0 and values["8 px"]["mean"] == pytest.approx(2.0, abs=0.4)
    assert values["8 px"]["low"] <= values["8 px"]["mean"] <= values["8 px"]["high"]
    assert "½(ΣA + ΣB)" in made.words[0] and "8 px" in words_of(parsed(made.picture))


@pytest.mark.parametrize(
    ("runs", "said"),
    [
        ([fake("a", "hd-papm", 4, 0, 0), fake("b", "hd-papm", 8, 0, 0)], "a run trained on exact dots"),
        ([fake("a", "hd-papm", 0, 0, 0)], "at least one on displaced dots"),
        ([fake("a", "p2pnet", 0, 0, 0, "points"), fake("b", "p2pnet", 4, 0, 0, "points")], "no map to compare"),
        (
            [fake("a", "gl", 0, 0, 0), fake("b", "gl", 8, 0, 0), fake("c", "gl", 8, 0, 0, moved="disc")],
            "are disc and ring; this figure needs runs of one",
        ),
        ([fake("a", "gl", 0, 0, 0), fake("b", "gl", 0.1, 0, 0, moved="missed")], "are missed; this figure"),
    ],
)
def test_runs_that_cannot_be_compared(runs: list[Any], said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=said):
        drawn(monkeypatch, response_difference, runs)


@pytest.mark.parametrize("module", [consistency, response_difference])
def test_runs_on_other_dots_are_not_taken_for_seeds(
    module: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = [fake(str(tmp_path / name), "gl", moved, 0, 0) for name, moved in (("a", 0), ("b", 0), ("c", 8))]
    for run, dots in zip(runs, ("0a", "0b", "0a")):
        run.folder.mkdir()
        used_images.write(run.folder, [used_images.Used("train", "one", "k", dots)])
    with pytest.raises(ConfigError, match=r"a and .*b have other dots on one; .* leave one of them out"):
        drawn(monkeypatch, module, runs)
    assert drawn(monkeypatch, module, [runs[0], runs[2]]).values


def test_bias_and_spread_of_peaks_are_those_that_were_put_in() -> None:
    samples = list(SCENES)
    shifted = [Prediction(0.0, s.size, points=s.points + torch.tensor([1.5, -2.0])) for s in samples]
    found = consistency.offsets(shifted, samples)(np.arange(len(samples)))
    assert float(found["bias"]) == pytest.approx(2.5, abs=1e-4) and float(found["spread"]) < 1e-2
    assert float(found["found"]) == 1
    around = [Prediction(0.0, s.size, points=s.points + 2.0 * _sides(len(s.points))) for s in samples]
    found = consistency.offsets(around, samples)(np.arange(len(samples)))
    assert float(found["spread"]) == pytest.approx(np.sqrt(4 - float(found["bias"]) ** 2), abs=1e-4)
    none = [Prediction(0.0, s.size, points=torch.zeros(0, 2)) for s in samples]
    found = consistency.offsets(none, samples)(np.arange(len(samples)))
    assert float(found["found"]) == 0 and np.isnan(found["spread"])


def _sides(n: int) -> Tensor:
    """Left, right, left, …"""
    return torch.tensor([[1.0, 0.0] if k % 2 else [-1.0, 0.0] for k in range(n)])


def test_peaks_far_from_every_centre_are_not_found() -> None:
    samples = list(SCENES)
    far = [Prediction(0.0, s.size, points=s.points[:1] + 40.0) for s in samples]
    assert float(consistency.offsets(far, samples)(np.arange(len(samples)))["found"]) < 0.2


def test_a_method_is_compared_with_the_one_it_is_built_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def jumping(run: Any, by: float) -> Any:
        before = run.predict

        def predict(samples: Any) -> list[Prediction]:
            made = before(samples)
            return [Prediction(p.count, p.size, points=p.points + by * _sides(len(p))) for p in made]

        run.predict = predict
        return run

    runs = [jumping(fake("a", "gaussian", 8, 0, 0), 3.0), jumping(fake("b", "hd-papm", 8, 0, 0), 1.0)]
    made = drawn(monkeypatch, consistency, runs)
    (one,) = made.values["compared"]
    assert one["verdict"] == "more consistent" and one["low"] <= one["difference"] <= one["high"] < 0
    assert one["difference"] == pytest.approx(-2.0, abs=0.3) and "more consistent" in made.words[0]


# -- dots in boxes, dilation, sweeps -------------------------------------------------------------------------------------


def test_places_of_dots_are_in_half_sides() -> None:
    sample = SCENES[0]
    assert sample.boxes is not None
    corners = click_positions.places([sample.keep(torch.arange(len(sample.points)))])
    assert corners.shape == (len(sample.points), 2)
    from dataclasses import replace

    at_edge = replace(sample, points=sample.boxes[:, :2].clone())
    assert np.allclose(click_positions.places([at_edge]), -1, atol=1e-5)


def test_dots_that_are_the_centres_of_their_boxes_say_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

    def centred(*_: Any) -> data.Dataset:
        return SCENES.like(
            [replace(s, points=(s.boxes[:, :2] + s.boxes[:, 2:]) / 2) for s in SCENES if s.boxes is not None]
        )

    monkeypatch.setattr(click_positions, "open_split", centred)
    with pytest.raises(DataError, match="the dots were made from the boxes"):
        click_positions.draw(Asked(data="cars"))
    monkeypatch.setattr(click_positions, "open_split", lambda *_: SCENES.like([replace(s, boxes=None) for s in SCENES]))
    with pytest.raises(DataError, match="has no boxes beside its dots"):
        click_positions.draw(Asked(data="dots"))


def test_closer_clicks_lie_in_the_middle(monkeypatch: pytest.MonkeyPatch) -> None:
    close, wide = (annotate_dataset(SCENES, Annotator("extent", amount), 0) for amount in (0.05, 0.35))
    near, far = (np.abs(click_positions.places(list(d))).max(1) for d in (close, wide))
    assert (near <= 0.5).mean() > (far <= 0.5).mean()


def test_dilation_keeps_the_maximum_and_spreads_it_in_a_disc() -> None:
    field = torch.zeros(9, 9)
    field[4, 4] = 2.0
    wide = vehicle_maps.dilated(field, 2.0)
    y, x = torch.meshgrid(torch.arange(9), torch.arange(9), indexing="ij")
    assert torch.equal(wide, torch.where((y - 4) ** 2 + (x - 4) ** 2 <= 4, 2.0, 0.0))
    points = Prediction(1.0, (9, 9), points=torch.tensor([[4.5, 4.5]]))
    made = vehicle_maps.dilation_map(points)
    assert (
        made.shape == (3, 9, 9)
        and made.dtype == torch.uint8
        and int(made[:, 4, 4].sum()) > 200 > int(made[:, 0, 0].sum())
    )
    nothing = vehicle_maps.dilation_map(Prediction(0.0, (8, 8), torch.zeros(1, 2, 2), 4))
    assert nothing.shape == (3, 8, 8)


def test_points_of_a_curve_are_of_one_kind_of_training(tmp_path: Path) -> None:
    def kept(sigma: float, mae: float, steps: int) -> None:
        from papm import methods

        recipe = methods.recipe("al-papm", "vgg19")
        who = {"dataset": "shanghaitech-a", "backbone": "vgg19", "method": "al-papm", "seed": 0, "select": "last"}
        options = {"loss": {**recipe["loss"], "sigma": sigma, "shape": 2}, "network": recipe["network"]}
        options["training"] = dict(methods.PHOTOGRAPHS)
        one = {
            **who,
            "mae": mae,
            "rmse": mae,
            "steps": steps,
            "options": options,
            "weights_sha256": "5" * 64,
            "recipe": RECIPE,
        }
        (tmp_path / f"{sigma}-{steps}.json").write_text(json.dumps(one))

    for sigma, mae in ((2, 70.0), (8, 66.0), (16, 65.0)):
        kept(sigma, mae, 6000)
    points, words = sweep.measured(sweep.tables.load("al-papm-sigma"), read([tmp_path]))
    assert [p.mean for p in points] == [70, 66, 65] and "steps=6000" in words
    kept(16, 58.0, 30_000)
    points, words = sweep.measured(sweep.tables.load("al-papm-sigma"), read([tmp_path]))
    assert [p.mean for p in points] == [58] and "today's recipe" in words


# -- trainings and the command -------------------------------------------------------------------------------------------


def test_small_trainings_are_shared_and_each_is_one(tmp_path: Path) -> None:
    every = {n: {t.folder for t in tasks_of(FIGURES.get(n), 50, tmp_path)} for n in FIGURES}
    assert {n: len(f) for n, f in every.items() if f} == {
        "response-difference": 10, "consistency": 12, "predictions": 6, "vehicle-maps": 3
    }  # fmt: skip
    assert (
        len(every["response-difference"] & every["consistency"]) == 6
        and len(every["predictions"] & every["consistency"]) == 4
    )
    with pytest.raises(ConfigError, match="--steps must be at least 1"):
        tasks_of(FIGURES.get("predictions"), 0, tmp_path)


@pytest.mark.slow
def test_runs_are_drawn_side_by_side(tmp_path: Path) -> None:
    from papm.engine import train as engine
    from papm.engine.build import resolve

    for method in ("gaussian", "hd-papm"):
        options = {"train": 2, "test": 2, "size": 64, "count": "3-6"}
        given = {
            "data": "synthetic",
            "options": options,
            "steps": 2,
            "crop": 64,
            "batch": 1,
            "device": "cpu",
            "select": "last",
        }
        engine.train(resolve(method, "tiny", given), tmp_path / method)
    asked = Asked((tmp_path / "hd-papm", tmp_path / "gaussian"), images=2, device="cpu")
    runs = read_runs(asked)
    assert [r.name for r in runs] == ["Gaussian", "HD-PAPM"] and len(images(asked, runs)) == 2
    for name in ("predictions", "vehicle-maps"):
        made = FIGURES.get(name).draw(asked)
        assert isinstance(made.picture, Tensor) and made.picture.dtype == torch.uint8 and made.picture.shape[2] > 500
        assert all(set(v) == {"truth", "Gaussian", "HD-PAPM"} for v in made.values.values())
        assert made.save(tmp_path / f"{name}.png").stat().st_size > 1000
    (tmp_path / "gaussian" / "best.ckpt").unlink()
    with pytest.raises(ConfigError, match="has not finished"):
        read_runs(asked)
