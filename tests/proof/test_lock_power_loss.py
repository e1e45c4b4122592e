"""G1 for locks: no power loss grants a lock twice, though releases are not synced."""

import asyncio
import itertools
import random
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Final, cast

import pytest
from tests.proof.apsw_connection import Connection
from tests.proof.disk import Disk, DiskVfs, Image
from tests.proof.power import DATABASE, lay_out, let_it_run

from perdure import Conflict
from perdure.store.base import Store
from perdure.store.sqlite.store import SqliteStore
from perdure.tasks.locks.manager import Locks
from perdure.tasks.locks.process import LockProcess
from perdure.tasks.locks.tables import StoreLocks
from perdure.tasks.locks.values import LockInfo
from perdure.testing import ManualClock

pytestmark = pytest.mark.anyio

LEASE_MS: Final = 30_000
RESOURCES: Final = ("a", "b", "c")
_vfs_names = (f"lock-disk-{n}" for n in itertools.count())


class OnlySynced(random.Random):
    """Luck of a disk that loses everything that was not synced."""

    def choice(self, seq: object) -> float:  # type: ignore[override]
        del seq
        return 0.0


def locks_of(store: Store) -> Locks:
    """Return the locks of one process; its heartbeat never comes, as the clock stands still."""
    process = LockProcess(store, LEASE_MS, lambda _: None)
    process.open()
    return Locks(StoreLocks(store, process))


@asynccontextmanager
async def store_on(disk: Disk, folder: Path) -> AsyncIterator[SqliteStore]:
    lay_out(folder, {})
    name = next(_vfs_names)
    vfs = DiskVfs(name, disk)

    def connect(path: str) -> sqlite3.Connection:
        return cast("sqlite3.Connection", Connection(path, name, {}))

    store = SqliteStore(folder / DATABASE, clock=ManualClock(), connect=connect)
    await store.open()
    try:
        yield store
    finally:
        await store.close()
        vfs.unregister()


@asynccontextmanager
async def store_after(image: Image, folder: Path, clock: ManualClock) -> AsyncIterator[SqliteStore]:
    """Open what a power loss left; no process of before it is alive, and only its lease says so."""
    lay_out(folder, image)
    store = SqliteStore(folder / DATABASE, clock=clock)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


async def test_a_release_that_a_power_loss_takes_back_leaves_the_lock_held_until_its_end(
    tmp_path: Path,
) -> None:
    """S3.55, S3.66"""
    disk = Disk()
    async with store_on(disk, tmp_path / "before") as store:
        locks = locks_of(store)
        (first,) = await locks.acquire("", ["r"], "a")
        assert await locks.release("", "r", "a")
        assert await locks.status("", "r") is None
        image = disk.survivor(OnlySynced())
    clock = ManualClock()
    async with store_after(image, tmp_path / "after", clock) as store:
        locks = locks_of(store)
        status = await locks.status("", "r")
        assert status is not None, "the release was synced, so that this test shows nothing"
        assert (status.owner, status.version) == ("a", first.version)
        with pytest.raises(Conflict):
            await locks.acquire("", ["r"], "b")
        clock.advance(timedelta(milliseconds=LEASE_MS))
        (second,) = await locks.acquire("", ["r"], "b")
        assert second.version > first.version


async def test_the_next_acquisition_makes_a_release_durable(tmp_path: Path) -> None:
    """S3.55"""
    disk = Disk()
    async with store_on(disk, tmp_path / "before") as store:
        locks = locks_of(store)
        await locks.acquire("", ["r"], "a")
        await locks.release("", "r", "a")
        (second,) = await locks.acquire("", ["r"], "b")
        image = disk.survivor(OnlySynced())
    async with store_after(image, tmp_path / "after", ManualClock()) as store:
        status = await locks_of(store).status("", "r")
    assert status is not None
    assert (status.owner, status.version) == ("b", second.version)


@dataclass(slots=True)
class Grants:
    """Acknowledged acquisitions by resource: the last version, and the lock that is held."""

    last: dict[str, int] = field(default_factory=dict)
    held: dict[str, LockInfo] = field(default_factory=dict)

    def copy(self) -> "Grants":
        return Grants(dict(self.last), dict(self.held))


@dataclass(frozen=True, slots=True)
class LockCut:
    """Power loss, with the acquisitions that were acknowledged before it."""

    operation: int
    image: Image
    grants: Grants


async def use_locks(store: Store, grants: Grants, name: str, luck: random.Random) -> None:
    """Acquire and release in one process; what it is about to release, it may lose."""
    locks = locks_of(store)
    for _ in range(12):
        resource = luck.choice(RESOURCES)
        try:
            (lock,) = await locks.acquire("", [resource], name)
        except Conflict:
            continue
        assert lock.version > grants.last.get(resource, 0), "granted twice without a power loss"
        grants.last[resource], grants.held[resource] = lock.version, lock
        await asyncio.sleep(0)
        del grants.held[resource]
        await locks.release("", resource, name, lock.token)


async def life(folder: Path, luck: random.Random) -> list[LockCut]:
    """Let three processes use locks, and cut the power before some operations of the disk."""
    disk, grants = Disk(), Grants()
    cuts: list[LockCut] = []
    async with store_on(disk, folder) as store:
        loop = asyncio.get_running_loop()

        def cut(operation: str) -> None:
            if luck.random() < (0.3 if operation == "sync" else 0.03):
                let_it_run(loop)  # acknowledge whatever is durable by now
                acknowledged = grants.copy()
                cuts.append(LockCut(disk.operations, disk.survivor(luck), acknowledged))

        disk.before = cut
        async with asyncio.TaskGroup() as processes:
            for name in ("p", "q", "r"):
                processes.create_task(use_locks(store, grants, name, luck))
        disk.before = lambda _: None
    return cuts


async def check_cut(folder: Path, cut: LockCut) -> None:
    clock = ManualClock()
    async with store_after(cut.image, folder, clock) as store:
        locks = locks_of(store)
        for resource, lock in cut.grants.held.items():
            status = await locks.status("", resource)
            assert status is not None, f"{resource} was lost while it was held"
            assert (status.owner, status.version) == (lock.owner, lock.version)
            with pytest.raises(Conflict):
                await locks.acquire("", [resource], "new")
        clock.advance(timedelta(milliseconds=LEASE_MS))
        for resource, version in cut.grants.last.items():
            (lock,) = await locks.acquire("", [resource], "new")
            assert lock.version > version, f"version {version} of {resource} was granted twice"


async def test_no_power_loss_grants_a_version_of_a_lock_twice(tmp_path: Path) -> None:
    """S3.55, S3.66"""
    seed = random.SystemRandom().randrange(1_000_000)
    luck = random.Random(seed)  # noqa: S311 - chance, not a secret
    checked = 0
    for number in range(20):
        for cut in await life(tmp_path / f"life-{number}", luck):
            place = tmp_path / f"life-{number}-cut-{cut.operation}"
            try:
                await check_cut(place, cut)
            except BaseException as error:
                error.add_note(f"seed {seed}, {place.name}")
                raise
            checked += bool(cut.grants.last)
        if checked >= 40:
            return
    pytest.fail(f"only {checked} power losses after an acquisition")
