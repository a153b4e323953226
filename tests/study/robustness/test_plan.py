"""From words to a study: which trainings, on which network, into which folder."""

from __future__ import annotations

import dataclasses
import json
import re
import typing
from pathlib import Path
from typing import Any

import pytest
import torch

from papm.config import TrainConfig
from papm.data.convert import write_folder
from papm.errors import ConfigError, DataError, PapmError
from papm.points import spacing
from papm.study import run, training
from papm.study.robustness import images, plan
from papm.study.robustness.images import open_data
from papm.study.robustness.plan import Asked

SPEC = "synthetic:train=4,test=2,size=64x96,count=5-9"


def ask(folder: Path, spec: str = SPEC, **changes: Any) -> Asked:
    opened = open_data(spec, {}, "last", 0)
    given: dict[str, Any] = {"methods": ("gaussian", "hd-papm"), "distances": (0.0, 4.0), "out": folder / "out"}
    return Asked(opened, **{**given, **changes})


def check(asked: Asked) -> None:
    images.check_folder(asked.out, asked.data, asked.settings)


def test_every_kind_of_displacement_is_explained() -> None:
    assert tuple(plan.KINDS) == typing.get_args(typing.get_type_hints(TrainConfig)["noise_kind"])


def test_distances_are_shares_of_the_distance_between_neighbours() -> None:
    opened = open_data(SPEC, {}, "last", 0)
    every = torch.cat([spacing(s.points, 1) for s in opened.splits.train])
    assert opened.spacing == pytest.approx(float(every.median()))
    assert plan.usual_distances(opened.spacing)[-1] == round(float(every.median()))
    assert plan.usual_distances(0.3) == (0.0, 1.0)


@pytest.mark.parametrize("text", ["", "four", "4,,8", "-1", "nan", "inf", "0;4"])
def test_distances_that_are_none(text: str) -> None:
    with pytest.raises(ConfigError, match="--distances is pixels separated by commas"):
        plan.read_distances(text)


def test_missed_and_doubled_dots_are_shares(tmp_path: Path) -> None:
    asked = plan.ask(SPEC, methods="gaussian", kind="missed", seeds=(0,), out=tmp_path, weights={})
    assert asked.distances == (0.0, 0.05, 0.1, 0.2)
    assert [c.column for c in asked.study.cells] == ["exact", "5 %", "10 %", "20 %"]
    last = training.configure(asked.study.cells[-1].settings)
    assert (last.noise, last.noise_kind) == (0.2, "missed")
    (said,) = plan.announcement(asked, [], {}, 1)
    assert "4 shares (0, 5, 10, 20 %, missed: that share of them left out)" in said
    with pytest.raises(ConfigError, match="--distances is shares below 1 where dots are doubled"):
        plan.read_distances("0.1,4", "doubled")
    with pytest.raises(ConfigError, match="noise is a share of the points, below 1, where they are missed, not 4"):
        TrainConfig(noise=4.0, noise_kind="missed")


def test_names_are_checked() -> None:
    assert plan.read_methods("gl, bl,gl") == ("gl", "bl")
    with pytest.raises(ConfigError, match="unknown method 'hd-pamp'; did you mean 'hd-papm'"):
        plan.read_methods("gaussian,hd-pamp")
    with pytest.raises(ConfigError, match="unknown kind of displacement 'rings'; did you mean 'ring'"):
        plan.ask(SPEC, methods="gl", kind="rings", seeds=(0,))


