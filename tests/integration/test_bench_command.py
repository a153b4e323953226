"""`papm bench …` end to end. What it measures is never asserted, only that it measures and that the results agree."""

from __future__ import annotations

import functools
import json

import pytest

from papm.bench import targets, transport
from papm.cli import bench as command
from papm.cli import main as entry

SMALL = ["--points", "60", "--size", "48x64", "--repeat", "2"]


def papm(*args: str) -> int:
    with pytest.raises(SystemExit) as stopped:
        entry.main(["bench", *args])
    return int(stopped.value.code or 0)


def test_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert papm("list", "--json") == 0
    listed = {row["name"]: row["summary"] for row in json.loads(capsys.readouterr().out)}
    assert "targets" in listed and all(listed.values())
    assert {name for group, name, *_ in entry.COMMANDS if group == "bench"} == {"list", *listed}
    assert papm("list") == 0 and "targets" in capsys.readouterr().out


def test_targets_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert papm("targets", *SMALL, "--json") == 0
    said = capsys.readouterr()
    found = json.loads(said.out)
    assert found["agree"] is True and found["size"] == [48, 64] and found["points"] == 60 and found["hardware"]
    assert found["rows"][0]["ratio"] == 1.0 and len(found["rows"]) == 4
    for row in found["rows"]:
        assert row["median_ms"] >= row["min_ms"] > 0 and row["sum_error"] < 1e-3
    assert found["rows"][1]["max_abs_difference"] < targets.DIFFERENCE


def test_targets_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert papm("targets", *SMALL) == 0
    out = capsys.readouterr().out
    assert "NumPy loop" in out and "times ours" in out and "Measured in turn on" in out


def test_disagreement_fails(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        targets, "loop_map", lambda points, size, sigma, shape: targets.filtered_map(points, size, sigma)
    )
    assert papm("targets", *SMALL, "--json") == 1
    said = capsys.readouterr()
    assert json.loads(said.out)["agree"] is False and "do not give the same result" in said.err


@pytest.mark.parametrize("size", ["48", "48x", "0x64", "axb", "-1x4", "48x64x3"])
def test_bad_size(capsys: pytest.CaptureFixture[str], size: str) -> None:
    assert papm("targets", f"--size={size}") == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.startswith("papm: --size is height x width") and said.err.count("\n") == 1


def test_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert papm("targest") == 2 and papm("targets", "--points", "0") == 2 and papm("targets", "--sigma", "0") == 2


@pytest.mark.slow
def test_transport(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    small = ["transport", "--points", "12", "--images", "2", "--crop", "64", "--repeat", "1"]
    assert papm(*small, "--json") == 0
    made = json.loads(capsys.readouterr().out)
    assert made["agree"] and made["points"] == 12 and made["rows"][0]["name"] == "papm"
    keys = {"name", "median_ms", "min_ms", "ratio", "difference_of_potentials"}
    assert all(row.keys() == keys and row["difference_of_potentials"] < 1e-3 for row in made["rows"])
    monkeypatch.setattr(command, "missing", lambda extra: ["pot", "geomloss"])
    assert papm(*small) == 0
    shown = capsys.readouterr()
    assert "times ours" in shown.out and "not compared: pot and geomloss" in shown.err
    assert papm(*small, "--cost", "l3") == 2 and "did you mean" in capsys.readouterr().err


def test_transport_over_sizes(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    few = functools.partial(transport.sweep, iterations=2, repeat=1)
    monkeypatch.setattr(transport, "sweep", few)
    assert papm("transport", "--sweep", "--images", "1", "--json") == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert {(row["points"], row["crop"]) for row in rows} >= {(20, 256), (5000, 256), (20, 512), (5000, 512)}
    assert all(row["milliseconds"] > 0 for row in rows)
