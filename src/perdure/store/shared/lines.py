"""The lines of a files store: what stands in them, and how a damaged one is told from a whole one.

An event's line is what anybody's session log has (`type`, `timestamp`, `data`) and one key more,
`perdure`, with its place, its checksum and the entries that were written with it. A line without
that key was written by somebody else.
"""

import base64
import binascii
import zlib
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

from perdure.store.base import Entry, Record
from perdure.store.judge import StreamRow

_WRAPPED: Final = b'{"base64":'
_CRC: Final = len(b',"crc":"00000000"')


class EntryLine(Struct, frozen=True, omit_defaults=True):
    """An entry as it is from here on; version 0: there is none any more."""

    kind: str
    key: str
    version: int
    state: str = ""
    due: int | None = None
    data: Raw = Raw(b"null")  # not None: msgspec reads no `Raw | None`
    stream: str = ""


class Mark(Struct, frozen=True, omit_defaults=True):
    """What makes a line ours. The first one also says which stream this is."""

    seq: int
    pos: int
    epoch: int = 0
    stream: str = ""
    kind: str = ""
    entries: list[EntryLine] = []
    crc: str = ""


class EventLine(Struct, frozen=True):
    """One event of a session's log."""

    type: str
    timestamp: int
    data: Raw
    perdure: Mark


class JournalLine(Struct, frozen=True, omit_defaults=True):
    """One commit, claim or heartbeat: everything that it changes, as it is afterwards."""

    streams: dict[str, StreamRow] = {}
    records: list[tuple[str, Raw]] = []  # stream, and the line for its log
    entries: list[EntryLine] = []
    erased: list[str] = []
    holders: dict[str, tuple[int, int] | None] = {}  # until, and the process; None: has left
    pos: int = 0  # the highest that a record has
    format: int = 0  # in the first line
    crc: str = ""


_event_decoder: Final = msgspec.json.Decoder(EventLine)
_journal_decoder: Final = msgspec.json.Decoder(JournalLine)
_encoder: Final = msgspec.json.Encoder()


def packed(data: bytes) -> Raw:
    """Bytes as a JSON value: an object as it is, byte for byte; anything else in base64."""
    if data[:1] == b"{" and data[-1:] == b"}" and not data.startswith(_WRAPPED):
        try:
            msgspec.json.decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            pass
        else:
            if b"\n" not in data:
                return Raw(data)
    return Raw(_encoder.encode({"base64": data}))


def unpacked(value: Raw) -> bytes:
    """The bytes again. Raises ValueError."""
    data = bytes(value)
    if not data.startswith(_WRAPPED):
        return data
    try:
        return base64.b64decode(msgspec.json.decode(data)["base64"], validate=True)
    except (msgspec.MsgspecError, binascii.Error, KeyError, TypeError) as error:
        raise ValueError(f"not base64: {error}") from error


def entry_line(kind: str, key: str, entry: Entry | None, stream: str = "") -> EntryLine:
    """An entry for a line; `stream` is left out in the stream's own log."""
    if entry is None:
        return EntryLine(kind, key, 0, stream=stream)
    data = packed(entry.data)
    return EntryLine(kind, key, entry.version, entry.state, entry.due, data, stream)


def entry_in(line: EntryLine, stream: str = "") -> Entry | None:
    """The entry that a line has."""
    if line.version == 0:
        return None
    data = unpacked(line.data)
    where = line.stream or stream
    return Entry(line.kind, line.key, where, line.version, line.state, line.due, data)


def event_line(record: Record, mark: Mark) -> bytes:
    """The line of a record, without its end."""
    whole = EventLine(record.type, record.at, packed(record.data), mark)
    return _checked(_encoder.encode(whole), b"}}")


def event_in(line: bytes) -> EventLine | None:
    """What a line of ours says; None for one that somebody else wrote. ValueError: damaged."""
    try:
        found = _event_decoder.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        if is_foreign(line):
            return None
        raise ValueError(str(error)) from error
    _check(line, b"}}")
    return found


def record_of(line: EventLine, stream: str) -> Record:
    """The record that a line has. Raises ValueError."""
    mark, data = line.perdure, unpacked(line.data)
    return Record(line.type, data, line.timestamp, mark.seq, mark.pos, stream)


def is_foreign(line: bytes) -> bool:
    """Whether a line is a JSON object that is not ours; one that is no JSON is nobody's."""
    found = foreign_in(line)
    return isinstance(found, dict) and "perdure" not in found


def foreign_in(line: bytes) -> Any:
    """The value of anybody's line; None if it cannot be read."""
    try:
        return msgspec.json.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def journal_line(line: JournalLine) -> bytes:
    """The line, without its end."""
    return _checked(_encoder.encode(line), b"}")


def journal_in(line: bytes) -> JournalLine:
    """What a line of the journal says. ValueError: damaged."""
    _check(line, b"}")
    try:
        return _journal_decoder.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ValueError(str(error)) from error


def _checked(line: bytes, end: bytes) -> bytes:
    """The line with its checksum as the last key of the object that ends it."""
    return b'%s,"crc":"%08x"%s' % (line[: -len(end)], zlib.crc32(line), end)


def _check(line: bytes, end: bytes) -> None:
    size = len(end)
    body = line[: -_CRC - size] + end
    if line[-_CRC - size :] != b',"crc":"%08x"%s' % (zlib.crc32(body), end):
        raise ValueError("its checksum is wrong")