def test_a_method_may_have_settings_of_its_own(tmp_path: Path) -> None:
    names = plan.read_methods("hd-papm, hd-papm   loss.sigma=8 steps=3,p2p-papm network.offsets=false")
    assert names == ("hd-papm", "hd-papm loss.sigma=8 steps=3", "p2p-papm network.offsets=false")
    asked = ask(tmp_path, methods=names, settings={"steps": 7})
    cells = {(c.row, c.column): training.configure(c.settings) for c in asked.study.cells}
    plain, own, points = (cells[name, "4 px"] for name in names)
    assert (plain.steps, dict(plain.loss), own.steps, dict(own.loss)) == (7, {}, 3, {"sigma": 8})
    assert points.backbone == "p2pnet" and points.network == {"trunk": "tiny", "offsets": False}
    tasks = run.plan(asked.study, [], asked.request)
    assert len({t.folder for t in tasks}) == len(tasks) == 6


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("hd-papm seed=3", "give seed as --seeds"),
        ("hd-papm select=val", "give select as a setting of every training"),
        ("hd-papm init=x", "give init as a setting of every training"),
        ("hd-papm data.look=cells", "give data.look as a setting of every training, not of 'hd-papm'"),
        ("hd-papm sigma=8", "unknown key 'sigma'"),
        ("hd-papm loss.sigma", "not of the form key=value"),
    ],
)
def test_settings_that_no_method_has_alone(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        plan.read_methods(text)


@pytest.mark.parametrize(
    "text",
    [
        "hd-papm loss.sigma=8,hd-papm loss.sigma=8.0",
        "hd-papm,hd-papm flip=0.5",  # what it is anyway
        "hd-papm,hd-papm precision=32",  # nothing by which results are told apart
    ],
)
def test_one_training_under_two_names_is_refused(tmp_path: Path, text: str) -> None:
    asked = ask(tmp_path, methods=plan.read_methods(text))
    first, second = (re.escape(f"'{name}, exact'") for name in asked.methods)
    with pytest.raises(ConfigError, match=f"{first} and {second} are the same training"):
        run.plan(asked.study, [], asked.request)


def test_the_study_is_methods_by_distances(tmp_path: Path) -> None:
    asked = ask(tmp_path, kind="disc", settings={"steps": 7})
    made = asked.study
    cells = {(c.row, c.column): c.settings for c in made.cells}
    assert list(cells) == [(m, d) for m in ("gaussian", "hd-papm") for d in ("exact", "4 px")]
    moved, exact = training.configure(cells["hd-papm", "4 px"]), training.configure(cells["hd-papm", "exact"])
    assert (moved.noise, moved.noise_kind, moved.steps, moved.backbone) == (4.0, "disc", 7, "tiny")
    assert exact.noise == 0 and exact.noise_kind == "ring"  # exact dots are the same training for every kind


def test_commands_say_how_dots_are_moved_and_nothing_moves_test_dots(tmp_path: Path) -> None:
    asked = ask(tmp_path, kind="gaussian")
    tasks = run.plan(asked.study, [], asked.request)
    words = [run.train_words(t, resume=False) for t in tasks]
    assert len(words) == 4 and all(w[1] == SPEC for w in words)
    assert [("noise=4" in w, "noise_kind=gaussian" in w) for w in words] == [(False, False), (True, True)] * 2
    assert all(str(t.folder).startswith(str(tmp_path / "out" / "runs")) for t in tasks)


def test_exact_dots_are_trained_once_for_all_kinds(tmp_path: Path) -> None:
    asked = ask(tmp_path)
    ring, disc = asked.study, dataclasses.replace(asked, kind="disc").study
    for a, b in zip(ring.cells, disc.cells):
        same = training.asked(a.settings) == training.asked(b.settings)
        assert same == (a.column == "exact")


def test_methods_of_points_bring_their_network_along(tmp_path: Path) -> None:
    cells = ask(tmp_path, methods=("gaussian", "p2p-papm")).study.cells
    networks = {c.row: (c.settings["backbone"], c.settings.get("network.trunk")) for c in cells}
    assert networks == {"gaussian": ("tiny", None), "p2p-papm": ("p2pnet", "tiny")}
    assert plan.network_of("p2pnet", "vgg19") == {"backbone": "p2pnet"}
    assert plan.usual_backbone(("p2pnet",), "cpu") == "tiny" and plan.usual_backbone(("p2pnet",), "cuda") == "p2pnet"
    assert plan.usual_backbone(("p2p-papm network.offsets=false",), "cuda") == "p2pnet"
    with pytest.raises(ConfigError, match="'gaussian' trains networks that give density maps"):
        asked = ask(tmp_path, backbone="p2pnet")
        run.plan(asked.study, [], asked.request)


def test_weights_are_part_of_a_training(tmp_path: Path) -> None:
    asked = ask(tmp_path, backbone="vgg19", weights={"": "none"})
    assert {training.asked(c.settings)["weights"] for c in asked.study.cells} == {"none"}
    plain = dataclasses.replace(asked, weights={}).study
    assert {training.asked(c.settings)["weights"] for c in plain.cells} == {"pretrained"}


def test_a_distance_beyond_the_images_is_refused(tmp_path: Path) -> None:
    assert ask(tmp_path, distances=(0.0, 32.0)).study.cells
    with pytest.raises(ConfigError, match="33 px is more than half of an image of 64 px; give at most 32"):
        assert ask(tmp_path, distances=(0.0, 33.0)).study.cells


def test_data_without_test_images_is_refused(tmp_path: Path) -> None:
    from papm import data

    write_folder(data.open_spec(SPEC)["train"], tmp_path / "photos" / "train")
    with pytest.raises(DataError, match="no test images to measure on; divide it with 'papm data split'"):
        open_data(f"folder:{tmp_path}/photos", {}, "last", 0)


def test_a_folder_keeps_to_its_images(tmp_path: Path) -> None:
    asked = ask(tmp_path)
    check(asked)
    assert not asked.out.exists()
    images.claim_folder(asked.out, asked.data, asked.settings)
    check(dataclasses.replace(asked, methods=("gl",), distances=(0.0, 2.0), seeds=(3,)))
    for other in (
        ask(tmp_path, SPEC + ",seed=1"),
        ask(tmp_path, SPEC + ",noise=0.1"),
        ask(tmp_path, settings={"noise_edge": "clip"}),
    ):
        with pytest.raises(ConfigError, match=r"holds results on synthetic:.* choose another --out"):
            check(other)
    (asked.out / images.MARK).write_text("[", encoding="utf-8")
    with pytest.raises(PapmError, match="cannot be read"):
        check(asked)


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out" / "results").mkdir(parents=True)
    with pytest.raises(ConfigError, match="holds something else"):
        check(ask(tmp_path))
    (tmp_path / "file").write_text("x")
    with pytest.raises(ConfigError, match="holds something else"):
        check(dataclasses.replace(ask(tmp_path), out=tmp_path / "file"))


def test_moved_dots_change_the_fingerprint(tmp_path: Path) -> None:
    from papm import data

    for split, dataset in data.open_spec(SPEC).items():
        write_folder(dataset, tmp_path / "photos" / split)
    spec = f"folder:{tmp_path}/photos"
    before = open_data(spec, {}, "last", 0)
    assert before.folder == f"{tmp_path}/photos" and before.name == "folder"
    assert open_data(spec, {}, "last", 5).fingerprint == before.fingerprint
    file = next(f for f in sorted((tmp_path / "photos/train").rglob("*")) if f.suffix in (".txt", ".json", ".csv"))
    text = file.read_text()
    lines = text.splitlines() if file.suffix != ".json" else json.loads(text)
    assert len(lines) > 1
    file.write_text("\n".join(text.splitlines()[:-1]) + "\n")
    assert open_data(spec, {}, "last", 0).fingerprint != before.fingerprint
