"""All that a store holds goes into another, and can be gone on with after any crash."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from perdure.errors import Conflict
from perdure.store import copy as copying
from perdure.store.base import Check, Heads, Put, Record, Release, Store, Write
from perdure.store.copy import CopyResult, copy, stream_content
from perdure.store.files.store import files_store
from perdure.store.memory import MemoryStore
from perdure.store.sqlite.store import SqliteStore
from perdure.testing.contract import HandClock


def silent(done: int, total: int) -> None: ...


@asynccontextmanager
async def opened(*stores: Store) -> AsyncIterator[None]:
    for store in stores:
        await store.open()
    try:
        yield
    finally:
        for store in stores:
            await store.close()


def store_of(backend: str, folder: Path) -> Store:
    if backend == "memory":
        return MemoryStore()
    if backend == "files":
        return files_store(folder / "files")
    return SqliteStore(folder / "perdure.db")


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def source(tmp_path: Path, clock: HandClock) -> SqliteStore:
    return SqliteStore(tmp_path / "source.db", clock=clock)


async def fill(store: Store) -> None:
    """Sessions that were driven, parked, timed, deleted; entries of several kinds and states."""
    await store.commit([Write("gone", [Record("t", b"x", 1)], create="session", head=0)])
    await store.commit([Write("gone", erase=True)])
    for n in range(5):
        records = [Record("said", b"\x00\xff%d" % k, 10 + k) for k in range(n)]
        await store.commit(
            [Write(f"s/{n}", records, create="session", head=0, wake=50)],
            [
                Put("pending", f"p{n}", 0, f"s/{n}", "open", 99 + n, b"{}"),
                Put("session", f"/{n}", 0, f"s/{n}", "waiting", None, b"\x01"),
            ],
        )
    await store.commit([Write("blob/é", [Record("blob", b"", 3)], create="blob", head=0)])
    await store.renew("worker", 60_000, join=True)
    for lease in await store.claim("worker", "session", 3):
        if lease.stream != "s/0":  # which is left to a driver that dies
            release = Release(77 if lease.stream == "s/1" else None)
            await store.commit(
                [Write(lease.stream, fence=lease, head=lease.head, release=release)],
                [Put("pending", f"p{lease.head}", 1, lease.stream, "completed", None, b"done")],
            )


@pytest.mark.parametrize("backend", ["memory", "files", "sqlite"])
async def test_a_copy_holds_the_same(
    source: SqliteStore, clock: HandClock, tmp_path: Path, backend: str
) -> None:
    target = store_of(backend, tmp_path)
    async with opened(source, target):
        await fill(source)
        clock.advance(60_001)  # and the driver of s/0 is no more
        copied = await copy(source, target, silent)
        assert (copied.streams, copied.records, copied.entries) == (6, 11, 10)
        states = {one.stream: one for one in await target.streams()}
        before = {one.stream: one for one in await source.streams() if not one.gone}
        assert states.keys() == before.keys()
        for name, state in states.items():
            assert state.epoch == before[name].epoch
            assert await stream_content(source, name) == await stream_content(target, name)
        assert [states[f"s/{n}"].due for n in range(5)] == [0, 77, None, 50, 50]


async def test_and_back_again(source: SqliteStore, clock: HandClock, tmp_path: Path) -> None:
    files, back = files_store(tmp_path / "files"), SqliteStore(tmp_path / "back.db")
    async with opened(source, files, back):
        await fill(source)
        clock.advance(60_001)  # and the driver of s/0 is no more
        there = await copy(source, files, silent)
        assert await copy(files, back, silent) == there
        assert await copy(source, back, silent) == there


class Falling:
    """The commits of a store, of which one is the last."""

    def __init__(self, store: Store, commits: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left = commits
        self._commit = store.commit
        monkeypatch.setattr(store, "commit", self.commit)

    async def commit(
        self, writes: Sequence[Write], puts: Sequence[Put] = (), checks: Sequence[Check] = ()
    ) -> Heads:
        if self.left == 0:
            raise KeyboardInterrupt
        self.left -= 1
        return await self._commit(writes, puts, checks)


async def test_a_copy_goes_on_wherever_it_was_stopped(
    source: SqliteStore, clock: HandClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copying, "_BATCH_BYTES", 1)  # each record in a commit of its own
    whole: CopyResult | None = None
    async with opened(source):
        await fill(source)
        clock.advance(60_001)  # and the driver of s/0 is no more
        for commits in range(30):
            target = SqliteStore(tmp_path / f"{commits}.db")
            async with opened(target):
                with monkeypatch.context() as patched:
                    Falling(target, commits, patched)
                    try:
                        await copy(source, target, silent)
                    except KeyboardInterrupt:
                        pass
                    else:
                        break
                half = await target.find("pending")
                for entry in half.entries:  # what can be found is there to its end
                    mine = await stream_content(source, entry.stream)
                    assert await stream_content(target, entry.stream) == mine
                copied = await copy(source, target, silent)
                assert whole in (None, copied)
                whole = copied
    assert whole is not None
    assert commits > 8


async def test_a_target_that_holds_something_else_is_left_alone(
    source: SqliteStore, clock: HandClock, tmp_path: Path
) -> None:
    async with opened(source):
        await fill(source)
        clock.advance(60_001)  # and the driver of s/0 is no more
        for case in ("another stream", "another record", "driven since", "more records"):
            target = SqliteStore(tmp_path / f"{case}.db")
            async with opened(target):
                await _spoil(target, case)
                before = [
                    await stream_content(target, one.stream) for one in await target.streams()
                ]
                with pytest.raises(Conflict) as refused:
                    await copy(source, target, silent)
                assert refused.value.code == "TARGET_DIFFERS"
                after = [await stream_content(target, one.stream) for one in await target.streams()]
                assert after == before


async def _spoil(target: Store, case: str) -> None:
    alike = [Record("said", b"\x00\xff%d" % k, 10 + k) for k in range(4)]
    name, records, epoch = {
        "another stream": ("z", [], 0),
        "another record": ("s/4", [Record("said", b"other", 10)], 0),
        "driven since": ("s/4", alike, 1),
        "more records": ("s/4", [*alike, Record("said", b"more", 20)], 0),
    }[case]
    await target.commit([Write(name, records, create="session", head=0, epoch=epoch)])


async def test_nobody_may_work_on_either_side(
    source: SqliteStore, clock: HandClock, tmp_path: Path
) -> None:
    target = SqliteStore(tmp_path / "target.db", clock=clock)
    async with opened(source, target):
        await fill(source)
        with pytest.raises(Conflict, match="a worker uses the source") as refused:
            await copy(source, target, silent)
        assert refused.value.code == "STORE_IN_USE"
        with pytest.raises(Conflict, match="a worker uses the target"):
            await copy(target, source, silent)
        assert list(await target.streams()) == []


async def test_a_source_that_changes_meanwhile_is_noticed_and_copied_again(
    source: SqliteStore, clock: HandClock, tmp_path: Path
) -> None:
    target = files_store(tmp_path / "files")

    async with opened(source, target):
        await fill(source)
        clock.advance(60_001)  # and the driver of s/0 is no more
        plain, is_told = source.entries_of, False

        async def entries_of(stream: str) -> object:
            nonlocal is_told
            if stream == "s/3" and not is_told:
                is_told = True
                await source.commit([Write("s/4", [Record("said", b"new", 5)], wake=7)])
            return await plain(stream)

        source.entries_of = entries_of  # type: ignore[method-assign, assignment]
        with pytest.raises(Conflict) as refused:
            await copy(source, target, silent)
        assert refused.value.code in ("SOURCE_CHANGED", "TARGET_DIFFERS")
        assert (await copy(source, target, silent)).records == 12
        (state,) = [one for one in await target.streams() if one.stream == "s/4"]
        assert state.due == 7
