"""Model of the PostgreSQL feed: every interleaving of writers, readers, crashes and restarts.

A writer locks the table of records, takes positions and a transaction id in any order, and commits
or rolls back. Its rows become visible before its lock is released. Readers query in two steps, the
query and the use of its reply, and share what they know about final positions. A reader must never
pass a position that is visible or can still become visible, and in the end it must have read all.

The rule is the one of the store. `BUGS` are faults that can be planted instead of it; each must
lead to a violation.
"""

import copy
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from perdure.store.postgres.feed import FinalPositions

Step = tuple[str, Callable[["World"], None]]

BUGS: Final = {
    "snapshots": "the next transaction id is read from a snapshot's xmax",
    "snapshot_end": "the end of the feed is final when no transaction of a snapshot is open",
    "buffer_ahead": "a reader takes from the buffer without knowing whether it follows",
    "not_told": "a reader that is held is not told to read again",
    "late_bound": "the final position of now is applied to rows that were read before",
    "late_visible": "the last visible position is read after the query of appenders",
    "unordered": "replies about appenders are used in another order than that of their queries",
    "position_first": "a writer takes a position before the lock",
    "lock_first": "a writer releases its lock before its rows are visible",
}


class Violation(Exception):
    """A reader passed a position that can still become visible, or stopped before the end."""


class SnapshotRule(FinalPositions):
    """The rule of earlier versions, which took a snapshot's xmax for the next transaction id."""

    def __init__(self) -> None:
        super().__init__()
        self.marks: tuple[tuple[int, int], ...] = ()

    def count(self, rows: tuple[int, ...], cursor: int, last: int, snapshot: Any) -> int:
        xmin, xmax = snapshot
        if rows[-1] - cursor != len(rows) and (not self.marks or rows[-1] > self.marks[-1][0]):
            self.marks = (*self.marks, (rows[-1], xmax))
        last = max([last, *(mark for mark, until in self.marks if until <= xmin)])
        self.marks = tuple(mark for mark in self.marks if mark[0] >= last)
        return self.count_final(rows, cursor, last)


class Writer(NamedTuple):
    """Transaction: `new`, `open`, `visible` (committed, and still locked) or `ended`."""

    phase: str = "new"
    positions: tuple[int, ...] = ()
    xid: int = 0
    is_locked: bool = False


class Reader(NamedTuple):
    """Reader of the feed: what it does next, with the reply of its last query."""

    cursor: int | None = None  # None: the end, which it must find first
    doing: str = "idle"
    reply: tuple[Any, ...] = ()
    is_held: bool = False


class Buffer(NamedTuple):
    """Records that the feed has distributed to a stream: (position before, position)."""

    items: tuple[tuple[int, int], ...] = ()
    is_behind: bool = True


_BEHIND: Final = Buffer()


@dataclass(frozen=True)
class Scenario:
    """Sizes of a run: writers with their numbers of positions, readers, and failures."""

    writers: tuple[int, ...]
    readers: tuple[int | None, ...]  # cursors
    rows: tuple[int, ...] = ()  # positions that are visible at the start; others are lost
    crashes: int = 0  # of the database server
    restarts: int = 0  # of the reading process
    is_stream: bool = False  # reader 0 feeds the buffer from which reader 1 takes
    is_shared: bool = True  # what is known about final positions
    has_rollbacks: bool = True


def _rules(scenario: Scenario, bugs: frozenset[str]) -> tuple[FinalPositions, ...]:
    rule = SnapshotRule if "snapshots" in bugs else FinalPositions
    return tuple(rule() for _ in range(1 if scenario.is_shared else len(scenario.readers)))


