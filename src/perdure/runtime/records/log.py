"""The log of a session: records decoded to events, and folded to a State incrementally."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from perdure.core.conversation.messages import Conversation, Message
from perdure.core.conversation.repair import IncrementalCanonical, IncrementalRepair
from perdure.core.json_depth import check_body_depth, too_deep
from perdure.core.log import codec
from perdure.core.log.events import Compacted, Event, StampedEvent
from perdure.core.session.state import State, fold
from perdure.errors import Corrupt
from perdure.runtime.records.entries import SessionEntry, erased_as_not_found
from perdure.store.base import Record, Slice, Store


class Log:
    """Events of one stream, as far as they were read, and the State that they fold to."""

    def __init__(self, store: Store, stream: str) -> None:
        self.stream = stream
        self.events: list[StampedEvent] = []
        self.state = State()
        self.slice = Slice((), 0)
        self.size = 0  # bytes of the records
        self._store = store
        self._conversation = Conversation()
        self._history = IncrementalRepair()
        self.canonical = IncrementalCanonical()
        self._message_events = 0  # how many events the conversation has

    async def catch_up(self) -> list[StampedEvent]:
        """Read the new records, and the holder and due time of the stream."""
        self.slice = await self._store.read(self.stream, after=self.state.head)
        new = [decode_record(record) for record in self.slice.records]
        self.size += sum(len(record.data) for record in self.slice.records)
        self.events += new
        self.state = fold(new, self.state)
        return new

    def messages(self) -> list[Message]:
        """Return the repaired conversation so far; only new events are processed."""
        self._extend_conversation()
        return self._history.repair(self._conversation.messages())

    def covered_messages(self, up_to: int) -> list[Message]:
        """Return the repaired messages that a summary up to an event would replace."""
        self._extend_conversation()
        return IncrementalRepair().repair(self._conversation.messages_up_to(up_to))

    def _extend_conversation(self) -> None:
        for stamped in self.events[self._message_events :]:
            self._conversation.add(stamped)
            if isinstance(stamped.event, Compacted):
                self._history = IncrementalRepair()  # the conversation has a new beginning
        self._message_events = len(self.events)

    def extension(self, facts: Iterable[Event], at: int) -> "LogExtension":
        """Return what the log would be if these facts were appended at its head."""
        new = [StampedEvent(seq, at, fact) for seq, fact in enumerate(facts, self.state.head + 1)]
        return LogExtension(new, fold(new, self.state))

    def apply(self, extension: "LogExtension", records: Iterable[Record]) -> None:
        """Add an extension that was committed as these records."""
        self.events += extension.new
        self.state = extension.state
        for record in records:
            self.size += len(record.data)

    def append(self, facts: Iterable[Event], records: Sequence[Record]) -> None:
        """Add facts that were committed at the head as these records."""
        self.apply(self.extension(facts, records[0].at if records else 0), records)


async def read_log(store: Store, entry: SessionEntry) -> Log:
    """Return the log of a session. Raises NotFound, Corrupt."""
    log = Log(store, entry.stream)
    with erased_as_not_found(entry.record.id):
        await log.catch_up()
    return log


class LogExtension(NamedTuple):
    """Events to append to a log, and the State that it then folds to."""

    new: list[StampedEvent]
    state: State


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
    try:
        kind, data = codec.encode(event)
    except RecursionError as error:
        raise too_deep(f"an event of type {codec.NAMES[type(event)]!r}") from error
    check_body_depth(data, f"an event of type {kind!r}")
    return Record(kind, data, at)
