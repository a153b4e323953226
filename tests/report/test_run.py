"""report.html: complete, honest about how weights were chosen, safe against names, one sentence for a folder that is no run."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from papm import config as configuration
from papm import methods
from papm.config import TrainConfig
from papm.engine.auto import CHOSEN
from papm.errors import PapmError
from papm.report.load import Counted
from papm.report.run import by_crowding, changed, command, counting_charts, write_report

EVIL = '<script>alert(1)</script> & "quoted" \'.jpg'


def test_a_finished_run(tmp_path: Path, make_run: Any, read_page: Callable[[Path], Any]) -> None:
    result = make_run(tmp_path / "run", select="last")
    path = write_report(tmp_path / "run")
    assert path == tmp_path / "run" / "report.html"
    page = read_page(path)
    low, high = result["intervals"]["mae"]
    assert f"MAE , test images {result['mae']:.2f} 95 % interval {low:.2f} to {high:.2f}" in page.text
    assert f"RMSE {result['rmse']:.2f}" in page.text and "called MSE in papers of this field" in page.text
    assert "Images 12 780 objects" in page.text
    assert "the last averaged weights (step 300); no evaluation chose them" in page.text
    assert sum(tag == "svg" for tag, _ in page.tags) == 7
    assert "1 min 15 s" in page.text and "abc123" in page.text
    assert not [a for _, a in page.tags if a.get("class") == "warning"]
    assert [p.name for p in (tmp_path / "run").glob(".*")] == []


def test_the_page_suits_phones_dark_screens_and_paper(tmp_path: Path, make_run: Any) -> None:
    make_run(tmp_path / "run")
    html = write_report(tmp_path / "run").read_text(encoding="utf-8")
    assert 'name="viewport"' in html and "default-src 'none'" in html
    assert "prefers-color-scheme: dark" in html and "@media print" in html and "@media (max-width" in html


def test_weights_chosen_on_the_test_images_are_said_to_be(
    tmp_path: Path, make_run: Any, read_page: Callable[[Path], Any]
) -> None:
    make_run(tmp_path / "run", select="test")
    page = read_page(write_report(tmp_path / "run"))
    assert "The weights were chosen on the test images" in page.text
    assert "Weights: lowest error on the test images themselves" in page.text


@pytest.mark.parametrize(("settings", "said"), [({}, 0), ({"watch": "raw"}, 2), ({"watch": "raw", "ema": 0}, 0)])
def test_looks_at_other_weights_than_those_of_the_result_are_said_to_be(
    settings: dict[str, Any], said: int, tmp_path: Path, make_run: Any, read_page: Callable[[Path], Any]
) -> None:
    make_run(tmp_path / "run", select="last", extra={"mae_best_on_test": 4.2}, **settings)
    text = read_page(write_report(tmp_path / "run")).text
    found = (
        "lowest MAE on the test images during training (raw weights) 4.20",
        "rings: the lowest of each; raw weights",
    )
    assert sum(words in text for words in found) == said


def test_figures_of_the_images_that_chose_the_weights_are_said_to_be(
    tmp_path: Path, make_run: Any, read_page: Callable[[Path], Any]
) -> None:
    make_run(tmp_path / "run", select="val", extra={"split": "val"})
    page = read_page(write_report(tmp_path / "run"))
    assert "on which the weights were chosen too" in page.text and "MAE , val images" in page.text


def test_an_interrupted_run(tmp_path: Path, make_run: Any, read_page: Callable[[Path], Any]) -> None:
    make_run(tmp_path / "run", finished=False)
    page = read_page(write_report(tmp_path / "run"))
    assert "has not finished: it was at step 200 of 400" in page.text and "--resume" in page.text
    assert "MAE , validation images 7.00" in page.text
    assert "Worst images" not in page.text


def test_a_run_that_has_only_begun(tmp_path: Path, make_run: Any, read_page: Callable[[Path], Any]) -> None:
    make_run(tmp_path / "run", finished=False)
    for name in ("metrics.csv", "environment.json"):
        (tmp_path / "run" / name).unlink()
    page = read_page(write_report(tmp_path / "run"))
    assert "step 0 of 400" in page.text and "nothing to show yet" in page.text and "not recorded" in page.text


def test_a_result_without_figures(tmp_path: Path, make_run: Any, read_page: Callable[[Path], Any]) -> None:
    none = dict.fromkeys(("mae", "rmse", "nae", "bias", "images", "mae_in_image", "intervals"))
    make_run(tmp_path / "run", extra=none)
    (tmp_path / "run" / "predictions.csv").unlink()
    page = read_page(write_report(tmp_path / "run"))
    assert "The data has no test images" in page.text and "MAE , test images –" in page.text


def test_names_of_files_are_text(tmp_path: Path, make_run: Any, read_page: Callable[[Path], Any]) -> None:
    make_run(tmp_path / "run", names=[EVIL] * 12, data=EVIL)
    path = write_report(tmp_path / "run")
    assert "<script" not in path.read_text(encoding="utf-8")
    assert EVIL in read_page(path).text


def test_examples_are_embedded_and_a_broken_one_is_left_out(
    tmp_path: Path, make_run: Any, read_page: Callable[[Path], Any], caplog: pytest.LogCaptureFixture
) -> None:
    make_run(tmp_path / "run")
    examples = tmp_path / "run" / "examples"
    examples.mkdir()
    pixels = np.random.default_rng(0).integers(0, 255, (300, 2400, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(examples / "00_street 1.png")
    (examples / "01_torn.png").write_bytes(b"\x89PNG not really")
    page = read_page(write_report(tmp_path / "run"))
    shown = [a for tag, a in page.tags if tag == "img"]
    assert [(a["width"], a["height"], a["loading"]) for a in shown] == [("1500", "188", "lazy")]
    assert "street 1" in page.text and "torn" not in page.text and "01_torn.png" in caplog.text


def test_a_diverged_network_is_reported_and_not_an_error(
    tmp_path: Path, make_run: Any, read_page: Callable[[Path], Any]
) -> None:
    make_run(tmp_path / "run")
    file = tmp_path / "run" / "predictions.csv"
    file.write_text(file.read_text() + "broken.jpg,nan,50,50\n")
    page = read_page(write_report(tmp_path / "run"))
    assert "1 of 13 predicted counts is not a number" in page.text
    table = page.text.partition("Worst images")[2]
    assert table.index("broken.jpg – 50 – –") < table.index("IMG_")


@pytest.mark.parametrize(
    ("file", "content", "names"),
    [
        (None, None, "no such folder"),
        ("notes.txt", "x", "this is no run"),
        ("config.yaml", "a: [", "config.yaml"),
        ("result.json", "{", "result.json"),
        ("result.json", "[1]", "result.json"),
        ("environment.json", "", "environment.json"),
        ("metrics.csv", "step,loss,terms\n50,12abc,\n", "metrics.csv"),
        ("predictions.csv", "image,predicted,truth\na.jpg,1\n", "predictions.csv, line 2"),
        ("predictions.csv", "name,n\na.jpg,1\n", "predictions.csv, line 2"),
    ],
)
def test_what_cannot_be_read_is_one_sentence(
    tmp_path: Path, make_run: Any, file: str | None, content: str, names: str
) -> None:
    folder = tmp_path / "run"
    if file == "notes.txt":
        folder.mkdir()
    elif file is not None:
        make_run(folder)
    if file is not None:
        (folder / file).write_text(content)
    with pytest.raises(PapmError) as caught:
        write_report(folder)
    assert names in str(caught.value) and "\n" not in str(caught.value)
    assert not (folder / "report.html").exists()


def test_a_model_file_is_no_folder_of_a_run(tmp_path: Path) -> None:
    (tmp_path / "mine.ckpt").write_bytes(b"x")
    with pytest.raises(PapmError, match=r"mine\.ckpt: is a file; give the folder of a run"):
        write_report(tmp_path / "mine.ckpt")


def test_settings_show_what_differs() -> None:
    config = configuration.to_mapping(TrainConfig(data="x", lr=3e-4, loss={"sigma": 6.0}))
    assert changed(config) == [("data", "x", "''"), ("loss", "{sigma: 6.0}", "{}"), ("lr", "0.0003", "0.0001")]
    assert changed({**config, "gone": 1})[-1] == ("gone", "1", "")  # a key of another version


options = st.dictionaries(
    st.sampled_from(["sigma", "shape", "look"]),
    st.integers(-5, 5) | st.floats(1e-9, 1e9) | st.text("abc 1e5'\"$;no:", max_size=8),
)


@given(
    st.fixed_dictionaries(
        {
            "method": st.sampled_from(
                sorted(m.name for m in map(methods.METHODS.get, methods.METHODS) if m.network == "density")
            ),
            "backbone": st.sampled_from(["tiny", "vgg19"]),
        },
        optional={
            "data": st.text("ab :/'\"$é", min_size=1, max_size=8),
            "weights": st.none() | st.just("imagenet") | st.just("my weights.pth"),
            "steps": st.integers(1, 10**6),
            "lr": st.floats(1e-9, 1.0),
            "trunk_lr": st.none() | st.floats(1e-9, 1.0),
            "compile": st.sampled_from(["auto", "yes", "no"]),
            "precision": st.sampled_from(["auto", "32", "bf16", "16"]),
            "loss": options,
            "options": options,
        },
    )
)
@settings(max_examples=120)
def test_the_command_makes_the_same_configuration(values: dict[str, Any]) -> None:
    recipe = methods.recipe(values["method"], values["backbone"])
    merged = {k: {**recipe.get(k, {}), **values.get(k, {})} for k in ("loss", "network")}
    config = configuration.from_mapping({**recipe, "data": "d", **values, **merged})
    words = shlex.split(command(configuration.to_mapping(config), "out dir"))
    assert words[:2] == ["papm", "train"]
    # Read it as `papm train` does: options, then key=value over the recipe.
    given_: dict[str, Any] = {"data": words[2]}
    rest = words[3:]
    pairs = []
    while rest:
        if rest[0].startswith("--"):
            given_[rest[0][2:]] = rest[1]
            rest = rest[2:]
        else:
            pairs.append(rest.pop(0))
    assert given_.pop("out") == "out dir"
    said = configuration.parse_overrides(pairs)
    merged = {k: {**recipe.get(k, {}), **said.get(k, {})} for k in ("loss", "network")}
    assert configuration.from_mapping({**recipe, **given_, **said, **merged}) == config
    assert {"crop", "batch", "steps", "select"} <= said.keys()  # or `papm train` would choose them


def test_the_command_knows_the_recipe_of_a_variant() -> None:
    # clip=0.1 is what p2pnet's recipe has and not what the recipe of its small trunk has: it must be said.
    network = {"trunk": "tiny"}
    recipe = methods.recipe("p2p-papm", "p2pnet", network)
    config = configuration.from_mapping(
        {**recipe, "data": "d", "method": "p2p-papm", "backbone": "p2pnet", "network": network, "clip": 0.1}
    )
    words = shlex.split(command(configuration.to_mapping(config), "out"))
    assert [w for w in words[9:] if w.split("=")[0] not in CHOSEN] == ["network.trunk=tiny", "clip=0.1"]


def test_thirds_hold_every_image_once_and_average_to_the_whole() -> None:
    rng = np.random.default_rng(0)
    counted = [Counted(str(k), float(t + rng.normal()), float(t)) for k, t in enumerate(rng.integers(1, 500, 31))]
    rows = by_crowding(counted)
    assert sum(r["n"] for r in rows) == 31
    whole = np.mean([abs(c.error) for c in counted])
    assert math.isclose(sum(r["n"] * r["mae"] for r in rows) / 31, whole)
    assert rows[0]["high"] <= rows[1]["low"] and rows[1]["high"] <= rows[2]["low"]
    assert by_crowding(counted[:8]) == [] and counting_charts([]) == []


def test_writing_twice_gives_the_same_page(tmp_path: Path, make_run: Any) -> None:
    make_run(tmp_path / "run")
    first = write_report(tmp_path / "run").read_bytes()
    assert write_report(tmp_path / "run").read_bytes() == first


def test_few_images_get_a_bar_of_their_error_each() -> None:
    counted = [Counted(f"i{k}", 10.0 + k, 12.0) for k in range(13)]
    few, many = (" ".join(str(svg) for _, _, svg in counting_charts(counted[:n])) for n in (12, 13))
    assert all(f"predicted − true, i{k}: {str(k - 2).replace('-', '−')}<" in few for k in range(12))
    assert "How errors are spread" not in few
    assert "How errors are spread" in many and "predicted − true, i" not in many
