"""The web application answers what `Counter.predict` says, and refuses in one sentence what it cannot count."""

from __future__ import annotations

import base64
import io
import json
import re
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from papm import models
from papm.checkpoint import ModelSpec
from papm.data.readers.regions import inside
from papm.data.resize import Resize
from papm.errors import ConfigError
from papm.predict.ensemble import Ensemble
from papm.predict.predictor import Counter
from papm.serve import uploads
from papm.serve.app import PAGE, SCRIPTS, STATIC, application
from papm.serve.blank import Blank
from papm.serve.counting import Limits, describe
from papm.serve.desk import Desk
from papm.serve.guard import HEADERS

pytest.importorskip("python_multipart")
testclient = pytest.importorskip("starlette.testclient")
HERE = "http://127.0.0.1:8000"
ROI = [[10.0, 5.0], [60.0, 8.0], [40.0, 40.0]]


def counter_of(classes: tuple[str, ...] = (), backbone: str = "tiny", **options: Any) -> Counter:
    torch.manual_seed(0)
    if classes:
        options["num_classes"] = len(classes)
    network = models.create(backbone, **options)
    inference = replace(network.inference, classes=classes)
    spec = ModelSpec(backbone, options, "hd-papm", {"data": "folder:/home/anna/photos"}, 7, inference)
    return Counter(network, spec, "cpu")


def picture(h: int = 45, w: int = 70) -> Tensor:
    return torch.randint(0, 256, (3, h, w), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))


def encoded(image: Tensor, kind: str = "PNG", **options: Any) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(image.permute(1, 2, 0).numpy()).save(stream, kind, **options)
    return stream.getvalue()


def client_of(counter: Counter | Ensemble, limits: Limits | None = None, **options: Any) -> Any:
    limits = limits or Limits()
    made = application(counter, describe(counter, "runs/first", limits), limits, **options)
    return testclient.TestClient(made, HERE, raise_server_exceptions=False)


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    with client_of(counter_of()) as made:
        yield made


def send(client: Any, content: bytes, name: str = "crowd.png", **fields: str) -> Any:
    return client.post("/api/count", files={"image": (name, content)}, data=fields)


def test_several_models_count_together() -> None:
    members = [counter_of(), counter_of(backbone="p2pnet", trunk="tiny")]
    with client_of(Ensemble(members, ["a", "b"])) as client:
        about = client.get("/api/model").json()
        assert about["name"] == "a + b" and about["models"] == ["a", "b"] and about["counts"] == "density"
        reply = send(client, encoded(picture())).json()
    alone = [m.predict(picture()).count for m in members]
    assert [m["name"] for m in reply["models"]] == ["a", "b"]
    assert [m["count"] for m in reply["models"]] == pytest.approx(alone)
    assert reply["count"] == pytest.approx(sum(alone) / 2)


def test_without_a_model_nothing_is_seen() -> None:
    limits = Limits()
    blank = Blank(["car", "bus"])
    with testclient.TestClient(application(blank, blank.describe(limits), limits), HERE) as client:
        assert client.get("/api/model").json()["counts"] == "none"
        reply = send(client, encoded(picture(45, 70))).json()
    assert (reply["count"], reply["points"], reply["width"], reply["height"]) == (0, [], 70, 45)
    assert reply["classes"] == [{"name": "car", "count": 0}, {"name": "bus", "count": 0}] and "density" not in reply
    assert Blank(["people"]).classes == ()
    for wrong in (["a", "a"], ["a", " "]):
        with pytest.raises(ConfigError, match="different names divided by commas"):
            Blank(wrong)


def error(response: Any, status: int) -> str:
    """The one sentence of a refusal, sent with the headers of every answer."""
    assert response.status_code == status, response.text
    assert set(response.json()) == {"error"} and "\n" not in response.json()["error"]
    assert response.headers["x-content-type-options"] == "nosniff"
    return str(response.json()["error"])


