"""The documents tell the truth: their Python runs, their commands, options and settings exist, their links resolve.

Python blocks of one document run in order, in one namespace, in a folder that holds what the documents speak of (`photos`,
`new-photos`, `photo.jpg`, `gate.webm`, `runs/first`). A block after the line `<!-- no-test -->` is skipped.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import importlib
import io
import itertools
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from papm import config, data, methods, models
from papm.cli.main import main
from papm.data.base import READERS
from papm.data.convert import write_folder
from papm.data.formats import FORMATS
from papm.data.synthetic import SceneOptions
from papm.draw import save_png
from papm.losses.registry import LOSSES
from papm.models import NETWORKS
from papm.predict.video import VideoWriter

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = sorted(
    p.relative_to(ROOT).as_posix() for p in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")) if p.is_file()
)


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its text, the line it begins at, and whether the document asks to skip it."""

    language: str
    text: str
    line: int
    skipped: bool


@functools.cache
def text_of(document: str) -> str:
    return (ROOT / document).read_text(encoding="utf-8")


@functools.cache
def blocks(document: str) -> tuple[Block, ...]:
    found: list[Block] = []
    lines = text_of(document).split("\n")
    start, language = None, ""
    for number, line in enumerate(lines):
        if not line.startswith("```"):
            continue
        if start is None:
            start, language = number, line[3:].strip()
        else:
            before = next((x.strip() for x in reversed(lines[:start]) if x.strip()), "")
            found.append(Block(language, "\n".join(lines[start + 1 : number]), start + 2, before == "<!-- no-test -->"))
            start = None
    assert start is None, f"{document}: a block that begins at line {(start or 0) + 1} does not end"
    return tuple(found)


@functools.cache
def prose(document: str) -> str:
    """The text without its fenced blocks."""
    return re.sub(r"^```.*?^```", "", text_of(document), flags=re.S | re.M)


def commands() -> list[tuple[str, int, list[str]]]:
    """Every `papm …` line of a shell block: document, line, words after `papm`."""
    found = []
    for document in DOCUMENTS:
        for block in blocks(document):
            if block.language not in ("sh", "console"):
                continue
            for offset, line in enumerate(block.text.split("\n")):
                words = shlex.split(line.removeprefix("$ "), comments=True)
                while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
                    words = words[1:]
                if words and words[0].rpartition("/")[2] == "papm":
                    found.append((document, block.line + offset, words[1:]))
    return found


@functools.cache
def help_of(*command: str) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out), pytest.raises(SystemExit) as ended:
        main([*command, "--help"])
    assert not ended.value.code, f"papm {' '.join(command)} is not a command"
    return out.getvalue()


def subcommands(*command: str) -> list[str]:
    listed = help_of(*command).partition("Commands:\n")[2]
    return [line.split()[0] for line in listed.split("\n") if re.match(r"  \S", line)]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the documents assume: a small dataset, a photo, and a (very short) run."""
    from papm.engine import train as engine
    from papm.engine.build import resolve

    root = tmp_path_factory.mktemp("docs")
    splits = data.open("synthetic", train=4, test=2, size=64, count="3-9")
    for name, dataset in splits.items():
        write_folder(dataset, root / "photos" / name)
    for sample in splits["test"]:
        save_png(sample.image, root / "new-photos" / f"{Path(sample.name).stem}.png")
    save_png(splits["test"][0].image, root / "photo.png")
    (root / "photo.png").rename(root / "photo.jpg")  # read by content, not by name
    with VideoWriter(root / "gate.webm", 4.0) as video:
        video.write(torch.zeros(3, 64, 64, dtype=torch.uint8))
    short = {"data": f"folder:{root}/photos", "steps": 2, "crop": 64, "batch": 1, "device": "cpu"}
    engine.train(resolve("hd-papm", "tiny", short), root / "runs" / "first")
    return root


@pytest.fixture
def registries() -> Iterator[None]:
    """What the examples register is forgotten afterwards."""
    changed: tuple[dict[str, Any], ...] = tuple(
        registry._items for registry in (LOSSES, NETWORKS, READERS, FORMATS, methods.METHODS)
    )
    kept = [dict(d) for d in changed]
    yield
    for registry, before in zip(changed, kept):
        registry.clear()
        registry.update(before)


@pytest.mark.slow
@pytest.mark.parametrize("document", [d for d in DOCUMENTS if any(b.language == "python" for b in blocks(d))])
def test_python_blocks_run(
    document: str, world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, registries: None
) -> None:
    shutil.copytree(world, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {"__name__": document}
    for block in blocks(document):
        if block.language != "python" or block.skipped:
            continue
        before = set(namespace)
        code = compile("\n" * (block.line - 1) + block.text, str(ROOT / document), "exec")
        exec(code, namespace)
        for name in set(namespace) - before:  # the examples of tests are tests
            if name.startswith("test_"):
                namespace[name]()


@pytest.mark.slow
@pytest.mark.parametrize("notebook", sorted((ROOT / "docs/notebooks").glob("*.ipynb")), ids=lambda p: p.stem)
def test_notebooks_run(notebook: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every code cell in order, as a kernel would, with fewer steps; what is committed has no output."""
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {"__name__": notebook.stem}
    for number, cell in enumerate(json.loads(notebook.read_text(encoding="utf-8"))["cells"]):
        if cell["cell_type"] == "code":
            assert not cell["outputs"]
            source = re.sub(r"steps=\d+", "steps=3", "".join(cell["source"]))
            exec(compile(source, f"{notebook.name}[{number}]", "exec"), namespace)


