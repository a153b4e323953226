"""Many images in shards, without Ray: one row for each, the rows of the plain predictor, nothing twice after a stop."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

import papm
from papm import checkpoint, models
from papm.checkpoint import ModelSpec
from papm.errors import ConfigError, DataError, PapmError
from papm.inference import Calibration, CountInterval
from papm.likeness import Profile, Usual
from papm.predict.columns import Columns
from papm.predict.folder import ImageFiles
from papm.predict.prediction import Prediction
from papm.predict.predictor import Counter
from papm.predict.results import image_names
from papm.predict.scaleout import manifest as manifests
from papm.predict.scaleout import shard as shards
from papm.predict.scaleout.place import Place, file_system, list_images, read_pixels
from papm.predict.scaleout.run import Far, Summary, predict_many
from papm.predict.scaleout.shard import ShardCounter
from papm.predict.tiling import LIMITS, Limits

parquet = pytest.importorskip("pyarrow.parquet", reason="Parquet needs pyarrow")


def save(path: Path, seed: int = 0, **options: object) -> Path:
    torch.manual_seed(seed)
    network = models.create("tiny", **options)
    checkpoint.save(path, ModelSpec("tiny", options, "hd-papm"), network.state_dict())
    return path


def make_photos(folder: Path, number: int) -> Path:
    folder.mkdir()
    for k in range(number):
        pixels = torch.randint(0, 256, (24, 24 + 8 * (k % 3 == 2), 3), dtype=torch.uint8)
        Image.fromarray(pixels.numpy()).save(folder / f"{k:03d}.png")
    return folder


def rows(out: Path | str) -> list[dict[str, Any]]:
    """All rows, as whoever reads a folder of Parquet files sees them."""
    found: list[dict[str, Any]] = parquet.read_table(f"{out}/counts").to_pylist()
    return found


def count(model: Path, images: Any, out: Any, **options: Any) -> Summary:
    return predict_many(model, images, out, **{"engine": "local", "device": "cpu", "shard": 4, **options})


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Eleven images of two sizes, one of which is none."""
    folder = make_photos(tmp_path / "photos", 10)
    (folder / "0045.png").write_bytes(b"no image")
    return folder


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The shards that are counted."""
    numbers: list[int] = []
    usual = ShardCounter.__call__

    def noted(self: ShardCounter, number: int) -> dict[str, Any]:
        numbers.append(number)
        return usual(self, number)

    monkeypatch.setattr(ShardCounter, "__call__", noted)
    return numbers


@pytest.mark.parametrize("options", [{}, {"num_classes": 2}])
def test_rows_are_those_of_the_plain_predictor(tmp_path: Path, photos: Path, options: dict[str, Any]) -> None:
    model = save(tmp_path / "m.ckpt", **options)
    found = count(model, [photos, photos / "003.png"], tmp_path / "out", batch=3)  # an image that is named twice is one
    files = sorted(photos.iterdir())
    plain = ImageFiles(tmp_path / "plain", Counter.load(model, "cpu"), points=False, overlays=False)
    plain.count(dict(zip(files, image_names(files))), dict(zip(files, image_names(files))))
    columns = Columns.of(plain.predictions)
    expected = {p.name: dict(zip(columns.names, columns.row(p))) for p in plain.predictions}
    made = rows(tmp_path / "out")
    assert [r["image"] for r in made] == [f.name for f in files]
    for row in made:
        fault, warning, image = (row.pop(k) for k in ("fault", "warning", "image"))
        assert list(row) == columns.names and warning is None
        if image == "0045.png":
            assert fault == plain.faults[0] and set(row.values()) == {None}
        else:
            assert fault is None and row == pytest.approx(expected[image], abs=2e-4)
    assert (found.images, found.counted, found.failed, found.shards) == (11, 10, 1, 3)
    assert found.total == pytest.approx(sum(p.count for p in plain.predictions), rel=1e-5)
    told = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert told["images"] == 11 and told["faults"] == list(found.faults) == plain.faults


def test_columns_of_a_model_are_those_of_its_counts(tmp_path: Path) -> None:
    counter = Counter.load(save(tmp_path / "m.ckpt"), "cpu")
    assert counter.columns.names == ["count"]
    counter.change(calibration=Calibration(2.0, 1.9, 2.1, 9, 3.0, 1.0))
    assert counter.columns.names == ["count", "raw_count"]
    strange = Profile({"light": Usual((9.0, 9.0), (1.0, 0.0, 0.0, 1.0), 1e-3)})
    counter.change(calibration=None, interval=CountInterval(0.5, 12), profile=strange)
    assert counter.predict(torch.zeros(3, 64, 64, dtype=torch.uint8)).interval is None, "unlike the training images"
    assert counter.columns.names == ["count", "low", "high"]
    both = papm.Ensemble([counter, Counter.load(save(tmp_path / "n.ckpt", 1), "cpu")], ["a", "b"])
    assert both.columns.names == ["count", "by_a", "by_b"]


@pytest.mark.parametrize("lost", [[], [0], [1, 2], [0, 1, 2]])
def test_what_is_there_is_not_counted_again(tmp_path: Path, photos: Path, counted: list[int], lost: list[int]) -> None:
    model, out, far = save(tmp_path / "m.ckpt"), tmp_path / "out", []
    count(model, photos, out)
    whole = {p.name: p.read_bytes() for p in (out / "counts").iterdir()}
    for number in lost:
        (out / manifests.part_name(number)).unlink()
    counted.clear()
    found = count(model, photos, out, resume=True, on_shard=far.append)
    assert counted == lost and found.images == 11 and found.failed == 1
    assert {p.name: p.read_bytes() for p in (out / "counts").iterdir()} == whole
    assert isinstance(far[0], Far) and (far[0].shards, far[-1].shards, far[-1].images) == (3 - len(lost), 3, 11)


@pytest.mark.parametrize("damage", ["cut", "of another manifest", "empty"])
def test_a_part_that_is_not_whole_or_not_ours_is_counted_again(
    tmp_path: Path, photos: Path, counted: list[int], damage: str
) -> None:
    model, out = save(tmp_path / "m.ckpt"), tmp_path / "out"
    count(model, photos, out)
    part, other = out / manifests.part_name(1), tmp_path / "other"
    whole = part.read_bytes()
    count(save(tmp_path / "n.ckpt", 1), photos, other)
    strange = {"cut": whole[:-30], "empty": b"", "of another manifest": (other / manifests.part_name(1)).read_bytes()}
    part.write_bytes(strange[damage])
    counted.clear()
    count(model, photos, out, resume=True)
    assert counted == [1] and part.read_bytes() == whole


def test_a_kill_while_a_part_is_written_leaves_no_part(
    tmp_path: Path, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, out = save(tmp_path / "m.ckpt"), tmp_path / "out"

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("papm.files.os.fsync", killed)
        with pytest.raises(KeyboardInterrupt):
            Place(out).write("counts/part-00000.parquet", b"half")
    assert list((out / "counts").iterdir()) == []
    assert count(model, photos, out).images == 11


def test_another_model_option_or_list_is_refused(tmp_path: Path, photos: Path) -> None:
    model, other, out = save(tmp_path / "m.ckpt"), save(tmp_path / "n.ckpt", 1), tmp_path / "out"
    count(model, photos, out)
    before = {p: p.read_bytes() for p in out.rglob("*") if p.is_file()}
    for changed, said in (
        ((other, photos, {"resume": True}), "holds counts with another model; choose another --out"),
        ((model, photos, {"resume": True, "tile": "256"}), "with tile=auto, not 256;"),
        ((model, photos / "001.png", {"resume": True}), r"holds counts of other images \(11, not these 1\)"),
        ((model, photos, {}), "holds a prediction; --resume goes on with it"),
    ):
        with pytest.raises(ConfigError, match=said):
            count(changed[0], changed[1], out, **changed[2])
    assert {p: p.read_bytes() for p in out.rglob("*") if p.is_file()} == before
    (out / "counts" / "part-00007.parquet").write_bytes(b"")
    with pytest.raises(ConfigError, match=r"part-00007.parquet is none of its 3 parts"):
        count(model, photos, out, resume=True)
    (out / "manifest.parquet").write_bytes(b"PAR1")
    with pytest.raises(ConfigError, match=r"its manifest.parquet is damaged"):
        count(model, photos, out, resume=True)
    (out / "manifest.parquet").unlink()
    with pytest.raises(ConfigError, match=r"holds parts and no manifest.parquet"):
        count(model, photos, out)


@pytest.mark.parametrize(
    ("images", "options", "said"),
    [
        ("nothing/*.jpg", {}, "there are no images here"),
        ("gate.mp4", {}, "a video"),
        ("nowhere://x", {}, "cannot be opened"),
        ("photos", {"shard": 0}, "a shard is a number of images"),
        ("photos", {"batch": 0}, "batch and workers are 1 or more"),
        ("photos", {"engine": "spark"}, "unknown engine 'spark'"),
    ],
)
def test_what_is_asked_wrongly_is_told(
    tmp_path: Path, photos: Path, images: str, options: dict[str, Any], said: str
) -> None:
    asked = images if "://" in images else tmp_path / images
    with pytest.raises(PapmError, match=said):
        count(save(tmp_path / "m.ckpt"), asked, tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_an_image_that_the_model_cannot_count_is_a_row(
    tmp_path: Path, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever goes wrong with it, and whatever goes through the network with it."""
    usual = Counter._predict_several

    def stumbles(self: Counter, images: Any) -> list[Prediction]:
        if any(asked.name == "004.png" for _, asked in images):
            raise RuntimeError("shapes\n[2] and [3]")
        return usual(self, images)

    monkeypatch.setattr(Counter, "_predict_several", stumbles)
    found = count(save(tmp_path / "m.ckpt"), photos, tmp_path / "out", batch=4)
    faults = {r["image"]: (r["count"], r["fault"]) for r in rows(tmp_path / "out") if r["fault"]}
    assert found.failed == 2 and set(faults) == {"004.png", "0045.png"}
    assert faults["004.png"] == (None, "RuntimeError: shapes")

    def broken(self: Counter, images: Any) -> list[Prediction]:
        raise RuntimeError("the device is gone")

    monkeypatch.setattr(Counter, "_predict_several", broken)  # not the images are at fault: nothing is written
    with pytest.raises(RuntimeError, match="the device is gone"):
        count(save(tmp_path / "m.ckpt"), sorted(photos.glob("00?.png")), tmp_path / "none")
    assert not (tmp_path / "none" / "counts").exists()


