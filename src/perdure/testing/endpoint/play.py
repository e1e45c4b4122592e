"""What a request and its answer are, whatever the format."""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from perdure.testing.provider_rules import Format

Body = dict[str, Any]
# What the model that is asked may see of an answer's private blocks: its own it must get back,
# another's it cannot read; "may" where the endpoint does not know whose they are.
Private = Literal["must", "may", "not"]


@dataclass(frozen=True, slots=True)
class Asked:
    """One request, as the log keeps it."""

    number: int
    format: Format
    model: str
    turn: int  # answers that its history has
    stream: bool
    status: int
    body: Body
    refused: str | None = None  # the rule and what the provider said
    fail: str | int | None = None


@dataclass(frozen=True, slots=True)
class Answered:
    """An earlier answer that a request gives back."""

    where: str
    blocks: Sequence[Any]


@dataclass(frozen=True, slots=True)
class Change:
    """A block that came back otherwise than it was sent."""

    where: str
    says: str
    code: str | None = None


@dataclass(frozen=True, slots=True)
class Event:
    """One event of a stream; `name` is its `event:` line, where the format has one."""

    data: Mapping[str, Any] | str
    name: str | None = None

    def encoded(self) -> bytes:
        """As it goes over the line."""
        data = self.data if isinstance(self.data, str) else dumps(self.data)
        head = f"event: {self.name}\n" if self.name else ""
        return f"{head}data: {data}\n\n".encode()


@dataclass(frozen=True, slots=True)
class Play:
    """One answer that is about to be sent."""

    number: int
    asked: Body
    native: Any
    stop: str | None = None
    usage: Mapping[str, Any] = field(default_factory=dict)

    @property
    def model(self) -> str:
        """Who is asked."""
        return str(self.asked.get("model"))

    def tokens(self) -> tuple[int, int]:
        """A plausible count of what was read and written."""
        return len(dumps(self.asked)) // 4, len(dumps(self.native)) // 4 + 1


@dataclass(frozen=True, slots=True)
class Dialect:
    """How one format is read and spoken."""

    answers: Callable[[Body], list[Answered]]
    changes: Callable[[Answered, Any, Private], Iterator[Change]]
    whole: Callable[[Play], Body]
    events: Callable[[Play], Iterator[Event]]
    failed: Callable[[Play, Body, int], Event]  # an error after so many events of a stream


def dumps(value: Any) -> str:
    """JSON as providers send it."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def pieces(text: str) -> list[str]:
    """A text as it is streamed: word by word."""
    return re.findall(r"\s*\S+|\s+$", text)
