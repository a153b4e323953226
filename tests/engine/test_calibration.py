"""Calibrating a model: on images that it has not seen, stored with it, taken away again."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

import papm
from papm import checkpoint, models
from papm.checkpoint import ModelSpec
from papm.config import to_mapping
from papm.data.splits import Splits
from papm.engine import used_images
from papm.engine.build import resolve
from papm.engine.calibration import take_away
from papm.errors import ConfigError, DataError, PapmError
from papm.inference import Calibration, CountInterval, Inference
from papm.predict.ensemble import Ensemble
from papm.predict.predictor import Counter

FOUND = Calibration(1.5, 1.2, 1.7, 8, 9.0, 4.0)


def photos(folder: Path, counts: list[int], seed: int = 0) -> Path:
    """Images of noise with so many points each; dots mean nothing to the network."""
    folder.mkdir(parents=True)
    draw = torch.Generator().manual_seed(seed)
    for k, n in enumerate(counts):
        pixels = torch.randint(0, 256, (40, 48, 3), dtype=torch.uint8, generator=draw)
        Image.fromarray(pixels.numpy()).save(folder / f"{k}.png")
        (folder / f"{k}.txt").write_text(
            "".join(f"{x:.2f} {y:.2f}\n" for x, y in (38 * torch.rand(n, 2, generator=draw)).tolist())
        )
    return folder


def model(folder: Path, data: str, select: str = "last") -> Path:
    """A run of a network that sees about as many objects in every image."""
    torch.manual_seed(0)
    config = resolve("hd-papm", "tiny", {"data": data, "select": select})
    network = models.create("tiny", activation="abs")
    spec = ModelSpec("tiny", {"activation": "abs"}, "hd-papm", to_mapping(config), 7, network.inference)
    checkpoint.save(folder / "best.ckpt", spec, network.state_dict())
    return folder


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A run trained on photos/, and new/ with twice the objects that it counts."""
    for split in ("train", "val", "test"):
        photos(tmp_path / "photos" / split, [5] * 6, seed=len(split))
    run = model(tmp_path / "run", str(tmp_path / "photos"))
    seen = Counter.load(run, "cpu").predict(photos(tmp_path / "new", [0] * 8, seed=9))
    shutil.rmtree(tmp_path / "new")
    photos(tmp_path / "new", [round(2 * p.count) for p in seen], seed=9)
    return tmp_path


def test_a_path_is_stored_with_its_calibration_and_a_counter_uses_it(place: Path) -> None:
    image = place / "new" / "0.png"
    counter = Counter.load(place / "run", "cpu")
    before = counter.predict(image).count
    found = papm.calibrate(counter, place / "new")
    assert found.scale == pytest.approx(2, rel=0.05) and found.images == 8
    assert counter.predict(image).count == pytest.approx(found.scale * before)
    assert Counter.load(place / "run", "cpu").predict(image).raw_count is None  # the file is as it was
    assert papm.calibrate(place / "run", place / "new", out=place / "other.ckpt") == found
    assert Counter.load(place / "run", "cpu").inference.calibration is None
    assert papm.calibrate(place / "run", place / "new") == found
    for file in (place / "run", place / "other.ckpt"):
        assert Counter.load(file, "cpu").predict(image).count == pytest.approx(found.scale * before)
    assert papm.calibrate(place / "run", place / "new") == found  # fitted on raw counts, not on those of the first time


def test_all_else_in_a_checkpoint_stays(tmp_path: Path) -> None:
    file = model(tmp_path, "nowhere") / "best.ckpt"
    values = checkpoint.read(file)
    torch.save({**values, "training": {"step": 3}}, file)
    checkpoint.change_inference(file, calibration=FOUND)
    stored = checkpoint.read(file)
    assert stored["training"] == {"step": 3} and checkpoint.load(file)[0].inference == Inference(calibration=FOUND)
    assert all(torch.equal(v, stored["state_dict"][k]) for k, v in values["state_dict"].items())
    checkpoint.change_inference(file, calibration=None)
    assert checkpoint.read(file)["papm"] == values["papm"]  # what earlier versions read


