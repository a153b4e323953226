"""Images: every mode and format becomes RGB uint8, upright; damaged files become one clear sentence."""

from __future__ import annotations

import io
import struct
import threading
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from papm.errors import ConfigError, DataError
from papm.images import (
    IMAGE_SUFFIXES,
    UNREAD_SUFFIXES,
    decode_image,
    find_images,
    find_unread,
    image_size,
    is_image,
    max_pixels,
    natural_key,
    passed_over,
    read_image,
)

H, W = 5, 8


def rgb(h: int = H, w: int = W, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (h, w, 3), dtype=np.uint8)


def pixels(path: Path) -> np.ndarray:
    t = read_image(path)
    assert t.dtype == torch.uint8 and t.shape[0] == 3 and t.is_contiguous()
    assert image_size(path) == tuple(t.shape[1:])
    return t.permute(1, 2, 0).numpy()


@pytest.mark.parametrize("suffix", [".png", ".bmp", ".tif", ".tiff", ".webp", ".PNG"])
def test_lossless_formats_are_read_exactly(tmp_path: Path, suffix: str) -> None:
    a, path = rgb(), tmp_path / f"a{suffix}"
    Image.fromarray(a).save(path, **({"lossless": True} if suffix == ".webp" else {}))
    assert np.array_equal(pixels(path), a)


def test_jpeg_equals_pillow_and_is_close_to_the_original(tmp_path: Path) -> None:
    ramp = np.broadcast_to(np.linspace(0, 255, 32).astype(np.uint8)[None, :, None], (16, 32, 3)).copy()
    Image.fromarray(ramp).save(tmp_path / "a.jpg", quality=95)
    got = pixels(tmp_path / "a.jpg")
    assert np.array_equal(got, np.asarray(Image.open(tmp_path / "a.jpg")))
    assert np.abs(got.astype(int) - ramp).max() <= 8


def test_grey_one_bit_and_palette(tmp_path: Path) -> None:
    grey = rgb()[..., 0]
    Image.fromarray(grey).save(tmp_path / "l.png")
    assert np.array_equal(pixels(tmp_path / "l.png"), np.repeat(grey[..., None], 3, 2))
    Image.fromarray(grey > 127).save(tmp_path / "b.png")
    assert np.array_equal(pixels(tmp_path / "b.png")[..., 0], np.where(grey > 127, 255, 0))
    flat = np.zeros((4, 6, 3), np.uint8)
    flat[:, :3], flat[:, 3:] = (10, 200, 30), (250, 1, 2)
    Image.fromarray(flat).quantize(2).save(tmp_path / "p.png")
    assert Image.open(tmp_path / "p.png").mode == "P"
    assert np.array_equal(pixels(tmp_path / "p.png"), flat)


def test_alpha_is_composited_on_black(tmp_path: Path) -> None:
    a = np.dstack([rgb(), np.full((H, W), 255, np.uint8)])
    a[0, 0, 3], a[1, 1, 3] = 0, 128
    Image.fromarray(a).save(tmp_path / "a.png")
    got = pixels(tmp_path / "a.png")
    assert (got[0, 0] == 0).all()
    assert np.abs(got[1, 1].astype(float) - a[1, 1, :3] * (128 / 255)).max() <= 1
    opaque = a[..., 3] == 255
    assert np.array_equal(got[opaque], a[..., :3][opaque])
    palette = Image.fromarray(np.array([[0, 1]], np.uint8), "P")
    palette.putpalette([200, 0, 0, 0, 200, 0])
    palette.save(tmp_path / "t.png", transparency=0)
    assert pixels(tmp_path / "t.png").tolist() == [[[0, 0, 0], [0, 200, 0]]]
    Image.fromarray(np.array([[[90, 255], [90, 0]]], np.uint8), "LA").save(tmp_path / "la.png")
    assert pixels(tmp_path / "la.png")[0, :, 0].tolist() == [90, 0]


def test_cmyk(tmp_path: Path) -> None:
    Image.new("CMYK", (16, 16), (0, 255, 255, 0)).save(tmp_path / "c.jpg", quality=100)
    Image.new("CMYK", (16, 16), (0, 255, 255, 0)).save(tmp_path / "c.tif")
    for name in ("c.jpg", "c.tif"):
        assert np.abs(pixels(tmp_path / name)[8, 8].astype(int) - (255, 0, 0)).max() <= 3  # no cyan: red


