"""Collects the problems that show only when values are looked at together."""

from collections.abc import Callable, Mapping
from typing import ParamSpec, TypeVar

from perdure.config.kinds import Wrong
from perdure.config.problems import Key, Problem
from perdure.config.reader import Entry

P = ParamSpec("P")
R = TypeVar("R")


class Notes:
    """The problems so far; `entries` knows the lines."""

    def __init__(self, entries: Mapping[Key, Entry]) -> None:
        self.problems: list[Problem] = []
        self._entries = entries

    def attempt(
        self, key: Key, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs
    ) -> R | None:
        """What the function returns; None, and a problem at the key, if it raises Wrong."""
        try:
            return function(*args, **kwargs)
        except Wrong as wrong:
            self.problems.append(Problem(self._line(key), key, wrong.text, wrong.hint))
            return None

    def _line(self, key: Key) -> int:
        """That of the key, or of the nearest block around it."""
        known = (key[:size] for size in range(len(key), -1, -1) if key[:size] in self._entries)
        return self._entries[next(known)].line
