"""benchmarks/ready_models.py: its recipes hold settings that exist, and a recipe becomes a model with a card."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

import ready_models
from papm import checkpoint
from papm.engine.build import resolve
from papm.errors import ConfigError
from papm.predict.predictor import Counter
from papm.ready import Card

FOLDERS = {"data": "D", "weights": "W"}
RECIPES = sorted((ready_models.HERE / "ready").glob("*.yaml"))


@pytest.mark.parametrize("path", RECIPES, ids=lambda p: p.stem)
def test_recipes_hold_settings_that_exist(path: Path) -> None:
    recipe = ready_models.Recipe.read(path, FOLDERS)
    assert recipe.name == path.stem and (ready_models.HERE.parent / recipe.place).is_dir()
    for settings in filter(None, (recipe.student, recipe.first, *recipe.teachers.values())):
        given: dict[str, Any] = {k: v for k, v in settings.items() if k not in ("method", "backbone")}
        resolve(str(settings["method"]), str(settings["backbone"]), given)
    assert "{" not in recipe.train + "".join(recipe.tests.values())
    assert recipe.text.startswith(f"# {recipe.name}\n")


def test_a_slip_of_the_pen_is_named(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text("name: x\nteacher: {}\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="unknown key 'teacher'"):
        ready_models.Recipe.read(tmp_path / "x.yaml", FOLDERS)


@pytest.mark.slow
def test_a_recipe_becomes_a_model_with_a_card(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    drawn = "synthetic:look=cells,train=3,test=2,size=64,count=2-4"
    tiny = {"method": "hd-papm", "backbone": "tiny", "steps": 2, "crop": 64, "batch": 2, "device": "cpu"}
    recipe = ready_models.Recipe(
        name="dots",
        counts="dots",
        licence="none",
        train=f"{drawn}+{drawn},seed=1",
        first={**tiny, "teacher_weight": 0.5},
        student=tiny,
        teachers={"one": tiny, "two": {**tiny, "network": {"stride": 8}}},
        tests={"drawn": drawn},
        unseen={"crowds": "synthetic:train=1,test=1,size=64,count=1-3", "absent": "folder:not/here"},
        text="# dots\n",
        place="",
        resized={"crowds": 0.5},
    )
    made = ready_models.make(recipe, "", tmp_path)
    assert made == tmp_path / "dots.safetensors" and Counter.load(made, "cpu").spec.backbone == "tiny"
    card = Card.parse(made.with_suffix(".md").read_text(encoding="utf-8"))
    assert card.write() == checkpoint.read(made)["card"]
    assert [(f.data, f.images, f.seen) for f in card.errors] == [("drawn", 2, True), ("crowds", 1, False)]
    assert "absent is left out of the card" in caplog.text
    config = checkpoint.load(made)[0].config
    assert config["teachers"] == "one,two" and config["init"] == "first" and str(tmp_path) not in str(config)
    assert checkpoint.load(tmp_path / "dots" / "first" / "best.ckpt")[0].config["teachers"]
    # What is done is not done again: a recipe with another text writes another card only.
    times = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("last.ckpt")}
    ready_models.make(dataclasses.replace(recipe, text="# dots again\n"), "", tmp_path)
    assert len(times) == 4 and times == {p: p.stat().st_mtime_ns for p in tmp_path.rglob("last.ckpt")}
    assert "again" in checkpoint.read(made)["card"]
    # Its profile can be made again without its run folder: nothing else of the file changes.
    (before, weights), card = checkpoint.load(made), checkpoint.read(made)["card"]
    ready_models.profiled(dataclasses.replace(recipe, train=drawn.replace("train=3", "train=9")), "", made)
    after, same = checkpoint.load(made)
    assert before.inference is not None and after.inference is not None and after.inference.profile is not None
    assert dataclasses.replace(after.inference, profile=None) == dataclasses.replace(before.inference, profile=None)
    assert after.inference.profile.images == 9 and after.inference.profile.steady is not None
    assert checkpoint.read(made)["card"] == card and all(torch.equal(same[k], v) for k, v in weights.items())
