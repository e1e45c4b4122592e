"""The way to a server: what is sent again, what never, and what an answer is raised as."""

import logging
from collections.abc import Callable
from typing import Any

import httpx2
import pytest

from perdure import errors
from perdure.client import Client
from perdure.client.connection import url_path
from perdure.views.health import AgentInfo

TOKEN = "tok-4711-hush"  # noqa: S105 - nobody's
PENDING = {
    "id": "p_1",
    "kind": "tool",
    "status": "completed",
    "sessionID": "s",
    "agent": "a",
    "tool": "deploy",
    "input": {},
    "callID": "c",
    "effectID": "e",
    "time": {"created": 1},
}
SESSION = {
    "sessionID": "s",
    "agent": "a",
    "state": "running",
    "status": {"type": "busy"},
    "createdAt": 1,
    "updatedAt": 2,
    "seq": 3,
}


class Server:
    """Answers a request with the next of its answers; the last one again and again."""

    def __init__(self, *answers: httpx2.Response | Exception) -> None:
        self.answers = list(answers)
        self.seen: list[httpx2.Request] = []

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        self.seen.append(request)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


def client(server: Server, **options: Any) -> Client:
    options = {"patience": 5.0, "transport": httpx2.MockTransport(server), **options}
    return Client("http://127.0.0.1:4747", TOKEN, **options)


def told(status: int, code: str, **details: Any) -> httpx2.Response:
    body = {"error": "it is so", "code": code, "hint": "do that", "details": details}
    return httpx2.Response(status, json=body)


def ok(body: Any) -> httpx2.Response:
    return httpx2.Response(200, json=body)


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.client.connection.FIRST_PAUSE_S", 0.001)


@pytest.mark.parametrize(
    "status,code,kind,exit_code",
    [
        (400, "ARGS_INVALID", errors.Refused, 2),
        (401, "NOT_AUTHENTICATED", errors.NotAllowed, 4),
        (403, "NOT_ALLOWED", errors.NotAllowed, 4),
        (404, "PENDING_NOT_FOUND", errors.NotFound, 3),
        (409, "ALREADY_DECIDED", errors.Conflict, 5),
        (413, "TOO_LARGE", errors.Refused, 2),
        (500, "INTERNAL", errors.PerdureError, 1),
        (503, "STORE_CORRUPT", errors.Corrupt, 7),
    ],
)
async def test_a_refusal_is_raised_as_the_error_it_is(
    status: int, code: str, kind: type[errors.PerdureError], exit_code: int
) -> None:
    server = Server(told(status, code, winner={"by": "ana"}))
    async with client(server) as one:
        with pytest.raises(kind) as raised:
            await one.approve("p_1")
    error = raised.value
    assert (error.message, error.code, error.hint) == ("it is so", code, "do that")
    assert error.exit_code == exit_code
    assert error.details == {"winner": {"by": "ana"}}
    assert len(server.seen) == 1
    if isinstance(error, errors.Conflict):
        assert error.winner == {"by": "ana"}


async def test_reading_is_tried_again_until_it_is_answered() -> None:
    lost = httpx2.ReadError("reset")
    server = Server(httpx2.ConnectError("refused"), lost, told(503, "STORE_ERROR"), ok(PENDING))
    async with client(server) as one:
        assert (await one.pending_call("p_1")).status == "completed"
    assert len(server.seen) == 4


async def test_a_message_is_sent_again_with_the_same_key() -> None:
    server = Server(httpx2.ReadError("reset"), told(503, "STORE_ERROR"), ok(SESSION))
    async with client(server) as one:
        assert (await one.session("s").send("Hello")).seq == 3
    keys = {request.headers["Idempotency-Key"] for request in server.seen}
    assert (len(server.seen), len(keys)) == (3, 1)


async def test_a_decision_is_sent_again_for_the_same_one_changes_nothing() -> None:
    server = Server(httpx2.ReadTimeout("late"), ok({**PENDING, "duplicate": True}))
    async with client(server) as one:
        assert (await one.approve("p_1", by="ana")).duplicate is True


