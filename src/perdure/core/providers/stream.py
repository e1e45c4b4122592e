"""Streamed model responses, read once: chunks as they arrive, response and native at the end."""

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Literal

from perdure.core.conversation.messages import RequestedCall
from perdure.core.session.usage import is_amount
from perdure.views.usage import Usage

Json = dict[str, Any]
# Errors that a reader runs into if an event does not have the shape that its format prescribes.
SHAPE_ERRORS: Final = (LookupError, TypeError, AttributeError)
_DONE: Final = b"[DONE]"  # some servers end with it and give no reason


@dataclass(frozen=True, slots=True)
class Chunk:
    """Part of a response as it arrives; `call` is the id of the call that `args` belong to."""

    kind: Literal["text", "thinking", "args"]
    text: str
    call: str | None = None


@dataclass(frozen=True, slots=True)
class ReceivedResponse:
    """A model response. `refusal` is set if the model declined to respond.

    `native` is JSON: each key and number as the provider sent it; None if it cannot be restored.
    """

    text: str
    calls: tuple[RequestedCall, ...]
    thinking: str | None
    usage: Usage
    stop: str | None
    refusal: str | None = None
    native: bytes | None = None
    is_complete: bool = True  # otherwise the stream was cut off
    id: str | None = None  # the provider's own


class ProviderStreamError(Exception):
    """The provider ended its stream with an error."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}" if code else message)
        self.code = code
        self.message = message

    @classmethod
    def from_event(cls, error: Json | None, code_key: str) -> "ProviderStreamError":
        """Return the error that an event reports."""
        error = error or {}
        message = error.get("message") or "the provider gave no reason"
        return cls(str(error.get(code_key) or ""), str(message))


class MalformedStreamError(ProviderStreamError):
    """An event does not have the shape that its format prescribes."""

    def __init__(self) -> None:
        super().__init__("", "the response is not in the format of this provider")


class StreamReader(ABC):
    """Reads the events of one response, each once, and puts its native form together."""

    def __init__(self) -> None:
        self._is_ended = False  # an event of the format said that the response has ended
        self._is_done = False

    def read(self, data: bytes) -> Chunk | None:
        """Read the data of one event and return its chunk, if it has one.

        Raises ProviderStreamError, or ValueError if the data is not JSON.
        """
        self._is_done = self._is_done or data == _DONE
        event = None if self._is_done else json.loads(data)
        if not isinstance(event, dict):
            return None
        try:
            return self._read_event(event)
        except SHAPE_ERRORS as error:
            raise MalformedStreamError from error

    @abstractmethod
    def _read_event(self, event: Json) -> Chunk | None: ...

    @abstractmethod
    def items(self) -> list[Json]:
        """Return the blocks, items or message that the provider expects back; may be empty."""

    def is_complete(self, items: Iterable[Json]) -> bool:
        """Report whether the response has ended; `[DONE]` counts only after some content."""
        return self._is_ended or (self._is_done and any(map(_has_content, items)))


class ResponseReader(StreamReader):
    """A reader that also yields chunks and the response, so that no library has to read it."""

    @abstractmethod
    def response(self) -> ReceivedResponse:
        """Return the response after the last event. Raises ProviderStreamError."""


@contextmanager
def shape_errors_raised() -> Iterator[None]:
    """Raise MalformedStreamError if the content of events does not have the expected shape."""
    try:
        yield
    except SHAPE_ERRORS as error:
        raise MalformedStreamError from error


def read_native(reader: StreamReader, events: Iterable[bytes]) -> tuple[bytes | None, bool]:
    """Return the native form of a response that a library has read, and whether it is complete.

    Servers differ: where one deviates from the format in a way that the library accepts, there is
    no native form. Raises ValueError if an event is not JSON.
    """
    try:
        for data in events:
            reader.read(data)
        with shape_errors_raised():
            items = reader.items()
    except MalformedStreamError:
        return None, True
    return native_json(items), reader.is_complete(items)


def native_json(items: list[Json]) -> bytes | None:
    """Return the items as JSON, each key and number as it arrived; None if there are none."""
    try:
        text = json.dumps(items, ensure_ascii=False, allow_nan=False)
        return text.encode() if items else None
    except ValueError:  # a lone surrogate or a number that JSON does not have
        return None


def _has_content(item: Json) -> bool:
    return any(value for key, value in item.items() if key != "role")


class _Pieces(list[str]):
    """Pieces of one text: joined at the end, since appending to a text copies it each time."""


def add_delta(target: Json, key: str, value: Any) -> None:
    """Add a streamed value: texts and lists grow, anything else is replaced."""
    before = target.get(key)
    if isinstance(before, _Pieces):
        if isinstance(value, str):
            before.append(value)
    elif isinstance(before, str):
        if isinstance(value, str):
            target[key] = _Pieces((before, value))
    elif isinstance(before, list):
        if isinstance(value, list):
            target[key] = before + value
    elif value is not None or key not in target:
        target[key] = value


def join_pieces(target: Json) -> Json:
    """Return a copy in which the texts that `add_delta` collected are joined."""
    return {
        key: "".join(value) if isinstance(value, _Pieces) else value
        for key, value in target.items()
    }


def parse_arguments(arguments: Any) -> tuple[Any, bool]:
    """Return the arguments of a call, and False if they are text that is not JSON."""
    if not isinstance(arguments, str):
        return ({} if arguments is None else arguments), True
    try:
        return (json.loads(arguments) if arguments.strip() else {}), True
    except (ValueError, RecursionError):
        return arguments, False


def requested_call(call_id: str, tool: str, arguments: Any) -> RequestedCall:
    """Return a call; arguments that are not JSON stay text, which is reported to the model."""
    return RequestedCall(call_id, tool, parse_arguments(arguments)[0])


def counted_usage(**counts: int) -> Usage:
    """Return the usage of a response. Some servers report -1 for what they do not count."""
    return Usage(**{name: count if is_amount(count) else 0 for name, count in counts.items()})


def joined_thinking(texts: Iterable[str]) -> str | None:
    """Return the thinking of a response as one text; None without any."""
    return "\n\n".join(filter(None, texts)) or None
