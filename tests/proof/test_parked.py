"""G8: a session that waits costs nothing, however many there are."""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from anyio import to_thread
from tests.proof.parked import PARKED, PENDING, make_agent
from tests.support.paths import ROOT

from perdure import Runtime
from perdure.core.session import naming as index
from perdure.store.base import Entry, Put, Record, Write
from perdure.store.sqlite.store import SqliteStore

FEW, MANY = 100, 100_000
AT_ONCE = 500  # sessions in one commit
A_DAY_MS = 86_400_000


class Parked(NamedTuple):
    """A session that was driven to its pause, to be copied under other names."""

    kind: str
    session_id: str
    pending_id: str
    effect_id: str
    records: Sequence[Record]
    entries: Sequence[Entry]

    def copied(self, number: int, now: int) -> tuple[Write, list[Put]]:
        """The same session with another name, as the writes that make it."""
        name = PARKED.format(number)
        stream = index.session_stream("", name)
        ours = [self.session_id, self.pending_id, self.effect_id]
        theirs = [name, PENDING.format(number), f"e_{number:026}"]

        def renamed(data: bytes) -> bytes:
            for mine, its in zip(ours, theirs, strict=True):
                data = data.replace(mine.encode(), its.encode())
            return data

        records = [Record(one.type, renamed(one.data), one.at) for one in self.records]
        keys = {"session": index.session_key("", name), "pending": theirs[1]}
        puts = []
        for entry in self.entries:
            due, data = None, renamed(entry.data)
            if entry.kind == "pending" and number % 2:  # every second one has a deadline
                due = now + A_DAY_MS
                data = b'{"timeout":%d,' % due + data[1:]
            names, place = (entry.kind, keys[entry.kind]), (entry.listing, (entry.at or 0) + number)
            puts.append(Put(*names, 0, stream, entry.state, due, data, *place))
        return Write(stream, records, create=self.kind), puts


async def park(database: Path, number: int) -> None:
    """Fill a new store with so many sessions that wait for an approval."""
    store = SqliteStore(database)
    async with Runtime(store, agents=[make_agent()]) as rt:
        session = rt.session("one-to-be-copied", agent="shop")
        (call,) = (await session.run("Refund A-1")).pending
        stream = index.session_stream("", session.id)
        found = [await store.find(kind, stream=stream) for kind in ("session", "pending")]
        one = Parked(
            index.stream_kind("shop"),
            session.id,
            call.id,
            call.effect_id,
            (await store.read(stream)).records,
            [entry for page in found for entry in page.entries],
        )
        await session.delete()
        for start in range(0, number, AT_ONCE):
            made = [one.copied(n, store.now()) for n in range(start, min(start + AT_ONCE, number))]
            await store.commit(
                [write for write, _ in made], [put for _, puts in made for put in puts]
            )


def measured(database: Path) -> dict[str, Any]:
    """One cycle in a process of its own."""
    command = [sys.executable, "-m", "tests.proof.parked", str(database)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    said: dict[str, Any] = json.loads(done.stdout)
    return said


async def test_a_start_among_a_hundred_thousand_parked_sessions_is_as_one_among_a_hundred(
    tmp_path: Path,
) -> None:
    """Counted in SQLite's own steps, not in seconds; and in the memory of the process."""
    said = {}
    for number in (FEW, MANY):
        await park(tmp_path / f"{number}.db", number)
        said[number] = await to_thread.run_sync(measured, tmp_path / f"{number}.db")
    few, many = said[FEW], said[MANY]
    for one in (few, many):
        assert (one["states"], one["due"]) == (["completed"] * 2, 0)
    assert few["told"] == "100 sessions wait (100 approval); 0 calls had expired"
    assert many["told"] == (
        "at least 100 sessions wait (100 approval and more); 0 calls had expired"
    )
    steps = few["steps"], many["steps"]
    for what in ("open", "recover", "expire"):
        assert steps[1][what] <= 1.2 * steps[0][what], steps
    assert sum(steps[1].values()) <= 1.2 * sum(steps[0].values()), steps
    assert many["rss_kib"] <= few["rss_kib"] + 4 * 1024, (few, many)
