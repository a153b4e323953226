"""The front door: train, evaluate and predict in a few lines of Python."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

import papm
from papm import api, ready
from papm.checkpoint import ModelSpec
from papm.engine import choice
from papm.engine.build import build_network
from papm.errors import CheckpointError, ConfigError, DataError
from papm.models.trunks import parameter_shapes
from papm.models.weights import PUBLISHED
from papm.predict.prediction import Prediction

SPEC = "synthetic:train=4,test=3,size=64,count=3-6"
SMALL = {"steps": 3, "crop": 32, "batch": 2, "device": "cpu", "warmup": 0}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> papm.Run:
    out = tmp_path_factory.mktemp("api") / "run"
    return papm.train(SPEC, out=out, loss={"sigma": 3.0}, network={"stride": 4}, **SMALL)


def test_a_training_keeps_what_was_chosen_and_says_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], run: papm.Run
) -> None:
    heard: list[tuple[int, int]] = []
    done = papm.train(SPEC, out=tmp_path / "run", progress=lambda step, total, _: heard.append((step, total)), **SMALL)
    said = capsys.readouterr()
    assert not said.out and not said.err
    assert heard and heard[-1] == (3, 3)
    assert done.result["backbone"] == "tiny" and done.result["method"] == "hd-papm"  # auto, on a CPU
    assert done.result == json.loads((done.folder / "result.json").read_text(encoding="utf-8"))
    assert not done.interrupted and done.step == 3
    assert run.result["options"]["loss"]["sigma"] == 3.0 and run.result["options"]["network"]["stride"] == 4
    assert "Run(folder=" in repr(done) and len(repr(done)) < 300


def test_splits_that_were_opened_train_as_their_name_does(tmp_path: Path) -> None:
    opened = papm.data.open_spec(SPEC)
    found = papm.train(opened, out=tmp_path / "a", **SMALL).result
    named = papm.train(SPEC, out=tmp_path / "b", **SMALL).result
    assert found["mae"] == named["mae"] and found["dataset"] == "synthetic"


def test_a_misspelt_setting_names_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="did you mean 'steps'"):
        papm.train(SPEC, out=tmp_path / "run", stepss=3)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("given", "made"),
    [
        ({}, ("hd-papm", "tiny")),
        ({"method": "al-papm"}, ("al-papm", "tiny")),
        ({"method": "p2pnet"}, ("p2pnet", "p2pnet")),
        ({"backbone": "p2pnet"}, ("p2p-papm", "p2pnet")),
        ({"backbone": "vgg19"}, ("hd-papm", "vgg19")),
    ],
)
def test_auto_fits_what_is_given(given: dict[str, str], made: tuple[str, str]) -> None:
    assert api.choose(torch.device("cpu"), **given) == made
    assert api.choose(torch.device("cuda")) == ("al-papm", "dinov2")
    assert api.choose(torch.device("cuda"), **{"method": "hd-papm", **given})[0] == given.get("method", "hd-papm")


@pytest.mark.parametrize("name", ["vgg19", "lite", "dinov2"])
def test_weights_in_hand_choose_their_network(name: str, tmp_path: Path) -> None:
    """On any machine: nobody who has the weights of one network wants them refused for another."""
    shapes, about = parameter_shapes(name), PUBLISHED[name]
    tensors = {about.prefix + key: torch.zeros(shape) for key, shape in shapes.items()}
    tensors |= {f"{about.prefix}_bn0.num_batches_tracked": torch.zeros(())} if name == "lite" else {}  # as published
    save_file(tensors, tmp_path / "trunk.safetensors")
    found = api.configure(SPEC, "auto", "auto", {"weights": str(tmp_path / "trunk.safetensors")})
    assert found.config.backbone == name and "as its weights or options are given" in found.why[0]
    assert found.config.method == ("al-papm" if name == "dinov2" else "hd-papm")


def test_weights_of_a_trunk_without_a_network_of_its_name_go_into_vgg19(tmp_path: Path) -> None:
    shapes = parameter_shapes("vgg16")
    save_file({f"features.{k}": torch.zeros(s) for k, s in shapes.items()}, tmp_path / "trunk.safetensors")
    found = api.configure(SPEC, "auto", "auto", {"weights": str(tmp_path / "trunk.safetensors")}).config
    assert (found.backbone, found.network["trunk"]) == ("vgg19", "vgg16")


def test_published_weights_on_a_cpu_are_those_of_the_network_that_is_made_for_one() -> None:
    found = api.configure(SPEC, "auto", "auto", {"weights": "imagenet", "device": "cpu"})
    assert (found.config.backbone, found.config.weights) == ("lite", "imagenet")
    points = api.configure(SPEC, "p2p-papm", "auto", {"weights": "imagenet", "device": "cpu"}).config
    assert (points.backbone, points.weights) == ("p2pnet", "imagenet") and points.network.get("trunk") != "tiny"


def test_weights_that_cannot_be_read_are_refused_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="does not exist"):
        api.configure(SPEC, "auto", "auto", {"weights": str(tmp_path / "missing.pth")})


def test_options_that_the_usual_network_of_a_gpu_lacks_are_those_of_vgg19(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "pick_device", lambda name: torch.device("cuda"))
    for network, backbone in (({"stride": 4}, "vgg19"), ({"activation": "abs"}, "dinov2"), ({}, "dinov2")):
        assert (
            api.configure(SPEC, "auto", "auto", {"network": network, "weights": "imagenet"}).config.backbone == backbone
        )


def test_the_report_is_a_page_with_pictures(run: papm.Run) -> None:
    assert run.report().name == "report.html" and list((run.folder / "examples").glob("*.png"))


def test_an_evaluation_says_what_the_training_said(run: papm.Run) -> None:
    split = papm.data.open_spec(SPEC)["test"]
    found = papm.evaluate(run.counter, split)
    assert found.mae == pytest.approx(run.result["mae"], rel=1e-5) and found.rmse >= found.mae
    assert papm.evaluate(run.folder, SPEC).predicted == found.predicted
    assert papm.evaluate(run.counter, SPEC, split="train").names != found.names
    assert not found.game and papm.evaluate(run.counter, split, "game").game[0] == pytest.approx(found.mae, rel=1e-4)


def test_an_evaluation_of_several_is_of_their_mean(run: papm.Run) -> None:
    both = papm.Ensemble([run.counter, run.counter], ["a", "b"])
    one = papm.evaluate(run.counter, SPEC)
    found = papm.evaluate(both, SPEC)
    assert found.predicted == pytest.approx(one.predicted) and set(found.by_model) == {"a", "b"}
    with pytest.raises(ConfigError, match="GAME is of the map of one model"):
        papm.evaluate(both, SPEC, "game")


def test_an_evaluation_takes_images_at_the_size_of_the_model_or_as_they_are(tmp_path: Path) -> None:
    small = papm.train(SPEC, out=tmp_path / "run", options={"max_side": 32}, **SMALL)
    whole = papm.data.open_spec(SPEC)["test"]
    resized = papm.data.open_spec(SPEC, max_side=32)["test"]
    same = papm.evaluate(small.counter, whole)
    assert same.mae == pytest.approx(small.result["mae"], rel=1e-5)
    assert papm.evaluate(small.counter, resized).predicted == same.predicted
    other = papm.evaluate(small.counter, whole, resize=False).predicted
    assert other != same.predicted
    assert other == papm.evaluate(small.counter, SPEC, options={"resize": "none"}).predicted


def test_points_are_compared_by_both_protocols(run: papm.Run, tmp_path: Path) -> None:
    found = papm.evaluate(run.counter, SPEC, "nwpu")
    assert set(found.to_dict()) == {"sigma_s", "sigma_l"} and len(found.names) == 3
    near = papm.evaluate(run.counter, SPEC, "nwpu", radii=(4, 64))
    assert set(near.to_dict()["radius"]) == {"4", "64"}
    assert near.within["64 px"].total.recall >= near.within["4 px"].total.recall
    curve = papm.evaluate(run.counter, SPEC, "qnrf", matching="maximum")
    assert 0 <= curve.to_dict()["f1"] <= 1 and curve.qnrf is not None
    curve.save(tmp_path / "points.csv")
    assert len((tmp_path / "points.csv").read_text(encoding="utf-8").splitlines()) == 4
    with pytest.raises(ConfigError, match="unknown protocol 'nwp'"):
        papm.evaluate(run.counter, SPEC, "nwp")  # type: ignore[call-overload]
    with pytest.raises(ConfigError, match="max_side does not go with"):
        papm.evaluate(run.counter, SPEC, "qnrf", options={"max_side": 32})


def test_a_prediction_is_drawn_saved_and_handed_on(
    run: papm.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sample = papm.data.open_spec(SPEC)["test"][0]
    found = run.counter.predict(sample.image, name="a.jpg")
    assert len(found) == len(found.points) and found and len(repr(found)) < 250
    array = sample.image.permute(1, 2, 0).numpy()
    drawn = found.draw(array)
    assert drawn.size > (512, 512) and drawn.mode == "RGB"
    assert np.array_equal(np.asarray(drawn), np.asarray(found.draw(Image.fromarray(array))))
    assert sample.draw().width == found.draw(array, 64, legend=False).width * 8 == 512

    assert [p.name for p in found.save(tmp_path / "a.csv")] == ["a.csv"]
    assert json.loads(found.save(tmp_path / "a.json")[0].read_text(encoding="utf-8"))[0]["image"] == "a.jpg"
    assert np.load(found.save(tmp_path / "a.npy")[0]).sum() == pytest.approx(found.count, rel=1e-4)
    files = {p.name for p in found.save(tmp_path / "all")}
    assert files == {"counts.csv", "points.csv", "results.json", "a.npy"}
    with pytest.raises(ConfigError, match=r"\.csv, \.json, \.npy, \.xlsx, \.geojson, \.zip, or to a folder"):
        found.save(tmp_path / "a.txt")
    with pytest.raises(DataError, match="no density map"):
        Prediction(1.0, (8, 8), points=torch.ones(1, 2)).save(tmp_path / "b.npy")


def test_supervision_gets_boxes_around_points(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Prediction(2.0, (40, 40), points=torch.tensor([[10.0, 10.0], [20.0, 10.0]]), scores=torch.ones(2))
    monkeypatch.setitem(sys.modules, "supervision", None)
    with pytest.raises(ConfigError, match="pip install supervision"):
        found.to_supervision()

    def detections(**given: Any) -> SimpleNamespace:
        return SimpleNamespace(**given)

    monkeypatch.setitem(sys.modules, "supervision", SimpleNamespace(Detections=detections))
    made = found.to_supervision()
    assert made.xyxy.tolist() == [[5, 5, 15, 15], [15, 5, 25, 15]] and made.class_id is None
    assert found.to_supervision(box=4).xyxy[0].tolist() == [8, 8, 12, 12]
    nothing = Prediction(0.0, (8, 8))
    assert nothing.to_supervision().xyxy.shape == (0, 4) and len(nothing) == 0 and nothing


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six images, of two sizes."""
    folder = tmp_path_factory.mktemp("photos")
    rng = np.random.default_rng(0)
    for k, (h, w) in enumerate([(40, 56)] * 3 + [(48, 48)] * 2 + [(40, 56)]):
        Image.fromarray(rng.integers(0, 256, (h, w, 3), dtype=np.uint8)).save(folder / f"{k}.png")
    return folder


