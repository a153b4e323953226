"""What a run folder says of its run."""

from __future__ import annotations

import subprocess

import pytest

from papm.engine import run_folder
from papm.version import __version__


@pytest.mark.parametrize(
    ("told", "said"), [("0123456789ab", "0123456789ab"), ("", __version__), ("a b\n", __version__)]
)
def test_a_tree_without_git_has_the_revision_that_it_is_told(
    monkeypatch: pytest.MonkeyPatch, told: str, said: str
) -> None:
    def no_git(*args: object, **more: object) -> None:
        raise FileNotFoundError("git")

    monkeypatch.setenv("PAPM_REVISION", told)
    monkeypatch.setattr(subprocess, "run", no_git)
    assert run_folder.revision() == said


def test_git_knows_better(monkeypatch: pytest.MonkeyPatch) -> None:
    def git(command: list[str], **more: object) -> subprocess.CompletedProcess[str]:
        said = "0123456789abcdef\n" if "rev-parse" in command else " M a.py\n"
        return subprocess.CompletedProcess(command, 0, said, "")

    monkeypatch.setenv("PAPM_REVISION", "other")
    monkeypatch.setattr(subprocess, "run", git)
    assert run_folder.revision() == "0123456789ab+"
