"""Pages of lists of tasks: what they read, and that a page continues the one before it."""

import random
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Unpack

import pytest

from perdure import Runtime
from perdure.app import service_of
from perdure.store.base import FindOptions, Page, Put, Store, Write
from perdure.store.memory import MemoryStore
from perdure.store.shared.wrapper import StoreWrapper
from perdure.tasks import OpenCodeError, TaskRegistry
from perdure.tasks.listing import Source, TaskLists
from perdure.tasks.values import TaskFilters

pytestmark = pytest.mark.anyio

STATUSES = ("completed", "failed", "cancelled", "running", "pending")
TASKS = 3_000
EPOCH = datetime(2026, 1, 31, tzinfo=UTC)


class CountingStore(StoreWrapper):
    """Store that counts the entries that its queries return."""

    entries = 0

    async def find(self, kind: str, **options: Unpack[FindOptions]) -> Page:
        page = await super().find(kind, **options)
        self.entries += len(page.entries)
        return page


def task(number: int) -> dict[str, Any]:
    """A task; most old ones have ended, in no even mixture."""
    status = STATUSES[min(number * 4 // TASKS + number % 7 // 5, 4)]
    at = EPOCH + timedelta(seconds=number)
    return {"id": f"t{number:05}", "name": "n", "status": status, "created_at": at}


async def fill(registry: TaskRegistry, owner: str) -> None:
    for start in range(0, TASKS, 500):
        rows = [task(number) for number in range(start, start + 500)]
        await registry.bulk_insert([{**row, "owner": owner} for row in rows])


async def test_a_page_at_any_offset_reads_hardly_more_entries_than_it_returns(rt: Runtime) -> None:
    """S3.77"""
    await fill(TaskRegistry(rt), "ana")
    store = CountingStore(service_of(rt).tasks.store)
    lists = TaskLists(store)
    for filters in (TaskFilters(), TaskFilters(status="completed"), TaskFilters(owner="ana")):
        sources = await lists.shared(None, filters)
        every = [entry.key for entry in await lists.page(sources, 0, None)]
        for offset in (0, 99, 700, 1500, 2888, 2999, 3000, 9000):
            store.entries = 0
            entries = await lists.page(sources, offset, 10)
            assert [entry.key for entry in entries] == every[offset : offset + 10]
            # One index is skipped; several have blocks to find and a rest to merge.
            assert store.entries <= (10 if len(sources) == 1 else 600), (filters, offset)


@pytest.mark.parametrize("url", ["memory", "sqlite"], indirect=True)
async def test_a_page_of_one_of_several_tenants_is_that_part_of_its_list(rt: Runtime) -> None:
    """S3.77"""
    a, b = TaskRegistry(rt.tenant("a")), TaskRegistry(rt.tenant("b"))
    await a.bulk_insert([task(number) for number in range(0, TASKS, 3)])
    await b.bulk_insert([task(number) for number in range(1, TASKS, 3)])
    for registry in (a, b, TaskRegistry(rt)):
        every = await registry.list()
        for offset in (0, 5, 450, 990, 1990, 2500):
            page = await registry.list({"offset": offset, "limit": 7})
            assert page == every[offset : offset + 7]


async def test_a_list_continued_after_its_last_task_repeats_none_while_others_are_created(
    registry: TaskRegistry,
) -> None:
    """S3.9, S3.77"""
    await registry.bulk_insert([task(number) for number in range(40)])
    before = [row.id for row in await registry.list()]
    listed: list[str] = []
    filters: dict[str, Any] = {"limit": 7}
    while page := await registry.list(filters):
        listed += [row.id for row in page]
        filters["after"] = page[-1]
        await registry.create({"name": "new", "created_at": EPOCH + timedelta(days=1)})
    assert listed == before
    beside = await registry.list({"after": filters["after"], "offset": 1})
    assert beside == []
    fifth = (await registry.list({"offset": 4, "limit": 1}))[0]
    assert await registry.list({"after": fifth, "offset": 2, "limit": 3}) == await registry.list(
        {"offset": 7, "limit": 3}
    )
    with pytest.raises(OpenCodeError) as refused:
        await registry.list({"after": "t00001"})
    assert refused.value.code == "INVALID_REQUEST"


async def put_keys(store: Store, keys: Sequence[Sequence[int]]) -> list[Source]:
    """Put entries of several states, and return their sources."""
    new = partial(Put, "mail", expect=0, stream="s", due=None, data=b"{}")
    puts = [
        new(key=f"{key:05}", state=f"state{number}")
        for number, numbers in enumerate(keys)
        for key in numbers
    ]
    await store.commit([Write("s", create="tasks")], puts)
    return [Source("mail", f"state{number}") for number in range(len(keys))]


@pytest.mark.parametrize("seed", range(12))
async def test_sources_of_any_sizes_are_merged_at_any_offset(seed: int) -> None:
    """S3.77"""
    chance = random.Random(seed)  # noqa: S311 - for tests
    store = MemoryStore()
    await store.open()
    keys: list[list[int]] = [[] for _ in range(chance.randint(2, 7))]
    weights = [chance.random() ** 4 for _ in keys]
    for key in range(1500):
        if chance.random() < 0.02:
            chance.shuffle(weights)
        keys[chance.choices(range(len(keys)), weights)[0]].append(key)
    lists, sources = TaskLists(store), await put_keys(store, keys)
    every = sorted(key for numbers in keys for key in numbers)
    for offset in [*(chance.randrange(1500) for _ in range(12)), 1499, 1500, 6000]:
        start = chance.choice([None, chance.randrange(1500)])
        rest = every if start is None else [key for key in every if key > start]
        after = None if start is None else f"{start:05}"
        page = await lists.page(sources, offset, 5, after)
        assert [int(entry.key) for entry in page] == rest[offset : offset + 5]