@pytest.mark.parametrize("batch", [1, 2, 8])
@pytest.mark.parametrize("backbone", ["tiny", "p2pnet"])
def test_a_folder_and_a_list_count_as_their_images_do(photos: Path, batch: int, backbone: str) -> None:
    torch.manual_seed(0)
    options = {"trunk": "tiny"} if backbone == "p2pnet" else {}
    counter = papm.Counter(papm.models.create(backbone, **options), ModelSpec(backbone, options), "cpu")
    files = sorted(photos.iterdir())
    alone = [counter.predict(f) for f in files]
    for found in (counter.predict(photos, batch=batch), counter.predict([*files[:3], *files[3:]], batch=batch)):
        assert [p.name for p in found] == [f.name for f in files]
        assert [p.count for p in found] == pytest.approx([p.count for p in alone], abs=1e-4)
        assert [p.size for p in found] == [p.size for p in alone]
        assert all(torch.allclose(p.points, a.points, atol=1e-3) for p, a in zip(found, alone))
    if batch == 1:
        assert [p.count for p in counter.predict_many(iter(files))] == [p.count for p in alone]


def test_several_models_count_a_folder_too(run: papm.Run, photos: Path) -> None:
    both = papm.Ensemble([run.counter, run.counter], ["a", "b"])
    assert [p.count for p in both.predict(photos)] == pytest.approx([p.count for p in run.counter.predict(photos)])


