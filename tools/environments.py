"""Environments made for a check: a fresh virtual environment in a folder, and commands in it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from project import ROOT

# Nothing of the caller's environment may leak in.
LEAKS = ("PYTHONPATH", "PYTHONHOME", "PAPM_IMPORT", "PAPM_NATIVE", "VIRTUAL_ENV")


class Environment:
    """A virtual environment; `run` gives what a command printed, or raises with what it said."""

    def __init__(self, folder: Path, python: str = sys.executable) -> None:
        subprocess.run([python, "-m", "venv", str(folder)], check=True)
        self.folder, self.python = folder, folder / "bin" / "python"

    def run(self, *words: object, cwd: Path | None = None, timeout: float = 1800) -> str:
        """`python WORDS…` in this environment, outside of the repository."""
        env = {k: v for k, v in os.environ.items() if k not in LEAKS} | {"PAPM_CACHE": str(self.folder / "cache")}
        command = [str(self.python), *map(str, words)]
        done = subprocess.run(command, cwd=cwd or self.folder, env=env, capture_output=True, text=True, timeout=timeout)
        if done.returncode:
            raise SystemExit(
                f"{' '.join(command)}: exit code {done.returncode}\n{done.stdout[-3000:]}{done.stderr[-3000:]}"
            )
        return done.stdout

    def install(self, *words: object) -> None:
        """`pip install WORDS…`"""
        self.run("-m", "pip", "install", "--quiet", "--disable-pip-version-check", *words)


def wheel(folder: Path) -> Path:
    """The wheel of this tree, built into a folder."""
    command = [sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", str(folder), str(ROOT)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    [made] = folder.glob("papm-*.whl")
    return made
