"""What a command loads: nothing slow for its help, no trainer to count."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import papm
from papm import checkpoint, models
from papm.checkpoint import ModelSpec


def loaded(*words: object) -> set[str]:
    """The packages that a command has imported when it ends."""
    given = json.dumps([str(w) for w in words])
    code = (
        f"import sys; from papm.cli.main import main\ntry: main({given})\nexcept SystemExit as end: assert not end.code"
    )
    code += "\nprint('loaded', *{name.partition('.')[0] for name in sys.modules})"
    env = {**os.environ, "PYTHONPATH": str(Path(papm.__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, timeout=120)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.splitlines()[-1].split())


@pytest.mark.parametrize("command", ["eval", "predict"])
def test_help_needs_no_torch(command: str) -> None:
    assert "papm" in loaded(command, "--help") and "torch" not in loaded(command, "--help")


@pytest.mark.slow
@pytest.mark.parametrize("more", [[], ["--localization", "qnrf"]])
def test_an_evaluation_needs_no_trainer(tmp_path: Path, more: list[str]) -> None:
    checkpoint.save(tmp_path / "m.ckpt", ModelSpec("tiny"), models.create("tiny").state_dict())
    found = loaded("eval", tmp_path / "m.ckpt", "synthetic:train=2,test=2,size=64", "--json", *more)
    assert "torch" in found and not found & {"lightning", "lightning_fabric", "torchmetrics", "tensorboard"}
