"""Draws from a seed: each depends on its place, its process and its number there, on no other."""

from collections import Counter
from collections.abc import Sequence
from hashlib import blake2b
from math import log
from typing import Final, TypeVar

T = TypeVar("T")

_BITS: Final = 53  # of a float between 0 and 1


class Draws:
    """Source of chance for one seed.

    A draw more or less in one place changes none in another, so that a fault can be removed from a
    run and the others stay as they are.
    """

    def __init__(self, seed: object) -> None:
        self._seed = seed
        self._counts: Counter[tuple[str, str]] = Counter()

    def numbered(self, place: str, process: str = "") -> tuple[int, float]:
        """Return the number of the next draw of a process at a place, and its value from 0 to 1."""
        number = self._counts[place, process] = self._counts[place, process] + 1
        return number, self._digest(place, process, number, _BITS) / (1 << _BITS)

    def fraction(self, place: str, process: str = "") -> float:
        """Return a value from 0 to 1."""
        return self.numbered(place, process)[1]

    def bits(self, count: int, place: str, process: str = "") -> int:
        """Return a number of this many bits."""
        number = self._counts[place, process] = self._counts[place, process] + 1
        return self._digest(place, process, number, count)

    def choice(self, items: Sequence[T], place: str, process: str = "") -> T:
        """Return one of the items."""
        return items[int(self.fraction(place, process) * len(items))]

    def wait(self, mean: float, place: str, process: str = "") -> float:
        """Return a time until something that happens once in `mean` seconds."""
        return -mean * log(1 - self.fraction(place, process))

    def _digest(self, place: str, process: str, number: int, bits: int) -> int:
        size = (bits + 7) // 8
        key = f"{self._seed}|{process}|{place}|{number}".encode()
        return int.from_bytes(blake2b(key, digest_size=size).digest()) >> (size * 8 - bits)
