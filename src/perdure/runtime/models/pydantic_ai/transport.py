"""HTTP transport below pydantic-ai: streams diverted from the library, and the request cache.

A `StreamTap` sees the response to one request. It either records the stream or diverts it, so that
perdure reads it and the library does not. `RequestTemplates` is the request cache.
"""

import json
import ssl
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final

import httpx2

from perdure.runtime.models.base import Request

Outcome = httpx2.Response | Exception
_TIMEOUT: Final = httpx2.Timeout(600, connect=10)
# A complete response of the Messages API: its client reports an empty one as an error in its spans.
COMPLETE_ANTHROPIC_STREAM: Final = b"""\
event: message_start
data: {"type": "message_start", "message": {"id": "", "type": "message", "role": "assistant", \
"model": "", "content": [], "stop_reason": null, "stop_sequence": null, \
"usage": {"input_tokens": 0, "output_tokens": 0}}}

event: message_stop
data: {"type": "message_stop"}

"""
_LINE_ENDS: Final = (b"\n", b"\r")
_MAX_TEMPLATES: Final = 4  # kinds of requests in the cache at one time, such as turns and summaries
# The value of such a header is valid for one request only.
_SINGLE_USE_HEADERS: Final = ("idempotency-key", "traceparent", "tracestate", "baggage")
_BODY_HEADERS: Final = ("content-length", "transfer-encoding")


# --- the tap ------------------------------------------------------------------------------------


@dataclass(slots=True)
class StreamTap:
    """Access to the response of one request, below the library that makes the request.

    With `diverts`, an event stream goes to `diverted_events`, and the library gets `stand_in`.
    Otherwise the library reads the stream, and `events` has a copy of it.
    """

    diverts: bool = False
    stand_in: bytes = b""
    outcome: Outcome | None = None  # given to the library in place of sending its next request
    is_web_page: bool = False
    stream: httpx2.AsyncByteStream | None = None  # the diverted stream
    request: httpx2.Request | None = None  # the request that the diverted stream responds to
    chunks: list[bytes] = field(default_factory=list)

    @contextmanager
    def attached(self) -> Iterator[None]:
        """Tap the requests that are made inside."""
        token = _current_tap.set(self)
        try:
            yield
        finally:
            _current_tap.reset(token)

    def events(self) -> Iterator[bytes]:
        """Return the data of each recorded event."""
        yield from _event_data(b"".join(self.chunks).splitlines())

    async def diverted_events(self) -> AsyncIterator[bytes]:
        """Yield the data of each event of the diverted stream as it arrives."""
        rest = b""
        async for chunk in self.stream or _EmptyStream():
            lines = (rest + chunk).splitlines(keepends=True)
            rest = lines.pop() if lines and not lines[-1].endswith(_LINE_ENDS) else b""
            for data in _event_data(lines):
                yield data
        for data in _event_data([rest]):
            yield data

    async def close(self) -> None:
        """Release the connection of the diverted stream."""
        if self.stream is not None:
            await self.stream.aclose()


_current_tap: ContextVar[StreamTap | None] = ContextVar("perdure_stream_tap", default=None)


def _event_data(lines: Iterable[bytes]) -> Iterator[bytes]:
    for line in lines:
        if line.startswith(b"data:"):
            yield line[5:].strip()


# --- the HTTP client ----------------------------------------------------------------------------


class _TapClient(httpx2.AsyncClient):
    """An HTTP client that returns the outcome of the current tap, if there is one, unsent."""

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        """Return the response to a request."""
        tap = _current_tap.get()
        if tap is None or tap.outcome is None:
            return await super().send(request, **options)
        outcome, tap.outcome = tap.outcome, None
        if isinstance(outcome, Exception):
            raise outcome
        outcome.request = request
        return outcome


@cache  # it reads a file with hundreds of certificates: 15 ms of CPU time
def _trusted() -> ssl.SSLContext:
    return httpx2.create_ssl_context()


def open_client() -> httpx2.AsyncClient:
    """Open an HTTP client with taps."""
    client = _TapClient(timeout=_TIMEOUT, follow_redirects=True, verify=_trusted())
    install_tap(client)
    return client


def install_tap(client: httpx2.AsyncClient) -> None:
    """Let taps see the responses of a client; changes nothing else, and a second call nothing."""
    hooks = client.event_hooks
    if _tap_response not in hooks["response"]:
        client.event_hooks = {
            "request": [*hooks["request"], _refuse_compression],
            "response": [*hooks["response"], _tap_response],
        }


async def _refuse_compression(request: httpx2.Request) -> None:
    if _current_tap.get() is not None:
        request.headers["accept-encoding"] = "identity"  # a tap sees the bytes before decoding


