"""Following events: nothing is missed and nothing doubled, whatever happens to the connection."""

import json
from collections.abc import AsyncIterator, Sequence
from typing import Any, TypeVar

import httpx2
import pytest

from perdure import errors
from perdure.client import Client
from perdure.views.events import Delta, Event

T = TypeVar("T")


def event(seq: int, kind: str = "user") -> dict[str, Any]:
    return {"seq": seq, "pos": seq * 10, "sessionID": "s", "type": kind, "data": {}, "timestamp": 0}


def sse(one: dict[str, Any]) -> str:
    return f"id: {one['seq']}\nevent: {one['type']}\ndata: {json.dumps(one)}\n\n"


class Cut(httpx2.AsyncByteStream):
    """Says some text, and then the connection breaks (or the server ends it)."""

    def __init__(self, text: str, *, breaks: bool = True) -> None:
        self._text = text
        self._breaks = breaks

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for n in range(0, len(self._text), 7):
            yield self._text.encode()[n : n + 7]
        if self._breaks:
            raise httpx2.ReadError("reset")


class Server:
    """Answers one connection after the other."""

    def __init__(self, answers: Sequence[Any]) -> None:
        self.answers = list(answers)
        self.asked: list[str | None] = []

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        self.asked.append(request.headers.get("Last-Event-ID"))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, httpx2.Response):
            return answer
        headers = {"Content-Type": "text/event-stream"}
        return httpx2.Response(200, headers=headers, stream=answer)

    def client(self, patience: float = 5.0) -> Client:
        transport = httpx2.MockTransport(self)
        return Client("http://127.0.0.1", "t", patience=patience, transport=transport)


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.client.connection.FIRST_PAUSE_S", 0.001)


async def seen(found: AsyncIterator[T], count: int) -> list[T]:
    taken = []
    async for one in found:
        taken.append(one)
        if len(taken) == count:
            break
    return taken


async def test_after_a_break_it_goes_on_behind_the_last_event() -> None:
    """S0.52"""
    torn = sse(event(1)) + ": still here\n\n" + sse(event(2))[:-4]
    server = Server(
        [
            Cut(torn),
            httpx2.ConnectError("refused"),
            httpx2.Response(503, json={"error": "x", "code": "STORE_ERROR"}),
            Cut(sse(event(2)), breaks=False),
            Cut(sse(event(2)) + sse(event(3)) + sse(event(4))),
        ]
    )
    async with server.client() as client:
        found = await seen(client.session("s").follow(), 4)
    assert [one.seq for one in found if isinstance(one, Event)] == [1, 2, 3, 4]
    assert server.asked == ["0", "1", "1", "1", "2"]


async def test_the_feed_goes_by_position_and_begins_now() -> None:
    server = Server(
        [
            Cut(
                ": hello\nretry: 1000\n\nid: 7\n\n"
            ),  # where it began: what comes then is not missed
            Cut(sse(event(1))),
            Cut(sse(event(1)) + sse(event(2, "assistant")) + "id: 42\n\n"),
            Cut(sse(event(5))),
        ]
    )
    async with server.client() as client:
        found = await seen(client.stream(), 3)
    assert [one.pos for one in found] == [10, 20, 50]
    assert server.asked == [None, "7", "10", "42"]


async def test_the_feed_can_be_narrowed() -> None:
    server = Server([Cut(sse(event(1)) + sse(event(2, "assistant")))])
    async with server.client() as client:
        (one,) = await seen(client.stream(after=0, session="s", types={"assistant"}), 1)
    assert one.type == "assistant"


async def test_deltas_are_passed_on_and_move_no_cursor() -> None:
    delta = 'event: delta\ndata: {"sessionID": "s", "turn": 1, "kind": "text", "text": "Hel"}\n\n'
    server = Server([Cut(sse(event(1)) + delta * 2), Cut(sse(event(2)))])
    async with server.client() as client:
        found = await seen(client.session("s").follow(deltas=True), 4)
    assert [type(one) for one in found] == [Event, Delta, Delta, Event]
    assert found[1] == Delta("s", 1, "text", "Hel")
    assert server.asked == ["0", "1"]


async def test_a_refusal_ends_it() -> None:
    told = {"error": "there is no session 's'", "code": "SESSION_NOT_FOUND"}
    server = Server([Cut(sse(event(1))), httpx2.Response(404, json=told)])
    async with server.client() as client:
        with pytest.raises(errors.NotFound, match="there is no session"):
            await seen(client.session("s").follow(), 2)


async def test_a_server_that_stays_away_is_told() -> None:
    server = Server([httpx2.ConnectError("refused")] * 1000)
    async with server.client(patience=0.05) as client:
        with pytest.raises(errors.StoreError) as raised:
            await seen(client.session("s").follow(), 1)
    assert raised.value.code == "SERVER_UNREACHABLE"
