"""The page in a real browser: what it counts, corrects and gives to download. Needs playwright and Chromium (`browser`)."""

from __future__ import annotations

import csv
import json
import shutil
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import papm
from papm import checkpoint, data, models
from papm.checkpoint import ModelSpec
from papm.data.readers.regions import inside
from papm.draw import full_scale, save_png
from papm.inference import Calibration, Inference
from papm.legend import ticks

pytest.importorskip("uvicorn")
from papm.serve.app import application
from papm.serve.blank import Blank
from papm.serve.calibrating import Calibrator
from papm.serve.counting import Limits, describe

pytestmark = pytest.mark.slow
Visit = Callable[..., AbstractContextManager[Any]]
SIZE = (120, 160)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three images and two models of two classes."""
    root = tmp_path_factory.mktemp("page")
    torch.manual_seed(0)
    for name in ("img2", "img10"):
        save_png(torch.randint(0, 256, (3, *SIZE), dtype=torch.uint8), root / "photos" / f"{name}.png")
    from PIL import Image

    Image.open(root / "photos" / "img2.png").save(root / "photos" / "scan.tif")
    options = {"num_classes": 2}
    spec = ModelSpec("tiny", options, "hd-papm", {}, 7, Inference(classes=("car", "bus")))
    for name in ("run", "other"):
        checkpoint.save(root / name / "best.ckpt", spec, models.create("tiny", **options).state_dict())
    return root


@pytest.fixture(scope="module")
def page(visit: Visit, world: Path) -> Iterator[Any]:
    with opened(visit, world) as made:
        yield made


def served(world: Path, beside: str = "", *, store: bool = False) -> Any:
    """The application around one model, or two."""
    limits, paths = Limits(), [world / "run", *([world / beside] if beside else [])]
    counter = papm.Ensemble.load(paths, "cpu") if beside else papm.Counter.load(paths[0], "cpu")
    calibrator = Calibrator(counter, world / "run" / "best.ckpt", use=True, store=store)
    return application(counter, describe(counter, paths[0], limits), limits, calibrator=calibrator)


def by_hand(*classes: str) -> Any:
    blank = Blank(classes)
    return application(blank, blank.describe(Limits()))


@contextmanager
def opened(visit: Visit, world: Path, app: Any = None, *, folder: str = "photos", busy: int = 0) -> Iterator[Any]:
    """A page with the images of a folder; `busy`: how many times it is told to come again."""
    left = [busy]

    def turned_away(route: Any) -> None:
        left[0] -= 1
        if left[0] < 0:
            route.continue_()
        else:
            route.fulfill(status=429, headers={"retry-after": "1"}, json={"error": "busy"})

    with visit(app or served(world), ("429",) if busy else ()) as made:
        if busy:
            made.route("**/api/count", turned_away)
        files = sorted((world / folder).iterdir())
        made.set_input_files("#files", files)
        number = sum(p.suffix != ".txt" for p in files)
        until(lambda: made.inner_text("#status").startswith(f"{number} of {number} image"))
        yield made
        assert left[0] <= 0


def until(true: Callable[[], bool], seconds: float = 30) -> None:
    """The page forbids `eval`, which is how playwright would wait for it."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.05)


def saved(page: Any, button: str, path: Path) -> Path:
    with page.expect_download() as got:
        page.click(button)
    path = path / got.value.suggested_filename
    got.value.save_as(path)
    return path


