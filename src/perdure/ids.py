"""Ids that perdure creates: sortable ones, and unguessable ones."""

import hashlib
from collections.abc import Iterator
from typing import Final

from perdure import host

_ALPHABET: Final = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"  # Crockford's base 32
_PAIRS: Final = [first + second for first in _ALPHABET for second in _ALPHABET]


_last_id: Final = [0, 0]  # its instant and its other bits


def new_id(prefix: str) -> str:
    """Return an id that sorts by its creation time: 48 bits of time, then random bits.

    Ids that one thread creates sort within a millisecond too: a later one has the random bits of
    the one before and a random distance from it.
    """
    now, bits = host.instant_ns() // 1_000_000, host.random_bits(79)
    last, last_bits = _last_id
    if now == last:
        bits = last_bits + 1 + (bits >> 15)
    _last_id[:] = now, bits
    return f"{prefix}_{_base32(now, 10)}{_base32(bits, 16)}"


def secret_id(prefix: str) -> str:
    """Return an id that cannot be guessed, not even from other ids: 130 random bits."""
    return f"{prefix}_{_base32(host.random_bits(130), 26)}"


def secret_ids(prefix: str) -> Iterator[str]:
    """Yield ids that cannot be guessed, of 128 random bits, made from several at a time.

    For ids that mean something in this process only: a fork yields the same ones.
    """
    while True:
        letters = " " + host.random_bytes(16 * 64).hex(" ", 16)
        yield from letters.replace(" ", f" {prefix}_").split()


def hashed_id(prefix: str, seed: str) -> str:
    """Return the id that belongs to a seed: the same at every attempt."""
    digest = int.from_bytes(hashlib.sha256(seed.encode()).digest()[:17])
    return f"{prefix}_{_base32(digest & (1 << 130) - 1, 26)}"


def _base32(number: int, length: int) -> str:
    """Return `length` letters; `length` is even."""
    # Two letters at a time, because every tool call creates two such ids.
    return "".join([_PAIRS[number >> shift & 1023] for shift in range(5 * length - 10, -1, -10)])
