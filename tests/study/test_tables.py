"""The paper's tables: each cell can be trained, each figure is as printed."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from papm import methods, models
from papm.data import base, resize
from papm.errors import ConfigError
from papm.study import tables, training
from papm.study.metrics import METRICS

NAMES = tables.names()
OURS = [str(f) for f in sorted((Path(__file__).parents[2] / "benchmarks" / "studies").glob("*.yaml"))]  # of recipes
assert OURS

# Rows of the paper that nothing here trains: other authors' networks, or figures without their training.
NOT_OURS = {
    "crowds": {"switch-cnn", "can", "sfcn", "adscnet", "sasnet", "chfl"},
    "localization-qnrf": {"resnet", "densenet", "encoder-decoder", "cl"},
    "localization-nwpu": {"fasterrcnn", "tinyface", "raznet", "d2cnet", "topocount", "crossnet-hr"},
    "trancos": {"victoretal.", "onoroetal.", "psddn"},
    "cars": {
        "fasterr-cnn", "yolo", "one-look", "lpncounting", "yolo9000", "retinanet", "iepcounting", "denselypacked",
        "admg",
    },
    "dota": {"admg"},
}  # fmt: skip


def test_every_table_of_the_paper_is_there_in_its_order() -> None:
    places = [tables.load(n).where for n in NAMES]
    assert [p for p in places if p.startswith("Table")] == [f"Table {k}" for k in range(1, 14)]
    assert "noise" in NAMES and len(NAMES) == len(set(NAMES))


@pytest.mark.parametrize("name", [*NAMES, *OURS])
def test_every_cell_can_be_trained(name: str) -> None:
    study = tables.load(name)
    seen: dict[str, str] = {}
    for cell in study.cells:
        assert cell.settings["dataset"] in base.readers()
        info = models.info(cell.settings["backbone"])
        assert info.kind == methods.method(cell.settings["method"]).network
        for part in cell.parts:
            config = training.configure(part)  # refuses options that the loss or the network does not have
            assert config.method == cell.settings["method"]
            wanted = training.asked(part)
            assert not training.differences(wanted, wanted)
            # No two cells are one training once every default is spelt out.
            key = repr(sorted(wanted.items(), key=str))
            assert seen.setdefault(key, cell.name) == cell.name
    assert len({c.name for c in study.cells}) == len(study.cells)


@pytest.mark.parametrize("name", NAMES)
def test_options_of_datasets_exist(name: str) -> None:
    for cell in tables.load(name).cells:
        reader = base.reader(cell.settings["dataset"])
        for part in cell.parts:
            options = {k.removeprefix("data."): v for k, v in part.items() if k.startswith("data.")}
            base.check_options(reader, resize.take(reader.name, options)[1])


@pytest.mark.parametrize("name", NAMES)
def test_the_file_has_no_idle_keys(name: str) -> None:
    raw = yaml.safe_load((tables.FOLDER / f"{name}.yaml").read_text(encoding="utf-8"))
    assert raw["title"] and raw["where"]
    for note in tables.load(name).notes:
        assert note.text.endswith(".")


def test_methods_quote_the_same_figures() -> None:
    """`Method.shanghaitech_a` and the tables agree."""
    quoted = {
        (c.settings["method"], c.settings["backbone"]): c.printed(0)
        for n in ("costs", "hd-papm-shape", "crowds")
        for c in tables.load(n).cells
        if c.settings["dataset"] == "shanghaitech-a" and "loss.cost" not in c.settings
        if c.settings["method"] != "gaussian" or n == "hd-papm-shape"  # the bandwidth of the others is not known
        if c.settings.get("loss.shape", 8) == 8
    }
    for method in map(methods.METHODS.get, methods.METHODS):
        if method.shanghaitech_a is not None:
            backbone = "p2pnet" if method.network == "points" else "vgg19"
            assert quoted[method.name, backbone] == method.shanghaitech_a, method.name


def test_lambda_is_in_published_units() -> None:
    """The published 0.1, summed over ten crops, is 1 an image: the default."""
    cells = {c.row: c.settings["loss.w_ot"] for c in tables.load("al-papm-weight").cells}
    for row, w_ot in cells.items():
        assert w_ot == pytest.approx(10 * float(row.removeprefix("λ = ")))
    assert (
        cells["λ = 0.1"]
        == training.asked({"dataset": "trancos", "method": "al-papm", "backbone": "vgg19"})["loss.w_ot"]
    )


def test_folds_are_parts_of_one_cell() -> None:
    cell = next(c for c in tables.load("crowds").cells if c.column == "UCF_CC_50")
    assert [p["data.fold"] for p in cell.parts] == [1, 2, 3, 4, 5]
    assert all(len(c.parts) == 1 for c in tables.load("noise").cells)


@pytest.mark.parametrize(
    ("column", "crops"),
    [
        ("ShTech A", {256, 512, 128}),
        ("ShTech B", {256, 512, 128}),
        ("UCF_CC_50", {256, 512}),
        ("UCF-QNRF", {512, 128}),
        ("NWPU", {384, 512, 128}),
    ],
)
def test_crops_are_those_of_the_recipe_or_published_for_the_dataset(column: str, crops: set[int]) -> None:
    """DM-Count's: 256 on A and UCF_CC_50, 512 on UCF-QNRF, 384 on NWPU; M-SFANet, MAN and P2PNet have their own."""
    usual = {"man": {512}, "msfanet": {512}, "p2pnet": {128}}
    cells = [c for c in tables.load("crowds").cells if c.column == column]
    assert {training.configure(p).crop for c in cells for p in c.parts} == crops
    for cell in cells:
        backbone = str(cell.settings["backbone"])
        found = {training.configure(p).crop for p in cell.parts}
        assert found == usual.get(backbone, crops - {128} - ({512} if {256, 384} & crops else set())), cell.name


