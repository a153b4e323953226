"""Ready models: found by name, in papm and in installed packages; what is missing is said in one sentence."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import pytest
import torch

import papm
from papm import checkpoint, models, ready
from papm.checkpoint import ModelSpec
from papm.engine.start import model_file
from papm.errors import CheckpointError
from papm.export.program import load_model
from papm.predict.ensemble import Ensemble
from papm.predict.predictor import Counter
from papm.predict.scaleout.run import _visible
from papm.ready import places
from papm.ready.card import Card, Figure

CARD = Card(
    "pebbles on a beach",
    "CC0-1.0",
    (Figure("beach test", 12, 3.25, -0.01), Figure("gravel", 4, 9.0, 0.2, seen=False, relative=0.125)),
    "# pebbles\n\nNot for sand.\n",
)


def write_model(path: Path, card: str = "") -> Path:
    torch.manual_seed(0)
    network = models.create("tiny", stride=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    checkpoint.save(
        path, ModelSpec("tiny", {"stride": 8}, "hd-papm", inference=network.inference), network.state_dict(), card
    )
    return path


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What pip leaves of a package with two models, of which one has no file, and whose code must not be run."""
    place = tmp_path / "site"
    info = place / "beach_models-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: beach-models\nVersion: 1.0\n", encoding="utf-8")
    lines = "[papm.models]\npebbles = beach_models\nshells = beach_models.inner:s.safetensors\nghost = not_here\n"
    (info / "entry_points.txt").write_text(lines, encoding="utf-8")
    write_model(place / "beach_models" / "pebbles.safetensors", CARD.write())
    (place / "beach_models" / "__init__.py").write_text("raise SystemExit('this is run')\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(place))
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    return place / "beach_models"


def test_a_card_is_what_was_written() -> None:
    assert Card.parse(CARD.write()) == CARD
    assert Card.parse("just words") == Card(text="just words")
    assert str(CARD.errors[1]) == "gravel: MAE 9.0, 12.5 % per image, total +20.0 % (4 images)"


NAN = "errors: [{data: x, images: 1, mae: .nan, bias: 0}]"


@pytest.mark.parametrize("facts", ["[1, 2]", "counts: 3", "errors: 5", "errors: [{data: x}]", "a: &a [*a]", NAN])
def test_what_is_no_card(facts: str) -> None:
    with pytest.raises(ValueError, match=r"card|number"):
        Card.parse(f"---\n{facts}\n---\nwords")


def test_a_model_of_a_package_is_found_and_counts(installed: Path) -> None:
    found = ready.find("pebbles")
    assert found.path == installed / "pebbles.safetensors" and found.card == CARD and found.bytes < 300_000
    counter = Counter.load("pebbles", "cpu")
    assert counter.predict(torch.zeros(3, 32, 32, dtype=torch.uint8)).count >= 0
    assert checkpoint.resolve(Path("pebbles")) == found.path
    write_model(installed.parent / "mine.safetensors")
    assert Ensemble.load(["pebbles", installed.parent / "mine.safetensors"], "cpu").names == ("pebbles", "mine")


def test_what_is_not_here_says_what_to_do(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CheckpointError, match="installed without its file"):
        ready.find("shells")
    with pytest.raises(CheckpointError, match=r"no such checkpoint .* did you mean 'pebbles'\? Ready: .*pebbles"):
        checkpoint.resolve(Path("pebles"))
    monkeypatch.setattr(places, "known", dict)
    with pytest.raises(
        CheckpointError, match="package papm-models, which is not installed; pip install packages/papm-models"
    ):
        checkpoint.resolve(Path("crowd"))
    Path("crowd").mkdir()  # of images, say
    with pytest.raises(CheckpointError, match="package papm-models, which is not installed"):
        checkpoint.resolve(Path("crowd"))
    assert set(ready.missing()) == {"crowd", "vehicles"}


def test_a_path_of_that_name_wins_with_a_note(installed: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = Path("pebbles")
    write_model(run / "best.ckpt")
    with caplog.at_level(logging.WARNING):
        assert checkpoint.resolve(run) == run / "best.ckpt"
    assert caplog.messages == ["pebbles: the folder here is used, not the ready model of that name"]
    caplog.clear()
    checkpoint.resolve(run.absolute())
    assert not caplog.messages


def test_a_folder_of_that_name_without_a_model_in_it_does_not_hide_the_model(
    installed: Path, caplog: pytest.LogCaptureFixture
) -> None:
    Path("pebbles").mkdir()
    Path("pebbles", "beach.jpg").touch()
    with caplog.at_level(logging.WARNING):
        assert checkpoint.resolve(Path("pebbles")) == installed / "pebbles.safetensors" and not caplog.messages
    Path("photos").mkdir()
    with pytest.raises(CheckpointError, match=r"photos: this folder holds neither best\.ckpt nor last\.ckpt"):
        checkpoint.resolve(Path("photos"))


@pytest.mark.parametrize("file", ["config.yaml", "metrics.csv"])
def test_a_run_without_a_checkpoint_is_not_the_ready_model(installed: Path, file: str) -> None:
    Path("pebbles").mkdir()
    Path("pebbles", file).touch()
    for model in ("pebbles", "./pebbles", Path("pebbles"), Path("pebbles").absolute()):
        with pytest.raises(CheckpointError, match=r"pebbles: this folder holds neither best\.ckpt nor last\.ckpt"):
            checkpoint.resolve(model)
    with pytest.raises(CheckpointError, match=r"\./pebbles: this folder holds neither"):
        model_file("./pebbles")


@pytest.mark.parametrize("typed", ["./pebbles", "pebbles/", "../here/pebbles", "~/pebbles"])
def test_a_path_is_never_the_name_of_a_ready_model(
    installed: Path, typed: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(Path.cwd()))
    opened = (checkpoint.resolve, model_file, Counter.load, lambda m: Ensemble.load([m]), load_model, _visible)
    Path("pebbles").mkdir()
    Path("pebbles", "beach.jpg").touch()
    for load in opened:
        with pytest.raises(CheckpointError, match=rf"^{re.escape(typed)}: this folder holds neither best\.ckpt"):
            load(typed)
    Path("pebbles", "beach.jpg").unlink()
    Path("pebbles").rmdir()
    for load in opened:
        with pytest.raises(CheckpointError, match=r"pebbles/?: no such checkpoint file or run folder$"):
            checkpoint.load(Path(load(typed)))
    write_model(Path("pebbles") / "best.ckpt")
    assert checkpoint.resolve(typed).samefile("pebbles/best.ckpt") and not caplog.messages


def test_where_a_training_starts_a_name_is_the_ready_model(installed: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_model(Path("pebbles") / "best.ckpt")
    with caplog.at_level(logging.WARNING):
        assert model_file("pebbles") == installed / "pebbles.safetensors"
    assert caplog.messages == [
        "pebbles: the ready model of that name is used; for the run in this folder write ./pebbles"
    ]
    assert model_file("./pebbles") == Path("pebbles") / "best.ckpt"


def test_a_model_that_came_with_a_package_is_not_changed(installed: Path, tmp_path: Path) -> None:
    file = installed / "pebbles.safetensors"
    before = file.read_bytes()
    with pytest.raises(CheckpointError, match="pebbles is a model that came with a package"):
        checkpoint.change_inference(file, frame=16)
    with pytest.raises(CheckpointError, match="pebbles is a model that came"):  # before anything is opened or counted
        papm.calibrate("pebbles", tmp_path / "nothing")
    for name in ("mine.ckpt", "mine.safetensors"):
        checkpoint.change_inference(file, tmp_path / name, frame=16)
        spec, state = checkpoint.load(tmp_path / name)
        assert spec.inference is not None and spec.inference.frame == 16
        assert all(torch.equal(v, checkpoint.load(file)[1][k]) for k, v in state.items())
    checkpoint.change_inference(tmp_path / "mine.safetensors", frame=32)  # the user's own is
    assert file.read_bytes() == before
    assert checkpoint.read(tmp_path / "mine.safetensors")["card"] == CARD.write()


def test_a_damaged_card_is_one_sentence(installed: Path) -> None:
    write_model(installed / "pebbles.safetensors", "---\ncounts: [1]\n---\n")
    with pytest.raises(CheckpointError, match=r"pebbles\.safetensors: not a readable model: 'counts' of its card"):
        _ = ready.find("pebbles").card
    Path(installed / "pebbles.safetensors").write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    with pytest.raises(CheckpointError, match="pointer of Git LFS"):
        _ = ready.find("pebbles").card


@pytest.mark.parametrize("name", sorted(p.stem for p in places.OWN.glob("*.safetensors")))
def test_models_that_come_with_papm(name: str) -> None:
    found = ready.find(name)
    assert found.bytes <= 10_000_000
    assert found.card.write() == found.path.with_suffix(".md").read_text(encoding="utf-8")
    assert found.card.counts and found.card.licence and any(f.seen for f in found.card.errors)
    spec, state = checkpoint.load(found.path)
    checkpoint.build(spec, state)
    assert "/" not in str(spec.config.get("data")) + str(spec.config.get("weights"))  # nobody's folders