def test_what_is_counted_corrected_and_saved(page: Any, world: Path, tmp_path: Path) -> None:
    counter = papm.Counter.load(world / "run", "cpu")
    plain = {p.name: counter.predict(p) for p in (world / "photos").iterdir()}
    names = page.locator(".item .name").all_inner_texts()
    assert names == ["img2.png", "img10.png", "scan.tif"]  # in natural order; the browser cannot show the last itself

    # a dot is added in the middle of the image, by the keyboard, and removed and added again
    first = plain["img2.png"]
    assert first.points is not None and first.labels is not None
    page.locator(".item").first.click()
    page.check("input[value=dots]", force=True)
    page.select_option("#class", "1")
    page.focus("#canvas")
    before = int(page.inner_text("#dots"))
    for key in ("+", "+", "+", "+", "ArrowRight", "Enter", "Enter", "Enter"):
        page.keyboard.press(key)
    assert (before, int(page.inner_text("#dots"))) == (len(first.points), len(first.points) + 1)
    assert page.inner_text("#dots-note") == "1 added, 0 removed by hand"
    assert not page.is_checked("#checked") and page.is_disabled("#get-dots")  # only a person says that all are right
    page.keyboard.press("c")
    assert page.is_checked("#checked") and page.is_enabled("#get-dots")

    # a region by clicks
    page.check("input[value=region]", force=True)
    page.click("#zoom-fit")
    box = page.locator("#canvas").bounding_box()
    corners = [(0.4, 0.3), (0.7, 0.35), (0.5, 0.7)]
    for x, y in [*corners, corners[0]]:
        page.mouse.click(box["x"] + x * box["width"], box["y"] + y * box["height"])
    until(lambda: page.inner_text("#region") != "…")
    drawn = json.loads(saved(page, "#get-regions", tmp_path).read_text())
    region = inside([np.array(p) for p in drawn["img2.png"]], SIZE)
    assert 100 < int(region.sum()) < SIZE[0] * SIZE[1] / 2

    # another image is checked as it is
    page.locator(".item").nth(1).click()
    page.check("#checked")

    with saved(page, "#get-counts", tmp_path).open(newline="") as file:
        rows = {r["image"]: r for r in csv.DictReader(file)}
    for name, made in plain.items():
        assert float(rows[name]["count"]) == pytest.approx(made.count, abs=1e-4)
        assert float(rows[name]["count_bus"]) == pytest.approx(made.class_counts[1], abs=1e-4)
    inner = counter.predict(world / "photos" / "img2.png", roi=region)
    assert float(rows["img2.png"]["count_in_region"]) == pytest.approx(inner.count, abs=1e-4)
    assert [rows[n]["checked_dots"] for n in names] == [str(before + 1), str(len(plain["img10.png"].points)), ""]

    with saved(page, "#get-points", tmp_path).open(newline="") as file:
        points = [r for r in csv.DictReader(file) if r["image"] == "img2.png"]
    xy = torch.tensor([[float(r["x"]), float(r["y"])] for r in points])
    torch.testing.assert_close(xy[:-1], first.points, atol=0.011, rtol=0)
    assert points[-1]["score"] == "" and points[-1]["label"] == "1"
    column, row = xy.floor().long().unbind(-1)
    assert rows["img2.png"]["dots_in_region"] == str(int(region[row, column].sum()))

    # the checked dots are a dataset that papm opens
    shutil.copytree(world / "photos", tmp_path / "set")
    (tmp_path / "set" / "scan.tif").unlink()
    with zipfile.ZipFile(saved(page, "#get-dots", tmp_path)) as archive:
        assert archive.testzip() is None
        archive.extractall(tmp_path / "set")
    opened = {s.name: s for s in data.open("folder", tmp_path / "set")["all"]}
    assert sorted(opened) == ["img10", "img2"]
    assert torch.equal(opened["img2"].points, xy) and opened["img2"].labels is not None
    assert opened["img2"].labels.tolist() == [*first.labels.tolist(), 1]


def test_it_fits_a_phone(page: Any) -> None:
    page.set_viewport_size({"width": 360, "height": 740})
    assert page.evaluate("() => document.documentElement.scrollWidth") <= 360
    page.set_viewport_size({"width": 1300, "height": 900})


