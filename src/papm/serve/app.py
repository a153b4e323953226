"""The web application: four questions (`/api/model`, `/api/count`, `/api/preview`, `/api/calibrate`), `/healthz`, and the page.

    POST /api/count     form: image (a file), roi ([[x, y], …], optional), density (png, values or none)
                        -> {image, count, width, height, points, classes, density}
    POST /api/preview   form: image -> a JPEG
    GET  /api/model     -> {name, method, backbone, classes, trained_on, …}
    POST /api/calibrate JSON (`papm.serve.calibrating`) -> {calibration, note, stored}

What is wrong with a request is said in one sentence, {"error": …}. Uploads stay in memory and are forgotten with the answer.
Imports starlette, an extra: only `papm serve` imports this.
"""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any, TypeVar

import torch
from python_multipart.exceptions import FormParserError
from starlette.applications import Starlette
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route

from papm.errors import DataError, PapmError
from papm.predict.predictor import Source
from papm.serve import calibrating, counting
from papm.serve.calibrating import Calibrator
from papm.serve.counting import Abandoned, Limits, Upload
from papm.serve.desk import Busy, Closing, Desk
from papm.serve.guard import Guard
from papm.serve.uploads import TooLarge, TooSlow, Uploads

T = TypeVar("T")
R = TypeVar("R")
Body = AsyncGenerator[bytes, None]
STATIC = Path(__file__).parent / "static"
SCRIPTS = (
    "papm.js",
    "calibrating.js",
    "colours.js",
    "dots.js",
    "editing.js",
    "figures.js",
    "files.js",
    "gestures.js",
    "history.js",
    "keys.js",
    "list.js",
    "painting.js",
    "sending.js",
    "state.js",
    "tables.js",
)
PAGE = ("index.html", "papm.css", "icon.svg", *SCRIPTS)  # nothing else is ever read for a request
TEXT = 1_000_000  # bytes of a field that is not a file: a polygon


class NoMemory(PapmError):
    """An image that this machine cannot hold."""


# Others are 400.
STATUS: dict[type[PapmError], int] = {Busy: 429, Closing: 503, TooSlow: 408, TooLarge: 413, NoMemory: 507}
RETRY = (1, 3)  # seconds, drawn for each answer: those who were refused together do not come again together


def application(
    counter: Source,
    about: dict[str, Any],
    limits: Limits | None = None,
    names: Collection[str] = (),
    desk: Desk | None = None,
    calibrator: Calibrator | None = None,
) -> Guard:
    """The application around a model; `names` are those of this machine, besides its addresses and localhost."""
    limits, calibrator = limits or Limits(), calibrator or Calibrator(counter)
    desk = desk or Desk()
    uploads = Uploads(limits.bytes, (1 + desk.waiting) * limits.bytes)

    async def health(request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def model(request: Request) -> Response:
        return JSONResponse({**about, **calibrator.describe()})

    async def count(request: Request) -> Response:
        job = partial(_in_memory, partial(counting.count, counter, limits=limits))
        return JSONResponse(await _served(request, desk, uploads, partial(_upload, request, limits.bytes), job))

    async def calibrate(request: Request) -> Response:
        if not request.headers.get("content-type", "").startswith("application/json"):
            raise DataError("send a request in JSON (application/json)")

        read = partial(_at_most, largest=calibrating.LARGEST)
        return JSONResponse(await _served(request, desk, uploads, read, lambda body, stop: calibrator.answer(body)))

    async def preview(request: Request) -> Response:
        job = partial(_in_memory, lambda upload, stop: counting.small_picture(upload, limits))
        made = await _served(request, desk, uploads, partial(_upload, request, limits.bytes), job)
        return Response(made, media_type="image/jpeg")

    routes = [
        *map(_file, PAGE),
        Route("/healthz", health),
        Route("/api/model", model),
        Route("/api/count", count, methods=["POST"]),
        Route("/api/preview", preview, methods=["POST"]),
        Route("/api/calibrate", calibrate, methods=["POST"]),
    ]
    errors = {PapmError: _refused, HTTPException: _unknown, Abandoned: _abandoned, Exception: _defect}
    return Guard(Starlette(routes=routes, exception_handlers=errors), names, limits.bytes, (desk.close, uploads.close))


def _file(name: str) -> Route:
    async def send(request: Request) -> Response:
        return FileResponse(STATIC / name)

    return Route("/" if name == "index.html" else f"/{name}", send)


async def _refused(request: Request, error: Exception) -> Response:
    status = next((code for kind, code in STATUS.items() if isinstance(error, kind)), 400)
    headers = {"connection": "close"} if status == 408 else {}
    if status in (429, 503):
        headers["retry-after"] = str(random.randint(*RETRY))
    return JSONResponse({"error": str(error)}, status, headers)


async def _unknown(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return JSONResponse({"error": error.detail}, error.status_code, error.headers)


async def _abandoned(request: Request, error: Exception) -> Response:
    return Response(status_code=499)  # nobody reads it


async def _defect(request: Request, error: Exception) -> Response:
    return JSONResponse({"error": "a defect of papm; its terminal says more"}, 500)


async def _served(
    request: Request, desk: Desk, uploads: Uploads, read: Callable[[Body], Awaitable[R]], job: Callable[[R, Event], T]
) -> T:
    """The result of a job on what a request brings, when its turn comes."""
    body, client = _body(request), request.client.host if request.client else ""
    try:
        with uploads.place(client) as place:
            brought = await read(uploads.receive(place, body))
            async with desk.seat():
                # After its body a request has only one more thing to say: that nobody waits any longer.
                return await desk.work(partial(job, brought), request.receive())
    except Busy:
        # A browser does not listen before it has sent everything.
        async for _ in uploads.receive(uploads.nowhere(), body):
            pass
        raise


def _in_memory(job: Callable[[Upload, Event], T], upload: Upload, stop: Event) -> T:
    try:
        return job(upload, stop)
    except (MemoryError, RuntimeError) as error:  # torch's own are RuntimeErrors
        if isinstance(error, MemoryError | torch.OutOfMemoryError) or "allocate memory" in str(error):
            raise NoMemory(f"{upload.name}: not enough memory; start papm serve with a smaller --tile") from None
        raise


async def _upload(request: Request, largest: int, body: Body) -> Upload:
    """The form of a request, never on disk."""

    class InMemory(MultiPartParser):
        spool_max_size = largest + 1

    if not request.headers.get("content-type", "").startswith("multipart/form-data"):
        raise DataError("send a form (multipart/form-data) with the file 'image'")
    try:
        parser = InMemory(request.headers, body, max_files=1, max_fields=8, max_part_size=TEXT)
        form = await parser.parse()
    except (MultiPartException, FormParserError) as error:  # starlette before 1.7 lets the latter through
        raise DataError(f"not a form that can be read ({error})") from None
    try:
        image = form.get("image")
        if not isinstance(image, UploadFile):
            raise DataError("the form has no file 'image'")
        roi, density = (str(form.get(key) or other) for key, other in (("roi", ""), ("density", "png")))
        return Upload(await image.read(), counting.plain_name(image.filename), roi, density)
    finally:
        await form.close()


async def _at_most(body: Body, largest: int) -> bytes:
    """A body that is no file, whole."""
    held = bytearray()
    async for chunk in body:
        held += chunk
        if len(held) > largest:
            raise TooLarge(f"the request is larger than {largest / 1e6:.0f} MB, the most that is taken")
    return bytes(held)


async def _body(request: Request) -> Body:
    """The body of a request, as it comes."""
    try:
        async for chunk in request.stream():
            yield chunk
    except ClientDisconnect:
        raise Abandoned from None
