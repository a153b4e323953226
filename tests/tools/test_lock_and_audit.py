"""The lock belongs to pyproject.toml and constraints.txt, and nothing that is known to be bad is in any of them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

import audit
import lock
from project import ROOT, bounds, every_extra, pins

pytestmark = pytest.mark.skipif(not (ROOT / "requirements.lock").exists(), reason="installed without its sources")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A copy of the three files, to be changed."""
    for name in ("pyproject.toml", "constraints.txt", "requirements.lock"):
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def change(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")


def test_the_lock_is_up_to_date() -> None:
    assert lock.complaints() == [], "run `make lock` (it needs the network)"


def test_a_lock_that_is_behind_is_noticed(project: Path) -> None:
    assert lock.complaints(project) == []
    change(project / "constraints.txt", "rich==", "# a comment changes nothing\nrich==")
    assert lock.complaints(project) == []
    change(project / "constraints.txt", "rich==", "rich==14.0.0 # ")
    assert [c.split(":")[0] for c in lock.complaints(project)] == ["requirements.lock", "rich"]
    change(project / "pyproject.toml", '"filelock>=4.2"', '"filelock>=99", "left-pad>=1"')
    said = "\n".join(lock.complaints(project))
    assert "filelock: 4." in said and "left-pad: pyproject.toml asks for it, and it is not locked" in said
    (project / "requirements.lock").write_text(f"# inputs: {lock.inputs(project)}\nh11==0.16.0\n", encoding="utf-8")
    assert "h11: is locked without a hash" in lock.complaints(project)


def test_which_files_have_their_hash_in_the_lock() -> None:
    here = [
        "numpy-2.4.6-cp311-cp311-manylinux_2_27_x86_64.manylinux_2_28_x86_64.whl",
        "onnx-2.4.6-cp311-abi3-macosx_12_0_universal2.whl",
        "rich-2.4.6-py3-none-any.whl",
    ]
    elsewhere = [
        "numpy-2.4.6-cp311-cp311-win_amd64.whl",
        "numpy-2.4.6-cp311-cp311-musllinux_1_2_x86_64.whl",
        "numpy-2.4.6-cp314-cp314t-manylinux_2_28_x86_64.whl",
        "numpy-2.4.5-cp311-cp311-manylinux_2_28_x86_64.whl",
        "numpy-2.4.6.tar.gz",
    ]
    assert [f for f in here + elsewhere if lock.wanted(f, "2.4.6")] == here
    assert lock.source("numpy-2.4.6.tar.gz", "2.4.6") and not lock.source("numpy-2.4.5.tar.gz", "2.4.6")


def test_the_cuda_packages_of_torch_are_not_locked() -> None:
    assert not [name for name in pins(ROOT / "requirements.lock") if lock.APART.fullmatch(name)]
    assert lock.APART.fullmatch("nvidia-cublas") and not lock.APART.fullmatch("torchmetrics")


def test_nothing_bad_is_admitted_pinned_or_locked() -> None:
    assert audit.complaints() == []
    assert audit.installed()["pytest"]


def test_the_pins_are_what_pyproject_admits() -> None:
    allowed = bounds(every_extra())
    outside = {
        n: v for n, v in pins(ROOT / "constraints.txt").items() if not allowed.get(n, SpecifierSet()).contains(v)
    }
    assert not outside
    assert set(pins(ROOT / "constraints.txt")) <= set(allowed), "a pin of a package that no part of papm asks for"


def test_what_is_bad_is_named_with_its_reason(project: Path) -> None:
    change(project / "constraints.txt", "lightning==2.6.6", "lightning==2.6.3")
    change(project / "pyproject.toml", "pillow>=11.3", "pillow>=11.0")
    said = "\n".join(audit.complaints(project))
    assert "constraints.txt: lightning 2.6.3 is bad: malicious uploads" in said
    assert "pyproject.toml: pillow>=11.0 admits 11.2.1: a heap overflow" in said


def test_every_example_is_a_bad_version() -> None:
    entries = audit.known()
    assert len(entries) > 10 and not [b for b in entries if b.example and not b.versions.contains(b.example)]