# --- counting ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [(45, 70), (1, 1), (130, 64)])
def test_the_answer_is_the_prediction(client: Any, size: tuple[int, int]) -> None:
    expected = counter_of().predict(picture(*size))
    answer = send(client, encoded(picture(*size))).json()
    assert answer["count"] == expected.count and (answer["height"], answer["width"]) == size
    assert answer["image"] == "crowd.png" and "classes" not in answer
    assert expected.points is not None and expected.scores is not None
    assert [[p["x"], p["y"]] for p in answer["points"]] == expected.points.tolist()
    assert [p["score"] for p in answer["points"]] == expected.scores.tolist()


def test_a_region_is_counted_as_predict_counts_it(client: Any) -> None:
    region = inside([np.array(ROI)], (45, 70))
    expected = counter_of().predict(picture(), roi=region)
    for given in (ROI, [ROI]):
        answer = send(client, encoded(picture()), roi=json.dumps(given)).json()
        assert answer["count"] == expected.count
    whole = send(client, encoded(picture())).json()["count"]
    assert 0 < expected.count < whole
    another = [[0.0, 0.0], [5.0, 0.0], [5.0, 5.0], [0.0, 5.0]]
    both = counter_of().predict(picture(), roi=inside([np.array(ROI), np.array(another)], (45, 70))).count
    assert send(client, encoded(picture()), roi=json.dumps([ROI, another])).json()["count"] == both > expected.count


def test_several_classes_are_counted_apart() -> None:
    counter = counter_of(("car", "bus"))
    expected = counter.predict(picture())
    with client_of(counter) as client:
        answer = send(client, encoded(picture())).json()
        assert client.get("/api/model").json()["classes"] == ["car", "bus"]
    assert answer["classes"] == [
        {"name": "car", "count": expected.class_counts[0]},
        {"name": "bus", "count": expected.class_counts[1]},
    ]
    assert expected.labels is not None and [p["label"] for p in answer["points"]] == expected.labels.tolist()


def test_a_point_network_has_points_and_no_density() -> None:
    counter = counter_of(backbone="p2pnet", trunk="tiny")
    with client_of(counter) as client:
        answer = send(client, encoded(picture(64, 64))).json()
        assert client.get("/api/model").json()["counts"] == "points"
    assert answer["count"] == len(answer["points"]) and "density" not in answer


def test_an_image_that_is_shrunk_too_much_is_answered_with_a_warning() -> None:
    counter = counter_of()
    with client_of(counter) as client:
        assert "warning" not in send(client, encoded(picture(400, 500))).json()
        counter.resize = Resize(max_side=50)
        answer = send(client, encoded(picture(400, 500))).json()
    assert "shrunk 10 times before counting" in answer["warning"] and (answer["width"], answer["height"]) == (500, 400)


def test_the_model_says_when_it_sums_chances() -> None:
    counter = counter_of(backbone="p2pnet", trunk="tiny")
    counter = Counter(counter.network, counter.spec, "cpu", count="expected")
    with client_of(counter) as client:
        assert client.get("/api/model").json()["counts"] == "expected"


def test_the_density_as_a_picture_as_values_or_not_at_all(client: Any) -> None:
    expected = counter_of().predict(picture())
    assert expected.density is not None
    rows, columns = expected.density.shape[1:]
    values = send(client, encoded(picture()), density="values").json()["density"]
    assert values["values"] == expected.density.tolist() and values["stride"] == expected.stride
    layer = send(client, encoded(picture())).json()["density"]
    assert layer["covers"] == [columns * expected.stride, rows * expected.stride]
    kind, _, text = layer["png"].partition(",")
    drawn = Image.open(io.BytesIO(base64.b64decode(text)))
    assert kind == "data:image/png;base64" and drawn.mode == "RGBA" and drawn.size == (columns, rows)
    opacity, held = np.asarray(drawn)[..., 3].ravel(), expected.density[0].ravel()
    assert opacity[held.argmax()] == opacity.max() == 216  # 0.85 of 255
    assert (np.diff(opacity[held.argsort()].astype(int)) >= 0).all() and opacity.min() < 150
    assert "density" not in send(client, encoded(picture()), density="none").json()
    assert "png, values or none" in error(send(client, encoded(picture()), density="mp4"), 400)


