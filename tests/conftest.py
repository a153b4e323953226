"""Shared by all tests: small deterministic settings, tiny datasets, where real data may be."""

from __future__ import annotations

import os
import shutil
import signal
import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from importlib import util
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import settings
from PIL import Image

# Derandomised: a failure seen once is seen again; deadlines would only measure how busy the machine is.
settings.register_profile("papm", derandomize=True, deadline=None, max_examples=40)
settings.register_profile("fast", settings.get_profile("papm"), max_examples=12)


def pytest_addoption(parser: pytest.Parser) -> None:
    """`make test` runs a part of the long tests, `make full` all of them."""
    parser.addoption("--slice", metavar="K/N", help="of the tests marked long, run one part in N; K counts on and on")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the long tests of other parts; which part a test is in depends on its name alone."""
    if (given := config.getoption("--slice")) is None:
        return
    part, parts = map(int, given.split("/"))
    left = [i for i in items if i.get_closest_marker("long") and zlib.crc32(i.nodeid.encode()) % parts != part % parts]
    config.hook.pytest_deselected(items=left)
    items[:] = [i for i in items if i not in set(left)]


def pytest_configure(config: pytest.Config) -> None:
    """`make fast` draws fewer examples."""
    settings.load_profile("fast" if config.getoption("markexpr") == "not slow" else "papm")


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is read from or written to the user's cache, and nothing is downloaded."""
    monkeypatch.setenv("PAPM_OFFLINE", "1")
    monkeypatch.setenv("PAPM_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The decoders that Pillow asks for, of all formats, in order; nothing is decoded without one."""
    asked: list[str] = []
    usual = Image._getdecoder

    def getdecoder(mode: str, name: str, *rest: object) -> object:
        asked.append(name)
        return usual(mode, name, *rest)

    monkeypatch.setattr(Image, "_getdecoder", getdecoder)
    return asked


@pytest.fixture(scope="session", autouse=True)
def _signals_of_a_terminal() -> None:
    """A suite that runs under nohup, or behind `&` in a script, is born deaf to signals, and so would be what it tests."""
    for number, usual in ((signal.SIGHUP, signal.SIG_DFL), (signal.SIGINT, signal.default_int_handler)):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, usual)


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder that holds ShanghaiTech and TRANCOS; tests that ask for it skip when it is absent."""
    root = os.environ.get("PAPM_DATA")
    if not root or not Path(root).is_dir():
        pytest.skip("PAPM_DATA names no folder of real datasets")
    return Path(root)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A Chromium. Where there is none, or no playwright, tests skip; PAPM_BROWSER=required makes that an error."""
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    missing = (
        "there is no Chromium" if found is None else "" if util.find_spec("playwright") else "there is no playwright"
    )
    if missing:
        refuse = pytest.fail if os.environ.get("PAPM_BROWSER") == "required" else pytest.skip
        refuse(f"the page is tested in a browser, and {missing} here")
    from playwright.sync_api import sync_playwright

    quiet = ("quic", "background-networking", "component-update", "sync")
    options = ["--no-sandbox", "--disable-gpu", "--no-first-run", *(f"--disable-{word}" for word in quiet)]
    with sync_playwright() as play:
        made = play.chromium.launch(executable_path=found, args=options)
        yield made
        made.close()


@pytest.fixture(scope="module")
def visit(browser: Any) -> Callable[..., AbstractContextManager[Any]]:
    """`with visit(application(…)) as page:` the page of a server of its own, which loads nothing from elsewhere and complains
    of nothing, but for answers that `expected` names, such as 429."""
    from papm.serve.server import address, listen, server

    @contextmanager
    def visited(app: Any, expected: tuple[str, ...] = ()) -> Iterator[Any]:
        ready, said = threading.Event(), list[str]()
        with listen("127.0.0.1", 0) as sock:
            running = server(app, ready.set)
            thread = threading.Thread(target=running.run, kwargs={"sockets": [sock]}, daemon=True)
            thread.start()
            assert ready.wait(30)
            here = address(sock)
            page = browser.new_page(viewport={"width": 1280, "height": 800})
            page.on("console", lambda message: said.append(message.text))
            page.on("pageerror", lambda error: said.append(str(error)))
            page.on("request", lambda r: None if r.url.startswith((here, "blob:", "data:")) else said.append(r.url))
            try:
                page.goto(here)
                page.wait_for_selector("#about:not(:empty)")  # it knows its model
                yield page
                assert [s for s in said if not any(f" {code} " in s for code in expected)] == []
            finally:
                page.close()
                running.should_exit = True
                thread.join(10)

    return visited
