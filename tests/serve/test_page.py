"""The page in a real browser: what it counts, corrects and gives to download. Needs playwright and Chromium, or skips."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import papm
from papm import checkpoint, data, models
from papm.checkpoint import ModelSpec
from papm.data.readers.regions import inside
from papm.draw import save_png
from papm.inference import Inference

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")]
sync_api = pytest.importorskip("playwright.sync_api")
pytest.importorskip("uvicorn")
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
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as play:
        made = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield made
        made.close()


@pytest.fixture(scope="module")
def page(browser: Any, world: Path) -> Iterator[Any]:
    with opened(browser, world) as made:
        yield made


@contextmanager
def opened(
    browser: Any, world: Path, *options: str, model: bool = True, folder: str = "photos", busy: int = 0
) -> Iterator[Any]:
    """The page of a real `papm serve`, which may load nothing from elsewhere and complain of nothing.

    `busy`: how many times it is told to come again.
    """
    env = {**os.environ, "PYTHONPATH": str(Path(papm.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    words = [sys.executable, "-m", "papm", "serve", *([str(world / "run")] if model else []), "--port", "0", *options]
    server = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=env)
    try:
        assert server.stdout is not None
        found = re.search(r"http://\S+", server.stdout.readline())
        assert found
        made = browser.new_page(viewport={"width": 1300, "height": 900})
        said: list[str] = []
        made.on("console", lambda message: said.append(message.text))
        made.on("pageerror", lambda error: said.append(str(error)))
        made.on("request", lambda request: said.append(request.url) if elsewhere(request.url, found[0]) else None)
        left = [busy]

        def turned_away(route: Any) -> None:
            left[0] -= 1
            if left[0] < 0:
                route.continue_()
            else:
                route.fulfill(status=429, headers={"retry-after": "1"}, json={"error": "busy"})

        if busy:
            made.route("**/api/count", turned_away)
        made.goto(found[0])
        made.set_input_files("#files", sorted((world / folder).iterdir()))
        number = sum(p.suffix != ".txt" for p in (world / folder).iterdir())
        until(lambda: made.inner_text("#status").startswith(f"{number} of {number} images "))
        yield made
        assert [s for s in said if "429" not in s] == [] and len(said) == busy
        made.close()
    finally:
        server.kill()
        server.wait()


def elsewhere(url: str, here: str) -> bool:
    return not url.startswith((here, "blob:", "data:"))


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


def test_changed_dots_are_neither_taken_for_checked_nor_lost_unasked(browser: Any, world: Path, tmp_path: Path) -> None:
    asked: list[str] = []
    answers: list[bool] = []

    def answer(dialog: Any) -> None:
        asked.append(dialog.message)
        if answers.pop(0):
            dialog.accept()
        else:
            dialog.dismiss()

    with opened(browser, world) as page:
        page.on("dialog", answer)
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

        answers += [False, True]
        page.locator(".gone").first.click()
        assert names.all_inner_texts() == ["img2.png", "img10.png", "scan.tif"]  # it was a slip
        assert asked == ["The changed dots of img2.png are not downloaded. Remove the image and lose them?"]
        page.locator(".gone").first.click()
        assert names.all_inner_texts() == ["img10.png", "scan.tif"] and len(asked) == 2
        page.locator(".gone").first.click()  # downloaded
        page.locator(".gone").first.click()  # never changed
        assert names.count() == 0 and len(asked) == 2


def test_the_page_waits_for_its_turn(browser: Any, world: Path) -> None:
    with opened(browser, world, busy=2) as page:
        assert "not counted" not in page.inner_text("#status")


def test_dots_reset_to_the_models_are_not_checked(browser: Any, world: Path) -> None:
    with opened(browser, world) as page:
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


def test_several_models_are_shown_apart(browser: Any, world: Path, tmp_path: Path) -> None:
    with opened(browser, world, "--with", str(world / "other")) as page:
        page.locator(".item").first.click()
        found = papm.Ensemble.load([world / "run", world / "other"], "cpu").predict(world / "photos" / "img2.png")
        assert found.by_model[0] != pytest.approx(found.by_model[1], rel=0.01)
        cells = page.locator("#models td").all_inner_texts()
        assert cells[::2] == ["run", "other"] and [float(c.replace(",", "")) for c in cells[1::2]] == pytest.approx(
            found.by_model, abs=0.5
        )
        assert page.inner_text("#about").startswith("run + other")
        with saved(page, "#get-counts", tmp_path).open(newline="") as file:
            row = next(r for r in csv.DictReader(file) if r["image"] == "img2.png")
        assert [float(row[k]) for k in ("count", "by_run", "by_other")] == pytest.approx(
            [found.count, *found.by_model], abs=1e-3
        )


def test_the_first_dots_are_set_without_a_model(browser: Any, world: Path, tmp_path: Path) -> None:
    with opened(browser, world, "--classes", "car,bus", model=False) as page:
        assert page.inner_text("#status") == "3 of 3 images open · 0 in all"
        assert page.locator(".figures .first").is_hidden() and page.locator("#show-density").is_hidden()
        assert page.is_checked("input[value=dots]")  # a click sets a dot at once
        page.locator(".item").first.click()
        box = page.locator("#canvas").bounding_box()
        places = [(0.4, 0.4), (0.6, 0.5), (0.5, 0.6)]
        for k, (x, y) in enumerate(places):
            page.select_option("#class", "1" if k == 2 else "0")
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
    with opened(browser, tmp_path, "--classes", "car,bus", model=False, folder="dots") as page:
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