@dataclass
class World:
    """State of the database, of the readers and of what they share."""

    scenario: Scenario
    bugs: frozenset[str]
    writers: tuple[Writer, ...]
    readers: tuple[Reader, ...]
    rules: tuple[FinalPositions, ...]  # one that the readers share, or one of each
    next_position: int
    rows: tuple[int, ...] = ()
    next_xid: int = 1
    newest_ended: int = 0
    crashes: int = 0
    restarts: int = 0
    buffer: Buffer = _BEHIND

    @classmethod
    def start(cls, scenario: Scenario, bugs: frozenset[str] = frozenset()) -> "World":
        return cls(
            scenario,
            bugs,
            (Writer(),) * len(scenario.writers),
            tuple(map(Reader, scenario.readers)),
            _rules(scenario, bugs),
            1 + max(scenario.rows, default=0),
            rows=scenario.rows,
            crashes=scenario.crashes,
            restarts=scenario.restarts,
        )

    def key(self) -> tuple[Any, ...]:
        return (
            *(self.writers, self.readers, self.buffer, self.rows, self.next_position),
            *(self.next_xid, self.newest_ended, self.crashes, self.restarts),
            *(value for rule in self.rules for value in vars(rule).values()),
        )

    def rule(self, n: int) -> FinalPositions:
        """Return what a reader knows about final positions."""
        return self.rules[n % len(self.rules)]

    def successor(self, change: Callable[["World"], None]) -> "World":
        world = copy.copy(self)
        world.rules = tuple(map(copy.copy, self.rules))
        change(world)
        return world

    # --- the database -------------------------------------------------------------------------

    def appenders(self) -> frozenset[str]:
        return frozenset(str(n) for n, writer in enumerate(self.writers) if writer.is_locked)

    def snapshot(self) -> tuple[int, int]:
        xmax = self.newest_ended + 1
        open_ = [w.xid for w in self.writers if w.phase == "open" and 0 < w.xid < xmax]
        return min([xmax, *open_]), xmax

    def set_writer(self, n: int, **changes: Any) -> None:
        writer = self.writers[n]._replace(**changes)
        self.writers = (*self.writers[:n], writer, *self.writers[n + 1 :])

    def end(self, n: int, phase: str) -> None:
        writer = self.writers[n]
        self.newest_ended = max(self.newest_ended, writer.xid)
        if phase == "visible":
            self.rows = tuple(sorted((*self.rows, *writer.positions)))
        self.set_writer(n, phase=phase, is_locked=phase == "visible" and writer.is_locked)

    def crash(self) -> None:
        """Restart the database: open transactions are lost, and some positions too."""
        self.crashes -= 1
        self.next_position += 1
        for n, writer in enumerate(self.writers):
            if writer.phase in ("open", "visible"):
                self.set_writer(n, phase="ended", is_locked=False)

    # --- the readers --------------------------------------------------------------------------

    def set_reader(self, n: int, **changes: Any) -> None:
        reader = self.readers[n]._replace(**changes)
        self.readers = (*self.readers[:n], reader, *self.readers[n + 1 :])

    def advance(self, n: int, position: int) -> None:
        """Move a reader to a position, which must be the next that can ever be visible."""
        cursor = self.readers[n].cursor
        assert cursor is not None
        self.check_passed(range(cursor + 1, position), f"reader {n} passed")
        self.set_reader(n, cursor=position)

    def check_passed(self, positions: range, text: str) -> None:
        for position in positions:
            if position in self.rows:
                raise Violation(f"{text} {position}, which is visible")
            if any(position in w.positions and w.phase == "open" for w in self.writers):
                raise Violation(f"{text} {position}, which can still be committed")

    def restart(self) -> None:
        """Restart the reading process: a client comes back with its last position."""
        self.restarts -= 1
        self.rules = _rules(self.scenario, self.bugs)
        self.buffer = Buffer()
        self.readers = tuple(
            Reader(None if start is None else reader.cursor)
            for reader, start in zip(self.readers, self.scenario.readers, strict=True)
        )


def steps(world: World) -> Iterator[Step]:
    """Yield every step that is possible."""
    for n, writer in enumerate(world.writers):
        for name, change in _writer_steps(world, n, writer):
            yield f"writer {n} {name}", change
    yield from _reader_steps(world)
    if world.crashes:
        yield "the database crashes", World.crash
    if world.restarts:
        yield "the reading process restarts", World.restart


def _reader_steps(world: World) -> Iterator[Step]:
    for n, reader in enumerate(world.readers):
        if world.scenario.is_stream and n == 1:
            yield from _stream_steps(world, reader)
        else:
            yield from _query_steps(world, n, reader)


