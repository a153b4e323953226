"""Ready models on the command line: listed, described, counted with, started from; never changed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import papm
from papm import data, ready
from papm.draw import save_png
from papm.study.demo import Demo, first_look

Run = Callable[..., tuple[int, str, str]]
SETTINGS = ("steps=2", "crop=64", "batch=2", "select=last", "device=cpu")


@pytest.fixture
def photo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, int]:
    monkeypatch.chdir(tmp_path)
    sample = data.open("synthetic", look="cells", train=0, test=1, count=40, extent=14, clutter=0.0, seed=77)["test"][0]
    return save_png(sample.image, tmp_path / "photo.png"), sample.count


def test_models_are_listed_and_described(run_papm: Run) -> None:
    code, out, _ = run_papm("models", "list")
    assert code == 0 and "cells" in out and "crowd" in out and "MAE" in out
    code, out, _ = run_papm("models", "list", "--json")
    found = {m["name"]: m for m in json.loads(out)}
    assert found["cells"]["installed"] and found["cells"]["licence"] and found["cells"]["errors"][0]["mae"] >= 0
    assert {"crowd", "vehicles"} <= set(found)
    code, out, _ = run_papm("models", "info", "cells")
    assert code == 0 and "Licence: Apache-2.0" in out and "CC0" in out
    code, out, _ = run_papm("models", "info", "cells", "--json")
    assert json.loads(out)["backbone"] == ready_backbone()
    code, _, err = run_papm("models", "info", "cell")
    assert code == 2 and "did you mean 'cells'?" in err


def ready_backbone() -> str:
    return papm.Counter.load("cells", "cpu").spec.backbone


def test_a_ready_model_counts(photo: tuple[Path, int], run_papm: Run) -> None:
    file, truth = photo
    code, out, err = run_papm("predict", "cells", file, "--json")
    assert code == 0, err
    assert json.loads(out)[0]["count"] == pytest.approx(truth, rel=0.15)
    code, _, err = run_papm("predict", "cels", file)
    assert code == 2 and "no ready model of that name; did you mean 'cells'?" in err


def test_a_path_on_the_command_line_is_no_name(photo: tuple[Path, int], run_papm: Run) -> None:
    Path("cells").mkdir()  # of images, say
    assert run_papm("predict", "cells", photo[0], "--no-points", "--no-overlays")[0] == 0
    drawn = "synthetic:look=cells,train=2,test=1,size=64,count=1-3"
    for words in (
        ("predict", "./cells", photo[0]),
        ("predict", "cells", photo[0], "--with", "./cells"),
        ("eval", "./cells", drawn),
        ("calibrate", "./cells", drawn, "--out", "mine.ckpt"),
        ("calibrate", "./cells", "--off", "--out", "mine.ckpt"),
        ("export", "./cells"),
        ("train", drawn, "--init", "./cells", "--out", "run", *SETTINGS),
    ):
        code, _, err = run_papm(*words)
        assert code == 2 and "./cells: this folder holds neither best.ckpt nor last.ckpt" in err, (words, err)
    Path("cells", "config.yaml").touch()  # a run that crashed
    code, _, err = run_papm("predict", "cells", photo[0])
    assert code == 2 and "cells: this folder holds neither best.ckpt nor last.ckpt" in err


def test_a_name_that_is_not_installed_says_what_to_do(photo: tuple[Path, int], run_papm: Run) -> None:
    for name in ready.missing():
        for words in (("predict", name, photo[0]), ("export", name), ("train", photo[0].parent, "--init", name)):
            code, _, err = run_papm(*words)
            assert code == 2 and "ready model" in err and "papm-models" in err and err.count("\n") == 1


@pytest.mark.slow
def test_every_command_takes_it(photo: tuple[Path, int], tmp_path: Path, run_papm: Run) -> None:
    drawn = "synthetic:look=cells,train=6,test=2,size=96,count=5-10"
    code, out, err = run_papm("eval", "cells", drawn, "--json")
    assert code == 0 and json.loads(out)["model"] == "cells", err
    code, _, err = run_papm("calibrate", "cells", "--off")
    assert code == 2 and "cells is a model that came with a package" in err
    code, _, err = run_papm("calibrate", "cells", "--off", "--out", tmp_path / "mine.safetensors")
    assert code == 0 and papm.Counter.load(tmp_path / "mine.safetensors", "cpu"), err
    code, _, err = run_papm("export", "cells", "--out", tmp_path / "cells.onnx")
    assert code == 0 and (tmp_path / "cells.onnx").is_file(), err


@pytest.mark.slow
def test_training_from_a_ready_model_takes_its_network(tmp_path: Path, run_papm: Run) -> None:
    drawn = "synthetic:look=cells,train=4,test=2,size=64,count=2-4"
    spec = papm.Counter.load("cells", "cpu").spec
    run = papm.train(
        drawn, init="cells", out=tmp_path / "run", steps=1, crop=64, batch=2, lr=0.0, select="last", device="cpu"
    )
    mine = run.counter.spec
    assert (mine.backbone, dict(mine.options), mine.method) == (spec.backbone, dict(spec.options), spec.method)
    image = data.open_spec(drawn)["test"][0].image
    assert run.counter.predict(image).count == pytest.approx(
        papm.Counter.load("cells", "cpu").predict(image).count, rel=1e-3
    )
    code, _, err = run_papm("train", drawn, "--init", "cells", "--backbone", "mcnn", "--out", tmp_path / "b", *SETTINGS)
    assert code == 2 and f"cells: is a '{spec.backbone}', the run trains a 'mcnn'; leave out --backbone" in err
    code, _, err = run_papm("train", drawn, "network.stride=2", "--init", "cells", "--out", tmp_path / "b", *SETTINGS)
    assert code == 2 and "cells: has network.stride=" in err and not (tmp_path / "b").exists()


@pytest.mark.slow
def test_errors_of_each_dataset_are_reported(tmp_path: Path, run_papm: Run) -> None:
    both = (
        "synthetic:look=cells,train=2,test=2,size=64,count=1-3+synthetic:look=crowd,train=18,test=1,size=64,count=1-3"
    )
    code, out, err = run_papm("train", both, *SETTINGS, "--backbone", "tiny", "--out", tmp_path / "run")
    assert code == 0 and "synthetic-2: MAE" in out, err
    result = json.loads((tmp_path / "run" / "result.json").read_text())["datasets"]
    assert {k: v["n"] for k, v in result.items()} == {"synthetic-1": 2, "synthetic-2": 1}
    code, out, _ = run_papm("eval", tmp_path / "run", both, "--json")
    assert code == 0 and set(json.loads(out)["datasets"]) == {"synthetic-1", "synthetic-2"}
    code, out, _ = run_papm("eval", tmp_path / "run", both)
    assert code == 0 and "By dataset" in out


@pytest.mark.slow
def test_the_demo_begins_with_a_ready_model(tmp_path: Path) -> None:
    plan = Demo(tmp_path / "demo")
    looked = first_look(plan)
    assert all(p.is_file() for p in looked.pictures)
    assert looked.counted == pytest.approx(looked.truth, rel=0.15)
    assert "of 120" in looked.words
    plan.prepare(force=True)  # what an interrupted demo left is replaced
    assert not plan.out.exists()


def test_the_package_of_models_installs_without_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its entry points name crowd and vehicles; those whose file is not there are missing, the others are found."""
    import tomllib

    root = Path(__file__).parents[2] / "packages" / "papm-models"
    about = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    points = about["project"]["entry-points"]["papm.models"]
    assert set(points) == {"crowd", "vehicles"} and set(points.values()) == {"papm_models"}
    place = tmp_path / "site"
    shutil.copytree(root / "src", place)
    info = place / "papm_models-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: papm-models\nVersion: 0.1.0\n", encoding="utf-8")
    lines = "".join(f"{k} = {v}\n" for k, v in points.items())
    (info / "entry_points.txt").write_text(f"[papm.models]\n{lines}", encoding="utf-8")
    monkeypatch.syspath_prepend(str(place))
    there = {p.stem for p in (root / "src" / "papm_models").glob("*.safetensors")}
    assert set(ready.missing()) == set(points) - there
    shutil.copyfile(ready.find("cells").path, place / "papm_models" / "crowd.safetensors")  # dropped in: it works
    assert ready.find("crowd").path.is_file() and papm.Counter.load("crowd", "cpu")
