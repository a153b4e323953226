"""`papm predict` end to end: names that collide, tiles, points of a point network; and slips of `papm train`."""

from __future__ import annotations

import csv
import errno
import json
import os
from collections import Counter as Counted
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from papm import checkpoint, data, models
from papm import draw as overlays
from papm.checkpoint import ModelSpec
from papm.images import read_image
from papm.predict.prediction import Prediction
from papm.predict.predictor import Counter
from papm.report.load import read_counted

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def folders(tmp_path: Path) -> Path:
    """a/x.png and b/x.png, of different sizes."""
    for name, size in (("a", (90, 70)), ("b", (500, 260))):
        (tmp_path / name).mkdir()
        pixels = torch.randint(0, 256, (size[1], size[0], 3), dtype=torch.uint8).numpy()
        Image.fromarray(pixels).save(tmp_path / name / "x.png")
    return tmp_path


def save(path: Path, name: str, **options: object) -> Path:
    torch.manual_seed(0)
    network = models.create(name, **options)
    checkpoint.save(path, ModelSpec(name, options, "hd-papm"), network.state_dict())
    return path


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_images_in_other_formats_are_named_once(folders: Path, run_papm: Run) -> None:
    for name in ("a/y.HEIC", "b/y.heic", "b/z.gif"):
        (folders / name).touch()
    Image.new("RGB", (40, 30)).save(folders / "b" / "w.jfif", format="JPEG")
    model = save(folders / "m.ckpt", "tiny")
    words = ("predict", model, folders / "a", folders / "b", "--json", "--no-overlays", "--out", folders / "out")
    code, said, err = run_papm(*words)
    assert code == 0 and [r["image"] for r in json.loads(said)] == ["a/x.png", "w.jfif", "b/x.png"]
    assert err.count("3 files were passed over, as their format is not read: .heic (2), .gif (1)") == 1
    (folders / "a" / "x.png").unlink()
    code, said, err = run_papm("predict", model, folders / "a", "--out", folders / "out2")
    assert code == 2 and "no images in this folder; 1 file was passed over, as its format is not read: .heic (1)" in err


def test_images_of_one_name_do_not_replace_each_other(folders: Path, run_papm: Run) -> None:
    model, out = save(folders / "m.ckpt", "tiny"), folders / "out"
    code, said, _ = run_papm("predict", model, folders / "a", folders / "b", folders / "a" / "x.png", "--out", out)
    assert code == 0 and "a/x.png" in said and "b/x.png" in said
    assert [r["image"] for r in rows(out / "counts.csv")] == [
        "a/x.png",
        "b/x.png",
    ]  # the one given twice is counted once
    assert {r["image"] for r in rows(out / "points.csv")} == {"a/x.png", "b/x.png"}
    sizes = {path.name: tuple(read_image(path).shape[1:]) for path in (out / "overlays").iterdir()}
    assert sorted(sizes) == ["a_x.png", "b_x.png"]
    assert 720 < sizes["a_x.png"][1] < 850 and 1000 < sizes["b_x.png"][1] < 1150  # eight times and twice, and a bar


@pytest.mark.parametrize("several", [False, True])
def test_an_image_that_is_large_only_to_the_network(
    folders: Path, run_papm: Run, monkeypatch: pytest.MonkeyPatch, several: bool
) -> None:
    """A strip is padded: what the network would compute is bounded, not only what the file holds."""
    model, out = save(folders / "m.ckpt", "tiny"), folders / "out"
    Image.new("RGB", (50_000, 1)).save(folders / "strip.png")  # 32 × 50,000 for a network
    monkeypatch.setenv("PAPM_MAX_PIXELS", "1000000")
    others = [folders / "a", folders / "b"] if several else []
    code, _, error = run_papm("predict", model, folders / "strip.png", *others, "--out", out)
    assert code == 2
    assert "strip.png: 50000×1, resized and padded for this model, is 1.6 megapixels, more than the limit of 1" in error
    assert (out / "counts.csv").exists() == several and (not several or len(rows(out / "counts.csv")) == 2)


