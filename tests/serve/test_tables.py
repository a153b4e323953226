"""The tables that the page gives to download, computed by its own script where there is a node to run it."""

from __future__ import annotations

import csv
import io
import json
import shutil
import subprocess

import pytest

from papm.files import guarded
from papm.serve.app import STATIC

NODE = shutil.which("node")
FORMULAS = ["=cmd|' /C calc'!A0.png", "+1+1.png", "-2+3.png", "@SUM(1).png", "\t=1.png", "'=1.png"]
NAMES = [*FORMULAS, "a=1.png", "-2.5", 'a, "b".png']


@pytest.mark.skipif(NODE is None, reason="no node here")
def test_names_are_no_formulas() -> None:
    assert NODE is not None
    items = [
        {"name": n, "reply": {"count": 1.5, "width": 9, "height": 9}, "dots": [{"x": 1, "y": 2, "score": 0.5}]}
        for n in NAMES
    ]
    script = f"""
        import {{ countsTable, pointsTable }} from {json.dumps((STATIC / "files.js").as_uri())};
        const items = {json.dumps(items)};
        console.log(JSON.stringify([countsTable(items), pointsTable(items)]));
    """
    done = subprocess.run(
        [NODE, "--input-type=module", "-e", script], capture_output=True, text=True, timeout=60, check=True
    )
    for table, second in zip(json.loads(done.stdout), ("1.5", "1")):
        rows = list(csv.reader(io.StringIO(table, newline="")))[1:]
        assert [r[:2] for r in rows] == [[guarded(n), second] for n in NAMES]
