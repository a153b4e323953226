"""`papm serve`: where it listens, what it says when it cannot, and a real one that is asked and ended."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from importlib import util
from pathlib import Path

import pytest
import torch

import papm
from papm import checkpoint, models
from papm.checkpoint import ModelSpec
from papm.cli.main import main
from papm.errors import ConfigError
from papm.extras import EXTRAS
from papm.serve.counting import Limits
from papm.serve.server import address, is_local, listen, names, require_serve


@pytest.fixture
def model(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    path = tmp_path / "first" / "best.ckpt"
    path.parent.mkdir()
    checkpoint.save(path, ModelSpec("tiny", {}, "hd-papm"), models.create("tiny").state_dict())
    return path


def said(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    """The one sentence of a refusal."""
    with pytest.raises(SystemExit) as ended:
        main([str(w) for w in words])
    err = capsys.readouterr().err
    assert ended.value.code == 2 and err.count("\n") == 1 and err.startswith("papm: ")
    return err


def test_it_listens_here_and_says_where() -> None:
    with listen("127.0.0.1", 0) as sock:
        assert address(sock) == f"http://127.0.0.1:{sock.getsockname()[1]}" and is_local(sock)
    with listen("0.0.0.0", 0) as sock:
        assert address(sock).startswith("http://127.0.0.1:") and not is_local(sock)


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6 here")
def test_an_address_of_the_newer_kind() -> None:
    try:
        sock = listen("::1", 0)
    except ConfigError:
        pytest.skip("no IPv6 here")
    with sock:
        assert address(sock) == f"http://[::1]:{sock.getsockname()[1]}" and is_local(sock)


def test_only_this_machine_is_known_by_no_other_name() -> None:
    assert names("127.0.0.1") == names("localhost") == set()
    assert names("0.0.0.0") >= {"0.0.0.0", socket.gethostname()}


@pytest.mark.parametrize("host", ["no-such-host.invalid", "203.0.113.7", "a" * 70])
def test_a_host_that_is_not_here(host: str) -> None:
    with pytest.raises(ConfigError, match=r"^--host .*not an address of this machine"):
        listen(host, 0)


def test_a_port_that_is_taken_and_one_that_is_none(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert f"port {port} is taken" in said(capsys, "serve", model, "--port", port)
    assert "from 0" in said(capsys, "serve", model, "--port", 70_000)


@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf")])
def test_limits_that_make_no_sense(value: float) -> None:
    with pytest.raises(ConfigError, match="--max-megapixels"):
        Limits(value)


@pytest.mark.parametrize(
    ("words", "may"), [((), "use"), (("--allow-calibrate",), "store"), (("--host", "0.0.0.0"), "no")]
)
def test_who_may_calibrate(words: tuple[str, ...], may: str, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    testclient = pytest.importorskip("starlette.testclient")
    said: list[str] = []

    def asked(app: object, *_: object) -> None:
        said.append(testclient.TestClient(app, "http://127.0.0.1:8000").get("/api/model").json()["may_calibrate"])

    monkeypatch.setattr("papm.serve.server.run", asked)
    with pytest.raises(SystemExit) as ended:
        main(["serve", str(model.parent), "--port", "0", *words])
    assert ended.value.code in (0, None) and said == [may]


def test_bad_input_is_one_sentence(model: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert "no such checkpoint" in said(capsys, "serve", tmp_path / "nothing.ckpt")
    assert "--classes goes without a model" in said(capsys, "serve", model, "--classes", "car,bus")
    assert "--with goes with a model" in said(capsys, "serve", "--with", model)
    assert "from 0" in said(capsys, "serve", "--tile", 10**13, "--port", 70_000)  # no image is as large as that tile
    assert "different names" in said(capsys, "serve", "--classes", "car,car")
    assert "max-megapixels" in said(capsys, "serve", model, "--max-megapixels", 0)
    assert "tile is auto, none" in said(capsys, "serve", model, "--tile", "x")
    assert "leaves nothing to keep" in said(capsys, "serve", model, "--tile", 64)  # not only with the first large image


@pytest.mark.parametrize("missing", EXTRAS["serve"])
def test_what_is_missing_is_named(
    missing: str, model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = util.find_spec
    monkeypatch.setattr(util, "find_spec", lambda name, *more: None if name == missing else found(name, *more))
    with pytest.raises(ConfigError, match=r"pip install 'papm\[serve\]'"):
        require_serve()
    assert f"'{EXTRAS['serve'][missing]}': pip install 'papm[serve]'" in said(capsys, "serve", model)


@pytest.mark.slow
def test_nothing_else_imports_the_extra() -> None:
    code = (
        "import sys; import papm.cli.main as m; m.build(); import papm.serve.counting, papm.serve.server; papm.Counter;"
    )
    code += "print([n for n in ('starlette', 'uvicorn', 'anyio', 'python_multipart') if n in sys.modules])"
    source = str(Path(papm.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", "import papm;" + code],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": source},
        timeout=120,
    )
    assert done.stdout.strip() == "[]", done.stderr


@pytest.fixture
def served(model: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A real one, and its address."""
    pytest.importorskip("uvicorn")
    source = str(Path(papm.__file__).parents[1])
    env = {**os.environ, "PYTHONPATH": source, "OMP_NUM_THREADS": "1"}
    words = [sys.executable, "-m", "papm", "serve", str(model.parent), "--port", "0", "--host", "0.0.0.0"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)
    try:
        assert process.stdout is not None
        found = re.search(r"http://\S+", process.stdout.readline())
        assert found
        yield process, found[0]
    finally:
        process.kill()
        process.wait()


@pytest.mark.slow
def test_a_real_one_is_asked_and_ended(served: tuple[subprocess.Popen[str], str]) -> None:
    process, where = served
    with urllib.request.urlopen(f"{where}/api/model", timeout=20) as answer:
        about = json.load(answer)
        assert about["name"] == "first" and "server" not in answer.headers
        assert about["may_calibrate"] == "no"  # others could
    with pytest.raises(urllib.error.HTTPError, match="403"):
        urllib.request.urlopen(urllib.request.Request(where, headers={"Host": "evil.example"}), timeout=20)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 0 and "Traceback" not in err
    assert "no password" in err  # it listened to others too