WRONG: list[dict[str, Any]] = [
    {"scale": 0.0}, {"scale": 1e9}, {"scale": float("nan")}, {"scale": "2"}, {"low": -1.0}, {"low": 3.0}, {"images": 0},
    {"images": True}, {"mae_after": None}, {"mae_before": -1.0}, {"more": 1},
]  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG, ids=str)
def test_a_stored_calibration_is_checked(wrong: dict[str, Any]) -> None:
    stored = replace(Inference(), calibration=FOUND).to_mapping()
    assert Inference.from_mapping(stored).calibration == FOUND
    with pytest.raises(ConfigError, match="calibration"):
        Inference.from_mapping({**stored, "calibration": {**stored["calibration"], **wrong}})
    for other in (3, [1.0, 2.0], "2"):
        with pytest.raises(ConfigError, match="calibration"):
            Inference.from_mapping({**stored, "calibration": other})


@pytest.mark.parametrize(
    "wrong", [{"width": -1.0}, {"width": None}, {"images": 0}, {"images": 2.5}, {"level": 1.0}, {"x": 1}], ids=str
)
def test_a_stored_interval_is_checked(wrong: dict[str, Any]) -> None:
    stored = replace(Inference(), interval=CountInterval(1.5, 12), calibrated_on=("a", "b")).to_mapping()
    assert Inference.from_mapping(stored).interval == CountInterval(1.5, 12)
    assert Inference.from_mapping(stored).calibrated_on == ("a", "b")
    with pytest.raises(ConfigError, match="interval"):
        Inference.from_mapping({**stored, "interval": {**stored["interval"], **wrong}})
    for other in ([3], "a", ["a"] * 5001):
        with pytest.raises(ConfigError, match="calibrated_on"):
            Inference.from_mapping({**stored, "calibrated_on": other})


def test_an_interval_is_of_images_that_the_factor_is_not_of(place: Path) -> None:
    run = place / "run"
    papm.calibrate(run, place / "new")
    with pytest.raises(DataError, match=r"8 of 8 images, .* are among those that the model was calibrated on"):
        papm.add_interval(run, place / "new")
    with pytest.raises(DataError, match=r"needs 9 checked images .* not 3: check 6 more images"):
        papm.add_interval(run, photos(place / "few", [9] * 3, seed=20))
    scale = Counter.load(run, "cpu").inference.factor
    found = papm.add_interval(run, photos(place / "more", [20, 30] * 6, seed=21))
    stored = Counter.load(run, "cpu")
    assert stored.inference.interval == found and stored.inference.factor == scale and found.images == 12
    made = stored.predict(place / "new" / "0.png")
    assert made.interval == found.around(made.count)
    papm.calibrate(run, place / "new")  # the interval was of other counts
    assert Counter.load(run, "cpu").inference.interval is None
    take_away(run)
    assert Counter.load(run, "cpu").inference == Inference()
    papm.add_interval(run, place / "more")  # without a factor too
    assert Counter.load(run, "cpu").inference.interval is not None


@pytest.mark.parametrize(("select", "split", "words"), [("last", "train", "trained on"), ("val", "val", "chosen by")])
def test_images_that_the_model_has_seen_are_refused(place: Path, select: str, split: str, words: str) -> None:
    run = model(place / "again", str(place / "photos"), select)
    with pytest.raises(DataError, match=f"6 of 6 images, such as .*, are among those that the model was {words}"):
        papm.calibrate(run, place / "photos", split=split)
    shutil.copytree(place / "new", place / "mixed")  # the bytes tell, not the name
    shutil.copy(place / "photos" / split / "2.png", place / "mixed" / "7.png")
    with pytest.raises(DataError, match=f"1 of 8 images, such as 7.*, are among those that the model was {words}"):
        papm.calibrate(run, place / "mixed")


def test_test_images_are_refused_by_name_of_split_by_content_and_by_the_table_of_the_run(place: Path) -> None:
    with pytest.raises(ConfigError, match="has the splits train, val, test; name that of"):
        papm.calibrate(place / "run", place / "photos")
    with pytest.raises(ConfigError, match="the split 'test' is for the final figure"):
        papm.calibrate(place / "run", place / "photos", split="test")
    shutil.copytree(place / "photos" / "test", place / "copy")
    with pytest.raises(DataError, match="tested on"):
        papm.calibrate(place / "run", place / "copy")
    shutil.rmtree(place / "photos")
    name = papm.data.open("folder", place / "copy")["all"][3].name
    (place / "run" / "predictions.csv").write_text(f"image,predicted,truth\n{name},3.2,5\nother,1,1\n")
    with pytest.raises(DataError, match=r"1 of 6 images, .*tested on \(predictions\.csv"):
        papm.calibrate(place / "run", place / "copy")


