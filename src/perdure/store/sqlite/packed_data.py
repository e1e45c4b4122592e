"""Data of records as the SQLite backend stores it: long JSON is compressed, short JSON is not.

The first byte tells which: JSON never begins with the byte of a compressed value. Deflate with a
small window costs a microsecond per hundred bytes; the usual settings cost ten times as much per
record, because they prepare tables for much longer input.
"""

import zlib
from typing import Final

MIN_BYTES: Final = 256  # shorter data is stored as it is
_PACKED: Final = b"\x01"
_ESCAPED: Final = b"\x00"  # data of any kind that begins with one of these two bytes
_WINDOW_BITS: Final = 13
_LONG_WINDOW_BITS: Final = 15  # for data that repeats itself at a distance
_LONG_BYTES: Final = 8_192
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
        packed = _deflate(data)
        if len(packed) < len(data):
            return packed
    return _ESCAPED + data if data[:1] in (_PACKED, _ESCAPED) else data


def unpack(stored: bytes, most: int = 0) -> bytes | None:
    """Return the data of stored bytes; None if it is longer than `most`, which 0 does not limit.

    Raises ValueError if they cannot be read.
    """
    first = stored[:1]
    if first == _ESCAPED:
        return stored[1:]
    if first != _PACKED:
        return stored
    inflater = zlib.decompressobj(-_LONG_WINDOW_BITS, _DICTIONARY)
    try:
        data = inflater.decompress(memoryview(stored)[1:], most)
    except zlib.error as error:
        raise ValueError(f"compressed data cannot be read: {error}") from error
    if most and len(data) == most and inflater.unconsumed_tail:
        return None
    if not inflater.eof:
        raise ValueError("compressed data has no end")
    return data


def _deflate(data: bytes) -> bytes:
    is_long = len(data) > _LONG_BYTES
    deflater = zlib.compressobj(
        1,
        zlib.DEFLATED,
        -_LONG_WINDOW_BITS if is_long else -_WINDOW_BITS,
        8 if is_long else 5,
        zlib.Z_DEFAULT_STRATEGY,
        _DICTIONARY,
    )
    return b"".join((_PACKED, deflater.compress(data), deflater.flush()))
