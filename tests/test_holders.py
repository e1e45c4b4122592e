"""Heartbeats of a process whose event loop is too busy for them."""

import asyncio
import logging
import sqlite3
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from perdure import Agent, Runtime, tool
from perdure.app import open_store
from perdure.errors import StoreError
from perdure.holders import Renewals
from perdure.store.base import Lost, RenewsInThreads, Store
from perdure.testing import ScriptedModel

HOLDER = "busy"
MOST_S = 60.0


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/h.db"
    made: str = request.getfixturevalue("postgres_url")
    return made


def end_of_row(url: str) -> int:
    """Return until when the only holder has its leases, without the running event loop."""
    if url.startswith("sqlite"):
        connection = sqlite3.connect(url.removeprefix("sqlite:///"))
        try:
            return int(connection.execute("SELECT max(until) FROM holder").fetchone()[0])
        finally:
            connection.close()
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, _postgres_end(url)).result()


async def _postgres_end(url: str) -> int:
    connection = await asyncpg.connect(url)
    try:
        return int(await connection.fetchval("SELECT max(until) FROM perdure.holder"))
    finally:
        await connection.close()


def block_until(is_over: Callable[[], bool]) -> None:
    """Block the event loop, as fan-out to many readers does, until something is over."""
    until = time.monotonic() + MOST_S
    while not is_over():
        assert time.monotonic() < until, "it is not over"
        time.sleep(0.01)


@asynccontextmanager
async def kept(url: str, lease_ms: int) -> AsyncIterator[tuple[Store, Renewals]]:
    store = open_store(url)
    await store.open()
    try:
        renewals = Renewals(store, lease_ms)
        await renewals.join(HOLDER)
        with renewals.in_thread():
            yield store, renewals
    finally:
        await store.close()


async def test_leases_outlast_a_busy_event_loop(url: str) -> None:
    """G5"""
    async with kept(url, lease_ms=4_000) as (_, renewals):
        first = end_of_row(url)
        block_until(lambda: end_of_row(url) >= first + 4_000)
        assert renewals.is_valid(HOLDER)


async def test_leases_of_an_event_loop_that_hangs_for_good_end(url: str) -> None:
    """G5"""
    async with kept(url, lease_ms=300) as (store, renewals):
        block_until(lambda: not renewals.is_valid(HOLDER) and end_of_row(url) < store.now())
        await store.reap(store.now())
        with pytest.raises(Lost):
            await renewals.renew(HOLDER)


async def test_a_row_that_is_gone_is_not_renewed_in_a_thread(url: str) -> None:
    async with kept(url, lease_ms=60_000) as (store, _):
        assert isinstance(store, RenewsInThreads)
        await store.renew(HOLDER, 0)
        with ThreadPoolExecutor(1) as thread, pytest.raises(Lost):
            thread.submit(store.renew_in_thread, HOLDER, 60_000).result()


async def test_a_closed_store_renews_nothing(url: str) -> None:
    async with kept(url, lease_ms=60_000) as (store, _):
        pass
    assert isinstance(store, RenewsInThreads)
    with ThreadPoolExecutor(1) as thread, pytest.raises(StoreError):
        thread.submit(store.renew_in_thread, HOLDER, 60_000).result()


async def test_a_tool_that_blocks_the_loop_for_longer_than_a_lease_completes(
    url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """G5"""
    monkeypatch.setenv("PERDURE_LEASE", "3s")

    @tool
    async def send() -> str:
        """Send to many readers."""
        first = end_of_row(url)
        block_until(lambda: end_of_row(url) >= first + 3_000)
        return "sent to all"

    turns: list[Any] = [{"calls": [{"tool": "send", "args": {}}]}, {"text": "done"}]
    agent = Agent("a", model=ScriptedModel(turns), tools=[send])
    with caplog.at_level(logging.WARNING, "perdure"):
        async with Runtime(url, agents=[agent]) as rt:
            assert (await rt.session("s", agent=agent).run("Go")).output == "done"
            events = await rt.session("s", agent=agent).events()
    assert "sent to all" in str(events)
    assert "lost its leases" not in caplog.text
