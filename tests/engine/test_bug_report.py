"""Bug reports: what a maintainer needs, and nothing about the person."""

from __future__ import annotations

import getpass
import platform
import re
from pathlib import Path

import pytest

from papm.engine import bug_report as reports
from papm.engine.bug_report import bug_report, redacted

FACTS = {
    "papm": "0.1.0",
    "revision": "0123456789ab+",
    "platform": "Linux-6.1-built-by-alice.smith@lab-gpu-7",
    "hardware": "NVIDIA H200 of alice.smith",
    "cache": "/home/alice.smith/secret-project/cache",
    "cache_free_gb": 0.5,
    "cache_writable": True,
    "c_loops": {"matching": True, "transport": False},
    "cuda_kernels": {},
    "packages": {"torch": "2.13.0"},
    "problems": [
        "less than 1 GB is free in /home/alice.smith/secret-project/cache; set PAPM_CACHE to a larger place",
        "C:\\Users\\Alice.Smith\\models cannot be read | by lab-gpu-7.example.org",
    ],
}


@pytest.fixture
def person(monkeypatch: pytest.MonkeyPatch) -> None:
    """A home, a name, a machine, and an environment that nobody else should read."""
    monkeypatch.setenv("HOME", "/home/alice.smith")
    monkeypatch.setenv("USER", "alice.smith")
    monkeypatch.delenv("PAPM_BROWSER", raising=False)  # of this test run
    monkeypatch.setenv("PAPM_CACHE", "/home/alice.smith/secret-project/cache")
    monkeypatch.setenv("PAPM_TOKEN", "s3cr3t-t0k3n")
    monkeypatch.setenv("API_KEY", "s3cr3t-k3y")
    monkeypatch.setattr(platform, "node", lambda: "lab-gpu-7.example.org")
    monkeypatch.setattr(getpass, "getuser", lambda: "alice.smith")


@pytest.mark.usefixtures("person")
def test_nothing_private_is_told() -> None:
    text = bug_report(FACTS)
    for secret in (
        "alice",
        "smith",
        "/home",
        "users",
        "secret-project",
        "s3cr3t",
        "lab-gpu-7",
        "example.org",
        "api_key",
    ):
        assert secret not in text.lower(), secret
    assert "less than 1 GB is free in &lt;path>; set PAPM_CACHE" in text


@pytest.mark.usefixtures("person")
def test_what_helps_is_told() -> None:
    rows = dict(re.findall(r"^\| (.+?) \| (.*) \|$", bug_report(FACTS), flags=re.M))
    assert rows["papm"] == "0.1.0" and rows["revision"] == "0123456789ab+" and rows["cache_writable"] == "yes"
    assert rows["variables set"] == "PAPM_CACHE, PAPM_OFFLINE, PAPM_TOKEN"
    assert rows["compiled C, matching"] == "yes" and rows["compiled C, transport"] == "no"
    assert rows["hardware"] == "NVIDIA H200 of &lt;name>"
    assert re.search(r"torch \d", rows["core"]) and "missing" not in rows["core"]
    assert {"extra train", "extra serve", "extra export"} <= set(rows)
    assert len(rows["processor"]) > 1


def test_a_package_that_is_not_there_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reports, "EXTRAS", {"ghost": {"ghost": "no-such-package"}})
    assert "| extra ghost | no-such-package missing |" in bug_report({})


def test_versions_and_words_stay() -> None:
    said = "2.13.0+cpu, and/or 3/4, x86_64 CPU, https://pypi.org, Linux-6.1-x86_64-with-glibc2.36"
    assert redacted(said, ["x86", "al"]) == said
    assert redacted("file:///srv/data or '/srv/my data'", []) == "<path> or '<path> data'"


def test_a_user_without_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody() -> str:
        raise KeyError("uid not found")

    monkeypatch.setattr(getpass, "getuser", nobody)
    monkeypatch.setenv("USER", "")
    assert str(Path.home().name) in reports.names() or Path.home().name in ("root", "")