@pytest.mark.slow
def test_the_tutorial_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its commands in order, but for the installation and the server, with fewer steps."""
    monkeypatch.chdir(tmp_path)
    run = 0
    for block in blocks("docs/tutorial.md"):
        for line in block.text.splitlines():
            words = shlex.split(re.sub(r"steps=\d+", "steps=20", line))
            if words[:1] == ["papm"] and words[1] != "serve":
                with contextlib.redirect_stdout(io.StringIO()), pytest.raises(SystemExit) as ended:
                    main(words[1:])
                assert not ended.value.code, line
                run += 1
    assert run >= 7
    assert len((tmp_path / "counted/counts.csv").read_text(encoding="utf-8").splitlines()) == 2


@pytest.mark.slow
def test_the_site_builds_without_a_dead_link(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="the site needs papm[docs]")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(tmp_path / "site")]
    where = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(command, cwd=ROOT, env=where, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "site/losses/al-papm/index.html").is_file()


def test_skipped_blocks_are_few() -> None:
    assert sum(b.skipped for d in DOCUMENTS for b in blocks(d)) <= 2


@pytest.mark.parametrize(("document", "line", "words"), commands(), ids=lambda v: v if isinstance(v, str) else None)
def test_commands_and_options_exist(document: str, line: int, words: list[str]) -> None:
    where = f"{document}:{line}"
    assert words and (words[0] in subcommands() or words[0].startswith("-")), where
    command = [words[0]] if not words[0].startswith("-") else []
    if command and subcommands(*command):
        assert len(words) > 1 and words[1] in subcommands(*command), where
        command.append(words[1])
    described = help_of(*command)
    for word in words:
        if word.startswith("-"):
            option = word.partition("=")[0]
            assert re.search(rf"(?<![\w-]){re.escape(option)}(?![\w-])", described), f"{where}: no option {option}"
        if word.startswith("synthetic:"):
            SceneOptions.parse(word.partition(":")[2])
        elif ":" in word and "://" not in word:
            assert word.partition(":")[0] in READERS, f"{where}: no dataset {word}"
    if command == ["train"]:
        from papm.engine.build import resolve

        given = dict(itertools.pairwise(words))
        settings = config.parse_overrides(w for w in words if re.match(r"[a-z_.]+=", w))
        resolve(given.get("--method", "hd-papm"), given.get("--backbone", "vgg19"), settings)


def test_commands_were_found() -> None:
    assert len(commands()) > 20


@pytest.mark.parametrize("document", DOCUMENTS)
def test_commands_in_the_text_exist(document: str) -> None:
    for inline in re.findall(r"`papm ([^`]+)`", prose(document)):
        first, *rest = inline.split()
        if first.isupper() or first.startswith(("-", "…")):
            continue
        assert first in subcommands(), f"{document}: papm {inline}"
        if rest and subcommands(first):
            assert rest[0] in subcommands(first), f"{document}: papm {inline}"
    for target in re.findall(r"(?:^|`)make (\w+)", text_of(document), flags=re.M):
        assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.M), target


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_resolve(document: str) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(document)):
        if target.startswith(("http://", "https://")):
            continue
        path, _, anchor = target.partition("#")
        file = ((ROOT / document).parent / path).resolve() if path else ROOT / document
        assert file.is_file(), f"{document}: {target}"
        if anchor:
            headings = re.findall(r"^#+ (.+)$", file.read_text(encoding="utf-8"), flags=re.M)
            assert anchor in [slug(h) for h in headings], f"{document}: no heading for {target}"


def slug(heading: str) -> str:
    """A heading's anchor, as GitHub makes it.

    >>> slug("Transport: DM-Count and AL-PAPM")
    'transport-dm-count-and-al-papm'
    """
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


@pytest.mark.parametrize("document", DOCUMENTS)
def test_names_of_the_package_exist(document: str) -> None:
    for dotted in re.findall(r"`(papm(?:\.\w+)+)(?:\(\))?`", prose(document)):
        assert resolves(dotted), f"{document}: {dotted}"


def resolves(dotted: str) -> bool:
    parts = dotted.split(".")
    for k in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:k]))
        except ModuleNotFoundError:
            continue
        for name in parts[k:]:
            if not hasattr(found, name):
                return False
            found = getattr(found, name)
        return True
    return False


@pytest.mark.parametrize("document", ["docs/walkthrough.md", "docs/architecture.md"])
def test_source_files_and_what_they_define_exist(document: str) -> None:
    named = re.findall(r"`([\w/]+\.py)(?::([\w.]+))?`", prose(document))
    assert len(named) > 10
    for path, name in named:
        file = ROOT / "src" / "papm" / path
        if "NAME" in path:
            continue
        assert file.is_file() or (ROOT / path).is_file(), f"{document}: {path}"
        if name:
            assert name in defined(file), f"{document}: {path} does not define {name}"


@functools.cache
def defined(file: Path) -> frozenset[str]:
    """Names of the functions, classes and methods of a file."""
    names = set()
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            names |= {f"{node.name}.{m.name}" for m in node.body if isinstance(m, ast.FunctionDef)}
    return frozenset(names)


def rows(document: str, heading: str) -> list[list[str]]:
    """Cells of the first table under a heading, without its head."""
    section = re.split(rf"^#+ {re.escape(heading)}$", text_of(document), flags=re.M)[1]
    table = re.search(r"(?:^\|.*\n)+", section, flags=re.M)
    assert table is not None
    return [[c.strip() for c in re.split(r"(?<!\\)\|", line)[1:-1]] for line in table[0].strip().split("\n")[2:]]


def test_every_setting_is_described_with_its_default() -> None:
    described = rows("docs/guide/settings.md", "Settings")
    assert [r[0].strip("`") for r in described] == config.names()
    defaults = config.to_mapping(config.TrainConfig())
    for key, default, meaning in described:
        value = yaml.safe_load(default.strip("`")) if default else ""
        assert value == defaults[key.strip("`")], key
        assert meaning


def test_options_of_synthetic_scenes_are_described() -> None:
    named = [n for r in rows("docs/guide/synthetic-data.md", "Synthetic data") for n in re.findall(r"`(\w+)`", r[0])]
    assert named == [f.name for f in fields(SceneOptions)]


def test_every_environment_variable_is_described() -> None:
    sources = "".join(p.read_text(encoding="utf-8") for p in (ROOT / "src").rglob("*.py"))
    named = {r[0].strip("`") for r in rows("docs/guide/install.md", "Environment variables")}
    assert named == {"CC", *re.findall(r"\bPAPM_[A-Z_]+", sources)}


def test_times_of_losses_are_those_of_the_file_they_name() -> None:
    """results/speed/losses-h200.json: what it has is printed as it is, what it has not is not in its table."""
    measured = json.loads(text_of("results/speed/losses-h200.json"))["losses"]

    def told(name: str, points: int, what: str) -> str:
        return f"{measured[f'{name} n={points}'][what]:.1f}"

    page = text_of("docs/speed.md").partition("Losses alone, as a user calls them")[2]
    lines = re.findall(r"^\| `([\w-]+)` \| ([\d.]+) ms \| ([\d.]+) ms \| ([\d.]+) ms \|$", page, flags=re.M)
    assert {"gl", "gl-papm", "al-papm", "noisecc"} <= {name for name, *_ in lines}
    for name, recorded, many, eager in lines:
        expected = [told(name, n, what) for n, what in ((1000, "batch_ms"), (3000, "batch_ms"), (1000, "eager_ms"))]
        assert [recorded, many, eager] == expected, name
    for name, eager, recorded in rows("docs/losses.md", "On a GPU"):
        if f"{name.strip('`')} n=1000" in measured:
            assert [eager, recorded] == [told(name.strip("`"), 1000, what) for what in ("eager_ms", "batch_ms")], name


def test_every_method_and_network_is_described_in_the_guide() -> None:
    section = text_of("docs/guide/training.md").partition("\n## ")[0]
    named = re.findall(r"^\| `([\w-]+)` \|", section, flags=re.M)
    assert set(named) == {*methods.METHODS, *models.names()}, (
        "describe every method and network in docs/guide/training.md"
    )


def test_recipes_are_those_of_the_code() -> None:
    guide = text_of("docs/guide/settings.md")
    section = guide.partition("Recipes set other defaults")[2].partition("Options of losses and networks")[0]
    lines = [re.findall(r"`([^`]+)`", line) for line in section.splitlines() if line.startswith("| `")]
    told = {" ".join(names[:-1]): config.parse_overrides(names[-1].split()) for names in lines}
    plain = config.to_mapping(config.TrainConfig())
    photographs = "vgg19 csrnet msfanet man lite dinov2"
    usual = plain | (colours := told.pop(photographs))
    assert all(colours.items() <= methods.recipe("sc", backbone).items() for backbone in photographs.split())
    for backbone in ("tiny", "lite", "dinov2", "csrnet", "mcnn", "msfanet", "man", "p2pnet"):
        recipe = methods.recipe("p2pnet" if backbone == "p2pnet" else "sc", backbone)
        assert told.pop(backbone) == {k: v for k, v in recipe.items() if v != usual[k]}, backbone
    recipe = methods.recipe("p2p-papm", "p2pnet", {"trunk": "tiny"})
    assert told.pop("p2pnet network.trunk=tiny") == {k: v for k, v in recipe.items() if v != plain[k]}
    assert told.pop("bl ial noisecc") | colours == methods.recipe("bl", "vgg19")
    assert told.pop("kdmg") | colours == methods.recipe("kdmg", "vgg19")
    transport = told.pop("dm-count al-papm") | colours
    assert transport == methods.recipe("al-papm", "vgg19") == methods.recipe("dm-count", "vgg19")
    maps = "gaussian gaussian-16 gaussian-adaptive hd-papm"
    live = {"network": {"activation": "relu-live"}}
    assert told == {maps: live, f"{maps} vgg19 csrnet msfanet man clip=0.1": {"lr": 3e-4}}
    for backbone in ("vgg19", "csrnet", "msfanet", "man"):
        recipe = methods.recipe("gaussian", backbone)
        rate = 3e-4 if backbone in ("vgg19", "csrnet") else 1e-4
        assert (recipe["network"], recipe["clip"], recipe["lr"]) == (live["network"], 0.1, rate)


def test_fields_of_a_result_are_described(world: Path) -> None:
    described = {
        n for r in rows("docs/guide/reports.md", "One training, one JSON object") for n in re.findall(r"`(\w+)`", r[0])
    }
    assert described == set(json.loads((world / "runs/first/result.json").read_text(encoding="utf-8")))


def test_files_of_a_run_are_described(world: Path) -> None:
    section = text_of("docs/guide/training.md").partition("A run folder holds:")[2].partition("\n## ")[0]
    described = set(re.findall(r"^\| `([\w.]+)/?` \|", section, flags=re.M))
    assert {p.name for p in (world / "runs/first").iterdir()} <= described


def test_the_citation_is_yaml_with_the_version_of_the_package() -> None:
    cited = yaml.safe_load(text_of("CITATION.cff"))
    from papm import __version__

    assert cited["version"] == __version__ and cited["license"] == "Apache-2.0"
    assert len(cited["references"][0]["authors"]) == 5
    assert f"## [{__version__}]" in text_of("CHANGELOG.md")


def test_pictures_are_small() -> None:
    for file in (ROOT / "docs" / "images").glob("*"):
        assert file.stat().st_size <= 300_000, file