def test_networks_have_the_form_published_for_the_dataset() -> None:
    forms = {(c.row, c.column): training.asked(c.parts[0]) for c in tables.load("crowds").cells}
    for (row, column), asked in forms.items():
        qnrf = column == "UCF-QNRF"
        if row.startswith("M-SFANet"):
            assert asked["network.form"] == ("qnrf" if qnrf else "shanghaitech")
        if row.startswith("P2P"):
            assert asked["network.references"] == ("4x2" if qnrf else "2x2")
    for name in ("localization-qnrf", "losses", "costs"):
        for cell in tables.load(name).cells:
            if cell.settings["dataset"] == "ucf-qnrf":
                points = cell.settings["backbone"] == "p2pnet"
                assert training.configure(cell.settings).crop == (128 if points else 512)
                assert not points or cell.settings["network.references"] == "4x2"
    crops = {c.row: training.configure(c.settings).crop for c in tables.load("localization-nwpu").cells}
    assert crops == {"GL": 384, "DM-Count": 384, "AL-PAPM": 384, "P2PNet": 128, "P2P-PAPM": 128}


def test_only_narrows() -> None:
    study = tables.load("crowds")
    some = study.only(["vgg19,csrnet", "shanghaitech-a"])
    assert {c.settings["backbone"] for c in some.cells} == {"vgg19", "csrnet"} and len(some.cells) == 11
    assert [c.row for c in study.only(["ShTech B", "gl"]).cells] == ["GL"]
    with pytest.raises(ConfigError, match="no cell of 'crowds' answers to vgg and trancos"):
        study.only(["vgg", "trancos"])


def test_a_name_with_commas_can_be_chosen(tmp_path: Path) -> None:
    columns = [{"name": "3,000 steps", "steps": 3000}, {"name": "6,000", "steps": 6000}]
    rows = [{"name": "A", "method": "gaussian"}, {"name": "B", "method": "hd-papm"}]
    study = tables.load(write(tmp_path, columns=columns, rows=rows))
    assert [c.name for c in study.only(["6,000", "b"]).cells] == ["B, 6,000"]


# -- a file of one's own ---------------------------------------------------------------------------------------------------

SMALL: dict[str, Any] = {
    "all": {"dataset": "synthetic", "backbone": "tiny"},
    "rows": [{"name": "A", "method": "gaussian", "paper": ["1.0/2"]}, {"name": "B", "method": "hd-papm"}],
}


def write(folder: Path, **changes: Any) -> str:
    path = folder / "mine.yaml"
    path.write_text(yaml.safe_dump({**SMALL, **changes}), encoding="utf-8")
    return str(path)


def test_an_own_file(tmp_path: Path) -> None:
    study = tables.load(write(tmp_path))
    assert study.name == "mine" and [c.name for c in study.cells] == ["A", "B"]
    assert study.cells[0].paper == ("1.0", "2") and study.cells[1].paper == () and study.metrics == ("mae", "rmse")