async def _tap_response(response: httpx2.Response) -> None:
    tap = _current_tap.get()
    if tap is None or not isinstance(response.stream, httpx2.AsyncByteStream):
        return
    tap.chunks.clear()
    if response.headers.get("content-encoding", "identity") != "identity":
        return  # compressed all the same: the tap could not read it
    media_type = response.headers.get("content-type", "")
    is_stream = media_type.startswith("text/event-stream")
    tap.is_web_page = response.is_success and media_type.startswith("text/html")
    if tap.diverts and response.is_success and is_stream:
        tap.stream, response.stream = response.stream, httpx2.ByteStream(tap.stand_in)
        tap.request = response.request
    else:
        response.stream = _RecordedStream(response.stream, tap.chunks)


class _EmptyStream(httpx2.AsyncByteStream):
    """A stream that has ended."""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for chunk in tuple[bytes, ...]():
            yield chunk


class _RecordedStream(httpx2.AsyncByteStream):
    """A stream that appends a copy of each chunk to a list."""

    def __init__(self, stream: httpx2.AsyncByteStream, chunks: list[bytes]) -> None:
        self._stream = stream
        self._chunks = chunks

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for chunk in self._stream:
            self._chunks.append(chunk)
            yield chunk

    async def aclose(self) -> None:
        await self._stream.aclose()


# --- the request cache --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Template:
    """A request without its conversation, which belongs under `key` in its body."""

    request: httpx2.Request
    body: Mapping[str, Any]
    key: str

    def fill(self, conversation: Any) -> httpx2.Request:
        body = {**self.body, self.key: conversation}
        text = json.dumps(body, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        headers = self.request.headers.multi_items()
        return httpx2.Request(
            self.request.method,
            self.request.url,
            headers=[(name, value) for name, value in headers if name not in _BODY_HEADERS],
            content=text.encode(),
            extensions=dict(self.request.extensions),
        )


class RequestTemplates:
    """Cache of the HTTP requests that the library made over one client, without conversations.

    The library sees one message that stands for the conversation: from the same instructions,
    tools and settings it builds the same request every time. A cached request is filled with the
    new conversation and sent without the library, which saves a third of the Python calls that
    were left in a turn of a real model after the other savings (16,600 before all of them, 6,300
    after; the overhead over the bare SDK fell from 10.7 to 2.2-2.6 ms). A response that is not an
    event stream goes to the library as the outcome of its own request, so that it reports failures
    as always and nothing is requested twice; the cache is then emptied.
    """

    def __init__(self, client: httpx2.AsyncClient) -> None:
        self._client = client
        self._templates: list[tuple[tuple[Any, ...], _Template]] = []

    async def repeat(
        self, request: Request, conversation: Mapping[str, Any], tap: StreamTap
    ) -> None:
        """Send a cached request under a diverting tap, which must be attached.

        Afterwards the tap has the stream, or the outcome for the library, or neither of them if
        the library has yet to make such a request.
        """
        filled = self.fill(request, conversation)
        if filled is None:
            return
        try:
            outcome: Outcome = await self._client.send(filled, stream=True)
        except httpx2.HTTPError as error:
            outcome = error
        if tap.stream is None:
            self.forget()
            tap.outcome = await _read_fully(outcome)

    def fill(self, request: Request, conversation: Mapping[str, Any]) -> httpx2.Request | None:
        """Return the HTTP request that the library would make; None if none like it is cached."""
        inputs = _library_inputs(request)
        for cached_inputs, template in self._templates:
            if cached_inputs == inputs and conversation.keys() == {template.key}:
                return template.fill(conversation[template.key])
        return None

    def remember(
        self, request: Request, conversation: Mapping[str, Any], http_request: httpx2.Request
    ) -> None:
        """Cache a request of the library, unless a part of it is valid for one request only."""
        is_single_use = any(name in http_request.headers for name in _SINGLE_USE_HEADERS)
        if len(conversation) != 1 or is_single_use:
            return
        (key,) = conversation
        body = json.loads(http_request.content)
        body.pop(key, None)
        # Without its content: a conversation does not stay in memory after its request.
        bare = httpx2.Request(
            http_request.method,
            http_request.url,
            headers=http_request.headers,
            extensions=dict(http_request.extensions),
        )
        entry = (deepcopy(_library_inputs(request)), _Template(bare, body, key))
        self._templates = [entry, *self._templates[: _MAX_TEMPLATES - 1]]

    def forget(self) -> None:
        """Empty the cache, so that the library makes the next request."""
        self._templates = []


def _library_inputs(request: Request) -> tuple[Any, ...]:
    """Return everything that the library builds a request from, besides the model."""
    tools = tuple((tool.name, tool.description, tool.parameters) for tool in request.tools)
    return (request.instructions, tools, dict(request.settings), request.output_schema)


async def _read_fully(outcome: Outcome) -> Outcome:
    """Return a response with its whole content, so that the library can read it again."""
    if isinstance(outcome, Exception):
        return outcome
    try:
        content = await outcome.aread()
    except httpx2.HTTPError as error:
        return error
    finally:
        await outcome.aclose()
    dropped = (*_BODY_HEADERS, "content-encoding")
    headers = [item for item in outcome.headers.multi_items() if item[0] not in dropped]
    return httpx2.Response(outcome.status_code, headers=headers, content=content)