def test_several_models_count_together(folders: Path, run_papm: Run) -> None:
    first, second, out = (
        save(folders / "m.ckpt", "tiny"),
        save(folders / "p.ckpt", "p2pnet", trunk="tiny"),
        folders / "out",
    )
    words = ("predict", first, folders / "a" / "x.png", "--out", out, "--device", "cpu")
    code, said, _ = run_papm(*words, "--with", second, "--json")
    (found,) = json.loads(said)
    assert code == 0 and list(found["models"]) == ["m.ckpt", "p.ckpt"]
    assert found["count"] == pytest.approx(sum(found["models"].values()) / 2, abs=2e-3)
    assert found["models"]["p.ckpt"] == pytest.approx(
        Counter.load(second, "cpu").predict(folders / "a" / "x.png").count, abs=2e-3
    )
    (row,) = rows(out / "counts.csv")
    assert list(row) == ["image", "count", "by_m.ckpt", "by_p.ckpt"]
    code, said, _ = run_papm(*words, "--with", second)
    assert code == 0 and f"(m.ckpt {found['models']['m.ckpt']:.1f}, p.ckpt {found['models']['p.ckpt']:.1f})" in said
    code, _, error = run_papm(*words, "--with", first)
    assert code == 2 and error == "papm: the same model is named twice; it would count twice\n"


def test_a_model_named_like_a_class_does_not_hide_it(folders: Path, run_papm: Run) -> None:
    both = [save(folders / name / "best.ckpt", "tiny", num_classes=2) for name in ("0", "b")]
    words = ("predict", both[0], folders / "a" / "x.png", "--out", folders / "out", "--device", "cpu")
    _, said, _ = run_papm(*words, "--with", both[1])
    assert [part.split()[0] for part in said.split("(")[1].split(", ")] == ["0", "1", "0", "b"]


def test_an_earlier_result_is_not_replaced_in_silence(folders: Path, run_papm: Run) -> None:
    model, out = save(folders / "m.ckpt", "tiny"), folders / "out"
    (folders / "a" / "x.png").rename(folders / "a" / "y.png")
    (folders / "a" / "z.png").write_bytes((folders / "a" / "y.png").read_bytes())
    code, _, said = run_papm("predict", model, folders / "a", "--out", out)
    assert code == 0 and "earlier" not in said
    tables = f"{out}: holds an earlier result: counts.csv, points.csv, results.json will be replaced; "
    code, printed, said = run_papm("predict", model, folders / "b", folders / "a" / "y.png", "--out", out, "--json")
    assert code == 0 and len(json.loads(printed)) == 2
    assert f"{tables}1 picture drawn again; 1 earlier picture stays in overlays/ beside the new result\n" in said
    assert [r["image"] for r in rows(out / "counts.csv")] == ["x.png", "y.png"]
    assert sorted(p.name for p in (out / "overlays").iterdir()) == ["x.png", "y.png", "z.png"]
    code, _, said = run_papm("predict", model, folders / "b", "--out", out, "--no-overlays", "--no-points")
    assert code == 0 and f"{tables}3 earlier pictures stay in overlays/" in said
    assert rows(out / "points.csv") == []


