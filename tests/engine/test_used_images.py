"""A run goes on with the images that it was started with, wherever they lie now."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from PIL import Image

from papm import data
from papm.data.base import Dataset
from papm.data.splits import Splits
from papm.engine import used_images
from papm.engine.image_key import key
from papm.engine.used_images import Used, difference, require_same, used
from papm.errors import ConfigError
from papm.structures import Sample


def images(folder: Path, number: int, seed: int = 0, side: int = 24, flat: bool = False) -> Path:
    """Photos in train/ and test/, each with three dots: noise, or one dark object on a `flat` background."""
    draw = torch.Generator().manual_seed(seed)
    for split in ("train", "test"):
        (folder / split).mkdir(parents=True, exist_ok=True)
        for k in range(number):
            pixels = torch.randint(0, 256, (side, side, 3), dtype=torch.uint8, generator=draw)
            if flat:
                column = int(torch.randint(0, side - 9, (), generator=draw))
                pixels = torch.full((side, side, 3), 255, dtype=torch.uint8)
                pixels[side // 2 : side // 2 + 9, column : column + 9] = 0
            Image.fromarray(pixels.numpy()).save(folder / split / f"{k}.bmp")  # all of one length
            (folder / split / f"{k}.txt").write_text("3 4\n5 6\n7.5 8\n")
    return folder


def splits(folder: Path) -> Splits:
    opened = data.open_spec(str(folder))
    return Splits(opened["train"], opened["test"], opened["test"])


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run folder that was started with photos/."""
    (tmp_path / "run").mkdir()
    used_images.write(tmp_path / "run", used(splits(images(tmp_path / "photos", 3))))
    return tmp_path / "run"


def test_a_run_goes_on_with_its_images_also_in_another_folder(run: Path) -> None:
    photos = run.parent / "photos"
    require_same(run, splits(photos))
    require_same(run, splits(Path(os.path.relpath(photos))))
    shutil.move(photos, run.parent / "moved" / "there")
    require_same(run, splits(run.parent / "moved" / "there"))


def test_other_numbers_of_images_are_refused(run: Path) -> None:
    photos = images(run.parent / "photos", 4)
    with pytest.raises(ConfigError, match=r"run: was started with 3 training images, there are 4 now; resume with the"):
        require_same(run, splits(photos))
    shutil.rmtree(photos)
    opened = splits(images(photos, 3))
    with pytest.raises(ConfigError, match="was started with 3 test images, there are 0 now"):
        require_same(run, Splits(opened.train, None, None))


@pytest.mark.parametrize(("side", "flat"), [(24, False), (400, False), (400, True)])
def test_a_replaced_file_of_one_length_and_moved_dots_are_refused(tmp_path: Path, side: int, flat: bool) -> None:
    photos = images(tmp_path / "photos", 3, side=side, flat=flat)
    used_images.write(tmp_path, used(splits(photos)))
    other = images(tmp_path / "other", 3, seed=1, side=side, flat=flat)
    before = shutil.copy(photos / "test" / "1.bmp", tmp_path / "1.bmp")
    shutil.copy(other / "test" / "1.bmp", photos / "test" / "1.bmp")
    with pytest.raises(ConfigError, match="the file of the test image 1 is not the one that it was started with"):
        require_same(tmp_path, splits(photos))
    shutil.copy(before, photos / "test" / "1.bmp")
    require_same(tmp_path, splits(photos))
    (photos / "train" / "2.txt").write_text("3 4\n5 6\n7.5 8.5\n")
    with pytest.raises(ConfigError, match="the annotation of the training image 2 is not the one"):
        require_same(tmp_path, splits(photos))
    (photos / "train" / "2.txt").write_text("3 4\n5 6\n7.5 8\n")
    for ending in ("bmp", "txt"):
        (photos / "train" / f"2.{ending}").rename(photos / "train" / f"new.{ending}")
    with pytest.raises(ConfigError, match="was started without the training image new"):
        require_same(tmp_path, splits(photos))


def test_a_file_that_its_reader_decodes_in_its_own_way_is_told_too(tmp_path: Path) -> None:
    """BBBC039's white is that of a camera of 12 bits."""
    for folder in ("images", "masks"):
        (tmp_path / folder).mkdir()
    for number in range(4):
        name = f"IXMtest_A0{number}_s1_w1"
        Image.new("I;16", (30, 20), 160).save(tmp_path / "images" / f"{name}.tif")
        Image.new("L", (30, 20), 1).save(tmp_path / "masks" / f"{name}.png")
    opened = data.open_spec(f"bbbc039:{tmp_path}")
    made = Splits(opened["train"], None, opened["test"])
    used_images.write(tmp_path, used(made))
    require_same(tmp_path, made)
    Image.new("I;16", (30, 20), 161).save(tmp_path / "images" / "IXMtest_A01_s1_w1.tif")
    with pytest.raises(ConfigError, match="the file of the training image IXMtest_A01_s1_w1 is not the one"):
        require_same(tmp_path, made)


