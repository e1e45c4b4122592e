"""Lines of JSON of the files backend, with the checksums that detect damaged ones.

The line of an event has the keys of any session log (`type`, `timestamp`, `data`) and one more,
`perdure`, with its position, its checksum and the entries of the same commit. A line without that
key was written by another program.
"""

import base64
import binascii
import zlib
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

from perdure.store.base import UNLISTED, Entry, Record
from perdure.store.judge import StreamRow

_WRAPPED: Final = b'{"base64":'
_CRC: Final = len(b',"crc":"00000000"')
_CRC_DIGITS: Final = 8


class EntryLine(Struct, frozen=True, omit_defaults=True):
    """State of an entry after this line; version 0: it was deleted."""

    kind: str
    key: str
    version: int
    state: str = ""
    due: int | None = None
    data: Raw = Raw(b"null")  # not None: msgspec cannot decode `Raw | None`
    stream: str = ""
    listing: str | None = None
    at: int | None = None


class Mark(Struct, frozen=True, omit_defaults=True):
    """Our part of a line. The first line of a log also names its stream and kind.

    `prev` is the checksum of the line before, so that a replaced or missing line is noticed.
    """

    seq: int
    pos: int
    epoch: int = 0
    stream: str = ""
    kind: str = ""
    entries: list[EntryLine] = []
    prev: str = ""  # empty in the first line, and in lines of earlier versions
    crc: str = ""


class EventLine(Struct, frozen=True):
    """One event of a session's log."""

    type: str
    timestamp: int
    data: Raw
    perdure: Mark


class JournalLine(Struct, frozen=True, omit_defaults=True):
    """One commit, claim or heartbeat: the new state of everything that it changes."""

    streams: dict[str, StreamRow] = {}
    records: list[tuple[str, Raw]] = []  # stream, and the line for its log
    entries: list[EntryLine] = []
    erased: list[str] = []
    holders: dict[str, tuple[int, int] | None] = {}  # end and process id; None: removed
    pos: int = 0  # the highest position of a record
    format: int = 0  # in the first line
    crc: str = ""


_event_decoder: Final = msgspec.json.Decoder(EventLine)
_journal_decoder: Final = msgspec.json.Decoder(JournalLine)
_encoder: Final = msgspec.json.Encoder()


def encode_data(data: bytes) -> Raw:
    """Encode bytes as a JSON value: an object byte for byte, anything else in base64."""
    if data[:1] == b"{" and data[-1:] == b"}" and not data.startswith(_WRAPPED):
        try:
            msgspec.json.decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            pass
        else:
            if b"\n" not in data:
                return Raw(data)
    return Raw(_encoder.encode({"base64": data}))


def decode_data(value: Raw) -> bytes:
    """Decode the bytes of `encode_data`. Raises ValueError."""
    data = bytes(value)
    if not data.startswith(_WRAPPED):
        return data
    try:
        return base64.b64decode(msgspec.json.decode(data)["base64"], validate=True)
    except (msgspec.MsgspecError, binascii.Error, KeyError, TypeError) as error:
        raise ValueError(f"not base64: {error}") from error


def entry_line(kind: str, key: str, entry: Entry | None, stream: str = "") -> EntryLine:
    """Return an entry for a line; `stream` is left out in the stream's own log."""
    if entry is None:
        return EntryLine(kind, key, 0, stream=stream)
    data = encode_data(entry.data)
    return EntryLine(
        kind, key, entry.version, entry.state, entry.due, data, stream, entry.listing, entry.at
    )


def decode_entry(line: EntryLine, stream: str = "", *, is_old: bool = False) -> Entry | None:
    """Decode the entry in a line; None if it was deleted. Raises ValueError.

    A line that is `old` may be of a program without listings.
    """
    if line.version == 0:
        return None
    listing, at = line.listing, line.at
    if is_old and listing is None:
        listing, at = UNLISTED, 0
    data = decode_data(line.data)
    stream = line.stream or stream
    return Entry(
        line.kind,
        line.key,
        stream,
        line.version,
        line.state,
        line.due,
        data,
        listing,
        at,
    )


def encode_event(record: Record, mark: Mark) -> bytes:
    """Encode a record as a line, without the line end."""
    line = EventLine(record.type, record.at, encode_data(record.data), mark)
    return _add_checksum(_encoder.encode(line), b"}}")


def decode_event(line: bytes) -> EventLine | None:
    """Decode a line of ours; None for another program's line. Raises ValueError if damaged."""
    try:
        event = _event_decoder.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        if is_foreign(line):
            return None
        raise ValueError(str(error)) from error
    _verify_checksum(line, b"}}")
    return event


def checksum(line: bytes) -> str:
    """Return the checksum at the end of an encoded event."""
    return line[-_CRC_DIGITS - 3 : -3].decode()


def decode_record(line: EventLine, stream: str) -> Record:
    """Return the record of a decoded line. Raises ValueError."""
    mark, data = line.perdure, decode_data(line.data)
    return Record(line.type, data, line.timestamp, mark.seq, mark.pos, stream)


def is_foreign(line: bytes) -> bool:
    """Return whether a line is a JSON object of another program."""
    value = decode_foreign(line)
    return isinstance(value, dict) and "perdure" not in value


def decode_foreign(line: bytes) -> Any:
    """Decode a line of any program; None if it is not JSON."""
    try:
        return msgspec.json.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def encode_journal_line(line: JournalLine) -> bytes:
    """Encode a line of the journal, without the line end."""
    return _add_checksum(_encoder.encode(line), b"}")


def decode_journal_line(line: bytes) -> JournalLine:
    """Decode a line of the journal. Raises ValueError if it is damaged."""
    _verify_checksum(line, b"}")
    try:
        return _journal_decoder.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ValueError(str(error)) from error


def _add_checksum(line: bytes, end: bytes) -> bytes:
    """Append the checksum as the last key of the object that ends the line."""
    return b'%s,"crc":"%08x"%s' % (line[: -len(end)], zlib.crc32(line), end)


def _verify_checksum(line: bytes, end: bytes) -> None:
    size = len(end)
    body = line[: -_CRC - size] + end
    if line[-_CRC - size :] != b',"crc":"%08x"%s' % (zlib.crc32(body), end):
        raise ValueError("its checksum is wrong")
