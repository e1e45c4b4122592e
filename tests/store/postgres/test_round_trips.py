"""What a commit costs: round trips to the server, and rows that stay within their pages."""

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable

import anyio
import pytest
from tests.servers.plug import Plug, plugged

from perdure.store.base import DELETE, Check, Fenced, Gone, HeadMoved, VersionMoved, Write
from perdure.store.postgres.store import PostgresStore
from perdure.store.postgres.writer import BatchWriter
from perdure.testing.contract.steps import drive, expect_error, join, make, put, record

Commit = Callable[[int], Awaitable[object]]


@pytest.fixture
async def plug_and_store(postgres_url: str) -> AsyncIterator[tuple[Plug, PostgresStore]]:
    async with plugged(postgres_url) as (plug, url):
        store = PostgresStore(url)
        await store.open()
        yield plug, store
        await store.close()


async def _round_trips(plug: Plug, commit: Commit) -> float:
    """Return the round trips per commit, on the connection that has most of them."""
    for number in range(3):  # the statements are prepared, and the ids of new streams fetched
        await commit(number)
    before = Counter(plug.round_trips)
    for number in range(3, 13):
        await commit(number)
    return max((plug.round_trips - before).values()) / 10


async def test_a_lone_commit_of_a_driver_takes_two_round_trips(
    plug_and_store: tuple[Plug, PostgresStore],
) -> None:
    plug, store = plug_and_store
    lease = await drive(store)

    async def turn(number: int) -> None:
        write = Write("s", [record(), record()], fence=lease, head=1 + 2 * number)
        await store.commit([write], [put("session", number), put(f"call{number}")])

    assert await _round_trips(plug, turn) == 2


async def test_a_commit_that_creates_a_session_and_claims_it_takes_two_round_trips(
    plug_and_store: tuple[Plug, PostgresStore],
) -> None:
    plug, store = plug_and_store
    await join(store, "worker")

    async def create(number: int) -> None:
        name, now = f"s{number}", store.now()
        write = Write(name, [record()], create="session", head=0, wake=now, claim="worker")
        heads = await store.commit([write], [put(name, stream=name)])
        assert heads.leases[name].epoch == 1

    assert await _round_trips(plug, create) == 2


async def test_a_result_a_refusal_and_a_deletion_take_two_round_trips_at_most(
    plug_and_store: tuple[Plug, PostgresStore],
) -> None:
    plug, store = plug_and_store
    await make(store, "s")

    async def submit(number: int) -> None:
        await store.commit([Write("s", [record()], wake=store.now())], [put("call", number)])

    async def refused(_: int) -> None:
        await expect_error(HeadMoved, store.commit([Write("s", [record()], head=99)]))

    async def progress(number: int) -> None:
        await store.commit([Write("s")], [put("progress", number)])

    assert await _round_trips(plug, submit) == 2
    assert await _round_trips(plug, progress) == 2
    assert await _round_trips(plug, refused) == 1


async def test_a_commit_with_a_check_locks_first(
    plug_and_store: tuple[Plug, PostgresStore],
) -> None:
    """Nothing compares the entry when the rest is written: BEGIN, lock, read, write, COMMIT."""
    plug, store = plug_and_store
    await make(store, "s")

    async def guarded(_: int) -> None:
        await store.commit([Write("s", [record()])], checks=[Check("lock", "a", 0, "s")])

    assert await _round_trips(plug, guarded) == 5


# --- rows that change between the two round trips ---


Interfere = Callable[[PostgresStore], Awaitable[object]]


@pytest.fixture
async def other(postgres_url: str) -> AsyncIterator[PostgresStore]:
    """Store of another process."""
    store = PostgresStore(postgres_url)
    await store.open()
    yield store
    await store.close()