ONCE: dict[str, Callable[[Client], Any]] = {
    "cancel a call": lambda one: one.cancel_call("p_1"),
    "cancel": lambda one: one.session("s").cancel(),
    "delete": lambda one: one.session("s").delete(),
    "fork": lambda one: one.session("s").fork(),
    "redeliver": lambda one: one.redeliver("d_1"),
    "resume": lambda one: one.session("s").resume(),
    "set metadata": lambda one: one.session("s").set_metadata({"a": 1}),
}


@pytest.mark.parametrize("ask", ONCE.values(), ids=ONCE)
async def test_what_could_be_done_twice_is_sent_once(ask: Any) -> None:
    for failure in (httpx2.ReadError("reset"), told(503, "STORE_ERROR")):
        server = Server(failure)
        async with client(server) as one:
            with pytest.raises(errors.StoreError):
                await ask(one)
        assert len(server.seen) == 1


async def test_what_never_arrived_is_sent_again_whatever_it_is() -> None:
    server = Server(httpx2.ConnectError("refused"), told(429, "RATE_LIMITED"), ok(PENDING))
    async with client(server) as one:
        await one.cancel_call("p_1")
    assert len(server.seen) == 3


async def test_a_server_that_is_down_is_told_with_what_to_do() -> None:
    server = Server(httpx2.ConnectError("Connection refused"))
    async with client(server, patience=0.01) as one:
        with pytest.raises(errors.StoreError) as raised:
            await one.pending_call("p_1")
    assert raised.value.code == "SERVER_UNREACHABLE"
    assert raised.value.message == (
        "no server answers at http://127.0.0.1:4747: Connection refused"
    )
    assert "perdure serve" in (raised.value.hint or "")


async def test_to_come_back_later_than_patience_lasts_is_told_at_once() -> None:
    answer = told(429, "RATE_LIMITED")
    answer.headers["Retry-After"] = "60"
    server = Server(answer)
    async with client(server) as one:
        with pytest.raises(errors.Refused, match="it is so"):
            await one.pending_call("p_1")
    assert len(server.seen) == 1


@pytest.mark.parametrize("status,code", [(200, "NOT_PERDURE"), (502, "SERVER_AWAY")])
async def test_what_is_no_perdure_is_told(status: int, code: str) -> None:
    server = Server(httpx2.Response(status, text="<html>nginx</html>"))
    async with client(server, patience=0.01) as one:
        with pytest.raises(errors.StoreError) as raised:
            await one.agents()
    assert raised.value.code == code


