"""Damaged image files at the command line: refused by name, by every command that reads them, never counted."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from papm import checkpoint, models

Run = Callable[..., tuple[int, str, str]]
QUICK = ["--backbone", "tiny", "steps=2", "crop=32", "batch=1", "device=cpu", "select=last"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "tiny.ckpt"
    checkpoint.save(path, checkpoint.ModelSpec("tiny", method="hd-papm"), models.create("tiny").state_dict())
    return path


def scene(seed: int = 0) -> Image.Image:
    small = np.random.default_rng(seed).integers(0, 255, (12, 16, 3), dtype=np.uint8)
    return Image.fromarray(small).resize((64, 48), Image.Resampling.BICUBIC)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Four PNG images with points."""
    folder = tmp_path / "photos"
    folder.mkdir()
    for k in range(4):
        scene(k).save(folder / f"{k}.png")
        (folder / f"{k}.txt").write_text("10 12\n30.5 20\n")
    return folder


def flip(path: Path) -> None:
    """One bit inside the pixels."""
    data = bytearray(path.read_bytes())
    data[data.index(b"IDAT") + 40] ^= 4
    path.write_bytes(data)


def cut(path: Path) -> None:
    """All pixels are there, the last chunk is not."""
    path.write_bytes(path.read_bytes()[:-12])


@pytest.mark.parametrize("damage", [flip, cut])
@pytest.mark.parametrize("command", ["predict", "eval", "check", "train"])
def test_a_damaged_png_is_refused(
    photos: Path, model: Path, tmp_path: Path, run_papm: Run, command: str, damage: Callable[[Path], None]
) -> None:
    damage(photos / "2.png")
    out = tmp_path / "out"
    code, said, err = run_papm(
        *{
            "predict": ["predict", model, photos / "2.png", "--out", out],
            "eval": ["eval", model, photos, "--split", "all"],
            "check": ["data", "check", photos],
            "train": ["train", photos, *QUICK, "--out", out],
        }[command]
    )
    told = said if command == "check" else err
    assert code == 2 and "2.png: damaged or truncated image (" in told, said + err
    assert not out.exists()
    if command != "check":
        assert not said


def test_one_of_many_is_named_and_the_others_are_counted(
    photos: Path, model: Path, tmp_path: Path, run_papm: Run
) -> None:
    flip(photos / "2.png")
    code, said, err = run_papm("predict", model, photos, "--out", tmp_path / "out")
    assert code == 2 and "2.png: damaged or truncated image" in err and "2.png" not in said
    assert (tmp_path / "out" / "counts.csv").read_text().count("\n") == 4


@pytest.mark.parametrize("place", ["{}_dots.png", "dots/{}.png"])
@pytest.mark.parametrize("number", [1, 3], ids=["one", "all"])
def test_a_damaged_dot_map_has_no_count(tmp_path: Path, run_papm: Run, place: str, number: int) -> None:
    rng = np.random.default_rng(0)
    (tmp_path / "dots").mkdir()
    for k in range(3):
        scene(k).save(tmp_path / f"{k}.jpg")
        dots = np.zeros((48, 64), np.uint8)
        dots[rng.integers(0, 48, 30), rng.integers(0, 64, 30)] = 255
        Image.fromarray(dots).save(tmp_path / place.format(k))
        if k < number:
            flip(tmp_path / place.format(k))
    code, said, _ = run_papm("data", "check", tmp_path)
    assert code == 2 and f"{place.format(0)}: damaged or truncated image" in said and f"{number} error" in said
    code, _, err = run_papm("data", "info", tmp_path)
    assert code == 2 and f"{place.format(0)}: damaged or truncated image" in err


def test_a_damaged_mask_is_no_region(photos: Path, model: Path, tmp_path: Path, run_papm: Run) -> None:
    (photos / "roi").mkdir()
    region = np.zeros((48, 64), np.uint8)
    region[np.random.default_rng(1).random((48, 64)) < 0.5] = 255
    mask = photos / "roi" / "2.png"
    Image.fromarray(region).save(mask)
    flip(mask)
    for words in (
        ["predict", model, photos / "2.png", "--roi", mask, "--out", tmp_path / "out"],
        ["eval", model, photos, "--split", "all"],
        ["data", "check", photos],
    ):
        code, said, err = run_papm(*words)
        assert code == 2 and "roi/2.png: damaged or truncated image (" in said + err, said + err


def test_the_page_does_not_count_a_damaged_png(photos: Path, model: Path) -> None:
    pytest.importorskip("python_multipart")
    client = pytest.importorskip("starlette.testclient").TestClient
    from papm.predict.predictor import Counter
    from papm.serve.app import application
    from papm.serve.counting import Limits, describe

    counter, limits = Counter.load(model, "cpu"), Limits()
    flip(photos / "2.png")
    with client(application(counter, describe(counter, "tiny", limits), limits), "http://127.0.0.1:8000") as page:
        for name, status in (("1.png", 200), ("2.png", 400)):
            found = page.post("/api/count", files={"image": (name, (photos / name).read_bytes())})
            assert found.status_code == status and ("checksum" in found.text) == (name == "2.png"), found.text[:200]


KINDS = {
    "jpg": [{"quality": 85}, {"progressive": True}],
    "png": [{}],
    "bmp": [{}],
    "tif": [{}, {"compression": "tiff_lzw"}, {"compression": "tiff_deflate"}, {"compression": "packbits"}],
    "webp": [{}, {"lossless": True}],
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_truncated_file_of_any_kind_is_refused(tmp_path: Path, model: Path, run_papm: Run, kind: str) -> None:
    """The last byte is missing, or the last tenth, or half."""
    for k, options in enumerate(KINDS[kind]):
        buffer = io.BytesIO()
        scene().save(buffer, {"jpg": "JPEG", "tif": "TIFF"}.get(kind, kind.upper()), **options)
        whole = buffer.getvalue()
        for missing in (1, len(whole) // 10, len(whole) // 2):
            file = tmp_path / f"{k}.{kind}"
            file.write_bytes(whole[:-missing])
            code, said, err = run_papm("predict", model, file, "--out", tmp_path / "out")
            assert code == 2 and file.name in err and not said, (options, missing)
    assert not (tmp_path / "out").exists()


def test_data_info_decodes_no_image(photos: Path, run_papm: Run, decoded: list[str]) -> None:
    for k, suffix in enumerate(("jpg", "tif", "webp", "bmp")):
        scene(k).save(photos / f"more{k}.{suffix}")
        (photos / f"more{k}.txt").write_text("3 4\n")
    decoded.clear()
    code, said, _ = run_papm("data", "info", photos, "--json")
    assert code == 0 and '"images": 8' in said
    assert decoded == []


def test_data_commands_say_how_far_they_are(photos: Path, run_papm: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Off a terminal a line every ten seconds; here time flies."""
    from papm.cli import ui

    clock = iter(range(0, 10**6, 11))
    monkeypatch.setattr(ui, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    for command, word in (("info", "reading annotations"), ("stats", "reading annotations"), ("check", "checking")):
        code, _, err = run_papm("data", command, photos)
        assert code == 0 and f"{word}: 1/4" in err and f"{word}: 4/4" in err, err
