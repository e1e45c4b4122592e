"""The log of a session: records decoded to events, and folded to a State incrementally."""

import asyncio
from array import array
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final
from weakref import WeakKeyDictionary

from msgspec import Struct

from perdure import host
from perdure.core.conversation.compaction import TokenBound
from perdure.core.conversation.messages import Conversation, Message
from perdure.core.conversation.repair import IncrementalCanonical, IncrementalRepair
from perdure.core.json_depth import ENVELOPE, MAX_DEPTH, is_deeper, too_deep
from perdure.core.log import codec
from perdure.core.log.events import Compacted, Event, StampedEvent
from perdure.core.session.state import State, fold
from perdure.errors import Corrupt
from perdure.runtime.records.entries import SessionEntry, erased_as_not_found
from perdure.store.base import Record, Slice, Store

PAGE: Final = 500  # records: about 10 ms to decode
_MAX_DEPTH: Final = MAX_DEPTH + ENVELOPE
_FLAT_BYTES: Final = 2 * _MAX_DEPTH  # shorter data cannot be nested more deeply
_NO_EVENTS: Final = State()
LONG_READS: Final = 2  # logs of more than a page that are read at the same time


class Log:
    """Events of one stream, as far as they were read, and the State that they fold to.

    `least` is how many events the log must have, by the entry of its session.
    """

    def __init__(self, store: Store, stream: str, least: int = 0) -> None:
        self.stream = stream
        self._least = max(least, 1)  # a session has an event from its beginning
        self.events: list[StampedEvent] = []
        self.state = _NO_EVENTS
        self.slice = Slice((), 0)
        self.size = 0  # bytes of the records
        # The count at which this process wrote all records: see `Heads`. None: others were written
        # in between, or some were read.
        self.foreign_writes: int | None = None
        self.begun_at = 0.0  # the first of them was written, by the monotonic clock
        self._store = store
        self._conversation = Conversation()
        self._history = IncrementalRepair()
        self.canonical = IncrementalCanonical()
        self.token_bound = TokenBound()
        self._message_events = 0  # how many events the conversation has
        self._hashes = array("q")  # of the records, to notice that the stored ones have changed

    def require(self, least: int) -> None:
        """Let the log have at least this many events."""
        self._least = max(self._least, least)

    async def catch_up(self) -> None:
        """Read the new records, and the holder and due time of the stream.

        A long log is read in pages: while one is decoded, nothing else in this process runs.
        """
        while len(self.events) > self.state.head:
            self._fold_page()
            await asyncio.sleep(0)
        await self.read_page()
        while self.has_more:
            await asyncio.sleep(0)
            await self.read_page()

    async def read_page(self) -> None:
        """Read and fold the next page of new records."""
        await self.decode_page()
        self._fold_page()

    async def decode_page(self) -> None:
        """Read the next page of new records without folding them: `catch_up` does that."""
        self.slice = await self._store.read(self.stream, after=len(self.events), limit=PAGE)
        check_end(self.slice, self.stream, max(len(self.events), self._least))
        new = [decode_record(record) for record in self.slice.records]
        self._count(self.slice.records)
        self.events += new
        if new:
            self.foreign_writes = None

    def _fold_page(self) -> None:
        """Fold the next page of decoded events."""
        head = self.state.head
        self.state = fold(self.events[head : head + PAGE], self.state)

    @property
    def has_more(self) -> bool:
        """True if the page that was read last was not the last one."""
        return bool(self.slice.records) and self.slice.head > len(self.events)

    @property
    def is_prepared(self) -> bool:
        """True if so few events are new to the conversation that `messages` takes no time."""
        return len(self.events) - self._message_events <= PAGE

    async def prepare_messages(self) -> None:
        """Process the new events of a long log in pages, for `messages` and the token bound."""
        invalid: IncrementalRepair | None = None
        while not self.is_prepared:
            end = self._message_events + PAGE
            self._extend_conversation(end)
            self.token_bound.update(self.events, end)
            # What is wrong with a closed turn stays wrong: `messages` repairs the whole then.
            history = self._history
            if history is not invalid and not history.is_valid(self._conversation.closed):
                invalid = history
            await asyncio.sleep(0)

    def messages(self) -> list[Message]:
        """Return the repaired conversation so far; only new events are processed."""
        self._extend_conversation()
        return self._history.repair(self._conversation.messages())

    def covered_messages(self, up_to: int) -> list[Message]:
        """Return the repaired messages that a summary up to an event would replace."""
        self._extend_conversation()
        covered = self._conversation.messages_up_to(up_to)
        if self._history.is_valid(self._conversation.messages()):
            return covered  # its turns were checked
        return IncrementalRepair().repair(covered)

    def _extend_conversation(self, end: int | None = None) -> None:
        """Add the new events to the conversation, or those up to the `end`."""
        new = self.events[self._message_events : end]
        for stamped in new:
            self._conversation.add(stamped)
            if isinstance(stamped.event, Compacted):
                self._history = IncrementalRepair()  # the conversation has a new beginning
        self._message_events += len(new)

    def extension(self, facts: Iterable[Event], at: int) -> "LogExtension":
        """Return what the log would be if these facts were appended at its head."""
        first = self.state.head + 1
        new = [StampedEvent(seq, at, fact) for seq, fact in enumerate(facts, first)]
        return LogExtension(new, fold(new, self.state))

    def apply(
        self, extension: "LogExtension", records: Sequence[Record], foreign_writes: int | None
    ) -> None:
        """Add an extension that was committed as these records, and its reply's count."""
        if not self.events:
            self.foreign_writes, self.begun_at = foreign_writes, host.elapsed()
        elif self.foreign_writes != foreign_writes:
            self.foreign_writes = None
        self.events += extension.new
        self.state = extension.state
        self._count(records)

    def has_records(self, records: Sequence[Record], after: int) -> bool:
        """Return whether these records, which follow a seq, are the ones read or written here."""
        hashes = array("q", [hash((record.type, record.data)) for record in records])
        return self._hashes[after : after + len(records)] == hashes

    def _count(self, records: Sequence[Record]) -> None:
        for record in records:
            self.size += len(record.data)
            self._hashes.append(hash((record.type, record.data)))

    def append(
        self, facts: Iterable[Event], records: Sequence[Record], foreign_writes: int | None = None
    ) -> None:
        """Add facts that were committed at the head as these records, and the reply's count."""
        stamps = [record.at for record in records]
        seqs = range(self.state.head + 1, self.state.head + len(stamps) + 1)
        new = [StampedEvent(*values) for values in zip(seqs, stamps, facts, strict=True)]
        self.apply(LogExtension(new, fold(new, self.state)), records, foreign_writes)