@pytest.fixture
def far_away(photos: Path) -> Iterator[str]:
    """The images in a store that is no disk."""
    from fsspec.implementations.memory import MemoryFileSystem

    store = MemoryFileSystem()
    for file in photos.iterdir():
        store.pipe_file(f"/bucket/photos/{file.name}", file.read_bytes())
    yield "memory://bucket"
    store.rm("/bucket", recursive=True)


def test_images_and_results_in_an_object_store(tmp_path: Path, photos: Path, far_away: str, counted: list[int]) -> None:
    model, out = save(tmp_path / "m.ckpt"), f"{far_away}/out"
    assert len(list_images([f"{far_away}/photos", f"{far_away}/photos/*.png"])) == 11
    assert torch.equal(read_pixels(f"{far_away}/photos/003.png"), read_pixels(str(photos / "003.png")))
    with pytest.raises(DataError, match="no such image file"):
        read_pixels(f"{far_away}/photos/none.png")
    found = count(model, f"{far_away}/photos/*.png", out)
    count(model, photos, tmp_path / "near")
    place = Place(out)
    assert place.names() == ["counts", "manifest.parquet", "summary.json"] and found.failed == 1
    near = rows(tmp_path / "near")
    for number in range(3):
        table = parquet.read_table(place.path(manifests.part_name(number)), filesystem=place.fs)
        expected = near[4 * number : 4 * number + 4]
        assert [r["count"] for r in table.to_pylist()] == [r["count"] for r in expected]
    place.fs.rm(place.path(manifests.part_name(2)))
    counted.clear()
    assert count(model, f"{far_away}/photos", out, resume=True).images == 11 and counted == [2]