def _writer_steps(world: World, n: int, writer: Writer) -> Iterator[Step]:
    if writer.phase == "new":
        # Writers that are alike need not begin in every order.
        if not n or world.writers[n - 1].phase != "new" or len(set(world.scenario.writers)) > 1:
            yield "begins", lambda w: _begin(w, n)
    elif writer.phase == "open":
        yield from _open_steps(world, n, writer)
    elif writer.phase == "visible":
        yield "unlocks", lambda w: w.set_writer(n, phase="ended", is_locked=False)


def _open_steps(world: World, n: int, writer: Writer) -> Iterator[Step]:
    if not writer.xid:
        yield "gets its id", lambda w: _take_xid(w, n)
    if len(writer.positions) < world.scenario.writers[n]:
        yield "takes a position", lambda w: _take_position(w, n)
    elif writer.xid:
        yield _end_step(world, n, writer)
    if writer.positions and world.scenario.has_rollbacks:
        yield "rolls back", lambda w: w.end(n, "ended")


def _begin(world: World, n: int) -> None:
    # Ids make no difference to a rule that does not look at snapshots.
    xid = 0 if world.bugs & {"snapshots", "snapshot_end"} else -1
    locked = "position_first" not in world.bugs
    world.set_writer(n, phase="open", xid=xid, is_locked=locked)


def _end_step(world: World, n: int, writer: Writer) -> Step:
    if "position_first" in world.bugs and not writer.is_locked:
        return "locks", lambda w: w.set_writer(n, is_locked=True)
    if "lock_first" in world.bugs and writer.is_locked:
        return "unlocks", lambda w: w.set_writer(n, is_locked=False)
    return "commits", lambda w: w.end(n, "visible")


def _take_xid(world: World, n: int) -> None:
    world.set_writer(n, xid=world.next_xid)
    world.next_xid += 1


def _take_position(world: World, n: int) -> None:
    positions = (*world.writers[n].positions, world.next_position)
    world.set_writer(n, positions=positions)
    world.next_position += 1


# --- queries of the store -------------------------------------------------------------------------


def _query_steps(world: World, n: int, reader: Reader) -> Iterator[Step]:
    if reader.doing == "idle" and reader.cursor is None:
        yield f"reader {n} looks for the end", lambda w: _ask(w, n, _last_row(w))
    elif reader.doing == "idle" and _last_row(world) > (reader.cursor or 0):
        yield f"reader {n} reads", lambda w: _read(w, n)
    elif reader.doing == "read":
        yield f"reader {n} gets rows", lambda w: _use_rows(w, n)
    elif reader.doing == "ask":
        yield f"reader {n} queries appenders", lambda w: _query_appenders(w, n)
    elif reader.doing == "reply":
        yield f"reader {n} gets appenders", lambda w: _use_appenders(w, n)


def _last_row(world: World) -> int:
    return world.rows[-1] if world.rows else 0


def _read(world: World, n: int) -> None:
    cursor = world.readers[n].cursor or 0
    rows = tuple(row for row in world.rows if row > cursor)
    reply = (rows, world.rule(n).last, world.snapshot())
    world.set_reader(n, doing="read", reply=reply, is_held=False)


def _use_rows(world: World, n: int) -> None:
    rows, last, snapshot = world.readers[n].reply
    cursor = world.readers[n].cursor or 0
    last = world.rule(n).last if "late_bound" in world.bugs else last
    if isinstance(rule := world.rule(n), SnapshotRule):
        count = rule.count(rows, cursor, last, snapshot)
    else:
        count = world.rule(n).count_final(rows, cursor, last)
    for row in rows[:count]:
        world.advance(n, row)
        if world.scenario.is_stream and n == 0 and not world.buffer.is_behind:
            items = (*world.buffer.items, (cursor, row))
            world.buffer = world.buffer._replace(items=items)
        cursor = row
    world.set_reader(n, is_held=count < len(rows))
    if count == len(rows):
        world.set_reader(n, doing="idle", reply=())
    else:
        _ask(world, n, rows[-1])


def _ask(world: World, n: int, visible: int) -> None:
    world.set_reader(n, doing="ask", reply=(visible,))
    if "snapshot_end" in world.bugs and world.readers[n].cursor is None:
        xmin, xmax = world.snapshot()
        if xmin >= xmax:
            _set_end(world, n, visible)


