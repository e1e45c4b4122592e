"""Data of records as the SQLite backend stores it: long JSON is compressed, short JSON is not.

The first byte tells which: JSON never begins with the byte of a compressed value. Deflate with a
small window costs a microsecond per hundred bytes; the usual settings cost ten times as much per
record, because they prepare tables for much longer input.

A record that repeats the one before it, as the output of a run repeats its last response, is
compressed with that one as the dictionary. Both are written in one transaction. The one before is
never compressed like this itself, so that a reader needs at most one other record.
"""

import zlib
from typing import Final

MIN_BYTES: Final = 512  # shorter data is stored as it is: compression costs more than it saves
_PACKED: Final = b"\x01"
_ESCAPED: Final = b"\x00"  # data of any kind that begins with one of these two bytes
_REPEATING: Final = b"\x00\x02"  # compressed data that repeats the record before it
PLAIN: Final = b"\x02"  # from this first byte on, stored data is the data itself
_WINDOW_BITS: Final = 13
_LONG_WINDOW_BITS: Final = 15  # for data that repeats itself at a distance
_LONG_BYTES: Final = 8_192
_REACH: Final = 32_768  # bytes of the record before that deflate can refer to
_SAMPLE: Final = 32  # bytes by which a repetition is noticed
# Names that records have in common, as the beginning of each compressed value. Part of the format.
_DICTIONARY: Final = (
    b'"},"agent":"","turn":,"taskID":"task_01","requestHead":,"model":"","provider":"anthropic'
    b'openai","stop":"end_turntool_use","usage":{"inputTokens":,"outputTokens":,"cost":}'
    b'{"toolCallId":"call_","result":"{"id":"toolu_call_","tool":"","params":{"'
    b'"native":[{"type":"text","text":"{"type":"tool_use","id":"","name":"","input":{"'
    b'{"role":"user","content":"{"role":"assistant","content":"'
)


def pack(data: bytes) -> bytes:
    """Return the bytes to store."""
    if len(data) >= MIN_BYTES:
        packed = _PACKED + _deflate(data, _DICTIONARY, is_long=len(data) > _LONG_BYTES)
        if len(packed) < len(data):
            return packed
    return _ESCAPED + data if data[:1] in (_PACKED, _ESCAPED) else data


def pack_repeating(data: bytes, before: bytes) -> bytes | None:
    """Return the bytes to store for a record that repeats the one before; None if it does not."""
    if len(data) < MIN_BYTES or len(before) < MIN_BYTES or not _repeats(data, before):
        return None
    is_long = len(data) + len(before) > _LONG_BYTES
    packed = _REPEATING + _deflate(data, before[-_REACH:], is_long=is_long)
    return packed if len(packed) < len(data) // 2 else None


def _repeats(data: bytes, before: bytes) -> bool:
    """Return whether a part from the middle of the data is in the other: most data has none."""
    middle = len(data) // 2
    return data[middle : middle + _SAMPLE] in before


def is_repeating(stored: bytes) -> bool:
    """Return whether stored bytes can be read only with the record before them."""
    return stored[:2] == _REPEATING


def unpack(stored: bytes, most: int = 0, before: bytes | None = None) -> bytes | None:
    """Return the data of stored bytes; None if it is longer than `most`, which 0 does not limit.

    `before` is the data of the record before, for those that repeat it. Raises ValueError if they
    cannot be read.
    """
    if is_repeating(stored):
        if before is None:
            raise ValueError("compressed data needs the record before it")
        return _inflate(memoryview(stored)[2:], before[-_REACH:], most)
    first = stored[:1]
    if first == _ESCAPED:
        return stored[1:]
    return _inflate(memoryview(stored)[1:], _DICTIONARY, most) if first == _PACKED else stored


def _inflate(packed: memoryview, dictionary: bytes, most: int) -> bytes | None:
    inflater = zlib.decompressobj(-_LONG_WINDOW_BITS, dictionary)
    try:
        data = inflater.decompress(packed, most)
    except zlib.error as error:
        raise ValueError(f"compressed data cannot be read: {error}") from error
    if most and len(data) == most and inflater.unconsumed_tail:
        return None
    if not inflater.eof:
        raise ValueError("compressed data has no end")
    return data


def _deflate(data: bytes, dictionary: bytes, *, is_long: bool) -> bytes:
    deflater = zlib.compressobj(
        1,
        zlib.DEFLATED,
        -_LONG_WINDOW_BITS if is_long else -_WINDOW_BITS,
        8 if is_long else 5,
        zlib.Z_DEFAULT_STRATEGY,
        dictionary,
    )
    return deflater.compress(data) + deflater.flush()