def _between(monkeypatch: pytest.MonkeyPatch, interfere: Callable[[], Awaitable[object]]) -> None:
    """Let another process commit between the first reading and writing of a batch."""
    real = BatchWriter._write_alone

    async def late(self: BatchWriter, *arguments: object) -> bool:
        monkeypatch.setattr(BatchWriter, "_write_alone", real)
        await interfere()
        return await real(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(BatchWriter, "_write_alone", late)


async def test_a_stream_that_another_process_writes_meanwhile_is_judged_again(
    store: PostgresStore, other: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fact is appended wherever the stream ends; a driver's decision is refused."""
    lease = await drive(store)
    _between(monkeypatch, lambda: other.commit([Write("s", [record("first")])]))
    assert await store.commit([Write("s", [record("fact")], fence=lease)]) == {"s": 3}
    _between(monkeypatch, lambda: other.commit([Write("s", [record("second")])]))
    decision = Write("s", [record("decision")], fence=lease, head=3)
    assert (await expect_error(HeadMoved, store.commit([decision]))).head == 4


async def test_an_entry_that_another_process_puts_or_deletes_meanwhile_is_judged_again(
    store: PostgresStore, other: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though the row of its stream does not change."""
    await make(store, "s")
    for interference, expect in (
        (put("new"), 0),
        (put("new", 1, state="settled"), 1),
        (put("new", 2, data=DELETE), 2),
    ):
        _between(monkeypatch, lambda p=interference: other.commit([Write("s")], [p]))  # type: ignore[misc]
        mine = [put("new", expect, state="mine"), put(f"beside{expect}")]
        moved = await expect_error(VersionMoved, store.commit([Write("s", [record()])], mine))
        assert (None if moved.entry is None else moved.entry.version) == (
            None if expect == 2 else expect + 1
        )
    assert (await store.read("s", limit=0)).head == 1
    assert len((await store.find("pending")).entries) == 0


async def test_a_stream_that_another_process_creates_meanwhile_is_not_created_twice(
    store: PostgresStore, other: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await make(store, "beside")
    _between(monkeypatch, lambda: make(other, "s"))
    new = Write("s", [record()], create="session", head=0)
    await expect_error(HeadMoved, store.commit([new, Write("beside", [record()])]))
    assert (await store.read("beside", limit=0)).head == 1


async def test_a_holder_that_is_removed_meanwhile_is_granted_nothing(
    store: PostgresStore, other: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The write is made all the same, and leaves the stream due."""
    await make(store, "s", wake=None)
    await join(store, "worker")
    _between(monkeypatch, lambda: other.renew("worker", 0))
    heads = await store.commit([Write("s", [record()], wake=store.now(), claim="worker")])
    assert (heads, dict(heads.leases)) == ({"s": 2}, {})
    state = await store.read("s", limit=0)
    assert state.holder is None
    assert state.due is not None


async def test_a_stream_that_is_erased_meanwhile_gets_no_entry(
    store: PostgresStore, other: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stream that a commit names only for its entry guards it."""
    await make(store, "s")
    _between(monkeypatch, lambda: other.commit([Write("s", erase=True)]))
    await expect_error(Gone, store.commit([Write("s")], [put("k")]))
    assert await store.get("pending", "k") is None


async def test_a_lease_that_is_lost_meanwhile_fences_the_write(
    store: PostgresStore, other: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = await drive(store)
    _between(monkeypatch, lambda: other.renew("worker", 0))
    await expect_error(Fenced, store.commit([Write("s", [record()], fence=lease, head=1)]))


async def test_many_processes_that_write_one_stream_lose_nothing(
    store: PostgresStore, postgres_url: str
) -> None:
    """Each of them finds the stream changed again and again, and locks it in the end."""
    await make(store, "s")
    stores = [PostgresStore(postgres_url) for _ in range(4)]
    heads: list[int] = []

    async def write(one: PostgresStore, name: str) -> None:
        await one.open()
        for number in range(15):
            reply = await one.commit([Write("s", [record()])], [put(f"{name}{number}")])
            heads.append(reply["s"])
        await one.close()

    async with anyio.create_task_group() as group:
        for number, one in enumerate(stores):
            group.start_soon(write, one, f"k{number}-")
    assert sorted(heads) == list(range(2, 62))
