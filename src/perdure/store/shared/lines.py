"""Lines of the logs of a files store, with the checksums that detect damaged ones.

The line of an event has the keys of any session log (`type`, `timestamp`, `data`) and one more,
`perdure`, with its position and its checksum. A line without that key was written by another
program.
"""

import base64
import binascii
import zlib
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

from perdure.store.base import Record

_WRAPPED: Final = b'{"base64":'
_CRC: Final = len(b',"crc":"00000000"')


class Mark(Struct, frozen=True, omit_defaults=True):
    """Our part of a line."""

    seq: int
    pos: int
    stream: str = ""  # in the first line of a log of the earlier format
    crc: str = ""


class EventLine(Struct, frozen=True):
    """One event of a session's log."""

    type: str
    timestamp: int
    data: Raw
    perdure: Mark


_event_decoder: Final = msgspec.json.Decoder(EventLine)
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


def encode_event(record: Record) -> bytes:
    """Encode a record as a line, without the line end."""
    mark = Mark(record.seq, record.pos)
    line = EventLine(record.type, record.at, encode_data(record.data), mark)
    return add_checksum(_encoder.encode(line), b"}}")


def decode_event(line: bytes) -> EventLine | None:
    """Decode a line of ours; None for another program's line. Raises ValueError if damaged."""
    try:
        event = _event_decoder.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        if is_foreign(line):
            return None
        raise ValueError(str(error)) from error
    verify_checksum(line, b"}}")
    return event


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


def add_checksum(line: bytes, end: bytes) -> bytes:
    """Append the checksum as the last key of the object that ends the line."""
    return b'%s,"crc":"%08x"%s' % (line[: -len(end)], zlib.crc32(line), end)


def verify_checksum(line: bytes, end: bytes) -> None:
    """Raise ValueError if the checksum at the end of a line is wrong."""
    size = len(end)
    body = line[: -_CRC - size] + end
    if line[-_CRC - size :] != b',"crc":"%08x"%s' % (zlib.crc32(body), end):
        raise ValueError("its checksum is wrong")
