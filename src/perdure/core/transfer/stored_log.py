"""Events of a session in a storage that can only append, and which of them are in force.

A commit of several events is appended one by one, and an append may fail. Therefore each event
carries a mark: its number, and the number of the last event of its commit. An event whose commit
is incomplete is not in force, and an event replaces those with its number or a higher one.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from msgspec import Struct

MARK: Final = "perdure"  # the key of the mark in an event


class StoredMark(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Position of an event in its session's log.

    `base` is the number of events of other programs before it, from which the session began;
    `files` has the bytes of the files of its message, in base64 and by digest.
    """

    seq: int
    last: int
    base: int = 0
    files: dict[str, str] = {}


@dataclass(frozen=True, slots=True)
class MarkedEvent:
    """An event of the runtime in a storage."""

    index: int
    mark: StoredMark
    event: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class StoredLog:
    """Events of a storage: those of the runtime that are in force, and all before them."""

    prefix: list[Any]
    own: list[MarkedEvent]

    @property
    def head(self) -> int:
        """The number of the last event of the runtime; 0 if there is none."""
        return self.own[-1].mark.seq if self.own else 0

    @property
    def is_complete(self) -> bool:
        """True if no event of the runtime is missing after its first one."""
        seqs = [event.mark.seq for event in self.own]
        return seqs == list(range(seqs[0], seqs[0] + len(seqs))) if seqs else True


def marked(kind: str, at: int, data: bytes, mark: StoredMark) -> dict[str, Any]:
    """Return an event of the runtime as it is stored."""
    content = msgspec.json.decode(data)
    return {"type": kind, "timestamp": at, "data": content, MARK: msgspec.to_builtins(mark)}


def read_stored(events: list[Any]) -> StoredLog:
    """Separate the events of the runtime from those before them; None of them is decoded."""
    own = _Reader(events).own
    base = own[0].mark.base if own else len(events)
    return StoredLog(in_force(events[:base]), own)


def in_force(events: list[Any]) -> list[Any]:
    """Return the events without those that were replaced or whose commit is incomplete."""
    reader = _Reader(events)
    if not reader.dropped:
        return events
    return [event for index, event in enumerate(events) if index not in reader.dropped]


class _Reader:
    """Reader of a storage's events, oldest first."""

    def __init__(self, events: list[Any]) -> None:
        self.own: list[MarkedEvent] = []  # with the present base
        self.dropped: set[int] = set()
        for index, event in enumerate(events):
            mark = _mark(event)
            if mark is not None:
                self._add(MarkedEvent(index, mark, event))
        self._drop_incomplete()

    def _add(self, event: MarkedEvent) -> None:
        if self.own and self.own[-1].mark.base != event.mark.base:
            self._drop_incomplete()
            self.own = []  # the session began again, from all events before it
        while self.own and self.own[-1].mark.seq >= event.mark.seq:
            self.dropped.add(self.own.pop().index)
        self.own.append(event)

    def _drop_incomplete(self) -> None:
        while self.own and self.own[-1].mark.seq != self.own[-1].mark.last:
            self.dropped.add(self.own.pop().index)


def _mark(event: Any) -> StoredMark | None:
    if type(event) is not dict or type(event.get(MARK)) is not dict:
        return None
    try:
        return msgspec.convert(event[MARK], StoredMark)
    except (msgspec.ValidationError, RecursionError):
        return None  # of another program, or the mark of a files store