@pytest.mark.parametrize("suffix", [".png", ".tif"])
def test_sixteen_bit_grey_is_scaled_not_clipped(tmp_path: Path, suffix: str) -> None:
    v = np.array([[0, 128, 257, 32768, 65278, 65535]], np.uint16)
    Image.fromarray(v).save(tmp_path / f"a{suffix}")
    assert pixels(tmp_path / f"a{suffix}")[0, :, 0].tolist() == np.rint(v[0] / 257.0).astype(int).tolist()
    assert pixels(tmp_path / f"a{suffix}").max() == 255


def test_float_tiff_ranges(tmp_path: Path) -> None:
    def read(values: list[float]) -> list[int]:
        Image.fromarray(np.array([values], np.float32)).save(tmp_path / "f.tif")
        return pixels(tmp_path / "f.tif")[0, :, 0].tolist()

    assert read([0.0, 0.5, 1.0]) == [0, 128, 255]
    assert read([0.0, 12.4, 255.0]) == [0, 12, 255]
    assert read([-100.0, 0.0, 300.0]) == [0, 64, 255]
    assert read([float("nan"), 0.0, 1.0]) == [0, 0, 255]
    assert read([float("nan"), float("inf")]) == [0, 0]
    assert read([7000.0, 7000.0]) == [0, 0]


def test_32_bit_integer_tiff(tmp_path: Path) -> None:
    Image.fromarray(np.array([[0, 100_000, 200_000]], np.int32)).save(tmp_path / "i.tif")
    assert pixels(tmp_path / "i.tif")[0, :, 0].tolist() == [0, 128, 255]
    Image.fromarray(np.array([[0, 7, 200]], np.int32)).save(tmp_path / "i.tif")
    assert pixels(tmp_path / "i.tif")[0, :, 0].tolist() == [0, 7, 200]


# What each EXIF orientation says about where the stored first row and first column are (EXIF 2.32, 4.6.4.A), as an
# operation on the stored array [H, W]; written apart from Pillow's own table.
UPRIGHT = {
    1: lambda a: a,
    2: lambda a: a[:, ::-1],
    3: lambda a: a[::-1, ::-1],
    4: lambda a: a[::-1],
    5: lambda a: a.swapaxes(0, 1),
    6: lambda a: np.rot90(a, -1),
    7: lambda a: a[::-1, ::-1].swapaxes(0, 1),
    8: lambda a: np.rot90(a, 1),
}


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("suffix", [".png", ".tif", ".webp"])
def test_exif_orientation(tmp_path: Path, orientation: int, suffix: str) -> None:
    a, path = rgb(), tmp_path / f"a{suffix}"
    exif = Image.Exif()
    exif[274] = orientation
    Image.fromarray(a).save(path, exif=exif, **({"lossless": True} if suffix == ".webp" else {}))
    assert np.array_equal(pixels(path), UPRIGHT[orientation](a))


