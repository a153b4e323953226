"""Streams over loopback HTTP (MJPEG): the newest frame, connections that break, and what is never told."""

from __future__ import annotations

import csv
import io
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import papm
from papm import checkpoint, models
from papm.checkpoint import ModelSpec
from papm.cli.main import main
from papm.errors import ConfigError, DataError, WriteError
from papm.predict.columns import Columns
from papm.predict.job import Wanted
from papm.predict.prediction import Prediction
from papm.predict.stream import Address, Stream, address_of
from papm.predict.video import Video, VideoWriter
from papm.predict.watch import Table, Watch, stream_among

pytest.importorskip("cv2", reason="streams need OpenCV")
SECRETS = ("admin", "hunter2", "tok3n")


class Camera(ThreadingHTTPServer):
    """Sends grey frames, each a step brighter than the one before, for as long as `lasts` frames a connection."""

    daemon_threads = True
    lasts, sent, connections = 10_000, 0, 0
    open = True

    def address(self, secret: str = "") -> Address:
        found = address_of(f"http://{secret}127.0.0.1:{self.server_port}/gate?key=tok3n")
        assert found is not None
        return found


class Handler(BaseHTTPRequestHandler):
    server: Camera

    def do_GET(self) -> None:
        self.server.connections += 1
        if not self.server.open:
            return self.send_error(503)
        self.send_response(200)
        self.send_header("Content-Type", "multipart/x-mixed-replace; boundary=frame")
        self.end_headers()
        try:
            for _ in range(self.server.lasts):
                picture = io.BytesIO()
                grey = self.server.sent % 250
                Image.fromarray(np.full((48, 64, 3), grey, np.uint8)).save(picture, "JPEG", quality=95)
                head = f"--frame\r\nContent-Type: image/jpeg\r\nContent-Length: {picture.tell()}\r\n\r\n"
                self.wfile.write(head.encode() + picture.getvalue() + b"\r\n")
                self.server.sent += 1
                time.sleep(0.01)
        except OSError:  # the reader has gone
            pass

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def camera() -> Iterator[Camera]:
    with Camera(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        yield server
        server.lasts = 0
        server.shutdown()


class Slow:
    """Counts the brightness of a frame, in its own time."""

    columns = Columns(ends=True)

    def __init__(self, takes: float = 0.0) -> None:
        self.takes = takes

    def predict(self, image: torch.Tensor, **asked: object) -> Prediction:
        time.sleep(self.takes)
        size = (int(image.shape[1]), int(image.shape[2]))
        return Prediction(float(image.float().mean()), size, points=torch.ones(2, 2), name=str(asked["name"]))


def watch(camera: Camera, out: Path, counter: Slow | None = None, **wanted: object) -> Watch:
    asked = Wanted(**{"out": out, "overlays": False, "every": 0.05, **wanted})  # type: ignore[arg-type]
    return Watch(camera.address("admin:hunter2@"), asked, lambda: counter or Slow(), (0.05, 0.2))  # type: ignore[arg-type]


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.slow
def test_the_frame_is_the_newest(camera: Camera, tmp_path: Path) -> None:
    """Ten frames pass while one is counted: none of them is counted later."""
    made = watch(camera, tmp_path, Slow(0.1), seconds=1.0).counts()
    behind = [camera.sent - m.prediction.count for m in made]
    # What has passed since the frame: about ten frames of counting. Frames that wait would add ten with every count.
    assert len(behind) > 3 and max(behind[1:]) < 45, behind


@pytest.mark.slow
def test_counts_are_written_as_they_come(camera: Camera, tmp_path: Path) -> None:
    watching = watch(camera, tmp_path, seconds=5.0, overlays=True)
    folder = tmp_path / "streams" / f"127.0.0.1_{camera.server_port}_gate"
    for number, made in enumerate(watching.counts(), start=1):
        table = rows(folder / "counts.csv")
        assert len(table) == number and list(table[0]) == ["time", "seconds", "count", "low", "high"]
        assert float(table[-1]["count"]) == pytest.approx(made.prediction.count, abs=1e-3)
        assert table[-1]["time"] == made.time and made.time.endswith("Z")
        if number == 3:
            break
    assert [float(r["seconds"]) for r in table] == sorted(float(r["seconds"]) for r in table)
    assert len(rows(folder / "points.csv")) == 6 and {r["image"] for r in rows(folder / "points.csv")} == {
        r["time"] for r in table
    }
    assert sorted(p.name for p in folder.iterdir()) == ["counts.csv", "latest.png", "points.csv"]
    with (folder / "counts.csv").open("ab") as file:
        file.write(b"2026-01-01T00:0")  # a kill in the middle of a line
    for _ in watch(camera, tmp_path, seconds=5.0).counts():  # goes on with the same tables
        break
    table = rows(folder / "counts.csv")
    assert len(table) == 4 and all(r["count"] for r in table)
    assert not any(secret.encode() in p.read_bytes() for p in tmp_path.rglob("*.csv") for secret in SECRETS)


@pytest.mark.slow
def test_it_connects_again_and_says_so(camera: Camera, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    camera.lasts = 12
    made = list(watch(camera, tmp_path, seconds=1.5, every=0.0).counts())
    assert camera.connections > 2 and len(made) > 12
    assert "127.0.0.1" in caplog.text and "the connection is lost; trying again in" in caplog.text
    assert "connected again" in caplog.text and not any(secret in caplog.text for secret in SECRETS)


@pytest.mark.slow
def test_it_waits_longer_every_time(camera: Camera, caplog: pytest.LogCaptureFixture) -> None:
    """A camera that was there and has gone: no hammering, no giving up."""
    camera.lasts = 5
    with Stream(camera.address(), (0.05, 0.4)) as stream:
        assert stream.newest(time.monotonic() + 5) is not None
        camera.open = False
        time.sleep(1.2)
        before = camera.connections
        assert before < 10  # 0.05, 0.05, 0.1, 0.2, 0.4, 0.4, …
        camera.open = True
        assert stream.newest(time.monotonic() + 5) is not None
    assert not stream._thread.is_alive()


def test_an_address_where_nobody_answers(camera: Camera, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    camera.open = False
    with pytest.raises(
        DataError, match=r"http://127\.0\.0\.1:\d+/gate: cannot be opened as a stream \(3 tries\)"
    ) as found:
        list(watch(camera, tmp_path).counts())
    said = str(found.value) + "".join(capfd.readouterr())
    assert not any(secret in said for secret in SECRETS) and not tmp_path.joinpath("streams").exists()


def test_a_region_of_the_frame(camera: Camera, tmp_path: Path) -> None:
    Image.new("L", (5, 5)).save(tmp_path / "mask.png")
    with pytest.raises(DataError, match="a region of interest of 5×5 pixels"):
        list(watch(camera, tmp_path, roi=tmp_path / "mask.png", seconds=5.0).counts())


def test_files_are_opened_as_files_again_afterwards(camera: Camera, tmp_path: Path) -> None:
    with VideoWriter(tmp_path / "v.webm", 4.0) as writer:
        writer.write(torch.zeros(3, 48, 64, dtype=torch.uint8))
    with Stream(camera.address()) as stream:
        assert stream.newest(time.monotonic() + 5) is not None
    assert "http" not in os.environ["OPENCV_FFMPEG_CAPTURE_OPTIONS"]
    with Video(tmp_path / "v.webm") as video:
        assert video.size == (48, 64)


@pytest.mark.parametrize(
    ("text", "shown", "name"),
    [
        ("rtsp://admin:hunter2@gate.local:554/ch1?token=tok3n#x", "rtsp://gate.local:554/ch1", "gate.local:554/ch1"),
        ("HTTP://admin:hunter2@[::1]:80/a", "http://[::1]:80/a", "[::1]:80/a"),
        ("https://gate.local/", "https://gate.local/", "gate.local"),
        ("07", "camera-7", "camera-7"),
    ],
)
def test_what_is_shown_of_an_address(text: str, shown: str, name: str) -> None:
    found = address_of(text)
    assert found is not None and (found.shown, found.name) == (shown, name)
    assert not any(secret in f"{found!r} {found}" for secret in SECRETS)


@pytest.mark.parametrize(
    "text",
    [
        "ftp://admin:hunter2@host/x",
        "rtsp://admin:hunter2@:x/",
        "http://admin:hunter2@host:99999999/",
        "http://[admin:hunter2@x/",
        "http://admin:hunter2@ho st/",
        "file:///etc/hunter2",
        "concat://hunter2",
    ],
)
def test_addresses_that_are_refused_are_not_repeated(text: str) -> None:
    with pytest.raises(ConfigError) as found:
        address_of(text)
    assert not any(secret in str(found.value) for secret in SECRETS)


def test_a_file_is_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert address_of("gate.mp4") is None and address_of("123") is None and address_of("0") is not None
    (tmp_path / "0").mkdir()
    assert address_of("0") is None
    with pytest.raises(ConfigError, match="http://host/: a stream is counted by itself"):
        stream_among(["a.jpg", "http://admin:hunter2@host/"])


def test_a_table_that_grows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "new" / "t.csv"
    with Table(path) as table:
        table.add(["a", "b"], [[1, "=x"], [2, "y\nz"]])
        table.add(["a", "b"], [[3, None]])
    with Table(path) as table:
        table.add(["a", "b"], [[5, ""]])
    assert [tuple(r.values()) for r in rows(path)] == [("1", "'=x"), ("2", "y\nz"), ("3", ""), ("5", "")]
    before = path.read_bytes()

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    with Table(path) as table, monkeypatch.context() as patched, pytest.raises(WriteError, match="No space left"):
        patched.setattr(os, "fsync", full)
        table.add(["a", "b"], [[6, ""]])
    assert path.read_bytes() == before
    with Table(path) as table, pytest.raises(ConfigError, match="has other columns than this result"):
        table.add(["x"], [[1]])
    with Table(path) as table, pytest.raises(ConfigError, match="has other columns than this result"):
        table.add(["a"], [[1]])
    assert path.read_bytes() == before


def test_nothing_is_logged_of_what_opencv_says(
    camera: Camera, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An exception of OpenCV quotes the address."""
    monkeypatch.setattr("papm.predict.stream._open", lambda address: 1 / int(f"{address.secret}"))
    caplog.set_level(logging.DEBUG)
    with Stream(camera.address("admin:hunter2@"), (0.01, 0.01)) as stream, pytest.raises(DataError):
        stream.newest(time.monotonic() + 5)
    assert "OpenCV failed" in caplog.text and not any(secret in caplog.text for secret in SECRETS)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    checkpoint.save(tmp_path / "m.ckpt", ModelSpec("tiny", {}, "hd-papm"), models.create("tiny").state_dict())
    return tmp_path / "m.ckpt"


def words(camera: Camera, model: Path, *more: str) -> list[str]:
    address = camera.address("admin:hunter2@").secret
    return ["predict", str(model), address, "--out", str(model.parent / "out"), "--device", "cpu", *more]


def ended(words: list[str]) -> object:
    with pytest.raises(SystemExit) as stop:
        main(words)
    return stop.value.code


@pytest.mark.slow
def test_the_command(camera: Camera, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ended(words(camera, model, "--for", "0.6", "--every", "0.1", "--json")) == 0
    out, err = capsys.readouterr()
    found = [json.loads(line) for line in out.splitlines()]
    name = f"127.0.0.1:{camera.server_port}/gate"
    assert len(found) > 1 and set(found[0]) == {"stream", "time", "seconds", "count"} and found[0]["stream"] == name
    assert f"{len(found)} counts of {name}; results in " in err
    assert ended(words(camera, model, "--for", "0.3")) == 0
    assert name in capsys.readouterr().out
    for more, why in (
        (("--resume",), "--resume and --save-as are for files"),
        (("--for", "0"), "--for is a number of seconds above 0"),
        (("photo.jpg",), "a stream is counted by itself"),
    ):
        code, said = ended(words(camera, model, *more)), capsys.readouterr().err
        assert code == 2 and why in said and not any(secret in said for secret in SECRETS)


@pytest.mark.slow
def test_ctrl_c_ends_it_with_whole_files(camera: Camera, model: Path) -> None:
    env = {**os.environ, "PYTHONPATH": str(Path(papm.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "papm", *words(camera, model, "--every", "0")]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=env, **pipes) as process:  # type: ignore[call-overload]
        assert process.stdout.readline()  # the first count
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=30)
    assert process.returncode == 0 and "Traceback" not in said and "results in" in said, said
    (table,) = (model.parent / "out").rglob("counts.csv")
    assert table.read_bytes().endswith(b"\n") and all(r["count"] for r in rows(table)) and rows(table)
