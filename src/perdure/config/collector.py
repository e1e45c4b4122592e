"""Collector of the problems that only several values together show."""

from collections.abc import Callable, Mapping
from typing import ParamSpec, TypeVar

from perdure.config.kinds import InvalidValue
from perdure.config.problems import ConfigProblem, Key
from perdure.config.reader import ParsedValue

P = ParamSpec("P")
R = TypeVar("R")


class ProblemCollector:
    """Problems collected so far; `entries` has the line of each key."""

    def __init__(self, entries: Mapping[Key, ParsedValue]) -> None:
        self.all: list[ConfigProblem] = []
        self._entries = entries

    def attempt(
        self, key: Key, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs
    ) -> R | None:
        """Return the function's result, or None and collect a problem if it raises InvalidValue."""
        try:
            return function(*args, **kwargs)
        except InvalidValue as error:
            self.all.append(ConfigProblem(self._line(key), key, error.text, error.hint))
            return None

    def _line(self, key: Key) -> int:
        """Return the line of the key, or of the innermost block around it."""
        blocks = (key[:size] for size in range(len(key), -1, -1))
        return self._entries[next(block for block in blocks if block in self._entries)].line