def test_undo_and_removing_images(page: Any) -> None:
    page.locator(".item").nth(2).click()
    page.check("input[value=dots]", force=True)
    before = page.inner_text("#dots")
    page.focus("#canvas")
    for key in ("ArrowRight", "Enter"):
        page.keyboard.press(key)
    assert page.inner_text("#dots") != before
    page.click("#undo")
    assert page.inner_text("#dots") == before and page.is_disabled("#undo")
    for left in (2, 1, 0):
        page.locator(".gone").first.click()
        assert page.locator(".item").count() == left
    assert page.is_hidden("#work")


def test_changed_dots_are_neither_taken_for_checked_nor_lost(visit: Visit, world: Path, tmp_path: Path) -> None:
    with opened(visit, world) as page:
        names = page.locator(".item .name")
        page.locator(".item").first.click()
        page.check("input[value=dots]", force=True)
        box = page.locator("#canvas").bounding_box()
        for k in (0, 1):  # a click in two of the images
            page.locator(".item").nth(k).click()
            page.mouse.click(box["x"] + 0.5 * box["width"], box["y"] + 0.5 * box["height"])
            assert not page.is_checked("#checked")
        assert page.is_disabled("#get-dots")
        assert "2 images with changed dots are not ticked as checked and left out." in page.inner_text("#dots-help")

        # one of them is ticked: the other one's dots are no truth
        page.check("#checked")
        assert "1 image with changed dots is not ticked as checked and left out." in page.inner_text("#dots-help")
        with zipfile.ZipFile(saved(page, "#get-dots", tmp_path)) as files:
            assert sorted(files.namelist()) == ["classes.txt", "img10.txt"]

        # an image that is removed comes back with its dots, in its place
        page.locator(".gone").first.click()
        assert names.all_inner_texts() == ["img10.png", "scan.tif"]
        assert page.inner_text("#removed-name") == "img2.png was removed."
        page.click("#put-back")
        assert names.all_inner_texts() == ["img2.png", "img10.png", "scan.tif"] and page.is_hidden("#removed")
        assert page.inner_text("#name") == "img2.png"
        until(lambda: page.inner_text("#dots-note") == "1 added, 0 removed by hand")
        for _ in range(3):
            page.locator(".gone").first.click()
        assert names.count() == 0 and page.is_hidden("#work")
        for left in (1, 2, 3):
            page.keyboard.press("Control+z")
            assert names.count() == left
        assert names.all_inner_texts() == ["img2.png", "img10.png", "scan.tif"]
        assert page.locator(".item .value").nth(1).inner_text().count("→") == 1  # still ticked


def test_the_page_waits_for_its_turn(visit: Visit, world: Path) -> None:
    with opened(visit, world, busy=2) as page:
        assert "not counted" not in page.inner_text("#status")


def test_dots_reset_to_the_models_are_not_checked(visit: Visit, world: Path) -> None:
    with opened(visit, world) as page:
        page.on("dialog", lambda dialog: pytest.fail(dialog.message))
        page.locator(".item").first.click()
        page.check("input[value=dots]", force=True)
        page.focus("#canvas")
        for key in ("ArrowRight", "Enter", "c"):
            page.keyboard.press(key)
        assert page.is_checked("#checked")
        page.click("#reset")
        assert not page.is_checked("#checked") and page.inner_text("#dots-note") == "the model’s points"
        page.locator(".gone").first.click()  # as it came: nothing is lost
        assert page.locator(".item").count() == 2