def test_exif_orientation_of_jpeg_and_16_bit(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[274] = 6
    Image.fromarray(rgb(16, 32)).save(tmp_path / "a.jpg", exif=exif)
    assert image_size(tmp_path / "a.jpg") == (32, 16)
    assert np.array_equal(pixels(tmp_path / "a.jpg"), np.rot90(np.asarray(Image.open(tmp_path / "a.jpg")), -1))
    deep = np.arange(6, dtype=np.uint16).reshape(2, 3) * 10_000
    Image.fromarray(deep).save(tmp_path / "d.png", exif=exif)
    assert np.array_equal(pixels(tmp_path / "d.png")[..., 0], np.rot90(np.rint(deep / 257.0), -1))


def test_damaged_exif_is_ignored(tmp_path: Path) -> None:
    Image.fromarray(rgb()).save(tmp_path / "a.jpg", exif=b"Exif\x00\x00II*\x00\xff\xff\xff\x7f")
    assert read_image(tmp_path / "a.jpg").shape == (3, H, W)


@pytest.mark.parametrize("suffix", [".jpg", ".png", ".bmp", ".tif", ".webp"])
@pytest.mark.parametrize("part", [0.1, 0.5, 0.9])
def test_truncated_files_name_the_file(tmp_path: Path, suffix: str, part: float) -> None:
    buffer = io.BytesIO()
    Image.fromarray(rgb(64, 64)).save(
        buffer, {"jpg": "JPEG", "tif": "TIFF"}.get(suffix[1:], suffix[1:].upper()), quality=90
    )
    path = tmp_path / f"half{suffix}"
    path.write_bytes(buffer.getvalue()[: int(len(buffer.getvalue()) * part)])
    with pytest.raises(DataError, match=r"half\.\w+: "):
        read_image(path)


@given(
    noise=st.binary(max_size=200),
    magic=st.sampled_from(
        [b"", b"\xff\xd8\xff\xe0", b"\x89PNG\r\n\x1a\n", b"BM", b"II*\0", b"MM\0*", b"RIFF\x10\0\0\0WEBP"]
    ),
)
@settings(max_examples=60, deadline=None)
def test_any_bytes_give_pixels_or_a_data_error(noise: bytes, magic: bytes) -> None:
    try:
        decode_image(io.BytesIO(magic + noise), "noise")
    except DataError as e:
        assert str(e).startswith("noise: ") and "\n" not in str(e)


@given(
    position=st.integers(0, 400),
    value=st.integers(0, 255),
    kind=st.sampled_from(["PNG", "TIFF", "BMP", "JPEG", "WEBP"]),
)
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_flipped_byte_gives_pixels_or_a_data_error(position: int, value: int, kind: str) -> None:
    buffer = io.BytesIO()
    Image.fromarray(rgb(12, 9)).save(buffer, kind)
    data = bytearray(buffer.getvalue())
    data[position % len(data)] = value
    try:
        assert decode_image(io.BytesIO(bytes(data)), "x").shape[0] == 3
    except DataError as e:
        assert str(e).startswith("x: ")


def test_empty_missing_folder_and_text(tmp_path: Path) -> None:
    (tmp_path / "zero.jpg").touch()
    (tmp_path / "text.jpg").write_text("hello")
    (tmp_path / "dir.jpg").mkdir()
    for name, words in {
        "zero.jpg": "empty",
        "text.jpg": "not a readable image",
        "none.jpg": "no such image",
        "dir.jpg": "cannot open",
    }.items():
        for f in (read_image, image_size):
            with pytest.raises(DataError, match=words) as e:
                f(tmp_path / name)
            assert name in str(e.value)


def test_other_formats_of_pillow_stay_out_of_reach(tmp_path: Path) -> None:
    Image.fromarray(rgb()).save(tmp_path / "a.gif")
    (tmp_path / "a.gif").rename(tmp_path / "a.png")
    with pytest.raises(DataError, match="not a readable image"):
        read_image(tmp_path / "a.png")


def header_of(width: int, height: int) -> bytes:
    """A PNG that says its size and holds nothing."""
    chunks = (b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0), b"IDAT", b"IEND")
    packed = (struct.pack(">I", len(c) - 4) + c + struct.pack(">I", zlib.crc32(c)) for c in chunks)
    return b"\x89PNG\r\n\x1a\n" + b"".join(packed)


def test_pixel_limit_is_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder) -> None:
    Image.fromarray(rgb(20, 30)).save(tmp_path / "a.tif")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)  # Pillow's own would refuse 600 pixels
    assert read_image(tmp_path / "a.tif").shape == (3, 20, 30)
    assert Image.MAX_IMAGE_PIXELS == 10 and not recwarn.list
    monkeypatch.setenv("PAPM_MAX_PIXELS", "599")
    for f in (read_image, image_size):
        with pytest.raises(DataError, match=r"a\.tif: 30×20 .*PAPM_MAX_PIXELS"):
            f(tmp_path / "a.tif")
    assert Image.MAX_IMAGE_PIXELS == 10
    (tmp_path / "huge.png").write_bytes(header_of(200_000, 200_000))
    with pytest.raises(DataError, match=r"huge\.png: 200000×200000 is 40,000 megapixels"):
        image_size(tmp_path / "huge.png")
    monkeypatch.setenv("PAPM_MAX_PIXELS", "600")
    assert image_size(tmp_path / "a.tif") == (20, 30)
    for wrong in ("many", "-3", "0", "²"):
        monkeypatch.setenv("PAPM_MAX_PIXELS", wrong)
        with pytest.raises(ConfigError, match="PAPM_MAX_PIXELS"):
            max_pixels()


