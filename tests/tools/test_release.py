"""The checklist of a release notices what is not in order."""

from __future__ import annotations

from pathlib import Path

import pytest

import release
from project import ROOT

pytestmark = pytest.mark.skipif(not (ROOT / "CITATION.cff").exists(), reason="installed without its sources")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "src" / "papm").mkdir(parents=True)
    (tmp_path / "src" / "papm" / "version.py").write_text('__version__ = "1.2.3"\n')
    (tmp_path / "CITATION.cff").write_text("version: 1.2.3\n")
    (tmp_path / "CHANGELOG.md").write_text(
        "# Changelog\n\n## [Unreleased]\n\n## [1.2.3] - 2026-01-31\n\n## [1.2.2] - 2025-12-01\n"
    )
    return tmp_path


def test_version_and_changelog(project: Path) -> None:
    assert release.check_version(project) == [] and release.check_changelog(project, "2026-01-31") == []
    assert "is dated 2026-01-31, not 2026-02-01" in release.check_changelog(project, "2026-02-01")[0]
    (project / "CITATION.cff").write_text("version: 1.2.2\n")
    assert release.check_version(project) == ["CITATION.cff: its version is not 1.2.3"]
    (project / "src" / "papm" / "version.py").write_text('__version__ = "1.3.0.dev0"\n')
    assert "not MAJOR.MINOR.PATCH" in release.check_version(project)[0]
    assert "its first section is not [1.3.0.dev0]" in release.check_changelog(project)[0]


def test_this_version_is_cited() -> None:
    assert release.check_version() == []


def test_what_a_wheel_may_hold() -> None:
    wanted = {"papm/__init__.py", "papm/_kernel_maps.c"}
    inside = wanted | {"papm-1.2.3.dist-info/METADATA"}
    packed = {"pyproject.toml", "hatch_build.py", "requirements.lock", "constraints.txt", "LICENSE", "README.md"}
    assert release.complaints_about_wheel(inside, 1e6, wanted, packed) == []
    found = release.complaints_about_wheel(
        (inside - {"papm/_kernel_maps.c"}) | {"tests/x.py"}, 1e9, wanted, packed - {"LICENSE"}
    )
    assert [line.split()[-1] for line in found] == ["papm/_kernel_maps.c", "package's", "MB", "LICENSE"]


def test_a_target_that_is_missing_or_fails_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "Makefile").write_text("good:\n\ttrue\nbad:\n\tfalse\n")
    monkeypatch.setattr(release, "ROOT", tmp_path)
    assert release.make("good")() == [] and release.make("bad")() == ["make bad failed"]
    assert release.make("none")() == ["the Makefile has no none"]
