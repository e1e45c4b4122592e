"""A request that its library made once, made again with another conversation in it.

The library is shown one message that stands for the conversation: of the same instructions, tools
and settings it makes the same request every time, which takes longer than to send it.
"""

import json
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, Final

import httpx2

from perdure.runtime.models.base import Request

_MOST: Final = 4  # kinds of requests that are known at one time: turns, summaries
# A request that has one of these is meant once.
_MEANT_ONCE: Final = ("idempotency-key", "traceparent", "tracestate", "baggage")
_OF_THE_BODY: Final = ("content-length", "transfer-encoding")
Key = tuple[Any, ...]

_answered: ContextVar[httpx2.Response | Exception | None] = ContextVar(
    "perdure_answered", default=None
)


@dataclass(frozen=True, slots=True)
class Template:
    """A request without its conversation, which stood under `place`."""

    made: httpx2.Request
    body: Mapping[str, Any]
    place: str

    def filled(self, conversation: Any) -> httpx2.Request:
        """The request with a conversation in it."""
        body = {**self.body, self.place: conversation}
        text = json.dumps(body, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        made = self.made
        headers = [(k, v) for k, v in made.headers.multi_items() if k not in _OF_THE_BODY]
        return httpx2.Request(
            made.method,
            made.url,
            headers=headers,
            content=text.encode(),
            extensions=dict(made.extensions),
        )


class RequestTemplates:
    """The requests that were made over one client, by what they were made of."""

    def __init__(self, client: httpx2.AsyncClient) -> None:
        self._client = client
        self._known: list[tuple[Key, Template]] = []

    def keep(self, request: Request, conversation: Mapping[str, Any], made: httpx2.Request) -> None:
        """Remember what the library made, if nothing in it is meant for just one request."""
        if len(conversation) != 1 or any(name in made.headers for name in _MEANT_ONCE):
            return
        (place,) = conversation
        body = {key: value for key, value in json.loads(made.content).items() if key != place}
        # Without its content: what a session said is not kept until the next one speaks.
        bare = httpx2.Request(
            made.method, made.url, headers=made.headers, extensions=dict(made.extensions)
        )
        known = (deepcopy(_key(request)), Template(bare, body, place))
        self._known = [known, *self._known[: _MOST - 1]]

    def forget(self) -> None:
        """Let the library make the next request, of whatever has changed."""
        self._known = []

    def again(self, request: Request, conversation: Mapping[str, Any]) -> httpx2.Request | None:
        """The request that the library would make; None if it has not made one like it."""
        key = _key(request)
        for known, template in self._known:
            if known == key and conversation.keys() == {template.place}:
                return template.filled(conversation[template.place])
        return None

    async def sent(self, request: httpx2.Request) -> httpx2.Response | Exception:
        """What comes back, its head only."""
        try:
            return await self._client.send(request, stream=True)
        except httpx2.HTTPError as error:
            return error


def _key(request: Request) -> Key:
    """All that the library makes a request of, beside the model."""
    tools = tuple((tool.name, tool.description, tool.parameters) for tool in request.tools)
    return (request.instructions, tools, dict(request.settings), request.output_schema)


@contextmanager
def prefilled(outcome: httpx2.Response | Exception | None) -> Iterator[None]:
    """Let the next request inside find that it was answered already, and with what."""
    token = _answered.set(outcome)
    try:
        yield
    finally:
        _answered.reset(token)


async def whole(outcome: httpx2.Response | Exception) -> httpx2.Response | Exception:
    """An answer that can be read a second time."""
    if isinstance(outcome, Exception):
        return outcome
    try:
        content = await outcome.aread()
    except httpx2.HTTPError as error:
        return error
    finally:
        await outcome.aclose()
    packed = (*_OF_THE_BODY, "content-encoding")
    headers = [(k, v) for k, v in outcome.headers.multi_items() if k not in packed]
    return httpx2.Response(outcome.status_code, headers=headers, content=content)


class Client(httpx2.AsyncClient):
    """A client of which one can say what was answered, instead of asking."""

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        """The response to a request."""
        given = _answered.get()
        if given is None:
            return await super().send(request, **options)
        _answered.set(None)
        if isinstance(given, Exception):
            raise given
        given.request = request
        return given


_TIMEOUT = httpx2.Timeout(600, connect=10)
_ENDS = (b"\n", b"\r")


@dataclass(slots=True)
class StreamTap:
    """What one request was answered with: the bytes of its last stream.

    One that takes the stream keeps it to itself: the library is told that nothing came.
    """

    takes: bool = False
    is_page: bool = False  # what was answered is for people
    stream: httpx2.AsyncByteStream | None = None  # that was taken
    request: httpx2.Request | None = None  # to which it was the answer
    chunks: list[bytes] = field(default_factory=list)

    def events(self) -> Iterator[bytes]:
        """The data of each event that was heard."""
        yield from _data(b"".join(self.chunks).splitlines())

    async def taken(self) -> AsyncIterator[bytes]:
        """The data of each event of the stream that was taken, as it comes."""
        rest = b""
        async for chunk in self.stream or _Nothing():
            lines = (rest + chunk).splitlines(keepends=True)
            rest = lines.pop() if lines and not lines[-1].endswith(_ENDS) else b""
            for data in _data(lines):
                yield data
        for data in _data([rest]):
            yield data

    async def close(self) -> None:
        """Give the connection back."""
        if self.stream is not None:
            await self.stream.aclose()


def _data(lines: Iterable[bytes]) -> Iterator[bytes]:
    for line in lines:
        if line.startswith(b"data:"):
            yield line[5:].strip()


_ear: ContextVar[StreamTap | None] = ContextVar("perdure_ear", default=None)


@contextmanager
def tapped(ear: StreamTap) -> Iterator[None]:
    """Let the ear hear what is answered to the request that is made inside."""
    token = _ear.set(ear)
    try:
        yield
    finally:
        _ear.reset(token)


def open_client() -> httpx2.AsyncClient:
    """A client whose streamed answers can be heard."""
    client = Client(timeout=_TIMEOUT, follow_redirects=True)
    listen_to(client)
    return client


def listen_to(client: httpx2.AsyncClient) -> None:
    """Let the streamed answers of a client be heard; once is enough, and changes nothing else."""
    hooks = client.event_hooks
    if _hear not in hooks["response"]:
        client.event_hooks = {
            "request": [*hooks["request"], _ask_plainly],
            "response": [*hooks["response"], _hear],
        }


async def _ask_plainly(request: httpx2.Request) -> None:
    if _ear.get() is not None:
        request.headers["accept-encoding"] = "identity"  # what is heard is before any decoding


async def _hear(response: httpx2.Response) -> None:
    ear = _ear.get()
    if ear is None or not isinstance(response.stream, httpx2.AsyncByteStream):
        return
    ear.chunks.clear()
    if response.headers.get("content-encoding", "identity") != "identity":
        return  # what is packed all the same is not heard
    kind = response.headers.get("content-type", "")
    is_stream = kind.startswith("text/event-stream")
    ear.is_page = response.is_success and kind.startswith("text/html")
    if ear.takes and response.is_success and is_stream:
        ear.stream, response.stream = response.stream, _Nothing()
        ear.request = response.request
    else:
        response.stream = _Heard(response.stream, ear)


class _Nothing(httpx2.AsyncByteStream):
    """A stream that has ended."""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for chunk in tuple[bytes, ...]():
            yield chunk


class _Heard(httpx2.AsyncByteStream):
    """A stream of which each piece is kept."""

    def __init__(self, stream: httpx2.AsyncByteStream, ear: StreamTap) -> None:
        self._stream = stream
        self._ear = ear

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for chunk in self._stream:
            self._ear.chunks.append(chunk)
            yield chunk

    async def aclose(self) -> None:
        await self._stream.aclose()