def test_an_interruption_keeps_what_was_counted(folders: Path, run_papm: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    model, out, calls = save(folders / "m.ckpt", "tiny"), folders / "out", []
    predict = Counter.predict

    def pressed(self: Counter, *args: Any, **kwargs: Any) -> Prediction:
        calls.append(args)
        if len(calls) == number:
            raise KeyboardInterrupt
        return predict(self, *args, **kwargs)

    monkeypatch.setattr(Counter, "predict", pressed)
    number = 1
    code, said, err = run_papm("predict", model, folders / "a", folders / "b", "--out", out)
    assert (code, said, err.strip()) == (1, "", "papm: interrupted") and not out.exists()
    calls.clear()
    number = 2
    code, said, err = run_papm("predict", model, folders / "a", folders / "b", "--out", out)
    assert (code, said, err.strip()) == (
        1,
        "",
        f"Stopped after 1 of 2 images; what was counted is in {out}. Go on with --resume.",
    )
    assert [r["image"] for r in rows(out / "counts.csv")] == ["a/x.png"]


def test_images_that_are_nearly_black_are_named(folders: Path, run_papm: Run) -> None:
    model, dark = save(folders / "m.ckpt", "tiny"), folders / "a" / "dark.tif"
    pixels = torch.randint(0, 4096, (40, 50), dtype=torch.int32).numpy().astype("uint16")  # a camera of 12 bits
    Image.fromarray(pixels).save(dark)
    code, _, said = run_papm("predict", model, folders / "a", "--out", folders / "out")
    assert code == 0 and "WARNING: dark.tif is nearly black" in said and "x.png" not in said


def test_stacks_are_named(folders: Path, run_papm: Run) -> None:
    model, page = save(folders / "m.ckpt", "tiny"), Image.new("L", (50, 40), 200)
    page.save(folders / "a" / "stack.tif", save_all=True, append_images=[page, page])
    code, _, said = run_papm("predict", model, folders / "a", "--out", folders / "out")
    assert code == 0 and "WARNING: stack.tif holds several pictures; the first was counted" in said
    code, _, said = run_papm("predict", model, folders / "a" / "x.png", "--out", folders / "other")
    assert code == 0 and "pictures" not in said


def test_the_picture_says_the_count_that_is_printed(
    folders: Path, run_papm: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    labels: list[float | None] = []
    monkeypatch.setattr(overlays, "number", lambda count: labels.append(count) or "")
    model = save(folders / "m.ckpt", "p2pnet", trunk="tiny")
    words = ("predict", model, folders / "a", "--count", "expected", "--json", "--out", folders / "out")
    code, said, _ = run_papm(*words)
    count = json.loads(said)[0]["count"]
    assert code == 0 and count % 1 and labels == [pytest.approx(count, abs=1e-3)]


def test_tiles_count_what_the_whole_counts(folders: Path, run_papm: Run) -> None:
    model = save(folders / "m.ckpt", "tiny")

    def counted(*more: str) -> float:
        words = ("predict", model, folders / "b", "--json", "--no-overlays", "--out", folders / "out", *more)
        code, said, _ = run_papm(*words)
        assert code == 0
        return float(json.loads(said)[0]["count"])

    assert counted("--tile", "192") == pytest.approx(counted("--tile", "none"), abs=2e-3) == counted()
    for wrong, why in (("64", "leaves nothing to keep"), ("big", "tile is auto, none or a side in pixels")):
        code, _, complaint = run_papm("predict", model, folders / "b", "--tile", wrong, "--out", folders / "out")
        assert code == 2 and why in complaint


def test_points_of_a_point_network_are_written_and_drawn(folders: Path, run_papm: Run) -> None:
    torch.manual_seed(0)
    network = models.create("p2pnet", trunk="tiny")
    torch.nn.init.normal_(network.classes.output.weight, std=1.0)  # type: ignore[union-attr, arg-type]
    model, out = folders / "p.ckpt", folders / "out"
    checkpoint.save(model, ModelSpec("p2pnet", {"trunk": "tiny"}, "p2p-papm"), network.state_dict())
    code, _, _ = run_papm("predict", model, folders / "a", "--out", out)
    assert code == 0
    [counted], points = rows(out / "counts.csv"), rows(out / "points.csv")
    assert float(counted["count"]) == len(points) > 0
    assert all(0 <= float(p["x"]) < 90 and 0 <= float(p["y"]) < 70 and 0.5 < float(p["score"]) <= 1 for p in points)
    [found] = json.loads((out / "results.json").read_text(encoding="utf-8"))
    assert len(found["points"]) == len(points)
    drawn = read_image(out / "overlays" / "x.png")[:, -560:]
    before = read_image(folders / "a" / "x.png").repeat_interleave(8, 1).repeat_interleave(8, 2)
    yellow = torch.tensor([255, 214, 10])[:, None, None]
    near = [((p.int() - yellow).abs().amax(0) < 12).sum() for p in (drawn, before)]
    assert near[0] > near[1] + 10


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("--steps", "5"), "write steps=5"),
        (("--steps=5",), "write steps=5"),
        (("--eval-every", "9"), "write eval_every=9"),
        (("--loss.sigma", "6"), "write loss.sigma=6"),
        (("--learning-rate", "0.1"), "write lr=0.1"),
        (("--lr",), "write lr=VALUE"),
        (("--epochs", "3"), "write steps=NUMBER"),
        (("--data", "photos"), "write papm train DATA"),
    ],
)
def test_a_setting_written_as_an_option_gets_a_hint(words: tuple[str, ...], hint: str, run_papm: Run) -> None:
    code, _, said = run_papm("train", "synthetic:train=2,test=1", *words)
    assert code == 2 and hint in said and said.count("\n") == 1


