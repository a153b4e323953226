"""Run folders made up for reports: what `papm train` leaves behind, in milliseconds."""

from __future__ import annotations

from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from papm import config as configuration
from papm.engine.evaluate import Evaluation, write_evaluation
from papm.engine.result import scores
from papm.engine.run_folder import MetricsFile
from papm.files import write_json, write_text

MakeRun = Callable[..., dict[str, Any]]
VOID = {"meta", "img", "br", "link", "input", "hr"}


class Page(HTMLParser):
    """Collects the text and the attributes of a page, and fails on tags that do not nest."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(html)
        self.close()
        assert not self.open, f"never closed: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open[-1] == tag, f"</{tag}> closes {self.open[-3:]}"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] != "style":
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    def check_self_contained(self) -> None:
        """Nothing is fetched and nothing runs."""
        names = {tag for tag, _ in self.tags}
        assert not names & {"script", "link", "iframe", "object", "embed", "base", "form"}
        for _, attributes in self.tags:
            assert not [k for k in attributes if k.startswith("on")]
            assert str(attributes.get("src", "data:")).startswith("data:image/jpeg;base64,") or "src" not in attributes
            assert ":" not in str(attributes.get("href", ""))


@pytest.fixture
def read_page() -> Callable[[Path], Page]:
    def read(path: Path) -> Page:
        page = Page(path.read_text(encoding="utf-8"))
        page.check_self_contained()
        return page

    return read


@pytest.fixture
def make_run() -> MakeRun:
    def make(
        folder: Path,
        *,
        finished: bool = True,
        names: list[str] | None = None,
        error: float = 5.0,
        n: int = 12,
        extra: dict[str, Any] | None = None,
        **settings: Any,
    ) -> dict[str, Any]:
        folder.mkdir(parents=True)
        values = {"data": "synthetic", "method": "hd-papm", "backbone": "tiny", "steps": 400, **settings}
        config = configuration.from_mapping(values)
        write_text(folder / "config.yaml", configuration.to_yaml(config))
        write_json(
            folder / "environment.json", {"papm": "0", "revision": "abc123", "cuda": None, "packages": {"torch": "2"}}
        )
        metrics = MetricsFile(folder / "metrics.csv")
        for step in range(50, 401 if finished else 201, 50):
            metrics.append(
                {"step": step, "seconds": step / 10, "loss": 1e4 / step**1.5, "count_error": 3.0, "lr": 1e-3}
            )
            if step % 100 == 0:
                metrics.append(
                    {"step": step, "seconds": step / 10, "mae": error + 400 / step, "rmse": 2 * error + 400 / step}
                )
        if not finished:
            return {}
        rng = np.random.default_rng(3)
        truth = [float(t) for t in 10 * np.arange(1, n + 1)]
        predicted = [t + float(e) for t, e in zip(truth, error * rng.choice([-1.0, 1.5], n))]
        found = Evaluation(names or [f"IMG_{k}.jpg" for k in range(n)], predicted, truth, truth)
        write_evaluation(folder / "predictions.csv", found)
        result = {
            "dataset": "synthetic", "backbone": config.backbone, "method": config.method, "noise": config.noise,
            "seed": config.seed, "steps": config.steps, "select": config.select, "selected_step": 300,
            **scores(found), "mae_last": 6.5, "mae_best_on_test": None, "split": "test", "seconds": 75.0,
            "hardware": "a CPU", "revision": "abc123", **(extra or {}),
        }  # fmt: skip
        write_json(folder / "result.json", result)
        return result

    return make