async def read_log(store: Store, entry: SessionEntry) -> Log:
    """Return the log of a session. Raises NotFound, Corrupt."""
    async with reading(store, entry) as log:
        return log


@asynccontextmanager
async def reading(store: Store, entry: SessionEntry) -> AsyncIterator[Log]:
    """Yield the log of a session to work with. Raises NotFound, Corrupt.

    Only a few callers have a long log at a time, the others wait: many at once would need much
    memory, and would leave no time for anything else. Drivers do not wait here.
    """
    log = Log(store, entry.stream, entry.record.head)
    async with AsyncExitStack() as stack:
        with erased_as_not_found(entry.record.id):
            await log.read_page()
            if log.has_more:
                await stack.enter_async_context(_long_reads())
                await log.catch_up()
        yield log


_gates: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()


def _long_reads() -> asyncio.Semaphore:
    """Return the semaphore of this event loop."""
    loop = asyncio.get_running_loop()
    return _gates.setdefault(loop, asyncio.Semaphore(LONG_READS))


class LogExtension(Struct, frozen=True, gc=False):
    """Events to append to a log, and the State that it then folds to."""

    new: list[StampedEvent]
    state: State


def check_end(page: Slice, stream: str, least: int) -> None:
    """Raise Corrupt if a stream ends before an event that it had."""
    if page.head < least:
        raise Corrupt(
            f"{stream} has lost its last events: it ends at {page.head}, and had {least}",
            hint="run perdure doctor",
            details={"stream": stream, "seq": page.head + 1},
        )


def decode_record(record: Record) -> StampedEvent:
    """Return the event of a record. Raises Corrupt, naming the record."""
    try:
        return StampedEvent(record.seq, record.at, codec.decode(record.type, record.data))
    except Corrupt as error:
        raise unreadable_record(record, error) from error


def unreadable_record(record: Record, error: Exception) -> Corrupt:
    """Return the error that names an unreadable record."""
    return Corrupt(
        f"event {record.seq} of {record.stream} cannot be read: {error}",
        hint=f"everything before event {record.seq} is intact; perdure sessions export "
        "writes what can be read",
        details={"stream": record.stream, "seq": record.seq},
    )


def as_record(event: Event, at: int) -> Record:
    """Return the record of an event. Raises Refused TOO_DEEP."""
    kind = codec.NAMES.get(type(event), "")
    try:
        if kind in codec.VERSIONS or not kind:
            kind, data = codec.encode(event)
        else:
            data = codec.encode_json(event)
    except RecursionError as error:
        raise too_deep(f"an event of type {codec.NAMES[type(event)]!r}") from error
    if len(data) > _FLAT_BYTES and is_deeper(data, _MAX_DEPTH):
        raise too_deep(f"an event of type {kind!r}")
    return Record(kind, data, at)
