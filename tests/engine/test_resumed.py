"""The settings of a run that goes on."""

from __future__ import annotations

import hashlib
import json
import urllib.request
from pathlib import Path

import pytest

from papm import models
from papm.config import TrainConfig
from papm.data.spec import open_spec
from papm.data.splits import Splits, choose
from papm.engine import run_folder
from papm.engine.build import resolve
from papm.engine.resumed import UNKNOWN, check_same, going_on, precision_begun, steps_done, weights_used
from papm.errors import ConfigError
from papm.models.weights import PUBLISHED, Published

SPEC = "synthetic:train=3,test=1,size=64,count=3-6"


def config(**more: object) -> TrainConfig:
    return resolve("hd-papm", "tiny", {"data": SPEC, "steps": 5, **more})


def drawn() -> Splits:
    return choose(open_spec(SPEC), "last", 0.1, 0)


def test_what_is_not_given_is_as_it_was(tmp_path: Path) -> None:
    before = config(loss={"sigma": 3.0}, network={"stride": 4}, init="pre")
    run_folder.create(tmp_path, before)
    assert going_on(tmp_path, {}) == before
    assert going_on(tmp_path, {"method": "auto", "backbone": "auto", "workers": 0}).workers == 0
    assert going_on(tmp_path, {"loss": {"sigma": 3}, "network": {}}) == before
    with pytest.raises(ConfigError, match="was started with method=hd-papm, not gaussian"):
        check_same(tmp_path, going_on(tmp_path, {"method": "gaussian"}))
    with pytest.raises(ConfigError, match=r"was started with loss=.*3.*, not .*4"):
        check_same(tmp_path, going_on(tmp_path, {"loss": {"sigma": 4}}))
    with pytest.raises(ConfigError, match="did you mean 'steps'"):
        going_on(tmp_path, {"stepps": 4})
    assert steps_done(tmp_path) == 0


@pytest.mark.parametrize("key", ["init", "weights", "teachers"])
def test_one_file_has_many_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    monkeypatch.chdir(tmp_path)
    run_folder.create(tmp_path, config(**{key: "runs/pre"}))
    for name in ("runs/pre", "./runs/pre", "runs/pre/", "runs/../runs/pre", str(tmp_path / "runs" / "pre")):
        check_same(tmp_path, config(**{key: name}))
    for name in ("runs/other", "pre", None if key != "teachers" else ""):
        with pytest.raises(ConfigError, match=f"was started with {key}=runs/pre, not"):
            check_same(tmp_path, config(**{key: name}))


@pytest.mark.parametrize("content", [None, b"damaged", b"whole"])
def test_published_weights_of_an_older_run_are_those_in_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes | None
) -> None:
    """Nothing is downloaded to know their checksum."""
    monkeypatch.setenv("PAPM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(urllib.request, "urlopen", lambda *_, **__: pytest.fail("a download"))
    digest = hashlib.sha256(b"whole").hexdigest()
    monkeypatch.setitem(PUBLISHED, "vgg16", Published("https://there/v16.pth", digest[:8]))
    if content is not None:
        (tmp_path / "cache" / "weights").mkdir(parents=True)
        (tmp_path / "cache" / "weights" / "v16.pth").write_bytes(content)
    network = models.create("csrnet")
    assert str(network.trunk.arch) == "vgg16"
    asked = resolve("hd-papm", "csrnet", {"data": SPEC, "weights": "imagenet"})
    assert weights_used(tmp_path, asked, network) == (digest if content == b"whole" else UNKNOWN)
    run_folder.create(tmp_path, asked, weights_sha256="5" * 64)
    assert weights_used(tmp_path, asked, network) == "5" * 64
    assert weights_used(tmp_path / "older", resolve("hd-papm", "csrnet", {"data": SPEC}), network) is None


@pytest.mark.parametrize(("hardware", "device", "asked", "begun"), [
    ("x86_64 CPU, 1 thread", "auto", "auto", "32"), ("NVIDIA H200", "cpu", "auto", "32"),
    ("NVIDIA H200", "auto", "auto", None), ("x86_64 CPU, 2 threads", "auto", "bf16", None),
])  # fmt: skip
def test_the_precision_of_an_older_run(
    tmp_path: Path, hardware: str, device: str, asked: str, begun: str | None
) -> None:
    run_folder.create(tmp_path, config(device=device, precision=asked), precision="bf16")
    assert precision_begun(tmp_path) == "bf16"
    for stored in (
        {"hardware": hardware},
        {"hardware": hardware, "precision": None},
        {"hardware": hardware, "precision": 5},
    ):
        (tmp_path / "environment.json").write_text(json.dumps(stored))
        assert precision_begun(tmp_path) == begun


def test_a_ready_model_is_not_the_run_of_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run_folder.create(tmp_path, config(init="cells"))
    with pytest.raises(ConfigError, match=r"was started with init=cells, not \./cells"):
        check_same(tmp_path, config(init="./cells"))


@pytest.mark.parametrize("spec", ["synthetic:train=3,test=1,size=64,count=3-6,noise=0.4", f"{SPEC},clutter=2"])
def test_drawn_scenes_are_those_of_their_options(tmp_path: Path, spec: str) -> None:
    """Options that leave every dot where it was change the pixels, of which there is no file."""
    run_folder.create(tmp_path, config(), None, drawn())
    check_same(tmp_path, config())
    with pytest.raises(ConfigError, match="was started with data="):
        check_same(tmp_path, config(data=spec))
    with pytest.raises(ConfigError, match="was started with data="):
        check_same(tmp_path, config(data=f"elsewhere+{spec}"))


@pytest.mark.parametrize("name", ["result.json", "predictions.csv"])
def test_a_file_of_somebody_else_is_not_written_over(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("mine")
    with pytest.raises(ConfigError, match=f"{name}: is not of a run, which would write over it; choose another --out"):
        run_folder.check(tmp_path, config(), resume=False)
    assert (tmp_path / name).read_text() == "mine"


def test_the_folder_of_the_data_may_change_where_the_images_are_known(tmp_path: Path) -> None:
    run_folder.create(tmp_path, config(data="photos"))
    run_folder.require_same(tmp_path, config(data="./photos/"))
    with pytest.raises(ConfigError, match="was started with data=photos, not elsewhere"):
        run_folder.require_same(tmp_path, config(data="elsewhere"), drawn())
    run_folder.create(tmp_path, config(data="photos"), None, drawn())
    run_folder.require_same(tmp_path, config(data="elsewhere"), drawn())
    with pytest.raises(ConfigError, match="was started with 3 training images, there are 2 now"):
        run_folder.require_same(
            tmp_path, config(data="photos"), choose(open_spec(SPEC.replace("=3,", "=2,")), "last", 0.1, 0)
        )
    with pytest.raises(ConfigError, match="no run to resume"):
        run_folder.require_same(tmp_path / "other", config(), drawn())
