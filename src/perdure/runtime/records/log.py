"""Reading a session's log: records to events to a State, once and then on from there."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from perdure.core.conversation.messages import Conversation, Message
from perdure.core.conversation.repair import IncrementalCanonical, IncrementalRepair
from perdure.core.log import codec
from perdure.core.log.events import Compacted, Event, Stamped
from perdure.core.session.state import State, fold
from perdure.errors import Corrupt
from perdure.store.base import Record, Slice, Store


class Log:
    """The events of one stream as far as they were read, and what they fold to."""

    def __init__(self, store: Store, stream: str) -> None:
        self.stream = stream
        self.events: list[Stamped] = []
        self.state = State()
        self.at = Slice((), 0)
        self.size = 0  # bytes of the records
        self._store = store
        self._conversation = Conversation()
        self._history = IncrementalRepair()
        self.growing = IncrementalCanonical()
        self._told = 0  # how many events the conversation has taken in

    async def catch_up(self) -> list[Stamped]:
        """Read what is new, and where the stream stands."""
        self.at = await self._store.read(self.stream, after=self.state.head)
        new = [stamped(record) for record in self.at.records]
        self.size += sum(len(record.data) for record in self.at.records)
        self.events += new
        self.state = fold(new, self.state)
        return new

    def messages(self) -> list[Message]:
        """The conversation so far, valid whatever the log holds; only what is new is looked at."""
        self._take_in()
        return self._history.repaired(self._conversation.messages())

    def covered(self, up_to: int) -> list[Message]:
        """What a summary up to an event would stand for, valid as it is."""
        self._take_in()
        return IncrementalRepair().repaired(self._conversation.covered(up_to))

    def _take_in(self) -> None:
        for one in self.events[self._told :]:
            self._conversation.take(one)
            if isinstance(one.event, Compacted):
                self._history = IncrementalRepair()  # the conversation begins otherwise now
        self._told = len(self.events)

    def after(self, facts: Iterable[Event], at: int) -> "After":
        """What would be, were these written at the very end of what we have seen."""
        new = [Stamped(seq, at, fact) for seq, fact in enumerate(facts, self.state.head + 1)]
        return After(new, fold(new, self.state))

    def adopt(self, after: "After", records: Iterable[Record]) -> None:
        """They were written just there, as these records."""
        self.events += after.new
        self.state = after.state
        for record in records:
            self.size += len(record.data)

    def append(self, facts: Iterable[Event], records: Sequence[Record]) -> None:
        """Take in what was just written at the very end of what we had seen."""
        self.adopt(self.after(facts, records[0].at if records else 0), records)


class After(NamedTuple):
    """Events that follow a log, and what it folds to with them."""

    new: list[Stamped]
    state: State


def stamped(record: Record) -> Stamped:
    """The event of a record. Raises Corrupt, naming the record."""
    try:
        return Stamped(record.seq, record.at, codec.decode(record.type, record.data))
    except Corrupt as error:
        raise unreadable(record, error) from error


def unreadable(record: Record, error: Exception) -> Corrupt:
    """The error that names a record."""
    return Corrupt(
        f"event {record.seq} of {record.stream} cannot be read: {error}",
        hint=f"everything before event {record.seq} is intact; perdure sessions export "
        "writes what can be read",
        details={"stream": record.stream, "seq": record.seq},
    )


def as_record(event: Event, at: int) -> Record:
    """The record of an event."""
    kind, data = codec.encode(event)
    return Record(kind, data, at)
