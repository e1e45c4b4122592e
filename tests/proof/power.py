"""Commits on a disk that may lose its power at any operation, and what must survive."""

import asyncio
import itertools
import random
import sqlite3
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import cast

import anyio
from tests.proof.apsw_connection import Connection
from tests.proof.disk import Disk, DiskVfs, Image

from perdure.errors import PerdureError
from perdure.store.base import Entry, Lease, NoStream, Put, Record, Write
from perdure.store.sqlite.store import SqliteStore
from perdure.testing import ManualClock

DATABASE = "perdure.db"
WRITERS = 4
DRIVER = 0  # this writer holds a lease; the others commit without one
LEASE_MS = 3_600_000
WAL_LIMIT = 40_000  # a WAL checkpoint every few commits

_vfs_names = (f"disk-{n}" for n in itertools.count())


@dataclass(frozen=True, slots=True)
class Cut:
    """Power loss: the content of the disk, and the commits acknowledged before it."""

    operation: int
    image: Image
    owed: frozenset[int]


@dataclass(frozen=True, slots=True)
class Finding:
    """Result of opening the store after a power loss."""

    present: frozenset[int] = frozenset()
    lost: frozenset[int] = frozenset()  # acknowledged, but missing
    wrong: tuple[str, ...] = ()  # present in part, or damaged

    @property
    def is_good(self) -> bool:
        return not self.lost and not self.wrong