def _query_appenders(world: World, n: int) -> None:
    """Query and note at once, because the readers do this one after another."""
    (visible,) = world.readers[n].reply
    world.set_reader(n, doing="reply", reply=(visible, world.appenders()))
    if not world.bugs & {"unordered", "late_visible"}:
        _use_appenders(world, n)


def _use_appenders(world: World, n: int) -> None:
    visible, appenders = world.readers[n].reply
    if "late_visible" in world.bugs:
        visible = _last_row(world)
    world.rule(n).note_appenders(visible, appenders)
    if world.readers[n].cursor is not None:
        world.set_reader(n, doing="idle", reply=())
    elif world.rule(n).last < visible:
        world.set_reader(n, doing="ask", reply=(visible,))
    else:
        _set_end(world, n, visible)


def _set_end(world: World, n: int, visible: int) -> None:
    open_ = [p for w in world.writers if w.phase == "open" for p in w.positions if p < visible]
    if open_:
        raise Violation(f"the end {visible} was found while {open_} can still be committed")
    world.set_reader(n, cursor=visible, doing="idle", reply=())


# --- a stream of events: it reads the store, then takes from the buffer ---------------------------


def _stream_steps(world: World, reader: Reader) -> Iterator[Step]:
    if world.readers[0].cursor is None:
        return
    if reader.doing != "idle":
        yield from _query_steps(world, 1, reader)
    elif world.buffer.is_behind:
        yield "the stream reads the store", _catch_up
    elif world.buffer.items:
        yield "the stream takes from the buffer", _take
    elif reader.is_held and "not_told" not in world.bugs:
        yield "the stream reads the store again", _catch_up


def _catch_up(world: World) -> None:
    world.buffer = Buffer(is_behind=False)
    _read(world, 1)
    if not world.readers[1].reply[0]:
        world.set_reader(1, doing="idle", reply=())


def _take(world: World) -> None:
    (after, position), *rest = world.buffer.items
    world.buffer = world.buffer._replace(items=tuple(rest))
    cursor = world.readers[1].cursor or 0
    if position <= cursor:
        return
    if after > cursor and "buffer_ahead" not in world.bugs:
        world.buffer = Buffer()
    else:
        world.advance(1, position)


# --- exploration ----------------------------------------------------------------------------------


def explore(scenario: Scenario, *bugs: str) -> int:
    """Try every interleaving, shortest first, and return the number of states.

    Raises Violation with the steps that lead to it.
    """
    first = World.start(scenario, frozenset(bugs))
    origin: dict[tuple[Any, ...], tuple[tuple[Any, ...] | None, str]] = {first.key(): (None, "")}
    queue = deque([first])
    while queue:
        world = queue.popleft()
        is_over = all(writer.phase == "ended" for writer in world.writers)
        is_over = is_over and all(reader.doing == "idle" for reader in world.readers)
        if is_over and not world.crashes and not world.restarts:
            _check_end(world, origin)
        for name, change in steps(world):
            try:
                following = world.successor(change)
            except Violation as violation:
                raise Violation(_trace(origin, world, name, str(violation))) from None
            key = following.key()
            if key not in origin:
                origin[key] = (world.key(), name)
                queue.append(following)
    return len(origin)


def _check_end(world: World, origin: dict[Any, Any]) -> None:
    """Check that the readers read everything once all writers have ended."""
    end = world
    for _ in range(20):
        for n in range(len(world.readers)):
            for name, change in list(_reader_steps(end)):
                if name.startswith(("the stream", f"reader {n}")):
                    try:
                        end = end.successor(change)
                    except Violation as violation:
                        text = f"at rest, {violation}"
                        raise Violation(_trace(origin, world, name, text)) from None
                    break
    for n, reader in enumerate(end.readers):
        if reader.cursor is None or reader.cursor < _last_row(end):
            raise Violation(_trace(origin, world, "", f"reader {n} stopped before the end"))


def _trace(origin: dict[Any, Any], world: World, last: str, text: str) -> str:
    names = [last] if last else []
    key: Any = world.key()
    while key is not None:
        key, name = origin[key]
        names.append(name)
    return "\n".join([text, *filter(None, reversed(names))])