def test_several_models_are_shown_apart(visit: Visit, world: Path, tmp_path: Path) -> None:
    factor = Calibration(2.0, 1.9, 2.1, 9, 3.0, 1.0)
    checkpoint.change_inference(world / "other" / "best.ckpt", world / "twice" / "best.ckpt", calibration=factor)
    both = papm.Ensemble.load([world / "run", world / "twice"], "cpu")
    found = {p.name: both.predict(p) for p in (world / "photos").iterdir()}
    apart = {n: (max(f.by_model) - min(f.by_model)) / f.count for n, f in found.items()}
    first = found["img2.png"]
    assert first.by_model[0] != pytest.approx(first.by_model[1], rel=0.01)
    with opened(visit, world, served(world, "twice")) as page:
        page.locator(".item").first.click()
        cells = page.locator("#models tbody td").all_inner_texts()
        assert cells[::2] == ["run", "twice"] and [float(c.replace(",", "")) for c in cells[1::2]] == pytest.approx(
            first.by_model, abs=0.5
        )
        assert page.inner_text("#models tfoot td").endswith(f"({100 * apart['img2.png']:.0f} %)")
        assert page.inner_text("#about").startswith("run + twice") and page.is_hidden("#calibration")
        page.select_option("#sort", "spread")
        assert page.locator(".item .name").all_inner_texts()[0] == max(apart, key=lambda n: apart[n])
        assert f"models {100 * max(apart.values()):.0f} % apart" in page.locator(".item").first.inner_text()
        with saved(page, "#get-counts", tmp_path).open(newline="") as file:
            row = next(r for r in csv.DictReader(file) if r["image"] == "img2.png")
        assert [float(row[k]) for k in ("count", "raw_count", "by_run", "by_twice", "spread")] == pytest.approx(
            [first.count, first.raw_count, *first.by_model, apart["img2.png"]], abs=1e-3
        )


def test_the_first_dots_are_set_without_a_model(visit: Visit, world: Path, tmp_path: Path) -> None:
    with opened(visit, world, by_hand("car", "bus")) as page:
        assert page.inner_text("#status") == "3 of 3 images open · 0 in all"
        assert page.locator(".figures .first").is_hidden() and page.locator("#show-density").is_hidden()
        assert page.is_checked("input[value=dots]")  # a click sets a dot at once
        page.locator(".item").first.click()
        box = page.locator("#canvas").bounding_box()
        places = [(0.4, 0.4), (0.6, 0.5), (0.5, 0.6)]
        for k, (x, y) in enumerate(places):
            page.keyboard.press("2" if k == 2 else "1")
            page.mouse.click(box["x"] + x * box["width"], box["y"] + y * box["height"])
        assert page.inner_text("#dots") == "3" and page.inner_text("#dots-note") == ""
        assert page.locator(".item .value").all_inner_texts() == ["3", "0", "0"]
        page.check("#checked")
        assert page.locator(".item .value").all_inner_texts() == ["3 ✓", "0", "0"]
        assert page.inner_text("#status") == "3 of 3 images open · 3 in all"
        shown = [cell for cell in page.locator("#classes td").all() if cell.is_visible()]
        assert [cell.inner_text() for cell in shown] == ["car", "2", "bus", "1"]
        page.check("input[value=region]", force=True)
        for x, y in [(0.35, 0.3), (0.45, 0.3), (0.4, 0.48), (0.35, 0.3)]:
            page.mouse.click(box["x"] + x * box["width"], box["y"] + y * box["height"])
        assert page.inner_text("#region") == "1"
        page.locator(".item").nth(1).click()
        page.check("#checked")  # nothing is there, and that is said
        with saved(page, "#get-counts", tmp_path).open(newline="") as file:
            rows = {r["image"]: r for r in csv.DictReader(file)}
        assert [rows["img2.png"][k] for k in ("count", "count_car", "count_bus", "checked_dots")] == [
            "3",
            "2",
            "1",
            "3",
        ]
        assert rows["scan.tif"]["checked_dots"] == rows["scan.tif"]["dots_in_region"] == ""
        assert (rows["img2.png"]["count_in_region"], rows["img2.png"]["dots_in_region"]) == ("1", "1")
        with zipfile.ZipFile(saved(page, "#get-dots", tmp_path)) as files:
            files.extractall(tmp_path / "dots")
    for name in ("img2.png", "img10.png"):
        shutil.copy(world / "photos" / name, tmp_path / "dots" / name)
    marked = data.open_spec(str(tmp_path / "dots"))["all"]
    found = {s.name: s for s in marked}
    assert {n: len(s.points) for n, s in found.items()} == {"img2": 3, "img10": 0}
    first = found["img2"]
    assert first.labels is not None and sorted(first.labels.tolist()) == [0, 0, 1]

    # another day the work goes on, with the images and what was saved
    (tmp_path / "dots" / "lost.txt").write_text("1 2\n")
    (tmp_path / "dots" / "letter.txt").write_text("dear Anna, the dots are not here\n")
    with opened(visit, tmp_path, by_hand("car", "bus"), folder="dots") as page:
        said = "2 of 2 images open · 3 in all · 1 NAME.txt without an image · letter.txt is no list of dots"
        assert page.inner_text("#status") == said
        assert page.locator(".item .value").all_inner_texts() == ["3 ✓", "0 ✓"]
        shutil.rmtree(tmp_path / "dots")
        with zipfile.ZipFile(saved(page, "#get-dots", tmp_path)) as files:
            files.extractall(tmp_path / "again")
    again = np.loadtxt(tmp_path / "again" / "img2.txt")
    assert again == pytest.approx(np.column_stack([first.points.numpy(), first.labels.numpy()]))


