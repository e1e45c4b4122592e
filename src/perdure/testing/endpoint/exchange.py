"""Values of an exchange with the endpoint, common to all formats."""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from perdure.testing.provider_rules import Format

Body = dict[str, Any]
# Private blocks of a response in a later request: the model that produced them must get them back,
# another model cannot read them; "may" if the endpoint does not know which model produced them.
Privacy = Literal["must", "may", "not"]


@dataclass(frozen=True, slots=True)
class ReceivedRequest:
    """Request as the log keeps it."""

    number: int
    format: Format
    model: str
    turn: int  # responses in its history
    stream: bool
    status: int
    body: Body
    refused: str | None = None  # the rule and the provider's message
    fail: str | int | None = None


@dataclass(frozen=True, slots=True)
class EarlierResponse:
    """Earlier response that a request returns to the provider."""

    where: str
    blocks: Sequence[Any]


@dataclass(frozen=True, slots=True)
class Change:
    """Block that differs from the one sent; `text` is the provider's message."""

    where: str
    text: str
    code: str | None = None


@dataclass(frozen=True, slots=True)
class StreamEvent:
    """Event of a stream; `name` is its `event:` line, in formats that have one."""

    data: Mapping[str, Any] | str
    name: str | None = None

    def encode(self) -> bytes:
        """Return the event as bytes of the stream."""
        data = self.data if isinstance(self.data, str) else dumps(self.data)
        head = f"event: {self.name}\n" if self.name else ""
        return f"{head}data: {data}\n\n".encode()


@dataclass(frozen=True, slots=True)
class ScriptedResponse:
    """Response of the script to one request."""

    number: int
    request: Body
    native: Any
    stop: str | None = None
    usage: Mapping[str, Any] = field(default_factory=dict)

    @property
    def model(self) -> str:
        """Name of the requested model."""
        return str(self.request.get("model"))

    def tokens(self) -> tuple[int, int]:
        """Return plausible numbers of input and output tokens."""
        return len(dumps(self.request)) // 4, len(dumps(self.native)) // 4 + 1


@dataclass(frozen=True, slots=True)
class Dialect:
    """Functions that read and write one format."""

    earlier_responses: Callable[[Body], list[EarlierResponse]]
    find_changes: Callable[[EarlierResponse, Any, Privacy], Iterator[Change]]
    render: Callable[[ScriptedResponse], Body]
    stream: Callable[[ScriptedResponse], Iterator[StreamEvent]]
    # response, error body, number of events before the error
    error_event: Callable[[ScriptedResponse, Body, int], StreamEvent]


def dumps(value: Any) -> str:
    """Encode JSON as providers send it."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def chunks(text: str) -> list[str]:
    """Split a text word by word, as it is streamed."""
    return re.findall(r"\s*\S+|\s+$", text)


def split_arguments(text: str) -> list[str]:
    """Split the JSON text of arguments into the pieces that are streamed."""
    return [text[start : start + 9] for start in range(0, len(text), 9)]