def test_every_format_papm_reads_is_taken_and_shown_upright(client: Any) -> None:
    exif = Image.Exif()
    exif[274] = 6  # to be turned by 90°
    turned = encoded(picture(), "JPEG", exif=exif)
    answer = send(client, turned, "turned.jpg").json()
    assert (answer["width"], answer["height"]) == (45, 70)
    tiff = encoded(picture(100, 3000), "TIFF")
    assert send(client, tiff, "scan.tif").json()["width"] == 3000
    shown = client.post("/api/preview", files={"image": ("scan.tif", tiff)})
    assert shown.headers["content-type"] == "image/jpeg" and Image.open(io.BytesIO(shown.content)).size == (2048, 68)


# --- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "the file is empty"),
        (b"<script>alert(1)</script>", "not a readable image"),
        (encoded(picture())[:200], "damaged or truncated"),
        (b"GIF89a" + bytes(40), "not a readable image"),
    ],
)
def test_what_is_no_image_is_one_sentence(client: Any, content: bytes, why: str) -> None:
    for path in ("/api/count", "/api/preview"):
        said = error(client.post(path, files={"image": ("../../secret/a.png", content)}), 400)
        assert said.startswith("a.png: ") and why in said


@pytest.mark.parametrize("roi", ["[[0, 0], [1, 1]]", "{}", "[]", "[[1], [2], [3]]", '[["a", 0], [1, 1], [2, 0]]'])
def test_a_region_that_is_no_polygon(client: Any, roi: str) -> None:
    assert error(send(client, encoded(picture()), roi=roi), 400).startswith("roi: not a polygon (")
    assert error(send(client, encoded(picture()), roi="nonsense"), 400) == "roi: not a list of corners [[x, y], …]"


def test_a_region_cannot_be_a_bomb(client: Any) -> None:
    for roi in ("[" * 100_000, json.dumps([ROI] * 101), json.dumps([[0, 0]] * 10_001), "[[0,0],[1e999,0],[1,1]]"):
        assert error(send(client, encoded(picture()), roi=roi), 400).startswith("roi: ")
    several = json.dumps([[[0, 0]] * 101] * 100)  # few in each, and many in all
    assert "more than 10,000 corners" in error(send(client, encoded(picture()), roi=several), 400)


def test_forms_without_an_image(client: Any) -> None:
    assert "no file 'image'" in error(client.post("/api/count", files={"other": ("a.png", b"x")}), 400)
    assert "no file 'image'" in error(client.post("/api/count", data={"image": "text"}, files={"x": ("", b"")}), 400)
    assert "multipart/form-data" in error(client.post("/api/count", json={"image": "a"}), 400)
    boundary = {"content-type": "multipart/form-data; boundary=x"}
    assert "not a form" in error(client.post("/api/count", content=b"nonsense", headers=boundary), 400)
    two = [("image", ("a.png", b"x")), ("image", ("b.png", b"x"))]
    assert "not a form" in error(client.post("/api/count", files=two), 400)


def test_an_image_of_too_many_pixels_is_refused_from_its_header(monkeypatch: pytest.MonkeyPatch) -> None:
    with client_of(counter_of(), Limits(0.003)) as client:
        assert send(client, encoded(picture(50, 60))).status_code == 200
        larger = encoded(picture(50, 61))
        monkeypatch.setattr(Image.Image, "load", lambda self: pytest.fail("decoded"))
        said = error(send(client, larger), 400)
    assert said == "crowd.png: 61×50 is 0.00305 megapixels, more than the limit of 0.003"


@pytest.mark.parametrize("size", [(1, 300), (300, 1)])
def test_a_strip_is_refused_by_what_it_costs(size: tuple[int, int]) -> None:
    """A network pads a side of one pixel to what its layers need, and enlarges what is smaller than in training."""
    counter = counter_of()
    with client_of(counter, Limits(0.0096)) as client:
        assert send(client, encoded(picture(*size))).status_code == 200  # 300 × 32
        counter.resize = Resize(min_side=48)
        said = error(send(client, encoded(picture(*size))), 400)
    assert "resized and padded for this model, is 0.6912 megapixels, more than the limit of 0.0096" in said
    with client_of(counter_of(), Limits(0.0095)) as client:
        assert "0.0096 megapixels, more than the limit of 0.0095" in error(send(client, encoded(picture(*size))), 400)


