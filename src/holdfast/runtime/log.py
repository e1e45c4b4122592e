"""Reading a session's log: records to events to a State, once and then on from there."""

from collections.abc import Iterable

from holdfast.core import codec
from holdfast.core.events import Event, Stamped
from holdfast.core.messages import Conversation, Message
from holdfast.core.sessions import State, fold
from holdfast.errors import Corrupt
from holdfast.store.base import Record, Slice, Store


class Log:
    """The events of one stream as far as they were read, and what they fold to."""

    def __init__(self, store: Store, stream: str) -> None:
        self.stream = stream
        self.events: list[Stamped] = []
        self.state = State()
        self.at = Slice((), 0)
        self._store = store
        self._conversation = Conversation()
        self._told = 0  # how many events the conversation has taken in

    async def catch_up(self) -> list[Stamped]:
        """Read what is new, and where the stream stands."""
        self.at = await self._store.read(self.stream, after=self.state.head)
        new = [stamped(record) for record in self.at.records]
        self._take(new)
        return new

    def messages(self) -> list[Message]:
        """The conversation so far; only what is new since the last time is looked at."""
        for one in self.events[self._told :]:
            self._conversation.take(one)
        self._told = len(self.events)
        return self._conversation.messages()

    def append(self, facts: Iterable[Event], at: int) -> None:
        """Take in what was just written at the very end of what we had seen."""
        head = self.state.head
        self._take([Stamped(head + n, at, event) for n, event in enumerate(facts, 1)])

    def _take(self, new: list[Stamped]) -> None:
        self.events += new
        self.state = fold(new, self.state)


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
        hint=f"everything before event {record.seq} is intact; holdfast sessions export "
        "writes what can be read",
        details={"stream": record.stream, "seq": record.seq},
    )


def as_record(event: Event, at: int) -> Record:
    """The record of an event."""
    kind, data = codec.encode(event)
    return Record(kind, data, at)
