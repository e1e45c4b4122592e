"""Metrics: numbers that a scrape can have often, in a text that Prometheus can read."""

from collections.abc import Collection
from typing import Any

import msgspec

from perdure.app.metrics import Metric, OpenCalls, StoreMetrics, render, store_metrics
from perdure.store.base import Census, Page, Put, Write
from perdure.store.memory import MemoryStore

CALL = {"id": "p", "kind": "approval", "time": {"created": 5_000}, "input": {"a": ["deep", {}]}}


def test_label_values_are_escaped() -> None:
    odd = Metric("m", "gauge", "two\nlines \\", [({"a": 'say "hi"\n\\'}, 1), ({}, 2.5)])
    assert render([odd]) == (
        "# HELP m two\\nlines \\\\\n"
        "# TYPE m gauge\n"
        'm{a="say \\"hi\\"\\n\\\\"} 1\n'
        "m 2.5\n"
    )  # fmt: skip


def test_what_there_is_none_of_is_told_as_nought() -> None:
    text = render(store_metrics(Census({}, {}, {}, 0, 0, (), 0, 0), OpenCalls({}, None), 1))
    for line in (
        'perdure_sessions{state="waiting"} 0',
        'perdure_sessions{state="stuck"} 0',
        'perdure_pending_calls{kind="approval"} 0',
        "perdure_oldest_wait_seconds 0",
        "# TYPE perdure_commits_total counter",
    ):
        assert f"{line}\n" in text
    assert "perdure_build_info{version=" in text


def test_large_numbers_are_told_to_their_last_digit() -> None:
    census = Census({("session", "waiting"): 123_456_789}, {}, {}, 0, 0, (), 0, 0)
    text = render(store_metrics(census, OpenCalls({}, None), 1))
    assert 'perdure_sessions{state="waiting"} 123456789\n' in text


class Watched(MemoryStore):
    """A store that says how often it was counted and walked through."""

    asked: list[str]

    async def census(self, kinds: Collection[str]) -> Census:
        self.asked.append("census")
        return await super().census(kinds)

    async def find(self, kind: str, **more: Any) -> Page:
        self.asked.append("find")
        return await super().find(kind, **more)


async def store_with(calls: int) -> Watched:
    class Clock:
        def now(self) -> int:
            return 65_000

    store = Watched(Clock())
    await store.open()
    store.asked = []
    await store.commit(
        [Write("s", create="session")],
        [
            Put("pending", f"p{n}", 0, "s", "open", None, msgspec.json.encode(CALL))
            for n in range(calls)
        ],
    )
    return store


async def test_calls_are_counted_by_kind_with_the_oldest_wait() -> None:
    store = await store_with(calls=1_200)
    text = await StoreMetrics(store).text()
    assert 'perdure_pending_calls{kind="approval"} 1200\n' in text
    assert "perdure_open_calls 1200\n" in text
    assert "perdure_oldest_wait_seconds 60.0\n" in text


async def test_scrapes_in_a_row_count_once() -> None:
    """G8: what waits is not looked at again for every scrape."""
    store, now = await store_with(calls=3), [0.0]
    numbers = StoreMetrics(store, clock=lambda: now[0])
    await numbers.text()
    assert store.asked == ["census", "find"]
    now[0] = 4.9
    await numbers.text()
    assert store.asked == ["census", "find"]
    now[0] = 5.1
    await numbers.text()
    assert store.asked == ["census", "find"] * 2


async def test_a_walk_that_took_long_is_repeated_seldom() -> None:
    """G8: walking through what waits takes at most a hundredth of the time."""
    store, now = await store_with(calls=3), [0.0]

    async def find(kind: str, **more: Any) -> Page:
        now[0] += 2
        return await Watched.find(store, kind, **more)

    store.find = find  # type: ignore[method-assign]
    numbers = StoreMetrics(store, clock=lambda: now[0])
    await numbers.text()
    now[0] = 150
    await numbers.text()
    assert store.asked == ["census", "find", "census"]
    now[0] = 203
    await numbers.text()
    assert store.asked == ["census", "find", "census", "census", "find"]


async def test_a_call_that_cannot_be_read_hides_no_other() -> None:
    store = await store_with(calls=2)
    await store.commit([Write("s")], [Put("pending", "bad", 0, "s", "open", None, b"{")])
    assert 'perdure_pending_calls{kind="approval"} 2\n' in await StoreMetrics(store).text()
