"""Templates for issues: forms that GitHub accepts, which ask for the report of the machine and never for secrets."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from project import ROOT

FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
pytestmark = pytest.mark.skipif(not FORMS, reason="installed without its sources")
forms = pytest.mark.parametrize("path", [p for p in FORMS if p.stem != "config"], ids=lambda p: p.stem)


def test_there_is_a_form_for_each_kind_of_issue() -> None:
    assert {p.stem for p in FORMS} == {"config", "bug", "wrong-count", "dataset", "feature"}


@forms
def test_a_form_is_one_that_github_accepts(path: Path) -> None:
    form = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert set(form) == {"name", "description", "labels", "body"}
    fields = [part for part in form["body"] if part["type"] != "markdown"]
    ids = [part["id"] for part in fields]
    assert len(set(ids)) == len(ids) and all(re.fullmatch(r"[a-z-]+", i) for i in ids)
    assert {part["type"] for part in form["body"]} <= {"markdown", "textarea", "input", "dropdown", "checkboxes"}
    assert all(part["attributes"].get("label") for part in fields)
    assert any(part.get("validations", {}).get("required") for part in fields)


@pytest.mark.parametrize("name", ["bug", "wrong-count"])
def test_reports_ask_for_the_machine(name: str) -> None:
    text = (ROOT / ".github" / "ISSUE_TEMPLATE" / f"{name}.yml").read_text(encoding="utf-8")
    assert "label: papm doctor --report" in text


@forms
def test_commands_that_are_named_exist(path: Path) -> None:
    from papm.cli.main import COMMANDS

    known = {name for _, name, _, _ in COMMANDS} | {f"{group} {name}" for group, name, _, _ in COMMANDS if group}
    for words in re.findall(r"`papm ([a-z]+(?: [a-z]+)?)", path.read_text(encoding="utf-8")):
        assert words in known or words.split()[0] in known, words
