"""The ids that perdure gives: sortable ones, and ones that nobody can guess."""

import secrets
import time
from typing import Final

_ALPHABET: Final = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"  # Crockford's base 32
_PAIRS: Final = [first + second for first in _ALPHABET for second in _ALPHABET]


def new_id(prefix: str) -> str:
    """An id that sorts by the time of its making: 48 bits of time, 82 of chance."""
    return f"{prefix}_{_base32(time.time_ns() // 1_000_000, 10)}{_base32(secrets.randbits(80), 16)}"


def secret_id(prefix: str) -> str:
    """An id that nobody can guess, not even from its neighbours: 130 bits of chance."""
    return f"{prefix}_{_base32(secrets.randbits(130), 26)}"


def _base32(number: int, length: int) -> str:
    """So many letters, an even number of them."""
    # Two letters at a time: every call of a tool has two such ids.
    return "".join([_PAIRS[number >> place & 1023] for place in range(5 * length - 10, -1, -10)])
