"""Sizes as users write them, parsed to bytes."""

import re
from typing import Final

_SIZE: Final = re.compile(r"([0-9]+)\s*(B|kB|KB|MB|GB|KiB|MiB|GiB)?")
_BYTES: Final = {
    "B": 1,
    "kB": 10**3,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
}


def parse_size(text: str) -> int:
    """Return the bytes of a size, such as `500kB`, `10MiB` or `4096`. Raises ValueError."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError("must be a size, such as 500kB or 10MiB")
    return int(match[1]) * _BYTES[match[2] or "B"]
