"""`papm study figure`, `rank` and `show --all` on the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from papm import checkpoint
from papm.engine import run_folder
from papm.engine.build import build_network, resolve
from papm.predict.predictor import Counter
from papm.study import tables
from papm.study.figures import FIGURES

Papm = Callable[..., tuple[int, str, str]]


def test_the_command_lists_draws_and_refuses(run_papm: Papm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, _ = run_papm("study", "figure", "--json")
    assert code == 0 and {r["name"] for r in json.loads(out)} == set(FIGURES)
    code, out, _ = run_papm("study", "figure", "cost-shapes", "--json")
    assert code == 0 and json.loads(out)["file"] == "cost-shapes.svg" and (tmp_path / "cost-shapes.svg").exists()
    assert run_papm("study", "figure", "kernel")[0] == 2
    code, _, err = run_papm("study", "figure", "predictions", "nowhere")
    assert code == 2 and "nowhere" in err
    code, _, err = run_papm("study", "figure", "predictions", "--images", "0")
    assert code == 2 and "at least one image" in err


def test_what_all_networks_say_of_an_image_is_said_once(
    run_papm: Papm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for method in ("gaussian", "hd-papm"):
        config = resolve(method, "tiny", {"data": "synthetic:train=2,test=2,size=64,count=3-6"})
        run_folder.create(tmp_path / method, config)
        spec = checkpoint.ModelSpec("tiny", dict(config.network), method)
        checkpoint.save(tmp_path / method / "best.ckpt", spec, build_network(config).state_dict())
    monkeypatch.setattr(Counter, "warning", lambda self, size: "unlike those of the training")
    words = ("--device", "cpu", "--out", tmp_path / "figure.png")
    code, _, err = run_papm("study", "figure", "predictions", tmp_path / "gaussian", tmp_path / "hd-papm", *words)
    said = [line for line in err.splitlines() if "unlike" in line]
    assert code == 0 and len(said) == 1 and said[0].endswith(": unlike those of the training (gaussian, hd-papm)"), err


@pytest.mark.slow
def test_every_table_and_claim(run_papm: Papm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, _ = run_papm("study", "show", "--all", "--json")
    found = json.loads(out)
    assert code == 0 and [s["study"] for s in found["studies"]] == tables.names()
    assert {c["verdict"] for c in found["claims"]} == {"not measured"}
    code, _, err = run_papm("study", "show")
    assert code == 2 and "name a study" in err
    code, out, _ = run_papm("study", "rank", "variants", "--json")
    rows = [row["name"] for row in json.loads(out)["rows"]]
    assert code == 0 and json.loads(out)["compared"] == []
    assert sorted(rows) == sorted({c.row for c in tables.load("variants").cells})


@pytest.mark.parametrize("tier", ["7", "first", ""])
def test_tiers_that_a_study_does_not_have(tier: str, run_papm: Papm, tmp_path: Path) -> None:
    code, _, err = run_papm("study", "run", "noise", "--tier", tier, "--data", f"shanghaitech-a={tmp_path}")
    assert code == 2 and "the study has tiers 1" in err


def test_the_queue_of_a_tier(run_papm: Papm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    only = ("--only", "AL-PAPM,DM-Count")
    words = (
        "study",
        "run",
        "noise,noise-kinds",
        "--tier",
        "1",
        "--dry-run",
        *only,
        "--data-root",
        f"shanghaitech-a={tmp_path}",
    )
    code, out, _ = run_papm(*words)
    commands = [line.split() for line in out.splitlines()]
    # Two methods: five distances, three of them with two more seeds; two more kinds at 16 px, whose ring is shared. And
    # al-papm with another reach at two distances.
    assert code == 0 and len(commands) == 2 * (5 + 3 * 2 + 2) + 2
    assert [c[-1] for c in commands] == sorted(c[-1] for c in commands)
    assert sum("noise_kind=disc" in c for c in commands) == 2