def test_a_row_decides_before_a_column_and_a_column_before_all(tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "all": {"dataset": "synthetic", "backbone": "tiny", "steps": 1, "batch": 1, "crop": 64},
        "columns": [{"name": "X", "steps": 2, "batch": 2}],
        "rows": [{"name": "A", "method": "gaussian", "steps": 3}],
    }
    (cell,) = tables.load(write(tmp_path, **settings)).cells
    assert [cell.settings[k] for k in ("steps", "batch", "crop")] == [3, 2, 64]


def test_settings_of_some_cells(tmp_path: Path) -> None:
    """By row, column, dataset, method and network; all that is named must fit. They come before a row's, later ones first."""
    several: dict[str, Any] = {
        "columns": [{"name": "X", "noise": 0}, {"name": "Y", "noise": 4}],
        "rows": [{"name": "A", "method": "gaussian", "crop": 64}, {"name": "B", "method": "hd-papm"}],
        "settings": [
            {"for": {"column": "Y"}, "crop": 96, "batch": 2},
            {"for": {"column": ["Y"], "method": ["hd-papm", "gaussian"], "row": "B"}, "crop": 128},
            {"for": {"dataset": "synthetic", "backbone": "tiny"}, "loss.sigma": 6},
        ],
    }
    study = tables.load(write(tmp_path, **several))
    found = {c.name: (c.settings.get("crop"), c.settings.get("batch"), dict(c.special)) for c in study.cells}
    assert found == {
        "A, X": (64, None, {"loss.sigma": 6}),
        "A, Y": (96, 2, {"crop": 96, "batch": 2, "loss.sigma": 6}),
        "B, X": (None, None, {"loss.sigma": 6}),
        "B, Y": (128, 2, {"crop": 128, "batch": 2, "loss.sigma": 6}),
    }
    assert [c.settings["noise"] for c in study.cells] == [0, 4, 0, 4]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rows": []}, "needs rows"),
        ({"row": []}, "unknown key 'row'; did you mean 'rows'"),
        ({"metrics": ["mea"]}, "unknown metric 'mea'; did you mean 'mae'"),
        ({"metrics": "mae"}, "metrics is a list"),
        ({"rows": [{"name": "A", "method": "gausian"}]}, "row 'A': unknown method 'gausian'; did you mean 'gaussian'"),
        ({"rows": [{"name": "A"}]}, "row 'A': there is no method; every cell needs"),
        ({"rows": ["A"]}, "a row is a mapping"),
        ({"rows": [{"name": "A", "method": "sc", "paper": ["1"]}]}, "'1' is not mae/rmse"),
        ({"rows": [{"name": "A", "method": "sc", "paper": ["1/2", "1/2"]}]}, "needs 1 entries under 'paper'"),
        ({"rows": [{"name": "A", "method": "sc", "stesp": 3}]}, "unknown setting 'stesp'; did you mean 'steps'"),
        ({"rows": [{"name": "A", "method": "sc", "seed": 3}]}, "unknown setting 'seed'"),
        ({"rows": [{"name": "A", "method": "sc", "loss": {"w_tv": 1}}]}, "write options one by one, loss.NAME: value"),
        ({"rows": [{"name": "A", "method": "sc"}, {"name": "A", "method": "gl"}]}, "two rows are called 'A'"),
        ({"rows": [{"name": "A", "method": "sc"}, {"name": "B", "method": "sc"}]}, "ask for the same training"),
        ({"all": {"dataset": "photo", "backbone": "tiny"}}, "unknown dataset 'photo'"),
        ({"notes": [{"text": "no", "row": "C"}]}, "a note is about row 'C'"),
        ({"notes": [{"txt": "no"}]}, "unknown key of a note 'txt'"),
        ({"settings": {"crop": 64}}, "settings is a list"),
        ({"settings": [{"crop": 64}]}, "settings are written {for: {column: NAME}, crop: 512}"),
        ({"settings": [{"for": {"row": "A"}}]}, "settings are written {for: {column: NAME}, crop: 512}"),
        ({"settings": [{"for": {"rows": "A"}, "crop": 64}]}, "unknown key of for 'rows'; did you mean 'row'"),
        ({"settings": [{"for": {"row": "C"}, "crop": 64}]}, "settings are for row 'C', which the table does not have"),
        (
            {"settings": [{"for": {"row": "A", "method": "hd-papm"}, "crop": 64}]},
            "method hd-papm; row A, which no cell is",
        ),
        ({"settings": [{"for": {"row": "A"}, "method": "sc"}]}, "method is what a row or a column says"),
        ({"settings": [{"for": {"row": "A"}, "corp": 64}]}, "unknown setting 'corp'; did you mean 'crop'"),
    ],
)
def test_faults_of_an_own_file_are_named(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    tables.load.cache_clear()
    with pytest.raises(ConfigError, match=re.escape(message)) as raised:
        tables.load(write(tmp_path, **changes))
    assert "mine.yaml" in str(raised.value)


def test_the_example_and_the_metrics_of_the_guide() -> None:
    guide = (Path(__file__).parents[2] / "docs" / "guide" / "studies.md").read_text(encoding="utf-8")
    section = guide.partition("\n## ")[0]
    (block,) = re.findall(r"```yaml\n(.*?)```", section, flags=re.S)
    study = tables.parse(yaml.safe_load(block), "mine", "studies.md")
    assert [c.name for c in study.cells][-1] == "Published, exact" and len(study.cells) == 5
    for cell in study.cells:
        training.configure(cell.settings)
    named = re.findall(
        r"`([\w-]+)`", section.partition("Metrics:")[2].replace("`game0` … `game3`", "`game0` `game1` `game2` `game3`")
    )
    assert set(METRICS) <= set(named)


def test_unknown_names() -> None:
    with pytest.raises(ConfigError, match="unknown study 'crowd'; did you mean 'crowds'"):
        tables.load("crowd")
    with pytest.raises(ConfigError, match=r"nowhere\.yaml: cannot be read"):
        tables.load("nowhere.yaml")


# -- against the paper's source (PAPM_PAPER names papm.tex) -----------------------------------------------------------------


@pytest.fixture(scope="session")
def source() -> str:
    path = os.environ.get("PAPM_PAPER")
    if not path or not Path(path).is_file():
        pytest.skip("PAPM_PAPER names no LaTeX file of the paper")
    return Path(path).read_text(encoding="utf-8")


def plain(name: str) -> str:
    r"""A row's name without case, blanks, citations and what says that it is the authors'.

    >>> plain(r"CSRNet\cite{CSRNet}+HD-PAPM (ours)")
    'csrnet+hd-papm'
    """
    bare = re.sub(r"\\cite\{[^}]*\}|\\hline|\\cline *\{[^}]*\}|\(ours\)|\\text\b|[\s$]", "", name)
    return (bare if bare.startswith("c=") else re.sub(r"[{}]", "", bare)).lower()


def printed_rows(source: str, label: str) -> dict[str, list[str]]:
    """Name → figures of every row of the table with that label."""
    blocks = re.findall(r"\\begin\{table\*?\}.*?\\end\{table\*?\}", source, flags=re.S)
    (block,) = [b for b in blocks if f"\\label{{{label}}}" in b]
    rows: dict[str, list[str]] = {}
    for line in re.split(r"\\\\", block):
        name, *cells = line.split("&")
        figures = [re.sub(r"\\(textbf|underline)\b|[\s${}]", "", f) for c in cells for f in c.split("/")]
        if figures and all(re.fullmatch(r"-|\d+\.\d+", f) for f in figures):
            rows[plain(name.rpartition("hline")[2])] = figures
    return rows


def raw_file(name: str) -> dict[str, Any]:
    return dict(yaml.safe_load((tables.FOLDER / f"{name}.yaml").read_text(encoding="utf-8")))


@pytest.mark.parametrize("name", [n for n in NAMES if "label" in raw_file(n)])
def test_figures_are_as_printed(name: str, source: str) -> None:
    study, raw = tables.load(name), raw_file(name)
    printed = printed_rows(source, raw["label"])
    ours: dict[str, list[str]] = {}
    for row in raw["rows"]:
        figures = [f for e in row["paper"] for f in (str(e).split("/") if e else ["-"] * len(study.metrics))]
        ours[plain(str(row.get("printed", row["name"])))] = figures
    assert {k: printed.get(k) for k in ours} == ours
    assert set(printed) - set(ours) == NOT_OURS.get(name, set())


def test_figures_of_the_sweeps_without_a_table_are_those_of_table_1() -> None:
    main = {
        (c.settings["method"], c.column): c.paper
        for c in tables.load("crowds").cells
        if c.row in ("VGG19 + AL-PAPM", "P2P-PAPM")
    }
    for name in ("al-papm-sigma", "p2p-papm-sigma", "p2p-papm-shape"):
        figures = [c for c in tables.load(name).cells if c.paper]
        assert [c.paper for c in figures] == [main[figures[0].settings["method"], "ShTech A"]]
