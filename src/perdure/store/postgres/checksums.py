"""Checksums of the rows of streams on PostgreSQL: the server computes and compares them, too."""

from hashlib import sha256

_BYTES = 8


def stream_checksum(sid: int, stream: str, kind: str) -> bytes:
    """Return the checksum of a stream by its texts as they are stored.

    The function of the same name in the schema returns the same.
    """
    return sha256(f"{sid} {kind}\n{stream}".encode()).digest()[:_BYTES]