def test_validation_images_that_chose_nothing_may_calibrate(place: Path, caplog: pytest.LogCaptureFixture) -> None:
    shutil.rmtree(place / "photos" / "val")
    shutil.copytree(place / "new", place / "photos" / "val")
    assert papm.calibrate(place / "run", place / "photos", split="val").images == 8 and not caplog.text
    chosen = model(place / "again", str(place / "photos"), "val")
    with pytest.raises(DataError, match="chosen by"):
        papm.calibrate(chosen, place / "photos", split="val")


def test_where_nobody_can_tell_what_was_seen_a_warning_says_so(place: Path, caplog: pytest.LogCaptureFixture) -> None:
    shutil.rmtree(place / "photos")
    papm.calibrate(place / "run", place / "new")
    assert "cannot be opened here: see to it" in caplog.text


def flat(folder: Path, counts: list[int], row: int) -> Path:
    """BMP files with so many dark objects in one row, white everywhere else."""
    folder.mkdir(parents=True)
    for k, n in enumerate(counts):
        image = Image.new("RGB", (400, 400), "white")
        for x in range(n):
            image.paste((k, k, k), (12 * x, row, 12 * x + 5, row + 5))
        image.save(folder / f"{row}-{k}.bmp")
        (folder / f"{row}-{k}.txt").write_text("".join(f"{12 * x + 2.5} {row + 2.5}\n" for x in range(n)))
    return folder


def test_new_images_of_the_same_flat_background_may_calibrate(place: Path, caplog: pytest.LogCaptureFixture) -> None:
    seen = flat(place / "seen", [3] * 6, 190)
    used_images.write(place / "run", used_images.used(Splits(papm.data.open_spec(str(seen))["all"], None, None)))
    files = flat(place / "fresh", [0] * 6, 200)
    counts = [round(2 * p.count) for p in Counter.load(place / "run", "cpu").predict(files)]
    shutil.rmtree(files)
    shutil.rmtree(place / "photos")
    assert papm.calibrate(place / "run", flat(files, [min(30, n) for n in counts], 200)).images == 6
    assert not caplog.text
    rows = "".join(f"200-{k},1.0,{min(30, n)}\n" for k, n in enumerate(counts))  # other images of these names
    (place / "run" / "predictions.csv").write_text(f"image,predicted,truth\n{rows}")
    assert papm.calibrate(place / "run", files).images == 6
    shutil.copy(seen / "190-2.bmp", files / "200-2.bmp")
    with pytest.raises(
        DataError, match=r"1 of 6 images, such as .*200-2.*, are among those that the model was trained on"
    ):
        papm.calibrate(place / "run", files)


def test_what_does_not_help_is_refused_with_figures_and_nothing_is_stored(place: Path) -> None:
    shutil.rmtree(place / "new")
    seen = round(Counter.load(place / "run", "cpu").predict(place / "photos" / "train" / "0.png").count)
    photos(place / "new", [max(0, seen + d) for d in (-9, 9, -5, 5, -7, 7, -1, 1)], seed=3)
    before = (place / "run" / "best.ckpt").read_bytes()
    with pytest.raises(PapmError, match=r"does not lower the error by more than chance: MAE \d"):
        papm.calibrate(place / "run", place / "new")
    assert (place / "run" / "best.ckpt").read_bytes() == before


def test_one_model_at_a_time(place: Path) -> None:
    counter = Counter.load(place / "run", "cpu")
    with pytest.raises(ConfigError, match="calibrate each by itself"):
        papm.calibrate(Ensemble([counter]), place / "new")
    with pytest.raises(ConfigError, match="out is for a model that is named by its path"):
        papm.calibrate(counter, place / "new", out=place / "a.ckpt")