def test_one_model_has_no_such_table(page: Any) -> None:
    assert page.locator("#models").is_hidden()


# --- as an annotator ---------------------------------------------------------------------------------------------------


def at(page: Any, x: float, y: float) -> tuple[float, float]:
    """Where a place of the image is in the window, when all of it is shown."""
    box = page.locator("#canvas").bounding_box()
    width, height = box["width"] - 2, box["height"] - 2  # without its border
    scale = min(width / SIZE[1], height / SIZE[0], 16)
    left, top = (width - SIZE[1] * scale) / 2, (height - SIZE[0] * scale) / 2
    return box["x"] + 1 + left + x * scale, box["y"] + 1 + top + y * scale


def drag(page: Any, start: tuple[float, float], end: tuple[float, float], *, release: bool = True) -> None:
    page.mouse.move(*at(page, *start))
    page.mouse.down()
    page.mouse.move(*at(page, *end), steps=4)
    if release:
        page.mouse.up()


def dots(page: Any, folder: Path) -> Any:
    """The dots of the first image, from points.csv: x, y."""
    with saved(page, "#get-points", folder).open(newline="") as file:
        rows = [r for r in csv.DictReader(file) if r["image"] == "img2.png"]
    return np.array([[float(r["x"]), float(r["y"])] for r in rows]).reshape(-1, 2)