def test_many_images_are_refused_as_one_is(run: papm.Run, photos: Path, tmp_path: Path) -> None:
    assert run.counter.predict([]) == []
    with pytest.raises(DataError, match="no images in this folder"):
        run.counter.predict(tmp_path)
    with pytest.raises(ConfigError, match="batch is a number of images"):
        run.counter.predict(photos, batch=0)
    with pytest.raises(ConfigError, match="one by one"):
        run.counter.predict(photos, name="a")
    (tmp_path / "bad.png").write_bytes(b"no image")
    with pytest.raises(DataError, match=r"bad\.png"):
        run.counter.predict([photos / "0.png", tmp_path / "bad.png"])


def test_points_on_a_cpu_stand_on_a_small_trunk() -> None:
    chosen = api.configure(SPEC, "p2p-papm", "auto", {"device": "cpu"}).config
    assert (chosen.backbone, chosen.network["trunk"], chosen.weights) == ("p2pnet", "tiny", None)
    assert chosen.steps <= 6000
    kept = api.configure(SPEC, "p2p-papm", "auto", {"device": "cpu", "network": {"trunk": "vgg16"}, "steps": 5}).config
    assert kept.network["trunk"] == "vgg16"


CELLS = "synthetic:look=cells,train=24,test=1,size=96,count=20-40"


