"""One at a time, in order, a bounded line, and nobody works for those who left."""

from __future__ import annotations

import asyncio
import io
import threading
import time
from typing import Any

import pytest
import torch
from PIL import Image

from papm import models
from papm.checkpoint import ModelSpec
from papm.predict.predictor import Counter
from papm.serve.counting import Abandoned, Limits, Upload, count
from papm.serve.desk import Busy, Desk


async def never() -> None:
    await asyncio.sleep(60)


def test_seats_are_bounded_and_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("papm.serve.desk.HOLD", 0.05)

    async def run() -> None:
        desk = Desk(waiting=1)
        async with desk.seat(), desk.seat():
            with pytest.raises(Busy, match="1 images are waiting"):
                async with desk.seat():
                    pass
        with pytest.raises(KeyError):
            async with desk.seat():
                raise KeyError
        async with desk.seat(), desk.seat():
            pass

    asyncio.run(run())


def test_seats_go_to_those_who_stand_before_the_line() -> None:
    """In the order they came, also before one that has just been served."""

    async def run() -> list[str]:
        desk, served = Desk(waiting=0), list[str]()

        async def come(name: str, times: int = 1) -> None:
            for _ in range(times):
                async with desk.seat():
                    served.append(name)
                    await asyncio.sleep(0.01)

        await asyncio.gather(come("again", 3), come("a"), come("b"), come("c"))
        return served

    assert asyncio.run(run()) == ["again", "a", "b", "c", "again", "again"]


def test_work_is_done_one_by_one_and_in_order() -> None:
    desk, seen, now = Desk(), list[int](), [0]

    def job(k: int, stop: threading.Event) -> int:
        now[0] += 1
        seen.append(k)
        time.sleep(0.01)
        assert now[0] == 1 and not stop.is_set()
        now[0] -= 1
        return k * k

    async def run() -> list[int]:
        return await asyncio.gather(*(desk.work(lambda stop, k=k: job(k, stop), never()) for k in range(5)))

    assert asyncio.run(run()) == [0, 1, 4, 9, 16] and seen == [0, 1, 2, 3, 4]


def test_those_who_leave_are_not_worked_for() -> None:
    def job(stop: threading.Event) -> str:
        assert stop.wait(10)
        raise Abandoned

    async def leave() -> None:
        await asyncio.sleep(0.02)

    with pytest.raises(Abandoned):
        asyncio.run(Desk().work(job, leave()))


def test_a_count_ends_at_the_next_tile() -> None:
    torch.manual_seed(0)
    counter = Counter(models.create("tiny"), ModelSpec("tiny"), "cpu", tile=192)
    stop, seen = threading.Event(), list[int]()
    predict = counter.predict

    def watched(image: Any, **options: Any) -> Any:
        on_tile = options.pop("on_tile")

        def look(done: int, tiles: int) -> None:
            seen.append(done)
            if done == 2:
                stop.set()
            on_tile(done, tiles)

        return predict(image, on_tile=look, **options)

    counter.predict = watched  # type: ignore[method-assign]
    stream = io.BytesIO()
    Image.new("RGB", (500, 300)).save(stream, "PNG")
    with pytest.raises(Abandoned):
        count(counter, Upload(stream.getvalue()), stop, limits=Limits())
    assert seen == [1, 2]