def test_dots_are_moved_removed_and_brought_back(visit: Visit, world: Path, tmp_path: Path) -> None:
    with opened(visit, world, by_hand("car", "bus")) as page:
        page.locator(".item").first.click()
        for place in ((40, 40), (80, 60), (120, 90)):
            page.mouse.click(*at(page, *place))
        assert page.inner_text("#dots") == "3" and page.is_disabled("#redo")
        drag(page, (80, 60), (90, 70))
        assert dots(page, tmp_path) == pytest.approx(np.array([[40, 40], [90, 70], [120, 90]]), abs=1)
        page.mouse.move(*at(page, 91, 70))
        page.keyboard.press("Delete")  # the dot under the mouse
        assert dots(page, tmp_path) == pytest.approx(np.array([[40, 40], [120, 90]]), abs=1)
        page.keyboard.press("Control+z")
        page.keyboard.press("Control+z")
        assert dots(page, tmp_path)[1] == pytest.approx([80, 60], abs=1)
        page.keyboard.press("Control+Shift+z")
        assert dots(page, tmp_path)[1] == pytest.approx([90, 70], abs=1)
        page.keyboard.press("Control+y")
        assert page.inner_text("#dots") == "2" and page.is_disabled("#redo")
        page.click("#undo")
        page.click("#redo")
        assert page.inner_text("#dots") == "2"
        page.keyboard.press("Control+z")
        page.mouse.click(*at(page, 20, 20))
        assert page.inner_text("#dots") == "4" and page.is_disabled("#redo")  # another way was taken

        # Escape lets go of a dot; a drag past the border ends at it; a drag on nothing moves the image and sets no dot
        drag(page, (20, 20), (60, 60), release=False)
        page.keyboard.press("Escape")
        page.mouse.up()
        assert dots(page, tmp_path)[3] == pytest.approx([20, 20], abs=1)
        drag(page, (20, 20), (30, 30))
        page.keyboard.press("Delete")  # it is still under the mouse
        page.keyboard.press("Control+z")
        page.keyboard.press("Control+z")
        drag(page, (20, 20), (-5, 30))
        assert dots(page, tmp_path)[3] == pytest.approx([0, 30], abs=1)
        drag(page, (140, 20), (150, 30))
        assert page.inner_text("#dots") == "4" and not page.is_checked("#checked")
        page.click("#zoom-fit")
        page.mouse.move(*at(page, 40, 40))
        page.mouse.down(button="middle")  # moves the image, also from a dot
        page.mouse.move(*at(page, 60, 60), steps=3)
        page.mouse.up(button="middle")
        assert dots(page, tmp_path)[0] == pytest.approx([40, 40], abs=1) and page.inner_text("#dots") == "4"

        # the class of a dot, and of new ones
        page.click("#zoom-fit")
        page.mouse.move(*at(page, 40, 40))
        page.keyboard.press("Shift+Digit2")
        assert page.locator("#classes td").all_inner_texts()[2::3] == ["3", "1"]
        page.keyboard.press("2")
        assert page.input_value("#class") == "1"
        page.keyboard.press("9")  # there is no such class
        assert page.input_value("#class") == "1"


def test_the_dots_in_a_region_are_counted_as_they_move(visit: Visit, world: Path) -> None:
    with opened(visit, world) as page:
        page.locator(".item").first.click()
        page.check("input[value=region]", force=True)
        for k, corner in enumerate([(0, 0), (158, 0), (158, 118), (0, 118)]):
            page.mouse.click(*at(page, *corner))
            assert page.is_visible("#in-region") == (k > 1)
        assert page.inner_text("#region-note") == "dots, so far"
        page.click("#close-region")
        until(lambda: "model’s count" in page.inner_text("#region-note"))
        before = int(page.inner_text("#region-note").split()[-2])
        page.check("input[value=dots]", force=True)
        places = papm.Counter.load(world / "run", "cpu").predict(world / "photos" / "img2.png").points
        assert places is not None
        apart = torch.cdist(places, places).fill_diagonal_(float("inf")).amin(1)
        alone = places[int(apart.argmax())].tolist()  # no other dot is grabbed in its place
        drag(page, tuple(alone), (159.5, 119.5), release=False)  # out of the region
        assert int(page.inner_text("#region-note").split()[-2]) == before - 1  # while it moves
        assert page.inner_text("#dots-note") == "0 added, 0 removed, 1 moved by hand"
        page.mouse.up()
        page.keyboard.press("Control+z")
        assert int(page.inner_text("#region-note").split()[-2]) == before


def test_the_colours_of_a_map_are_explained(visit: Visit, world: Path) -> None:
    found = papm.Counter.load(world / "run", "cpu").predict(world / "photos" / "img2.png")
    assert found.density is not None
    full = full_scale(found.density) * 100**2 / found.stride**2
    with opened(visit, world) as page:
        page.locator(".item").first.click()
        assert page.is_hidden("#scale")
        page.keyboard.press("d")
        assert page.is_visible("#scale") and "objects per 100 × 100 px" in page.inner_text("#scale")
        marks = [float(t.replace(",", "")) for t in page.locator("#scale li").all_inner_texts()]
        assert marks == ticks(full)
        bar, last = (page.locator(f"#scale {part}").bounding_box() for part in ("img", "li:last-child"))
        assert last["x"] + last["width"] / 2 == pytest.approx(bar["x"] + bar["width"] * marks[-1] / full, abs=1)


