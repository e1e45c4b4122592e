"""Faults that are planted in the processes of a campaign, so that the oracle can be tested.

Each breaks one rule on which the promises rest, in perdure itself, and some of the time only.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import anyio
from msgspec.structs import replace
from tests.soak.world import World

from perdure.runtime.engine.drives import Drives
from perdure.runtime.engine.heartbeat import LeaseHolder
from perdure.runtime.inbox.pending import PendingInbox
from perdure.runtime.tools.tool import Tool
from perdure.serve.http import event_streams
from perdure.store import judge
from perdure.store.base import Heads, Write
from perdure.store.sqlite.store import SqliteStore

SETTLED = frozenset({"user", "decision", "settled"})


class SystemFault(NamedTuple):
    """Fault in the processes of some roles, and the names under which the oracle reports it."""

    plant: Callable[[], None]
    roles: frozenset[str]
    names: frozenset[str]


def _repeat_effects() -> None:
    Tool.crash_policy = property(lambda _: "retry")  # type: ignore[assignment, method-assign]


def _acknowledge_without_commit() -> None:
    commit = SqliteStore.commit

    async def pretended(
        self: SqliteStore, writes: Sequence[Write], *args: Any, **options: Any
    ) -> Heads:
        types = {record.type for write in writes for record in write.records}
        if types & SETTLED and len(writes) == 1 and not writes[0].create and _is_one_in(4):
            head = (await self.read(writes[0].stream, limit=0)).head
            return Heads({writes[0].stream: head + len(writes[0].records)})
        return await commit(self, writes, *args, **options)

    SqliteStore.commit = pretended  # type: ignore[method-assign]


def _settle_at_any_version() -> None:
    commit = PendingInbox._commit

    async def late(self: PendingInbox, batch: Any) -> Any:
        await anyio.sleep(0.1)
        return await commit(self, batch)

    PendingInbox._commit = late  # type: ignore[method-assign]
    judge._version_moved = lambda *_: None


def _drop_events() -> None:
    frames = event_streams._FeedSource._next_frames

    async def dropping(self: Any, *args: Any) -> bytes:
        found = await frames(self, *args)
        return b"" if _is_one_in(50) else found

    event_streams._FeedSource._next_frames = dropping  # type: ignore[method-assign, assignment]


def _lose_wake_ups() -> None:
    row_after = judge._row_after

    def deaf(write: Write, row: judge.StreamRow) -> judge.StreamRow:
        after = row_after(write, row)
        is_lost = write.wake is not None and write.claim is None and _is_one_in(10)
        return after._replace(due=row.due) if is_lost else after

    judge._row_after = deaf


def _drive_without_fence() -> None:
    is_accepted = judge._is_accepted
    judge._is_accepted = lambda write, row: is_accepted(replace(write, fence=None), row)
    judge._fenced = lambda *_: None
    Drives._lose = lambda *_: None  # type: ignore[method-assign]
    LeaseHolder.is_valid = lambda *_: True  # type: ignore[method-assign]
    LeaseHolder.heartbeat = staticmethod(anyio.sleep_forever)  # type: ignore[method-assign, assignment]


def _is_one_in(count: int) -> bool:
    return random.randrange(count) == 0  # noqa: S311 - chance, not a secret


DRIVERS = frozenset({"worker", "server", "program"})
SERVERS = frozenset({"server"})
FAULTS: Mapping[str, SystemFault] = {
    "interrupted effects are repeated": SystemFault(
        _repeat_effects, DRIVERS, frozenset({"effect twice"})
    ),
    "acknowledged without a commit": SystemFault(
        _acknowledge_without_commit,
        SERVERS,
        frozenset({"message lost", "decision lost", "result lost"}),
    ),
    "settled at any version": SystemFault(
        _settle_at_any_version, DRIVERS, frozenset({"settled twice", "two results"})
    ),
    "events are dropped": SystemFault(_drop_events, SERVERS, frozenset({"event missed"})),
    "wake-ups are lost": SystemFault(_lose_wake_ups, DRIVERS, frozenset({"session stuck"})),
    "driven without a fence": SystemFault(
        _drive_without_fence,
        DRIVERS,
        frozenset({"two drivers", "two results", "effect twice", "G5 broken"}),
    ),
}


def plant(world: World, role: str) -> None:
    """Plant the fault that the world names, if this role has it."""
    if world.fault and role in FAULTS[world.fault].roles:
        FAULTS[world.fault].plant()
