"""A drive that is called off ends, whatever comes at that moment."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from perdure.core.driver.effects import Idle
from perdure.runtime.engine.driver import Driver
from perdure.runtime.engine.in_flight import InFlight


async def test_a_drive_that_is_called_off_as_news_comes_ends() -> None:
    driver: Any = Driver.__new__(Driver)
    driver.in_flight = InFlight()
    driver.resources = SimpleNamespace(store=SimpleNamespace(now=lambda: 0))
    waiting = asyncio.create_task(driver._wait(Idle(60_000)))
    for _ in range(3):
        await asyncio.sleep(0)
    driver.in_flight.news.set()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
