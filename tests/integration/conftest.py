"""Running the command line inside the test's process."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from papm.cli import main as entry


@pytest.fixture
def run_papm(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """`run_papm("eval", …)` is `papm eval …`: its exit code, and what it printed on both streams."""

    def run(*words: object) -> tuple[int, str, str]:
        capsys.readouterr()
        with pytest.raises(SystemExit) as stopped:
            entry.main([str(w) for w in words])
        said = capsys.readouterr()
        assert "Traceback" not in said.err
        return int(stopped.value.code or 0), said.out, said.err

    return run
