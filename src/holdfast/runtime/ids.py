"""The ids that holdfast gives: sortable ones, and ones that nobody can guess."""

import secrets
import time
from typing import Final

_ALPHABET: Final = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"  # Crockford's base 32


def new_id(prefix: str) -> str:
    """An id that sorts by the time of its making: 48 bits of time, 82 of chance."""
    return f"{prefix}_{_base32(time.time_ns() // 1_000_000, 10)}{_base32(secrets.randbits(80), 16)}"


def secret_id(prefix: str) -> str:
    """An id that nobody can guess, not even from its neighbours: 130 bits of chance."""
    return f"{prefix}_{_base32(secrets.randbits(130), 26)}"


def _base32(number: int, length: int) -> str:
    return "".join(_ALPHABET[(number >> (5 * place)) & 31] for place in reversed(range(length)))