def test_an_upload_of_too_many_bytes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = Limits(0.001)
    with client_of(counter_of(), limits) as client:
        assert "1 MB, the most" in error(send(client, bytes(limits.bytes)), 413)  # by its stated length
        boundary = {"content-type": "multipart/form-data; boundary=x"}
        head = b'--x\r\ncontent-disposition: form-data; name="image"; filename="a.png"\r\n\r\n'
        body = (chunk for chunk in (head, *[bytes(100_000)] * 11))  # no stated length
        assert "1 MB, the most" in error(client.post("/api/count", content=body, headers=boundary), 413)


def test_nothing_is_written_to_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """An upload of more than the megabyte at which the framework would begin a temporary file."""
    monkeypatch.setattr(tempfile.SpooledTemporaryFile, "rollover", lambda self: pytest.fail("a file on disk"))
    with client_of(counter_of()) as client:
        content = encoded(picture(700, 800))
        assert len(content) > 1_200_000 and send(client, content).status_code == 200


def test_not_enough_memory_and_defects_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    counter = counter_of()
    faults: list[Exception] = [torch.OutOfMemoryError("CUDA out of memory"), MemoryError(), ValueError("a secret")]

    def fail(*_: Any, **__: Any) -> None:
        raise faults.pop(0)

    monkeypatch.setattr(counter, "predict", fail)
    with client_of(counter) as client:
        for _ in range(2):
            assert "smaller --tile" in error(send(client, encoded(picture())), 507)
        assert "secret" not in error(send(client, encoded(picture())), 500)


def test_a_model_that_counts_nan_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    counter = counter_of()
    with torch.no_grad():
        for weights in counter.network.parameters():
            weights.fill_(float("nan"))
    with client_of(counter) as client:
        assert "not a number" in error(send(client, encoded(picture())), 400)


# --- many at a time ----------------------------------------------------------------------------------------------------


def test_requests_wait_for_each_other_and_the_line_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    counter = counter_of()
    predict, running, most = counter.predict, threading.Semaphore(0), []
    hold, lock, now = threading.Event(), threading.Lock(), [0]

    def slow(*given: Any, **options: Any) -> Any:
        with lock:
            now[0] += 1
            most.append(now[0])
        running.release()
        hold.wait(20)
        with lock:
            now[0] -= 1
        return predict(*given, **options)

    monkeypatch.setattr(counter, "predict", slow)
    expected = predict(picture()).count
    with client_of(counter, desk=Desk(waiting=2)) as client, ThreadPoolExecutor(8) as pool:
        waiting = [pool.submit(send, client, encoded(picture())) for _ in range(6)]
        assert running.acquire(timeout=20)
        refused = [f.result(20) for f in _first(waiting, 3)]
        assert client.get("/healthz").json() == {"status": "ok"}  # answered all the while
        hold.set()
        replies = [f.result(20) for f in waiting]
    for response in refused:
        assert "2 images are waiting" in error(response, 429) and int(response.headers["retry-after"]) > 0
    good = [r for r in replies if r.status_code == 200]
    assert len(good) == 3 and all(r.json()["count"] == expected for r in good)
    assert set(most) == {1}  # never two at a time


def _first(futures: list[Any], number: int) -> list[Any]:
    """The futures that end first."""
    from concurrent.futures import as_completed

    found = []
    for future in as_completed(futures, timeout=20):
        found.append(future)
        if len(found) == number:
            break
    return found


def test_seats_are_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    with client_of(counter_of(), desk=Desk(waiting=0)) as client:
        for _ in range(3):
            assert send(client, b"no image").status_code == 400
            assert client.post("/api/count", json={}).status_code == 400
            assert send(client, encoded(picture())).status_code == 200


# --- who may ask -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example:8000", "localhost@evil.example", "[::1", "a b", ""]
)
def test_other_names_are_refused(client: Any, host: str) -> None:
    for path in ("/", "/api/model", "/healthz", "/papm.js"):
        error(client.get(path, headers={"host": host}), 403)