@pytest.mark.parametrize(
    ("data", "method", "given", "start"),
    [
        (CELLS, "auto", {}, "cells"),
        (CELLS, "auto", {"steps": 7, "loss": {"sigma": 3.0}}, "cells"),
        (CELLS, "auto", {"init": None}, None),  # whoever wants to start from nothing says so
        (CELLS, "auto", {"turn": True}, "cells"),
        (CELLS, "auto", {"network": {"stride": 2}}, None),
        (CELLS, "hd-papm", {}, None),
        (CELLS.replace("cells", "crowd"), "auto", {}, None),
    ],
)
def test_cells_start_from_the_ready_model_where_all_is_left_open(
    data: str, method: str, given: dict[str, Any], start: str | None
) -> None:
    chosen = api.configure(data, method, "auto", {"device": "cpu", **given})
    assert chosen.config.init == start
    assert any(line.startswith("init=cells: ") for line in chosen.why) == (start is not None)


@pytest.mark.parametrize("is_run", [False, True])
def test_a_folder_of_that_name_is_not_what_a_training_starts_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_run: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("cells").mkdir()
    if is_run:
        Path("cells", "best.ckpt").write_bytes(b"a run of the user's own")
    chosen = api.configure(CELLS, "auto", "auto", {"device": "cpu"})
    started = build_network(chosen.config).state_dict()
    own = papm.Counter.load(ready.find("cells").path, "cpu").network.state_dict()
    assert chosen.config.init == "cells" and all(torch.equal(value, own[key]) for key, value in started.items())


def test_a_training_that_starts_from_the_ready_model_counts_cells_at_once(tmp_path: Path) -> None:
    run = papm.train(CELLS, out=tmp_path / "run", device="cpu", steps=2, warmup=2)
    assert run.result["init"] == "cells" and run.result["nae"] < 0.5