async def test_the_token_is_in_the_header_and_nowhere_else(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """SX.7"""
    caplog.set_level(logging.DEBUG)
    server = Server(httpx2.ReadError("reset"))
    one = client(server, patience=0.01)
    async with one:
        session = one.session("s")
        with pytest.raises(errors.StoreError) as raised:
            await session.get()
    assert server.seen[0].headers["Authorization"] == f"Bearer {TOKEN}"
    shown = [repr(one), repr(session), repr(one.__dict__), str(server.seen[0].url), caplog.text]
    shown += [raised.value.message, repr(raised.value.details), repr(raised.value.__cause__)]
    assert not any(TOKEN in text for text in shown)


@pytest.mark.parametrize("token", ["", "two words", "line\nbreak", "töken"])
def test_a_token_that_no_header_carries_is_refused_unshown(token: str) -> None:
    with pytest.raises(errors.ConfigError) as raised:
        Client("http://127.0.0.1", token)
    assert not token or token not in raised.value.message


@pytest.mark.parametrize("url", ["ftp://x", "127.0.0.1:4747", "", "http://", "http://a/?x=1"])
def test_what_is_no_server_is_refused(url: str) -> None:
    with pytest.raises(errors.ConfigError, match="is not the URL of a server"):
        Client(url)


def test_a_password_in_the_url_is_refused_unshown() -> None:
    """SX.7"""
    with pytest.raises(errors.ConfigError) as raised:
        Client("http://me:hush@host")
    assert "hush" not in raised.value.message


async def test_a_client_that_is_not_open_says_so() -> None:
    with pytest.raises(errors.ConfigError, match="the client is not open"):
        await Client("http://127.0.0.1").agents()


def test_a_program_that_is_not_async_has_one_door() -> None:
    server = Server(ok({"agents": [{"name": "support", "description": "", "tools": []}]}))
    (agent,) = client(server).run_sync(lambda one: one.agents())
    assert agent == AgentInfo(name="support", description="", tools=())


async def test_a_tenant_goes_with_every_request() -> None:
    server = Server(ok(PENDING), ok(SESSION), ok(PENDING))
    async with client(server, tenant="acme") as one:
        await one.pending_call("p_1")
        await one.session("s").get()
        await one.tenant("other").pending_call("p_1")
    assert [dict(r.url.params)["tenant"] for r in server.seen] == ["acme", "acme", "other"]


def test_ids_may_hold_anything() -> None:
    assert url_path("sessions", "a/b ?%#é") == "/sessions/a%2Fb%20%3F%25%23%C3%A9"


async def test_lists_go_on_over_their_pages() -> None:
    pages = [
        ok({"pending": [{**PENDING, "id": f"p_{number}"}], "count": 3, "next": cursor})
        for number, cursor in ((1, "x"), (2, "y"), (3, None))
    ]
    server = Server(*pages)
    async with client(server) as one:
        assert [call.id async for call in one.pending(kind="tool")] == ["p_1", "p_2", "p_3"]
    assert [r.url.params.get("cursor") for r in server.seen] == [None, "x", "y"]
    assert {r.url.params["kind"] for r in server.seen} == {"tool"}


async def test_what_a_newer_server_adds_is_ignored_and_what_it_leaves_out_has_its_default() -> None:
    newer = {**SESSION, "mood": "fine", "pending": [{**PENDING, "color": {"r": 1}}]}
    server = Server(ok(newer))
    async with client(server) as one:
        session = await one.session("s").get()
    assert not hasattr(session, "mood")
    assert (session.queue, session.todos, session.usage.requests) == ("default", (), 0)
    assert (session.pending[0].tool, session.pending[0].can) == ("deploy", ())


async def test_words_that_a_newer_server_has_added_are_read_as_they_are() -> None:
    finding = {"code": "X", "severity": "critical", "subject": "p_1", "text": "it is so"}
    words = {"kind": "webhook", "status": "snoozed", "can": ["approve", "snooze"]}
    page = {"pending": [{**PENDING, **words, "findings": [finding]}], "count": 1, "next": None}
    async with client(Server(ok(page))) as one:
        [call] = [call async for call in one.pending()]
    assert (call.kind, call.status, call.can) == ("webhook", "snoozed", ("approve", "snooze"))
    assert call.findings[0].to_json()["severity"] == "critical"
    assert not call.is_open


async def test_a_word_that_is_not_a_text_is_refused() -> None:
    async with client(Server(ok({**PENDING, "kind": 5}))) as one:
        with pytest.raises(errors.StoreError, match="Expected `str`, got `int`") as raised:
            await one.pending_call("p_1")
    assert raised.value.code == "NOT_PERDURE"


async def test_a_type_of_objects_that_only_a_newer_server_has_asks_for_an_upgrade() -> None:
    parts = [{"type": "image", "url": "https://example.org/a.png"}]
    newer = {**PENDING, "request": {"role": "agent", "parts": parts}}
    async with client(Server(ok(newer))) as one:
        with pytest.raises(errors.StoreError, match=r"'image' - at `\$\.request\.parts") as raised:
            await one.pending_call("p_1")
    assert raised.value.code == "SERVER_NEWER"
    assert raised.value.hint == "upgrade perdure here to the version of the server"


async def test_a_response_without_a_required_field_is_not_one_of_a_perdure_server() -> None:
    server = Server(ok({"sessionID": "s"}))
    async with client(server) as one:
        with pytest.raises(errors.StoreError, match="missing required field `agent`") as raised:
            await one.session("s").get()
    assert raised.value.code == "NOT_PERDURE"
