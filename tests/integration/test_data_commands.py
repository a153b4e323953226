"""`papm data …` end to end: what is printed, what is written, and the exit codes users' scripts rely on."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import scipy.io
import torch
from PIL import Image

from papm import data
from papm.data import convert

SCENES = "synthetic:look=cells,train=6,test=3,size=64x80,count=4-9"


class Ran(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def sentence(self) -> str:
        """The one line a failed command says; fails when it says more, or shows how it is built."""
        lines = [line for line in self.err.splitlines() if line.strip()]
        assert self.out == "" and len(lines) == 1 and lines[0].startswith("papm: "), self
        return lines[0]


Papm = Callable[..., Ran]


@pytest.fixture
def papm(run_papm: Callable[..., tuple[int, str, str]]) -> Papm:
    return lambda *words: Ran(*run_papm("data", *words))


def picture(path: Path, mode: str = "RGB", size: tuple[int, int] = (40, 30), **how: Any) -> Path:
    """An image file of (width, height)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(len(path.name))
    if mode == "I;16":
        made = Image.fromarray(rng.integers(0, 65535, (size[1], size[0]), dtype=np.uint16))
    else:
        made = Image.fromarray(rng.integers(0, 255, (size[1], size[0], 3), dtype=np.uint8)).convert(mode)
    made.save(path, **how)
    return path


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Ten images with two points each, b_3 with none."""
    folder = tmp_path / "photos"
    for k in range(10):
        # Sizes differ, so that no two files are the same.
        picture(folder / f"b_{k}.png", size=(40 + k, 30))
        (folder / f"b_{k}.txt").write_text("" if k == 3 else f"# x y\n{k + 1}.25 4\n20 {k + 2}\n")
    (folder / "b_3.txt").write_text("# nothing here\n")
    return folder


def files(folder: Path) -> list[str]:
    return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*"))


# --- looking -----------------------------------------------------------------------------------------------------------


def test_list_names_every_registered_format(papm: Papm) -> None:
    listed = papm("list", "--json")
    assert listed.code == 0
    assert {r["name"] for r in listed.json} == set(data.base.readers()) >= {"folder", "synthetic", "shanghaitech-a"}
    text = papm("list").out
    for r in data.base.readers().values():
        assert r.name in text and r.summary in text and r.layout in text  # brackets of a layout are no markup


def test_info_counts(papm: Papm, photos: Path) -> None:
    (photos / "b_0.txt").write_text("5 5\n5 5\n8 9\n")
    ran = papm("info", photos, "--json")
    assert ran.code == 0
    facts = ran.json["all"]
    assert (
        facts["images"] == 10 and facts["points"] == 3 + 8 * 2 and facts["count_min"] == 0 and facts["count_max"] == 3
    )
    assert (
        facts["count_mean"] == 1.9 and facts["count_median"] == 2 and facts["duplicates"] == 1 and facts["outside"] == 0
    )
    assert facts["size_min"] == [30, 40] and facts["size_max"] == [30, 49]
    table = papm("info", photos)
    assert table.code == 0 and "30×49" in table.out and "nearest neighbour" in table.out


def test_info_of_scenes_by_split(papm: Papm) -> None:
    facts = papm("info", SCENES, "--json").json
    opened = data.open_spec(SCENES)
    assert {s: (f["images"], f["points"]) for s, f in facts.items()} == {
        s: (len(d), sum(x.count for x in d)) for s, d in opened.items()
    }


def test_options_reach_the_reader(papm: Papm, photos: Path) -> None:
    assert papm("info", "synthetic", "train=2", "test=0", "--json").json["train"]["images"] == 2
    shifted = data.open("folder", photos, origin=0.5)["all"][0].points
    out = photos.parent / "moved"
    assert papm("convert", photos, "--out", out, "origin=0.5").code == 0
    assert torch.equal(data.open_spec(str(out))["all"][0].points, shifted)
    wrong = papm("info", photos, "orign=1")
    assert wrong.code == 2 and "origin" in wrong.sentence
    text = papm("check", photos, "origin=left")
    assert text.code == 2 and "origin of dataset 'folder' is a number" in text.sentence


def test_stats_bins_hold_every_value(papm: Papm, photos: Path) -> None:
    bars = papm("stats", SCENES, "--json").json
    opened = data.open_spec(SCENES)
    for split, parts in bars.items():
        counts, distances = parts.values()
        assert sum(b["n"] for b in counts) == len(opened[split])
        assert sum(b["n"] for b in distances) == sum(s.count for s in opened[split])  # each scene has two or more
        values = [s.count for s in opened[split]]
        for b in counts[:-1]:
            assert b["n"] == sum(b["from"] <= v < b["to"] for v in values)
        assert counts[0]["from"] <= min(values) and max(values) <= counts[-1]["to"]
    drawn = papm("stats", photos)
    assert drawn.code == 0 and "█" in drawn.out
    assert papm("stats", SCENES, "--split", "tset").sentence.startswith(
        "papm: unknown split 'tset'; did you mean 'test'"
    )


@pytest.mark.parametrize("values", [[0], [7, 7, 7], [0, 1], [0.001, 0.002], [1, 1e6], list(range(1000))])
def test_bins_of_awkward_values(values: list[float]) -> None:
    from papm.data.summary import bins as _bins

    bins = _bins(values)
    assert sum(int(b["n"]) for b in bins) == len(values) and len(bins) <= 12
    assert bins[0]["from"] <= min(values) and max(values) <= bins[-1]["to"]
    assert all(a["to"] == b["from"] for a, b in itertools.pairwise(bins))


# --- checking: the exit code is 2 for errors, 0 with warnings, 2 for warnings with --strict ----------------------------


def test_check_of_good_data(papm: Papm, photos: Path) -> None:
    ran = papm("check", photos)
    assert ran.code == 0 and "Checked 10 images as 'folder' (txt): 0 errors, 0 warnings, 1 note" in ran.out
    assert f"papm train {photos}" in ran.out
    assert "papm train" in (given := papm("check", photos, "origin=0.25").out) and " data.origin=0.25" in given
    told = papm("check", photos, "--json").json
    assert (told["format"], told["file_format"]) == ("folder", "txt")
    assert papm("info", photos, "--json").json["all"]["file_format"] == "txt"
    [line] = [line for line in papm("info", photos).out.splitlines() if "read as" in line]
    assert "txt" in line and "read as" not in papm("info", SCENES).out
    assert "file_format" not in papm("check", SCENES, "--json").json
    assert papm("check", photos, "--strict").code == 0  # a note is no warning
    assert papm("check", SCENES).code == 0
    assert papm("check", "synthetic:look=clouds").code == 2


def test_warnings_pass_unless_strict(papm: Papm, photos: Path) -> None:
    (photos / "b_0.txt").write_text("5 5\n5 5\n")
    ran = papm("check", photos)
    assert ran.code == 0 and "warning: " in ran.out and "0 errors, 1 warning" in ran.out
    strict = papm("check", photos, "--strict", "--json")
    assert strict.code == 2 and strict.json["ok"] is False and strict.json["found"]["warning"] == 1


def test_what_is_passed_over_is_said_once(papm: Papm, photos: Path) -> None:
    (photos / "c.HEIC").touch()
    ran = papm("check", photos)
    assert ran.code == 0 and ran.out.count("1 file was passed over") == 1 and "passed over" not in ran.err


def test_splits_without_annotations_are_told_by_a_check_too(papm: Papm, tmp_path: Path) -> None:
    for split in ("train", "val", "test"):
        picture(tmp_path / f"images/{split}/{split}.jpg", size=(40 + len(split), 30))
    for split in ("train", "val"):
        (tmp_path / f"images/{split}/dots_{split}.csv").write_text(f"image,x,y\n{split}.jpg,3,4\n")
    ran = papm("check", tmp_path, "annotations=dots_*")
    assert ran.code == 0 and "test: no annotation file 'dots_*' for these images: left out" in ran.err


def test_unusual_images_are_fine(papm: Papm, tmp_path: Path) -> None:
    folder = tmp_path / "odd"
    rotated = Image.Exif()
    rotated[274] = 6
    picture(folder / "grey.png", "L")
    picture(folder / "cmyk.jpg", "CMYK")
    picture(folder / "deep.png", "I;16")
    picture(folder / "turned.jpg", size=(60, 20), exif=rotated)
    for name in ("grey", "cmyk", "deep"):
        (folder / f"{name}.txt").write_text("5 5\n")
    (folder / "turned.txt").write_text("10 50\n")  # inside only when upright: 20 wide, 60 high
    ran = papm("check", folder, "--strict", "--json")
    assert ran.code == 0 and ran.json["images"] == 4, ran.json
    assert {s.name: s.size for s in data.open_spec(str(folder))["all"]}["turned"] == (60, 20)


def test_truncated_jpeg(papm: Papm, photos: Path) -> None:
    path = picture(photos / "cut.jpg", size=(200, 200), quality=95)
    path.write_bytes(path.read_bytes()[:2000])
    path.with_suffix(".txt").write_text("4 4\n")
    ran = papm("check", photos)
    assert ran.code == 2 and f"error: {path}: " in ran.out and "1 error" in ran.out
    path.write_bytes(b"")
    assert str(path) in papm("info", photos).sentence


@pytest.mark.parametrize("bad", ["nan 4", "4 inf", "four 4", "4"])
@pytest.mark.parametrize("every", [True, False], ids=["every file", "one file"])
def test_bad_coordinates_name_file_and_line(papm: Papm, photos: Path, bad: str, every: bool) -> None:
    for path in photos.glob("*.txt") if every else [photos / "b_7.txt"]:
        path.write_text(f"# x y\n3 3\n{bad}\n" if not every else f"# x y\n{bad}\n")
    line = 2 if every else 3
    ran = papm("check", photos)
    assert ran.code == 2 and f"error: {photos / 'b_7.txt'}:{line}: " in ran.out
    told = papm("info", photos)
    assert told.code == 2 and f"{photos / ('b_0' if every else 'b_7')}.txt:{line}: " in told.sentence


def test_empty_annotations(papm: Papm, photos: Path) -> None:
    (photos / "b_1.txt").write_text("")
    ran = papm("check", photos)
    assert ran.code == 0 and f"warning: {photos / 'b_1.txt'}: the file is empty" in ran.out
    for path in photos.glob("*.txt"):
        path.write_text("")
    nothing = papm("check", photos)
    assert nothing.code == 2 and "no points at all" in nothing.out
    (photos / "b_1.txt").unlink()
    assert "b_1.txt" in papm("check", photos).out and papm("info", photos).code == 2


def test_points_outside_are_errors_in_folder_data(papm: Papm, photos: Path) -> None:
    (photos / "b_2.txt").write_text("# x y\n5 5\n400 5\n")
    ran = papm("check", photos, "--json")
    assert ran.code == 2
    assert [(f["severity"], f["file"], f["line"]) for f in ran.json["findings"] if f["severity"] == "error"] == [
        ("error", str(photos / "b_2.txt"), 3)
    ]


def shanghaitech(root: Path, content: dict[str, Any]) -> Path:
    base = root / "part_A_final" / "train_data"
    picture(base / "images" / "IMG_1.jpg")
    (base / "ground_truth").mkdir()
    path = base / "ground_truth" / "GT_IMG_1.mat"
    scipy.io.savemat(str(path), content)
    return path


def test_mat_without_the_expected_field(papm: Papm, tmp_path: Path) -> None:
    path = shanghaitech(tmp_path, {"positions": np.ones((2, 2))})
    told = papm("info", f"shanghaitech-a:{tmp_path}")
    assert told.code == 2 and str(path) in told.sentence and "image_info" in told.sentence
    ran = papm("check", f"shanghaitech-a:{tmp_path}")
    assert ran.code == 2 and f"error: {path}: " in ran.out


def test_outside_points_of_published_data_are_warnings(papm: Papm, tmp_path: Path) -> None:
    info = np.empty((1, 1), dtype=object)
    info[0, 0] = {"location": np.array([[5.0, 5.0], [99.0, 5.0]]), "number": 2}
    shanghaitech(tmp_path, {"image_info": info})
    spec = f"shanghaitech-a:{tmp_path}"
    assert papm("check", spec).code == 0 and papm("check", spec, "--strict").code == 2
    kept = papm("convert", spec, "--out", tmp_path / "kept", "--json")
    assert kept.json["splits"]["train"] == {"images": 1, "points": 2, "outside": 1} and "--inside-only" in kept.err
    assert papm("convert", spec, "--out", tmp_path / "inside", "--inside-only").code == 0
    again = papm("check", tmp_path / "kept")
    assert again.code == 2 and "--inside-only" in again.out and papm("check", tmp_path / "inside").code == 0


@pytest.mark.parametrize("command", ["check", "info"])
def test_nothing_to_read(papm: Papm, tmp_path: Path, command: str) -> None:
    (tmp_path / "empty").mkdir()
    picture(tmp_path / "bare" / "a.png")
    for spec in (tmp_path / "empty", tmp_path / "missing", f"shanghaitec-a:{tmp_path}", "shanghaitech", "folder"):
        ran = papm(command, spec)
        assert ran.code == 2, spec
    assert "did you mean 'shanghaitech-a'" in papm(command, f"shanghaitec-a:{tmp_path}").sentence
    assert "did you mean 'shanghaitech-" in papm(command, "shanghaitech").sentence
    assert "no such file or folder" in papm(command, tmp_path / "missing").sentence
    bare = papm(command, tmp_path / "bare")
    assert bare.code == 2 and "points" in bare.out + bare.err


def test_findings_are_limited(papm: Papm, photos: Path) -> None:
    (photos / "b_0.txt").write_text("".join(f"x{k} 1\n" for k in range(80)))
    short, long = papm("check", photos).out.splitlines(), papm("check", photos, "--all").out.splitlines()
    assert short[:50] == long[:50] and short[50].startswith("… and 30 more") and len(short) == 53
    assert short[51] == long[80]  # 80 errors do not hide the note
    assert len(long) == 82 and long[-1] == short[-1] and "80 errors" in long[-1]
    assert [line.partition(":")[0] for line in long[:-1]] == ["error"] * 80 + ["note"]
    assert len(papm("check", photos, "--json").json["findings"]) == 81


# --- writing -----------------------------------------------------------------------------------------------------------


def test_convert_gives_every_point_back(papm: Papm, tmp_path: Path) -> None:
    out = tmp_path / "new" / "scenes"
    ran = papm("convert", SCENES, "--out", out)
    assert ran.code == 0 and "boxes" in ran.err and f"papm data check {out}" in ran.out
    before, after = data.open_spec(SCENES), data.open_spec(str(out))
    assert list(after) == ["train", "test"]
    for split in before:
        for a, b in zip(before[split], after[split], strict=True):
            assert a.name == b.name and torch.equal(a.points, b.points) and torch.equal(a.image, b.image)
    assert [p.name for p in out.parent.iterdir()] == ["scenes"]  # no draft is left
    assert papm("check", out, "--strict").code == 0


def test_convert_keeps_class_names(papm: Papm, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    for split in ("train", "test"):
        picture(folder / split / f"{split}.png")
        (folder / split / f"{split}.csv").write_text(f"image,x,y,label\n{split}.png,3,4,cat\n{split}.png,8,9,dog\n")
    assert papm("convert", folder, "--out", tmp_path / "out").code == 0
    for before, after in zip(data.open_spec(str(folder)).values(), data.open_spec(str(tmp_path / "out")).values()):
        assert before[0].labels is not None and after[0].labels is not None
        assert torch.equal(before[0].labels, after[0].labels)
        assert tuple(after[0].meta["classes"]) == tuple(before[0].meta["classes"]) == ("cat", "dog")


def test_link(papm: Papm, photos: Path, tmp_path: Path) -> None:
    assert papm("convert", photos, "--out", tmp_path / "out", "--link").code == 0
    made = tmp_path / "out" / "images" / "b_0.png"
    assert made.is_symlink() and made.resolve() == (photos / "b_0.png").resolve()
    assert len(data.open_spec(str(tmp_path / "out"))["all"]) == 10


@pytest.mark.parametrize("command", ["convert", "split", "displace"])
def test_used_folder_is_refused_and_untouched(papm: Papm, photos: Path, tmp_path: Path, command: str) -> None:
    used = tmp_path / "used"
    used.mkdir()
    (used / "mine.txt").write_text("mine")
    ran = papm(command, photos, "--out", used)
    assert ran.code == 2 and str(used) in ran.sentence and files(used) == ["mine.txt"]
    assert str(used / "mine.txt") in papm(command, photos, "--out", used / "mine.txt").sentence
    (tmp_path / "empty").mkdir()
    assert papm(command, photos, "--out", tmp_path / "empty").code == 0


@pytest.mark.parametrize("command", ["convert", "split", "displace"])
def test_nothing_is_left_of_a_failure(papm: Papm, photos: Path, command: str) -> None:
    (photos / "b_5.txt").write_text("5 five\n")
    out = photos.parent / "out"
    assert "b_5.txt:1: " in papm(command, photos, "--out", out).sentence
    assert files(photos.parent)[:1] == ["photos"] and not out.exists()


def test_interrupted_write_leaves_nothing(papm: Papm, photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = convert._write_image
    seen = []

    def write_image(sample: Any, path: Path, link: bool) -> None:
        seen.append(sample)
        if len(seen) == 4:
            raise KeyboardInterrupt
        whole(sample, path, link)

    monkeypatch.setattr(convert, "_write_image", write_image)
    out = photos.parent / "out"
    assert papm("convert", photos, "--out", out).code not in (0, 2)
    assert len(seen) == 4 and [p.name for p in photos.parent.iterdir()] == ["photos"]
    full = OSError(28, "No space left on device")
    monkeypatch.setattr(convert, "_write_image", lambda *_: (_ for _ in ()).throw(full))
    ran = papm("convert", photos, "--out", out)
    assert ran.code == 2 and "No space left" in ran.sentence and [p.name for p in photos.parent.iterdir()] == ["photos"]


def test_split_is_a_seeded_partition(papm: Papm, photos: Path, tmp_path: Path) -> None:
    ran = papm("split", photos, "--out", tmp_path / "a", "--val", 0.1, "--test", 0.2, "--seed", 3, "--json")
    assert ran.code == 0
    assert {s: n["images"] for s, n in ran.json["splits"].items()} == {"train": 7, "val": 1, "test": 2}
    names = {s: [x.name for x in d] for s, d in data.open_spec(str(tmp_path / "a")).items()}
    assert sorted(itertools.chain(*names.values())) == [f"b_{k}" for k in range(10)]
    papm("split", photos, "--out", tmp_path / "b", "--seed", 3)
    papm("split", photos, "--out", tmp_path / "c", "--seed", 4)
    assert files(tmp_path / "a") == files(tmp_path / "b") != files(tmp_path / "c")
    assert papm("split", photos, "--out", tmp_path / "d", "--val", 0, "--test", 0.5).code == 0
    assert list(data.open_spec(str(tmp_path / "d"))) == ["train", "test"]


@pytest.mark.parametrize("shares", [("0.5", "0.5"), ("-0.1", "0.2"), ("nan", "0.2"), ("0.1", "1")])
def test_impossible_shares(papm: Papm, photos: Path, tmp_path: Path, shares: tuple[str, str]) -> None:
    ran = papm("split", photos, "--out", tmp_path / "x", "--val", shares[0], "--test", shares[1])
    assert ran.code == 2 and "--val" in ran.sentence and not (tmp_path / "x").exists()


def test_split_puts_existing_splits_together(papm: Papm, tmp_path: Path) -> None:
    for split, widths in (("train", (40, 41, 42)), ("test", (43, 44, 45))):
        for k, w in enumerate(widths):
            picture(tmp_path / "in" / split / f"a{k}.png", size=(w, 30))
            (tmp_path / "in" / split / f"a{k}.txt").write_text("4 4\n")
    ran = papm("split", tmp_path / "in", "--out", tmp_path / "out", "--val", 0, "--test", 0.5)
    assert ran.code == 0 and "train, test are merged" in ran.err
    made = data.open_spec(str(tmp_path / "out"))
    assert sorted(s.size[1] for d in made.values() for s in d) == list(range(40, 46))  # the same name twice loses none


def test_displace_moves_by_the_noise(papm: Papm, tmp_path: Path) -> None:
    ran = papm("displace", SCENES, "--out", tmp_path / "ring", "--noise", 6, "--split", "train", "--seed", 5, "--json")
    assert ran.code == 0 and ran.json["displaced"] == ["train"] and ran.json["noise"] == 6
    assert json.loads((tmp_path / "ring" / "displaced.json").read_text())["seed"] == 5
    before, after = data.open_spec(SCENES), data.open_spec(str(tmp_path / "ring"))
    for a, b in zip(before["train"], after["train"], strict=True):
        assert torch.allclose((a.points - b.points).norm(dim=1), torch.tensor(6.0), atol=1e-4)
        assert bool(b.inside.all()) and torch.equal(a.image, b.image)
    for a, b in zip(before["test"], after["test"], strict=True):
        assert torch.equal(a.points, b.points)
    assert papm("check", tmp_path / "ring").code == 0
    papm("displace", SCENES, "--out", tmp_path / "again", "--noise", 6, "--split", "train", "--seed", 5)
    for split, dataset in data.open_spec(str(tmp_path / "again")).items():
        assert all(torch.equal(a.points, b.points) for a, b in zip(dataset, after[split], strict=True))


@pytest.mark.slow
def test_displace_kinds_and_chances(papm: Papm, tmp_path: Path) -> None:
    total = sum(s.count for d in data.open_spec(SCENES).values() for s in d)

    def points(*how: object) -> int:
        out = tmp_path / str(len(list(tmp_path.iterdir())))
        ran = papm("displace", SCENES, "--out", out, "--json", *how)
        assert ran.code == 0, ran
        return sum(int(n["points"]) for n in ran.json["splits"].values())

    assert points("--kind", "extent") == points("--kind", "disc", "--edge", "clip") == total
    assert points("--missed", 1) == 0 and points("--doubled", 1) == 2 * total
    assert points("--noise", 70, "--edge", "drop") < total  # the image is 64 × 80


@pytest.mark.parametrize(
    ("how", "told"),
    [
        (("--kind", "rign"), "did you mean 'ring'"),
        (("--edge", "clp"), "did you mean 'clip'"),
        (("--noise", "-1"), "--noise"),
        (("--noise", "inf"), "--noise"),
        (("--missed", "1.5"), "missed"),
        (("--split", "trian"), "did you mean 'train'"),
    ],
)
def test_displace_refuses(papm: Papm, tmp_path: Path, how: tuple[str, str], told: str) -> None:
    ran = papm("displace", SCENES, "--out", tmp_path / "x", *how)
    assert ran.code == 2 and told in ran.sentence and not list(tmp_path.iterdir())


def test_extent_needs_sizes(papm: Papm, photos: Path) -> None:
    ran = papm("displace", photos, "--out", photos.parent / "x", "--kind", "extent")
    assert ran.code == 2 and "ring" in ran.sentence and not (photos.parent / "x").exists()


def test_wrong_usage_is_2(papm: Papm, photos: Path) -> None:
    assert papm("convert", photos).code == 2  # no --out
    assert papm("chek", photos).code == 2
    assert papm("check", photos, "--stirct").code == 2


@pytest.mark.slow
def test_as_a_process(photos: Path) -> None:
    """The whole of it once, in a narrow terminal: the exit code and what goes where."""
    (photos / "b_0.txt").write_text("1 2\nx 2\n")
    env = os.environ | {"PYTHONPATH": str(Path(data.__file__).parents[2]), "COLUMNS": "40"}
    command = [sys.executable, "-m", "papm", "data", "check", str(photos)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, env=env, check=False)
    assert ran.returncode == 2 and ran.stderr.strip() == ""
    assert ran.stdout.splitlines()[0].startswith(f"error: {photos / 'b_0.txt'}:2: ")  # not folded to the terminal


@pytest.mark.realdata
@pytest.mark.skipif("PAPM_DATA" not in os.environ, reason="PAPM_DATA is not set")
def test_shanghaitech_a(papm: Papm) -> None:
    spec = f"shanghaitech-a:{os.environ['PAPM_DATA']}/ShanghaiTech"
    facts = papm("info", spec, "--json").json
    assert {s: (f["images"], f["points"]) for s, f in facts.items()} == {"train": (300, 162707), "test": (182, 78970)}
    assert papm("check", spec, "--quick").code == 0


# --- formats of annotation tools ---------------------------------------------------------------------------------------


def test_list_names_the_formats_of_a_folder(papm: Papm) -> None:
    from papm.data.formats import FORMATS, formats

    folder = next(r for r in papm("list", "--json").json if r["name"] == "folder")
    assert [f["name"] for f in folder["formats"]] == list(FORMATS)
    text = papm("list").out
    assert all(f.summary in text and f.layout in text for f in formats())


@pytest.mark.slow
@pytest.mark.parametrize(
    "to",
    [
        *("txt", "csv", "coco", "yolo", "voc", "cvat", "labelstudio", "labelme", "via"),
        *("imagej", "qupath", "dotdotgoose", "nwpu"),
    ],
)
def test_convert_to_a_tool_and_back(papm: Papm, tmp_path: Path, to: str) -> None:
    made, back = tmp_path / "made", tmp_path / "back"
    ran = papm("convert", SCENES, "--out", made, "--to", to, "--json")
    before = data.open_spec(SCENES)
    assert ran.code == 0, ran
    assert {s: n["points"] for s, n in ran.json["splits"].items()} == {
        s: sum(x.count for x in d) for s, d in before.items()
    }
    assert papm("check", made).code == 0
    assert papm("convert", made, "--out", back).code == 0
    for split, after in data.open_spec(str(back)).items():
        for a, b in zip(before[split], after, strict=True):
            assert a.name == b.name and a.count == b.count
            if to not in ("voc", "yolo"):  # which tell the centre of a box, and the scene's points are not these
                order = [torch.argsort(p[:, 0] * 1e3 + p[:, 1]) for p in (a.points, b.points)]
                assert torch.allclose(a.points[order[0]], b.points[order[1]], atol=1e-3)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["back", "made"]  # no draft is left


def test_convert_says_what_a_format_cannot_hold(papm: Papm, photos: Path, tmp_path: Path) -> None:
    (photos / "b_0.txt").write_text("5 5\n-2 3\n")
    ran = papm("convert", photos, "--out", tmp_path / "o", "--to", "yolo", "--json")
    assert ran.code == 0 and "as yolo cannot hold points outside their image" in ran.err
    assert ran.json["splits"]["all"] == {"images": 10, "points": 17, "outside": 0}
    assert (tmp_path / "o/data.yaml").is_file() and (tmp_path / "o/labels/b_1.txt").read_text().count("\n") == 2


def test_convert_refuses_wrong_words(papm: Papm, photos: Path, tmp_path: Path) -> None:
    assert "did you mean 'yolo'" in papm("convert", photos, "--out", tmp_path / "o", "--to", "yollo").sentence
    assert "--box" in papm("convert", photos, "--out", tmp_path / "o", "--to", "voc", "--box", "0").sentence
    assert "known: auto" in papm("info", photos, "format=xml").sentence
    assert not (tmp_path / "o").exists()


def test_the_side_of_a_box_is_chosen(papm: Papm, photos: Path, tmp_path: Path) -> None:
    assert papm("convert", photos, "--out", tmp_path / "o", "--to", "voc", "--box", "4").code == 0
    boxes = data.open_spec(str(tmp_path / "o"))["all"][5].boxes
    assert boxes is not None and boxes[0].tolist() == pytest.approx([4.25, 2, 8.25, 6])


@pytest.mark.slow
def test_stats_of_a_heap_of_points(papm: Papm, tmp_path: Path) -> None:
    Image.new("RGB", (32, 32)).save(tmp_path / "a.png")
    (tmp_path / "a.txt").write_text("5 5\n" * 100_000)
    start = time.process_time()
    made = papm("stats", tmp_path, "--html", tmp_path / "page.html", "--json")
    assert time.process_time() - start < 30 and (tmp_path / "page.html").exists()
    assert sum(b["n"] for b in made.json["all"]["px to the nearest neighbour"]) == 100_000
