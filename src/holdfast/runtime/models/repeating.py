"""A request that its library made once, made again with another conversation in it.

The library is shown one message that stands for the conversation: of the same instructions, tools
and settings it makes the same request every time, which takes longer than to send it.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Final

import httpx2

from holdfast.runtime.models.base import Request

_MOST: Final = 4  # kinds of requests that are known at one time: turns, summaries
# A request that has one of these is meant once.
_MEANT_ONCE: Final = ("idempotency-key", "traceparent", "tracestate", "baggage")
_OF_THE_BODY: Final = ("content-length", "transfer-encoding")
Key = tuple[Any, ...]

_answered: ContextVar[httpx2.Response | Exception | None] = ContextVar(
    "holdfast_answered", default=None
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


class Repeats:
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
def answered_with(outcome: httpx2.Response | Exception | None) -> Iterator[None]:
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