def test_a_dry_run_speaks_in_sentences(run_papm: Run, recwarn: pytest.WarningsRecorder) -> None:
    words = ("train", "synthetic:train=4,test=2,size=64", "--backbone", "tiny", "--dry-run", "crop=64", "batch=2")
    code, said, _ = run_papm(*words, "steps=1000")
    assert code == 0 and said.startswith("A step of 2 crops of 64 px takes ") and "1,000 steps and " in said
    assert " GB" in said and not [w for w in recwarn if "LeafSpec" in str(w.message)]
    code, said, _ = run_papm(*words, "--json")
    assert code == 0 and {"step_ms", "wall_minutes", "peak_memory_gb"} <= set(json.loads(said))


@pytest.mark.slow
def test_a_dry_run_says_what_the_run_would_start_from(run_papm: Run) -> None:
    words = ("train", "synthetic:train=4,test=2,size=64", "--backbone", "csrnet", "--dry-run", "crop=32", "batch=1")
    code, _, said = run_papm(*words, "select=last")
    assert code == 0 and "csrnet starts from random weights" in said and "--dry-run says" not in said


def test_only_a_region_is_counted(folders: Path, run_papm: Run) -> None:
    model, image = save(folders / "m.ckpt", "tiny"), folders / "a" / "x.png"
    pixels = torch.zeros(70, 90, dtype=torch.uint8)
    pixels[:, :40] = 255
    (folders / "masks").mkdir()
    Image.fromarray(pixels.numpy()).save(folders / "masks" / "x.png")
    polygons = folders / "roi.json"
    polygons.write_text(json.dumps({"x.png": [[[0, 0], [40, 0], [40, 70], [0, 70]]]}))

    def count(*more: str | Path) -> float:
        code, said, _ = run_papm("predict", model, image, "--out", folders / "out", "--json", *more)
        assert code == 0
        return float(json.loads(said)[0]["count"])

    part = count("--roi", folders / "masks" / "x.png")
    assert 0 < part < count()
    assert count("--roi", folders / "masks") == count("--roi", polygons) == part
    picture = read_image(folders / "out" / "overlays" / "x.png").float()[:, -560:, :720]
    assert picture[..., 480:].mean() < 0.6 * picture[..., 80:320].mean()  # darker where nothing is counted


def test_regions_that_cannot_be_used(folders: Path, run_papm: Run) -> None:
    model, image = save(folders / "m.ckpt", "tiny"), folders / "a" / "x.png"
    code, _, said = run_papm("predict", model, image, "--out", folders / "out", "--roi", folders / "none.png")
    assert code == 2 and "none.png: no such mask, folder of masks or table of polygons" in said
    Image.new("L", (5, 5)).save(folders / "small.png")
    code, _, said = run_papm("predict", model, image, "--out", folders / "out", "--roi", folders / "small.png")
    assert code == 2 and "a region of interest of 5×5 pixels, the image x.png is 90×70" in said
    (folders / "empty").mkdir()
    code, _, said = run_papm("predict", model, image, "--out", folders / "out", "--roi", folders / "empty")
    assert code == 2 and "there are no masks (NAME.png) in this folder" in said
    assert not (folders / "out").exists()