def test_what_was_not_counted_says_why_and_is_tried_again(visit: Visit, world: Path, tmp_path: Path) -> None:
    (tmp_path / "broken.png").write_bytes(b"nonsense")
    lost = [True]

    def cut(route: Any) -> None:
        if lost[0]:
            route.fulfill(status=507, json={"error": "img2.png: not enough memory"})
        else:
            route.continue_()

    with visit(served(world), ("400", "507")) as page:
        page.route("**/api/count", cut)
        page.set_input_files("#files", world / "photos" / "img2.png")
        until(lambda: page.inner_text("#status") == "0 of 1 image counted · 1 not counted")
        assert (
            page.locator(".item .why").inner_text() == "img2.png: not enough memory" == page.inner_text("#fault-text")
        )
        assert page.is_disabled("#checked")
        lost[0] = False
        page.click("#retry")
        until(lambda: page.inner_text("#status") == "1 of 1 image counted")
        assert page.is_hidden("#fault") and page.locator(".item .why").count() == 0
        page.set_input_files("#files", tmp_path / "broken.png")
        until(lambda: "1 not counted" in page.inner_text("#status"))
        assert "broken.png: not a readable image" in page.locator(".item .why").inner_text()
        page.locator(".again").last.click()
        until(lambda: "counting" not in page.inner_text("#status"))
        assert "1 of 2 images counted · 1 not counted" in page.inner_text("#status")


def test_help_and_the_way_through_the_images(visit: Visit, world: Path) -> None:
    with opened(visit, world) as page:
        page.locator(".item").first.click()
        page.keyboard.press("?")
        assert page.is_visible("#help") and "redo" in page.inner_text("#help")
        page.keyboard.press("n")  # not for the page behind it
        assert page.inner_text("#name") == "img2.png"
        page.keyboard.press("Escape")
        assert page.is_hidden("#help")
        page.keyboard.press("n")
        assert page.inner_text("#name") == "img10.png"
        page.keyboard.press("b")
        page.keyboard.press("b")
        assert page.inner_text("#name") == "img2.png"
        page.select_option("#sort", "name")
        assert page.locator(".item .name").all_inner_texts() == ["img2.png", "img10.png", "scan.tif"]
        named = "e.labels?.length || e.textContent.trim() || e.getAttribute('aria-label')"
        every = "[...document.querySelectorAll('button, select, input')]"
        unnamed = page.evaluate(f"() => {every}.filter(e => !({named})).map(e => e.id)")
        assert unnamed == []


@pytest.fixture
def checked(tmp_path: Path) -> Path:
    """A model and six images, with about twice the dots that it counts."""
    torch.manual_seed(0)
    network = models.create("tiny", activation="abs")
    spec = ModelSpec("tiny", {"activation": "abs"}, "hd-papm", {"data": "nowhere"}, 7, network.inference)
    checkpoint.save(tmp_path / "run" / "best.ckpt", spec, network.state_dict())
    counter = papm.Counter.load(tmp_path / "run", "cpu")
    for k in range(6):
        path = save_png(torch.randint(0, 256, (3, 32 + 8 * k, 48), dtype=torch.uint8), tmp_path / "photos" / f"{k}.png")
        n = round(2 * counter.predict(path).count)
        path.with_suffix(".txt").write_text("".join(f"{3.5 + i % 40} {i % 30}.5\n" for i in range(n)))
    return tmp_path


