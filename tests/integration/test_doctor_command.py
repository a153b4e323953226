"""`papm doctor`: what the machine offers, and which compiled loops are in use."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable

import pytest

Papm = Callable[..., tuple[int, str, str]]
LOOPS = {"targets", "transport", "unbalanced transport", "matching", "training lite"}


@pytest.mark.slow
def test_it_says_which_loops_are_compiled(run_papm: Papm) -> None:
    code, out, _ = run_papm("doctor", "--json")
    found = json.loads(out)
    assert code == 0 and set(found["c_loops"]) == LOOPS
    if shutil.which("cc"):
        assert all(found["c_loops"].values())
    code, out, _ = run_papm("doctor")
    assert code == 0 and "compiled C: matching" in out


def test_a_loop_that_cannot_be_built_is_a_problem(run_papm: Papm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("papm.matching.native.available", lambda: False)
    code, out, _ = run_papm("doctor", "--json")
    found = json.loads(out)
    assert code == 0 and not found["c_loops"]["matching"]
    assert [p for p in found["problems"] if "matching" in p and "C compiler" in p]
    monkeypatch.setenv("PAPM_NATIVE", "0")  # as asked for
    _, out, _ = run_papm("doctor", "--json")
    assert not [p for p in json.loads(out)["problems"] if "C loop" in p]


def test_a_report_for_an_issue(run_papm: Papm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAPM_CACHE", "/nonexistent/eve/cache")
    code, out, _ = run_papm("doctor", "--report")
    assert code == 0 and out.startswith("### papm doctor\n") and "| extra report | jinja2 " in out
    assert "eve" not in out.lower().replace("levels", "")
    code, _, err = run_papm("doctor", "--report", "--json")
    assert code == 2 and "choose one" in err
