"""The calibration that the page asks for: what it changes, what it refuses, and that nothing sent there is trusted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from papm import checkpoint, data, models, ready
from papm.checkpoint import ModelSpec
from papm.data.base import Dataset
from papm.data.splits import Splits
from papm.draw import save_png
from papm.engine import used_images
from papm.errors import CheckpointError, DataError
from papm.predict.ensemble import Ensemble
from papm.predict.predictor import Counter, Source
from papm.serve.app import application
from papm.serve.blank import Blank
from papm.serve.calibrating import LARGEST, Calibrator, read_request

pytest.importorskip("python_multipart")
testclient = pytest.importorskip("starlette.testclient")
HERE = "http://127.0.0.1:8000"
COUNTS = [10.0, 20.0, 40.0, 30.0, 50.0, 25.0]
TRUTHS = [21, 39, 82, 61, 99, 50]


def image(k: int, **other: Any) -> dict[str, Any]:
    return {
        "name": f"{k}.png",
        "key": f"{k:016x}",
        "bytes": 1000 + k,
        "counted": COUNTS[k],
        "truth": TRUTHS[k],
        **other,
    }


IMAGES = [image(k) for k in range(6)]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    network = models.create("tiny")
    path = tmp_path / "run" / "best.ckpt"
    spec = ModelSpec("tiny", {}, "hd-papm", {"data": str(tmp_path / "set")}, 7, network.inference)
    checkpoint.save(path, spec, network.state_dict())
    return path


def client_of(source: Source, file: Path | None = None, **may: bool) -> Any:
    app = application(source, {}, calibrator=Calibrator(source, file, **may))
    return testclient.TestClient(app, HERE, raise_server_exceptions=False)


def ask(client: Any, then: str, images: Any = IMAGES) -> Any:
    return client.post("/api/calibrate", json={"then": then, "images": images})


def error(response: Any, status: int = 400) -> str:
    assert response.status_code == status, response.text
    assert set(response.json()) == {"error"} and "\n" not in response.json()["error"]
    return str(response.json()["error"])


def test_it_is_shown_then_used_then_stored_then_taken_away(file: Path) -> None:
    counter = Counter.load(file, "cpu")
    pixels = torch.randint(0, 256, (3, 40, 50), dtype=torch.uint8)
    plain = counter.predict(pixels).count
    with client_of(counter, file, store=True) as client:
        about = client.get("/api/model").json()
        assert about["calibration"] is None and about["may_calibrate"] == "store"
        shown = ask(client, "show").json()
        assert shown["calibration"]["scale"] == pytest.approx(2.0, rel=0.05) and shown["calibration"]["images"] == 6
        assert (
            shown["calibration"]["mae_after"] < shown["calibration"]["mae_before"]
            and "are not here to compare with" in shown["note"]
        )
        assert counter.predict(pixels).count == plain and client.get("/api/model").json()["calibration"] is None
        assert ask(client, "use").json()["calibration"] == shown["calibration"]
        made = counter.predict(pixels)
        assert (made.count, made.raw_count) == (pytest.approx(shown["calibration"]["scale"] * plain), plain)
        assert checkpoint.load(file)[0].inference == counter.spec.inference  # for as long as it runs
        about = client.get("/api/model").json()
        assert about["calibration"] == shown["calibration"] and not about["own_calibration"]
        assert ask(client, "store").json()["stored"] == "best.ckpt"
        stored = checkpoint.load(file)[0].inference
        assert stored is not None and stored.calibrated_on == tuple(i["key"] for i in IMAGES)
        assert ask(client, "off").json() == {"calibration": None, "note": "", "stored": "best.ckpt"}
        assert counter.predict(pixels).count == plain and checkpoint.load(file)[0].inference == counter.spec.inference


def test_images_of_the_training_are_known_by_their_content(file: Path) -> None:
    for k in range(8):
        path = save_png(torch.full((3, 40, 50), 10 * k, dtype=torch.uint8), file.parents[1] / "set" / f"{k}.png")
        path.with_suffix(".txt").write_text("3 4\n")
    with client_of(Counter.load(file, "cpu"), file, use=True) as client:
        reply = client.post("/api/count", files={"image": ("renamed.png", path.read_bytes())}).json()
        seen = {"name": "renamed.png", **reply["file"], "counted": 3.0, "truth": 1}
        assert "renamed.png, are among those that the model was " in error(ask(client, "use", [*IMAGES, seen]))
        assert ask(client, "show").json()["note"] == ""  # the others are new, for sure


def test_images_of_the_training_are_known_where_its_folder_has_moved(file: Path) -> None:
    paths = [
        save_png(torch.full((3, 40, 50), 20 * k, dtype=torch.uint8), file.parents[1] / "set" / f"{k}.png")
        for k in range(3)
    ]
    for path in paths:
        path.with_suffix(".txt").write_text("3 4\n")
    seen, other = Dataset(data.open_spec(str(paths[0].parent))["all"][:2]), paths[2].read_bytes()
    used_images.write(file.parent, used_images.used(Splits(seen, None, None)))
    content = paths[1].read_bytes()
    paths[0].parent.rename(file.parents[1] / "elsewhere")
    with client_of(Counter.load(file, "cpu"), file, use=True) as client:

        def counted(upload: bytes) -> dict[str, Any]:
            reply = client.post("/api/count", files={"image": ("renamed.png", upload)}).json()
            return {"name": "renamed.png", **reply["file"], "counted": 3.0, "truth": 6}

        assert "renamed.png, are among those that the model was trained on" in error(
            ask(client, "use", [*IMAGES, counted(content)])
        )
        assert ask(client, "show", [*IMAGES, counted(other)]).json()["note"] == ""


def test_what_may_not_be_done(file: Path) -> None:
    counter = Counter.load(file, "cpu")
    with client_of(counter, file, use=True) as client:
        assert "--allow-calibrate" in error(ask(client, "store"))
        assert "5 checked images or more, not 4: check 1 more" in error(ask(client, "use", IMAGES[:4]))
        same = [image(k, truth=COUNTS[k]) for k in range(6)]
        assert "does not lower the error by more than chance" in error(ask(client, "use", same))
        assert "0.png and copy.png are one image" in error(ask(client, "show", [*IMAGES, image(0, name="copy.png")]))
    with client_of(counter, file, store=True) as client:
        file.rename(file.with_name("moved.ckpt"))
        assert error(ask(client, "store")).startswith("best.ckpt: no such checkpoint file")  # not where it was
        assert counter.inference.calibration is None
        file.with_name("moved.ckpt").rename(file)
    with client_of(counter, file) as client:  # open to other machines
        assert client.get("/api/model").json()["may_calibrate"] == "no"
        assert "open to other machines" in error(ask(client, "show"))
    for source in (Ensemble([counter, Counter.load(file, "cpu")]), Blank()):
        with client_of(source, file, store=True) as client:
            assert "of one model" in error(ask(client, "use"))
    assert counter.inference.calibration is None and checkpoint.load(file)[0].inference == counter.spec.inference


def test_a_model_that_cannot_be_stored_is_refused_at_the_start() -> None:
    """Not when a person has checked the images."""
    for path, why in ((ready.find("cells").path, "cells is a model that came with a package"), ("m.onnx", "no such")):
        with pytest.raises(CheckpointError, match=why):
            Calibrator(Blank(), Path(path), store=True)


def test_a_point_network_that_counts_otherwise_is_not_calibrated(tmp_path: Path) -> None:
    network = models.create("p2pnet", trunk="tiny")
    spec = ModelSpec("p2pnet", {"trunk": "tiny"}, "hd-papm", {}, 7, network.inference)
    counter = Counter(network, spec, "cpu", count="expected")
    with client_of(counter, store=True) as client:
        assert "(--count)" in error(ask(client, "use")) == client.get("/api/model").json()["why_not"]


@pytest.mark.parametrize(
    "body",
    [b"", b"nonsense", b"[" * 100_000, b"\xff\xfe", b"{}", b"[]", b"null", b'{"then": "rm"}', b'{"then": ["use"]}']
    + [json.dumps({"then": "use", "images": images}).encode() for images in (None, "a", {}, [1], [None], [[]], [{}])]
    + [
        json.dumps({"then": "use", "images": [image(0, **{key: value})]}).encode()
        for key, value in (
            ("name", None),
            ("key", "../../etc"),
            ("key", "0" * 17),
            ("bytes", -1),
            ("bytes", 1.5),
            ("bytes", True),
            ("counted", -1.0),
            ("counted", float("nan")),
            ("counted", 1e300),
            ("truth", "7"),
            ("truth", float("inf")),
            ("truth", 10**400),
        )
    ],
)
def test_what_is_no_request_is_one_sentence(file: Path, body: bytes) -> None:
    with client_of(Counter.load(file, "cpu"), file, use=True) as client:
        error(client.post("/api/calibrate", content=body, headers={"content-type": "application/json"}))


def test_it_is_bounded_and_only_for_its_own_page(file: Path) -> None:
    with client_of(Counter.load(file, "cpu"), file, use=True) as client:
        json_type = {"content-type": "application/json"}
        assert "2 MB" in error(client.post("/api/calibrate", content=b" " * (LARGEST + 1), headers=json_type), 413)
        chunks = (b" " * 100_000 for _ in range(21))  # no stated length
        assert "2 MB" in error(client.post("/api/calibrate", content=chunks, headers=json_type), 413)
        assert "at most 5000" in error(ask(client, "use", [0] * 5001))
        assert "in JSON" in error(client.post("/api/calibrate", data={"then": "use"}))
        assert "in JSON" in error(client.post("/api/calibrate", content=b"{}", headers={"content-type": "text/plain"}))
        other = {"origin": "https://evil.example"}
        error(client.post("/api/calibrate", json={"then": "off"}, headers=other), 403)
        error(client.get("/api/calibrate"), 405)
        long = error(ask(client, "use", [image(0, name="<script>" * 1000, truth="x" * 10_000)]))
        assert len(long) < 300


anything = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["then", "images", "name", "key", "bytes", "truth"]), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(asked=anything, then=st.sampled_from(["show", "use", "store", "off"]))
def test_no_request_does_more_than_be_refused(asked: Any, then: str) -> None:
    for value in (asked, {"then": then, "images": asked}, {"then": then, "images": [asked]}):
        try:
            (images, counted), _ = read_request(json.dumps(value).encode())
        except DataError:
            continue
        assert len(images) == len(counted)
