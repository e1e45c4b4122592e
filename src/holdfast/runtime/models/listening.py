"""Hearing what a provider sends, as it comes: beside its library, or instead of it."""

from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

import httpx2

from holdfast.runtime.models.repeating import Client

_TIMEOUT = httpx2.Timeout(600, connect=10)
_ENDS = (b"\n", b"\r")


@dataclass(slots=True)
class Ear:
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


_ear: ContextVar[Ear | None] = ContextVar("holdfast_ear", default=None)


@contextmanager
def listening(ear: Ear) -> Iterator[None]:
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

    def __init__(self, stream: httpx2.AsyncByteStream, ear: Ear) -> None:
        self._stream = stream
        self._ear = ear

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for chunk in self._stream:
            self._ear.chunks.append(chunk)
            yield chunk

    async def aclose(self) -> None:
        await self._stream.aclose()