def test_a_full_disk_leaves_all_tables_of_a_call_or_none(
    folders: Path, run_papm: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Room for counts.csv and not for points.csv: new counts beside old points would be a false result."""
    model, out = save(folders / "m.ckpt", "tiny"), folders / "out"
    words = ["predict", model, folders / "a", folders / "b", "--out", out, "--no-overlays"]

    synced: list[int] = []

    def full(handle: int) -> None:
        synced.append(handle)
        if len(synced) == 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    for held in ({}, {name: name for name in ("counts.csv", "points.csv", "results.json")}):
        out.mkdir(exist_ok=True)
        for name, text in held.items():
            (out / name).write_text(text)
        synced.clear()
        with monkeypatch.context() as patched:
            patched.setattr(os, "fsync", full)
            code, said, error = run_papm(*words)
        assert (code, said) == (2, "") and f"{out}/points.csv: cannot be written" in error
        assert {p.name: p.read_text() for p in out.iterdir() if p.name != "journal.jsonl"} == held
    assert run_papm(*words)[0] == 0 and len(rows(out / "counts.csv")) == 2
    assert sorted(p.name for p in out.iterdir()) == ["counts.csv", "journal.jsonl", "points.csv", "results.json"]


FORMULAS = ["=1+cmd.png", "+1+1.png", "-2+3.png", "@SUM(1).png"]


def test_names_of_images_are_no_formulas(tmp_path: Path, run_papm: Run) -> None:
    """A spreadsheet computes what begins with one of these signs; what papm wrote itself it reads by the old names."""
    photos, out = tmp_path / "photos", tmp_path / "out"
    photos.mkdir()
    for name in FORMULAS:
        Image.new("RGB", (40, 40)).save(photos / name)
        (photos / f"{Path(name).stem}.txt").write_text("5 5\n")
    model = save(tmp_path / "m.ckpt", "tiny")
    code, _, err = run_papm("predict", model, photos, "--out", out, "--device", "cpu")
    assert code == 0, err
    for table in ("counts.csv", "points.csv"):
        assert {r["image"] for r in rows(out / table)} == {f"'{name}" for name in FORMULAS}
    assert {o["image"] for o in json.loads((out / "results.json").read_text())} == set(FORMULAS)
    code, _, err = run_papm("eval", model, photos, "--split", "all", "--out", tmp_path / "eval.csv", "--device", "cpu")
    assert code == 0, err
    stems = {Path(name).stem for name in FORMULAS}
    assert {r["image"] for r in rows(tmp_path / "eval.csv")} == {f"'{stem}" for stem in stems}
    assert {c.image for c in read_counted(tmp_path / "eval.csv")} == stems
    code, _, err = run_papm("data", "convert", photos, "--to", "csv", "--out", tmp_path / "csv")
    assert code == 0, err
    [table] = (tmp_path / "csv").rglob("points.csv")
    assert {r["image"] for r in rows(table)} == {f"'{name}" for name in FORMULAS}
    (again,) = data.open("folder", tmp_path / "csv").values()
    assert sorted(s.source.name for s in again.samples) == sorted(FORMULAS)
    # dots as predicted are dots to train on
    for name in FORMULAS:
        (photos / f"{Path(name).stem}.txt").unlink()
    (photos / "points.csv").write_text((out / "points.csv").read_text())
    (predicted,) = data.open("folder", photos).values()
    dots = Counted(r["image"] for r in rows(out / "points.csv"))
    assert {f"'{s.source.name}": s.count for s in predicted.samples} == dots