@pytest.mark.parametrize("host", ["localhost:8000", "127.0.0.1", "[::1]:8000", "192.168.1.7:8000", "LocalHost."])
def test_own_names_are_answered(client: Any, host: str) -> None:
    assert client.get("/api/model", headers={"host": host}).status_code == 200


def test_the_name_it_was_started_with_is_answered() -> None:
    with client_of(counter_of(), names=["lab-pc"]) as client:
        assert client.get("/healthz", headers={"host": "lab-pc:8000"}).status_code == 200


def test_other_sites_cannot_make_it_work(client: Any) -> None:
    for origin in ("https://evil.example", "http://127.0.0.1:9999", "null"):
        response = client.post("/api/count", files={"image": ("a.png", encoded(picture()))}, headers={"origin": origin})
        error(response, 403)
    own = client.post("/api/count", files={"image": ("a.png", encoded(picture()))}, headers={"origin": HERE})
    assert own.status_code == 200
    assert not [k for r in (own, client.get("/")) for k in r.headers if k.startswith("access-control")]


# --- the page ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/", "text/html"),
        ("/papm.css", "text/css"),
        ("/icon.svg", "image/svg+xml"),
        *((f"/{name}", "javascript") for name in SCRIPTS),
    ],
)
def test_the_page_is_sent_with_its_headers(client: Any, path: str, kind: str) -> None:
    response = client.get(path)
    assert response.status_code == 200 and kind in response.headers["content-type"]
    assert {k: response.headers[k] for k in HEADERS} == HEADERS
    policy = response.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "http" not in policy and "unsafe" not in policy and "*" not in policy


def test_the_page_loads_nothing_from_elsewhere_and_has_no_inline_code() -> None:
    assert {p.name for p in STATIC.iterdir()} == set(PAGE)
    for name in PAGE:
        text = (STATIC / name).read_text(encoding="utf-8").replace('xmlns="http://www.w3.org/2000/svg"', "")
        assert "http:" not in text and "https:" not in text and "//cdn" not in text
    page = (STATIC / "index.html").read_text(encoding="utf-8")
    assert "<style" not in page and " style=" not in page and " on" + "click" not in page and "</script>" in page
    for name in SCRIPTS:
        script = (STATIC / name).read_text(encoding="utf-8")
        assert "innerHTML" not in script and "eval(" not in script  # names of files are text, never code
        assert set(re.findall(r'from "\./(.+?)";', script)) <= set(SCRIPTS) and len(script.splitlines()) <= 450


@pytest.mark.parametrize(
    "path", ["/nothing", "/../app.py", "/%2e%2e/app.py", "/static/index.html", "/index.html/", "/api/"]
)
def test_no_other_file_is_read(client: Any, path: str) -> None:
    assert error(client.get(path), 404) == "Not Found"


def test_the_model_says_what_it_is_and_not_where_it_lies(client: Any) -> None:
    about = client.get("/api/model").json()
    assert (about["name"], about["method"], about["backbone"], about["steps"]) == ("first", "hd-papm", "tiny", 7)
    assert about["trained_on"] == "photos" and "/home" not in json.dumps(about)
    assert about["max_bytes"] == Limits().bytes and about["max_megapixels"] == 100
    assert error(client.post("/api/model"), 405) == "Method Not Allowed"


def test_an_upload_that_stops_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    import asyncio

    monkeypatch.setattr(uploads, "PATIENCE", 0.05)

    async def run() -> list[Any]:
        sent: list[Any] = []

        async def receive() -> Any:
            await asyncio.sleep(5)

        async def keep(message: Any) -> None:
            sent.append(message)

        headers = [(b"host", b"127.0.0.1"), (b"content-type", b"multipart/form-data; boundary=x")]
        scope = {"type": "http", "method": "POST", "path": "/api/count", "headers": headers, "query_string": b""}
        await application(counter_of(), {})(scope, receive, keep)
        return sent

    start, body = asyncio.run(run())
    assert start["status"] == 408 and b"the upload is too slow" in body["body"]