def test_checked_images_calibrate_the_model(visit: Visit, checked: Path, tmp_path: Path) -> None:
    file = checked / "run" / "best.ckpt"
    plain = papm.Counter.load(file, "cpu").predict(checked / "photos" / "0.png")
    assert plain.density is not None
    with opened(visit, checked, served(checked, store=True)) as page:
        page.locator(".item").first.click()
        for _ in range(2):  # four are too few
            page.uncheck("#checked")
            page.keyboard.press("n")
        assert page.is_disabled("#calibrate") and "(1 to go)" in page.inner_text("#calibration-text")
        for _ in range(2):
            page.keyboard.press("b")
            page.check("#checked")
        assert page.inner_text("#calibrate") == "Calibrate (6 images)"
        page.click("#calibrate")
        until(lambda: page.is_visible("#calibration-use"))
        text = page.inner_text("#calibration-text")
        assert text.startswith(("Factor 2.", "Factor 1.9"))
        assert (
            "95 %" in text
            and "each image with the factor of the others" in text
            and "are not here to compare with" in text
        )
        assert float(page.inner_text("#count")) == pytest.approx(plain.count, abs=0.06)  # nothing is changed yet
        held: list[Any] = []
        page.route("**/api/count", lambda route: held.append(route))
        page.set_input_files("#files", checked / "photos" / "0.png")  # 0-2.png is being counted meanwhile
        until(lambda: page.inner_text("#status").startswith("6 of 7") and len(held) == 1)
        page.click("#calibration-use")
        until(lambda: "raw count" in page.inner_text("#count-note"))
        held[0].continue_()
        page.unroute("**/api/count")
        factor = float(page.inner_text("#count")) / plain.count
        assert factor == pytest.approx(2, rel=0.1) and checkpoint.load(file)[0].inference.calibration is None
        assert f"raw count {plain.count:.1f}, calibrated" in page.inner_text("#count-note")
        page.keyboard.press("d")
        marks = [float(t.replace(",", "")) for t in page.locator("#scale li").all_inner_texts()]
        assert marks == ticks(factor * full_scale(plain.density) * 100**2 / plain.stride**2)
        until(lambda: page.inner_text("#status").startswith("7 of 7"))
        values = page.locator(".item .value").all_inner_texts()
        assert values[6] == values[0].split()[0]
        with saved(page, "#get-counts", tmp_path).open(newline="") as stream:
            row = next(csv.DictReader(stream))
        assert float(row["raw_count"]) == pytest.approx(plain.count, abs=1e-3)

        page.click("#calibrate")
        page.click("#calibration-store")
        until(lambda: page.inner_text("#calibration-said") == "Stored in best.ckpt.")
        stored = papm.Counter.load(file, "cpu").predict(checked / "photos" / "0.png")
        assert stored.count == pytest.approx(factor * plain.count, rel=0.01) and stored.raw_count == plain.count
        page.reload()
        page.wait_for_selector("#about:not(:empty)")
        page.set_input_files("#files", checked / "photos" / "0.png")
        until(lambda: page.is_visible("#calibration-off"))
        assert "Counts are calibrated" in page.inner_text("#calibration-text")
        page.click("#calibration-off")
        until(lambda: page.inner_text("#calibration-text").startswith("Counts are as the model gives them"))
        assert float(page.inner_text("#count")) == pytest.approx(plain.count, abs=0.06)
        assert papm.Counter.load(file, "cpu").predict(checked / "photos" / "0.png").raw_count is None


def test_a_factor_that_does_not_help_is_not_offered(visit: Visit, checked: Path) -> None:
    for path in (checked / "photos").glob("*.txt"):
        path.unlink()
    with visit(served(checked), ("400",)) as page:
        page.set_input_files("#files", sorted((checked / "photos").iterdir()))
        until(lambda: page.inner_text("#status").startswith("6 of 6 "))
        assert page.is_disabled("#calibrate")  # the model's own points are nobody's check
        page.locator(".item").first.click()
        for _ in range(6):
            page.check("#checked")
            page.keyboard.press("n")
        page.click("#calibrate")
        until(lambda: page.is_visible("#calibration-fault"))
        said = page.inner_text("#calibration-fault")
        assert said.startswith("not calibrated: a factor of ") and page.is_hidden("#calibration-use")
        page.uncheck("#checked")
        assert page.is_hidden("#calibration-fault")  # it was of other images