def test_pillows_limit_is_restored_after_threads(tmp_path: Path) -> None:
    Image.fromarray(rgb(64, 64)).save(tmp_path / "a.png")
    (tmp_path / "bad.png").write_bytes(b"x")
    before, failures = Image.MAX_IMAGE_PIXELS, []

    def work() -> None:
        for _ in range(20):
            read_image(tmp_path / "a.png")
            try:
                read_image(tmp_path / "bad.png")
            except DataError:
                continue
            failures.append("bad.png was read")

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert before == Image.MAX_IMAGE_PIXELS and not failures


def test_find_images_in_natural_order(tmp_path: Path) -> None:
    for name in ("IMG_10.jpg", "IMG_2.JPG", "IMG_1.tiff", "._IMG_1.jpg", "a.txt", "b.webp"):
        (tmp_path / name).touch()
    (tmp_path / "sub.png").mkdir()
    (tmp_path / "sub.png" / "x.bmp").touch()
    assert [p.name for p in find_images(tmp_path)] == ["b.webp", "IMG_1.tiff", "IMG_2.JPG", "IMG_10.jpg"]
    assert "x.bmp" in [p.name for p in find_images(tmp_path, recursive=True)]
    with pytest.raises(DataError, match="nowhere"):
        find_images(tmp_path / "nowhere")


def test_images_of_formats_that_are_not_read_are_found(tmp_path: Path) -> None:
    for name in ("b.HEIC", "a.gif", "c.jpg", "._d.heic", "e.txt"):
        (tmp_path / name).touch()
    assert [p.name for p in find_unread(tmp_path)] == ["a.gif", "b.HEIC"]
    assert [p.name for p in find_images(tmp_path)] == ["c.jpg"] and not IMAGE_SUFFIXES & UNREAD_SUFFIXES
    assert passed_over(find_unread(tmp_path)[:1]) == (
        "1 file was passed over, as its format is not read: .gif (1); save it as JPEG or PNG"
    )


def test_an_image_is_known_by_its_header(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Image.new("RGB", (4, 3)).save(tmp_path / "a.svs", format="TIFF")
    Image.new("RGB", (4, 3)).save(tmp_path / "b.gif")
    (tmp_path / "c.heic").write_bytes(b"\0\0\0\x18ftypheic")
    (tmp_path / "d.svs").touch()
    assert [is_image(tmp_path / n) for n in ("a.svs", "b.gif", "c.heic", "d.svs", "e.svs", ".")] == [True, *[False] * 5]
    monkeypatch.setenv("PAPM_MAX_PIXELS", "10")
    assert is_image(tmp_path / "a.svs")  # that it is too large is told where it is read


@pytest.mark.parametrize("name", ["a.dng", "a.tif"])
def test_the_preview_of_a_raw_photograph_is_not_the_photograph(tmp_path: Path, name: str) -> None:
    path, raw = tmp_path / name, {254: 1, 330: 8}  # the tags of a smaller copy, and of a picture deeper in the file
    for tags in ({254: 0, 330: 8}, {254: 1}, raw):
        Image.new("RGB", (16, 12)).save(path, format="TIFF", tiffinfo=tags)
        assert is_image(path) == (tags != raw)
        assert tags == raw or image_size(path) == (12, 16)
    for read in (read_image, image_size):
        with pytest.raises(
            DataError, match=rf"{name}: begins with a small preview, as a camera's raw file; save it as"
        ):
            read(path)


@pytest.mark.parametrize("suffix", sorted(IMAGE_SUFFIXES))
def test_every_suffix_is_of_a_format_that_is_read(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a{suffix}"
    Image.new("RGB", (4, 3)).save(path)  # Pillow chooses the format by the suffix
    assert read_image(path).shape == (3, 3, 4)


@given(st.lists(st.text("ab019._", max_size=8), max_size=6))
@settings(max_examples=50, deadline=None)
def test_natural_order_is_total_and_stable_under_shuffling(names: list[str]) -> None:
    backwards = names[::-1]
    assert sorted(names, key=natural_key) == sorted(backwards, key=natural_key)
