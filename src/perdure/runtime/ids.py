"""Ids that perdure creates: sortable ones, and unguessable ones."""

import hashlib
import secrets
import time
from typing import Final

_ALPHABET: Final = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"  # Crockford's base 32
_PAIRS: Final = [first + second for first in _ALPHABET for second in _ALPHABET]


def new_id(prefix: str) -> str:
    """Return an id that sorts by its creation time: 48 bits of time, 80 random bits."""
    return f"{prefix}_{_base32(time.time_ns() // 1_000_000, 10)}{_base32(secrets.randbits(80), 16)}"


def secret_id(prefix: str) -> str:
    """Return an id that cannot be guessed, not even from other ids: 130 random bits."""
    return f"{prefix}_{_base32(secrets.randbits(130), 26)}"


def hashed_id(prefix: str, seed: str) -> str:
    """Return the id that belongs to a seed: the same at every attempt."""
    digest = int.from_bytes(hashlib.sha256(seed.encode()).digest()[:17])
    return f"{prefix}_{_base32(digest & (1 << 130) - 1, 26)}"


def _base32(number: int, length: int) -> str:
    """Return `length` letters; `length` is even."""
    # Two letters at a time, because every tool call creates two such ids.
    return "".join([_PAIRS[number >> shift & 1023] for shift in range(5 * length - 10, -1, -10)])