def test_what_is_told_of_rows() -> None:
    one, two, new = Used("train", "a", "1", "1"), Used("train", "b", "2", "2"), Used("train", "b", "3", "3")
    held = Used("spare", "c", "4", "4")
    assert difference([one, two], [one, two]) == ""
    assert difference([one, two], [two, one]) == "its training images are in another order now"
    assert difference([one, two], [one, new]) == "the training image b is not the one that it was started with"
    assert difference([one], [one, held]) == "was started with 0 unused validation images, there are 1 now"


def test_labels_and_drawn_scenes_have_marks_of_their_own() -> None:
    drawn = Sample("a", lambda: torch.zeros(3, 8, 8, dtype=torch.uint8), torch.ones(2, 2), (8, 8))
    labelled = dataclasses.replace(drawn, labels=torch.tensor([0, 1]))
    moved = dataclasses.replace(drawn, points=torch.zeros(2, 2))
    assert len({used_images.dots_mark(s) for s in (drawn, labelled, moved)}) == 3
    assert len({key(s) for s in (drawn, moved)}) == 2
    gone = dataclasses.replace(drawn, source=Path("not-here.png"))
    assert [row.key for row in used(Splits(Dataset([drawn, gone]), None, None))] == [key(drawn), ""]


def test_another_region_of_interest_is_refused(tmp_path: Path) -> None:
    photos = images(tmp_path / "photos", 2)

    def whole(right: int) -> dict[str, list[list[list[int]]]]:
        return {"*": [[[0, 0], [right, 0], [right, 24], [0, 24]]]}

    for regions in (whole(24), None):
        if regions is None:
            (photos / "roi.json").unlink()
            (photos / "roi").mkdir()
            Image.new("L", (24, 24), 255).save(photos / "roi" / "all.png")
        else:
            (photos / "roi.json").write_text(json.dumps(regions))
        used_images.write(tmp_path, used(splits(photos)))
        require_same(tmp_path, splits(photos))
        if regions is None:
            Image.new("L", (24, 24), 0).save(photos / "roi" / "all.png")
        else:
            (photos / "roi.json").write_text(json.dumps(whole(9)))
        with pytest.raises(ConfigError, match="the annotation of the training image 0 is not the one"):
            require_same(tmp_path, splits(photos))


def test_a_mask_that_cannot_be_read_is_told_in_a_sentence(tmp_path: Path) -> None:
    photos = images(tmp_path / "photos", 2)
    (photos / "roi").mkdir()
    mask, kept = photos / "roi" / "all.png", tmp_path / "all.png"
    Image.new("L", (24, 24), 255).save(kept)
    mask.symlink_to(kept)
    used_images.write(tmp_path, used(splits(photos)))
    kept.unlink()
    with pytest.raises(ConfigError, match="the annotation of the training image 0 is not the one"):
        require_same(tmp_path, splits(photos))


def test_a_region_of_ones_own_is_told_by_its_pixels() -> None:
    plain = Sample("a", lambda: torch.zeros(3, 8, 8), torch.ones(1, 2), (8, 8))
    regions = [torch.ones(8, 8, dtype=torch.bool), torch.eye(8, dtype=torch.bool)]
    samples = [plain, *(dataclasses.replace(plain, roi_source=lambda r=r: r) for r in regions)]
    assert len({used_images.dots_mark(s) for s in samples}) == 3


def test_names_of_all_kinds_are_read_as_they_were_written(tmp_path: Path) -> None:
    names = ["=1+1.png", 'a, "b"', "line\nbreak", "old\rbreak", "'quoted", "ü", "\udcff"]
    samples = [Sample(name, lambda: torch.zeros(3, 8, 8), torch.ones(1, 2), (8, 8)) for name in names]
    made = Splits(Dataset(samples), None, None)
    used_images.write(tmp_path, used(made))
    assert used_images.read(tmp_path) == used(made)
    require_same(tmp_path, made)


OLDER = b"split,image,file,dots\ntrain,0,00112233aabb,00112233\n"  # the file was told by parts of it


@pytest.mark.parametrize(
    "content", [None, b"", b"\xff\xfe\x00", b"a,b\n1,2\n", b"split,image,key,dots\ntrain,a\n", OLDER]
)
def test_a_run_of_an_older_papm_goes_on(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / used_images.NAME).write_bytes(content)
    assert used_images.read(tmp_path) == []
    require_same(tmp_path, splits(images(tmp_path / "photos", 1)))