def test_addresses_of_files_are_paths(tmp_path: Path, photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    paths = [str(p) for p in sorted(photos.iterdir())]
    for pattern in ("photos", "photos/", "photos/*.png", "**/*.png", f"file://{photos}", str(photos)):
        assert list_images([pattern]) == paths, pattern
    (photos / "[1].png").write_bytes(paths[0].encode())
    assert list_images(["photos/[1].png"]) == [str(photos / "[1].png")]
    assert Place("out").address == str(tmp_path / "out") == Place(f"file://{tmp_path}/out").address


def test_a_shard_follows_from_the_list_alone() -> None:
    made = manifests.plan({}, [f"{k}" for k in range(10)], Columns(), 4)
    assert (made.shards, [made.of_shard(k) for k in range(3)]) == (3, [4, 4, 2])
    again = manifests.plan({}, [f"{k}" for k in range(10)], Columns(), 4)
    assert again.key == made.key != manifests.plan({"tile": 1}, [f"{k}" for k in range(10)], Columns(), 4).key
    with pytest.raises(DataError, match="not UTF-8"):
        manifests.plan({}, ["a\udcff.png"], Columns())


def test_a_batch_has_no_more_pixels_than_an_image_that_is_taken_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The images of a shard may be far larger than its first one, which says how many are read at a time."""
    counter = Counter.load(save(tmp_path / "m.ckpt"), "cpu")
    images = list(torch.randint(0, 256, (8, 3, 40, 40), dtype=torch.uint8))
    apart, passes, usual = [counter.predict(image) for image in images], [], counter.network.forward

    def noted(batch: torch.Tensor) -> Any:
        passes.append(len(batch))
        return usual(batch)

    monkeypatch.setattr(counter.network, "forward", noted)
    monkeypatch.setitem(LIMITS, "cpu", Limits(3 * 40 * 40, 1024))
    found = counter.predict(images, batch=8)
    assert passes == [3, 3, 2]
    assert [p.count for p in found] == pytest.approx([p.count for p in apart], rel=1e-5)


def test_maps_are_not_kept(tmp_path: Path, photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shard may be thousands of images."""
    kept: list[Prediction] = []
    usual = shards.part_table

    def noted(names: Any, made: Any, *rest: Any) -> bytes:
        kept.extend(m for m in made if isinstance(m, Prediction))
        return usual(names, made, *rest)

    monkeypatch.setattr(shards, "part_table", noted)
    count(save(tmp_path / "m.ckpt", num_classes=2), photos, tmp_path / "out")
    assert len(kept) == 10 and all(p.density is None and len(p.class_counts) == 2 for p in kept)


@pytest.mark.parametrize("shard", [0, -4, "4"])
def test_a_damaged_manifest_is_refused(tmp_path: Path, photos: Path, shard: object) -> None:
    model, out = save(tmp_path / "m.ckpt"), tmp_path / "out"
    count(model, photos, out)
    table = parquet.read_table(out / "manifest.parquet")
    about = {**json.loads(table.schema.metadata[manifests.ABOUT]), "shard": shard}
    parquet.write_table(table.replace_schema_metadata({manifests.ABOUT: json.dumps(about)}), out / "manifest.parquet")
    with pytest.raises(ConfigError, match="is damaged or of another version"):
        count(model, photos, out, resume=True)
    with pytest.raises(ConfigError, match="a shard is a number of images, 1 or more, not 0"):
        count(model, photos, tmp_path / "new", shard=0)


@pytest.mark.parametrize("address", ["ftp://me:secret@host/photos/*.jpg", "s3://key:secret@bucket/photos"])
def test_a_password_in_an_address_is_refused_and_not_repeated(address: str) -> None:
    with pytest.raises(ConfigError, match="password") as caught:
        file_system(address)
    assert "secret" not in str(caught.value)
    assert file_system("memory://photos/me@home:1.jpg")[1] == "/photos/me@home:1.jpg"