class Life:
    """Process on such a disk: it opens a store, commits from several tasks, and closes it."""

    def __init__(
        self, folder: Path, seed: str, settings: Mapping[str, object], before: "Life | None" = None
    ) -> None:
        self.cuts: list[Cut] = []
        self.operations = 0
        self.records: dict[int, int] = dict(before.records) if before else {}  # per commit
        self._acknowledged: set[int] = set()
        self._folder = folder
        self._luck = random.Random(seed)  # noqa: S311 - chance, not a secret
        self._settings = {"journal_size_limit": WAL_LIMIT, **settings}
        # Long after the process before it, so that its leases have expired.
        self._clock = ManualClock()
        if before is not None:
            self._clock.advance(timedelta(milliseconds=2 * LEASE_MS))

    async def run(
        self,
        commits: int,
        rate: float,
        image: Image | None = None,
        present: frozenset[int] = frozenset(),
    ) -> None:
        """Run on what an earlier power loss left; `rate` is the share of operations with a cut."""
        self._acknowledged |= present
        lay_out(self._folder, image or {})
        disk, name = Disk(image), next(_vfs_names)
        disk.before = self._cutter(disk, rate)
        vfs = DiskVfs(name, disk)

        def connect(path: str) -> sqlite3.Connection:
            return cast("sqlite3.Connection", Connection(path, name, self._settings))

        store = SqliteStore(self._folder / DATABASE, clock=self._clock, connect=connect)
        await store.open()
        async with anyio.create_task_group() as tasks:
            for writer in range(WRITERS):
                tasks.start_soon(self._write, store, writer, commits // WRITERS)
        await store.close()
        vfs.unregister()
        self.operations = disk.operations

    def _cutter(self, disk: Disk, rate: float) -> Callable[[str], None]:
        loop = asyncio.get_running_loop()

        def cut(operation: str) -> None:
            # Preferably before a sync, when any part of a commit may have been written.
            if self._luck.random() >= (rate * 5 if operation == "sync" else rate):
                return
            # Acknowledge first whatever is durable by now, so that all of it must survive.
            let_it_run(loop)
            owed = frozenset(self._acknowledged)
            self.cuts.append(Cut(disk.operations, disk.survivor(self._luck), owed))

        return cut

    async def _write(self, store: SqliteStore, writer: int, commits: int) -> None:
        stream = f"s{writer}"
        other = f"s{writer % (WRITERS - 1) + 1}"  # never the driver's
        last = await store.get("last", stream)
        version, head = 0 if last is None else last.version, 0
        lease: Lease | None = None
        for _ in range(commits):
            number = len(self.records)
            sizes = [self._luck.choice([20, 300, 5000]) for _ in range(self._luck.randint(1, 3))]
            self.records[number] = len(sizes)
            records = [Record("t", b"%d " % number + b"x" * size) for size in sizes]
            puts = [
                Put("part", str(number), 0, stream, "new", None, b""),
                Put("last", stream, version, stream, str(number), number, b"y" * sizes[0]),
            ]
            writes = [Write(stream, records, create="session")]
            shape = self._luck.choice(["plain", "driven", "two"])
            if shape == "driven" and lease is not None:  # an append that has its own SQL
                writes, puts = [Write(stream, records, fence=lease, head=head)], []
            elif shape == "two":  # a child reports to its parent
                writes = [
                    Write(stream, records[1:], create="session"),
                    Write(other, records[:1], create="session"),
                ]
            heads = await store.commit(writes, puts)
            self._acknowledged.add(number)
            version, head = version + bool(puts), heads[stream]
            if writer == DRIVER and lease is None:
                lease = await _drive(store, stream)


async def _drive(store: SqliteStore, stream: str) -> Lease:
    name = f"driver-{store.now()}"
    await store.renew(name, LEASE_MS, join=True)
    await store.claim(name, "session", 0)  # leases of the driver before this one expire
    await store.commit([Write(stream, wake=0)])
    (lease,) = await store.claim(name, "session", 1, only=stream)
    return lease


def let_it_run(loop: asyncio.AbstractEventLoop) -> None:
    """Wait, in another thread, until the loop has done its current work."""
    passed = threading.Event()
    rounds = iter(range(3))  # a reply, the asyncio task that it wakes, and what that does

    def again() -> None:
        if next(rounds, None) is None:
            passed.set()
        else:
            loop.call_soon(again)

    loop.call_soon_threadsafe(again)
    assert passed.wait(10)


def lay_out(folder: Path, image: Image) -> None:
    """Write the files of an image into a new directory."""
    folder.mkdir()
    for name, data in image.items():
        (folder / name).write_bytes(data)


async def examine(folder: Path, cut: Cut, records: Mapping[int, int]) -> Finding:
    """Open what a power loss left with an ordinary store, and check everything."""
    lay_out(folder, cut.image)
    store = SqliteStore(folder / DATABASE)
    try:
        await store.open()
        try:
            finding = await _find(store, cut, records)
            await store.commit([Write("new", [Record("t", b"")], create="session")])
        finally:
            await store.close()
        wrong = _integrity(folder / DATABASE)
    except (PerdureError, sqlite3.DatabaseError, ValueError, LookupError) as error:
        return Finding(wrong=(f"{type(error).__name__}: {error}",))
    return Finding(finding.present, finding.lost, (*finding.wrong, *wrong))


def _integrity(database: Path) -> tuple[str, ...]:
    connection = sqlite3.connect(database)
    found = [row[0] for row in connection.execute("PRAGMA integrity_check")]
    connection.close()
    return () if found == ["ok"] else tuple(found)


async def _find(store: SqliteStore, cut: Cut, records: Mapping[int, int]) -> Finding:
    found: Counter[int] = Counter()
    for writer in range(WRITERS):
        try:
            read = await store.read(f"s{writer}")
        except NoStream:
            continue
        found.update(int(record.data.split()[0]) for record in read.records)
    parts = await _entries(store, "part")
    wrong = [
        f"commit {number} has {found[number]} of {records[number]} records"
        for number in found
        if found[number] != records[number]
    ]
    wrong += [f"commit {key} has only its entry" for key in parts if int(key) not in found]
    wrong += await _unlike(store, parts)
    present = frozenset(found)
    return Finding(present, cut.owed - present, tuple(wrong))


async def _unlike(store: SqliteStore, parts: Mapping[str, Entry]) -> list[str]:
    """Check that each stream's last entry is that of its last commit with entries."""
    wrong = []
    last = await _entries(store, "last")
    for stream in {entry.stream for entry in parts.values()} | set(last):
        numbers = sorted(int(key) for key, entry in parts.items() if entry.stream == stream)
        entry = last.get(stream)
        seen = None if entry is None else (entry.version, entry.state)
        if seen != (len(numbers), str(numbers[-1]) if numbers else None):
            wrong.append(f"the last entry of {stream} is {seen}, its commits are {numbers}")
    return wrong


async def _entries(store: SqliteStore, kind: str) -> dict[str, Entry]:
    entries: dict[str, Entry] = {}
    after: str | None = None
    while True:
        page = await store.find(kind, after=after, limit=1000)
        entries |= {entry.key: entry for entry in page.entries}
        if page.next is None:
            return entries
        after = page.next
