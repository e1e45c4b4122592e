"""JSON that is nested too deeply: refused wherever it enters, and no list fails because of it."""

import json
from collections.abc import Callable
from typing import Any

import click
import msgspec
import pytest
from tests.support.findings import code_of, problem_of
from tests.support.http_client import Client, MakeClient, client, client_of, rt
from tests.support.http_shop import TOKENS, agent, parked
from tests.support.runtimes import MakeRuntime, clock, in_memory, memory

from perdure import Agent, ApprovalRequired, Refused, Runtime, asgi, tool
from perdure.cli.commands.option_types import change, json_object
from perdure.core.conversation.messages import Answer
from perdure.core.json_depth import MAX_DEPTH, is_deeper
from perdure.core.log import events
from perdure.core.providers.stream import requested_call
from perdure.core.session.naming import session_key
from perdure.core.transfer.foreign import parse
from perdure.runtime.storable import storable_answer
from perdure.store.base import Put, Record, Write
from perdure.store.memory import MemoryStore
from perdure.testing import ScriptedModel

__all__ = ["client", "client_of", "clock", "in_memory", "memory", "rt"]


def nested(depth: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(depth - 1):
        value = {"a": value}
    return value


DEEP = nested(MAX_DEPTH + 1)
DEEPEST = nested(50_000)
DEPTHS = [MAX_DEPTH + 1, 300, 947, 963, 50_000]


def nested_text(depth: int) -> str:
    return '{"a":' * depth + "1" + "}" * depth


# --- HTTP -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("depth", DEPTHS)
async def test_a_body_that_is_nested_too_deeply_is_refused_and_changes_nothing(
    rt: Runtime, client: Client, depth: int
) -> None:
    ids = await parked(rt)
    deep = nested_text(depth)
    requests = [
        ("POST", "/sessions", f'{{"agent":"shop","sessionID":"new","metadata":{deep}}}'),
        ("POST", f"/pending/{ids['approval']}/approve", f'{{"args":{deep}}}'),
        (
            "POST",
            "/async-tool/result",
            f'{{"pendingID":"{ids["tool"]}","result":{{"output":"done","metadata":{deep}}}}}',
        ),
    ]
    before = (await client.get("/events")).json()
    for method, path, body in requests:
        response = await client.request(method, path, content=body)
        assert response.status_code == 400, (path, response.text)
        assert response.json()["code"] == "TOO_DEEP"
        assert response.json()["hint"]
        assert "\n" not in response.json()["error"]
    assert (await client.get("/events")).json() == before
    assert (await client.get("/sessions/new")).status_code == 404


async def test_a_value_at_the_limit_goes_in_and_comes_out(client: Client) -> None:
    metadata = nested(MAX_DEPTH)
    body = {"agent": "shop", "sessionID": "new", "metadata": metadata}
    assert (await client.post("/sessions", json=body)).status_code == 201
    assert (await client.get("/sessions/new")).json()["metadata"] == metadata
    assert (await client.get("/sessions")).json()["sessions"][0]["metadata"] == metadata


# --- Python ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [DEEP, DEEPEST])
async def test_python_is_refused_the_same_values(rt: Runtime, value: dict[str, Any]) -> None:
    ids = await parked(rt)
    session = rt.session("s", agent="shop")
    attempts: list[Callable[[], Any]] = [
        lambda: rt.session("new", agent="shop", metadata=value).run("Hi"),
        lambda: session.set_metadata(value),
        lambda: rt.approve(ids["approval"], by="ana", args=value),
        lambda: rt.submit_result(ids["tool"], "done", metadata=value),
    ]
    before = await session.events()
    for attempt in attempts:
        with pytest.raises(Refused) as refused:
            await attempt()
        assert refused.value.code == "TOO_DEEP"
    assert await session.events() == before
    assert [result.session_id async for result in rt.sessions()] == ["s"]


# --- models and tools -----------------------------------------------------------------------------


@pytest.mark.parametrize("depth", [MAX_DEPTH + 1, 958, 5_000])
async def test_arguments_that_are_nested_too_deeply_are_an_error_for_the_model(
    in_memory: MakeRuntime, depth: int
) -> None:
    runs: list[Any] = []

    @tool
    def keep(value: Any) -> str:
        """Keep a value."""
        runs.append(value)
        return "kept"

    model = ScriptedModel(
        [{"calls": [{"tool": "keep", "args": {"value": nested(depth)}}]}, {"text": "Sorry."}]
    )
    async with in_memory(Agent("a", model=model, tools=[keep])) as rt:
        session = rt.session("s", agent="a")
        result = await session.run("Go")
        assert (result.state, result.output, runs) == ("completed", "Sorry.", [])
        log = await session.events()
        (answer,) = [event for event in log if event.type == "tool_result"]
        assert "nested deeper than 100 levels" in answer.data["result"]
        assert answer.data["isError"]
        (call,) = [event for event in log if event.type == "tool_call"]
        assert "[nested too deeply]" in json.dumps(call.data["params"])
        assert len([result async for result in rt.sessions()]) == 1


async def test_a_result_may_be_any_value_because_it_is_kept_as_text(in_memory: MakeRuntime) -> None:
    @tool
    def deep(levels: int) -> Any:
        """Return a nested value."""
        return nested(levels)

    calls = [{"tool": "deep", "args": {"levels": n}} for n in (90, 101, 958, 50_000)]
    model = ScriptedModel([{"calls": calls}, {"text": "Done."}])
    async with in_memory(Agent("a", model=model, tools=[deep])) as rt:
        session = rt.session("s", agent="a")
        assert (await session.run("Go")).output == "Done."
        results = [event for event in await session.events() if event.type == "tool_result"]
        assert len(results) == len(calls)
        assert all(isinstance(event.data["result"], str) for event in results)


async def test_an_output_that_is_nested_too_deeply_is_asked_for_again(
    in_memory: MakeRuntime,
) -> None:
    turns = [{"text": nested_text(150)}, {"text": '{"a": 1}'}]
    schema: Any = {"type": "object"}
    a: Agent[Any] = Agent("a", model=ScriptedModel(turns), output_type=schema)
    async with in_memory(a) as rt:
        result = await rt.session("s", agent="a").run("Go")
        assert result.output == {"a": 1}


# --- import ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("depth", [150, 958, 50_000])
async def test_an_import_names_the_line_that_is_nested_too_deeply(
    in_memory: MakeRuntime, depth: int
) -> None:
    async with in_memory(agent()) as rt:
        await rt.session("s", agent="shop", metadata={"k": "MARK"}).run("Hi")
        lines = [line async for line in rt.session("s").export(secrets=True)]
        await rt.session("s").delete()
        deep = nested_text(depth)
        broken = [line.replace('"MARK"', deep) for line in lines]
        with pytest.raises(Refused, match=r"line 2: it is nested deeper than 100 levels"):
            await rt.import_sessions(broken)
        assert [result async for result in rt.sessions()] == []


# --- what was stored before there was a limit -----------------------------------------------------


async def store_deep(rt: Runtime, session: str, depth: int) -> None:
    """Store metadata and a message as earlier versions did, which had no limit."""
    result = await rt.session(session, agent="shop").run("Hi")
    store = rt._resources.store
    entry = await store.get("session", session_key("", result.session_id))
    assert entry is not None
    deep = nested_text(depth).encode()
    record = msgspec.json.decode(entry.data)
    record["metadata"] = msgspec.Raw(b'{"deep":' + deep + b"}")
    data = msgspec.json.encode(record)
    put = Put("session", entry.key, entry.version, entry.stream, entry.state, None, data)
    fact = Record("metadata", b'{"changes":{"deep":' + deep + b"}}", store.now())
    await store.commit([Write(entry.stream, [fact])], [put])


@pytest.mark.parametrize("depth", [947, 951, 958, 963])
async def test_a_session_that_cannot_be_read_is_reported_in_every_list(
    memory: MemoryStore, client_of: MakeClient, depth: int
) -> None:
    async with Runtime(memory, agents=[agent()]) as rt:
        await store_deep(rt, "bad", depth)
        await rt.session("good", agent="shop").run("Hi")
    async with Runtime(memory, agents=[agent()]) as rt, client_of(asgi(rt, auth=TOKENS)) as client:
        response = await client.get("/sessions")
        assert response.status_code == 200
        sessions = {item["sessionID"]: item for item in response.json()["sessions"]}
        assert problem_of(sessions["good"]) is None
        assert code_of(sessions["bad"]) == "STORE_CORRUPT"
        assert (await client.get("/pending")).json()["count"] == 6
        feed = (await client.get("/events")).json()["events"]
        assert {event["sessionID"] for event in feed} == {"good", "bad"}
        for path in ("/sessions/bad", "/sessions/bad/events", "/sessions/bad/messages"):
            assert (await client.get(path)).status_code in (200, 503), path
        problems = {result.session_id: problem_of(result) async for result in rt.sessions()}
        assert problems["bad"] is not None
        assert (await client.delete("/sessions/bad")).status_code < 300
        assert len((await client.get("/sessions")).json()["sessions"]) == 1


@pytest.mark.parametrize("depth", [150, 490])
async def test_a_session_of_moderate_depth_stays_readable(
    memory: MemoryStore, client_of: MakeClient, depth: int
) -> None:
    async with Runtime(memory, agents=[agent()]) as rt, client_of(asgi(rt, auth=TOKENS)) as client:
        await store_deep(rt, "old", depth)
        for path in ("/sessions", "/sessions/old", "/events", "/sessions/old/events"):
            response = await client.get(path)
            assert response.status_code == 200, path
            assert nested_text(depth) in response.text, path
        message = {"content": "And now?"}
        assert (await client.post("/sessions/old/messages", json=message)).status_code < 300


async def test_a_call_that_cannot_be_read_is_left_out_of_the_list_of_calls(
    memory: MemoryStore, client_of: MakeClient
) -> None:
    async with Runtime(memory, agents=[agent()]) as rt, client_of(asgi(rt, auth=TOKENS)) as client:
        ids = await parked(rt)
        entry = await memory.get("pending", ids["tool"])
        assert entry is not None
        data = entry.data.replace(b'"main"', nested_text(958).encode())
        assert data != entry.data
        put = Put("pending", entry.key, entry.version, entry.stream, entry.state, None, data)
        await memory.commit([Write(entry.stream)], [put])
        assert (await client.get("/pending")).json()["count"] == 2
        assert (await client.get("/sessions")).status_code == 200


def test_the_driver_refuses_an_event_that_is_nested_too_deeply() -> None:
    from perdure.runtime.records.log import as_record

    for depth in (120, 5_000):
        with pytest.raises(Refused) as refused:
            as_record(events.Metadata(changes=nested(depth)), 0)
        assert refused.value.code == "TOO_DEEP"


def test_doctor_reports_a_session_that_is_nested_too_deeply() -> None:
    from perdure.runtime.transfer.readable import read_readable
    from perdure.store.inspect import StoredRecord, StreamInspection

    data = b'{"changes":{"deep":' + nested_text(958).encode() + b"}}"
    record = StoredRecord(1, "metadata", 0, data)
    log = read_readable(StreamInspection("s//s", "session:a", 1, 0, False, None, None, (record,)))
    assert log.unreadable[0][0] == 1


# --- other ways in --------------------------------------------------------------------------------


@pytest.mark.parametrize("depth", [150, 958, 50_000])
def test_a_session_of_another_program_that_is_nested_too_deeply_is_refused(depth: int) -> None:
    call = f'{{"type":"tool_use","id":"c","name":"t","input":{nested_text(depth)}}}'
    data = f'[{{"role":"user","content":"Hi"}},{{"role":"assistant","content":[{call}]}}]'
    with pytest.raises(Refused) as refused:
        parse(data.encode())
    assert refused.value.code == "TOO_DEEP"


def test_options_of_the_command_line_that_are_nested_too_deeply_are_refused() -> None:
    text = nested_text(50_000)
    for read in (lambda: json_object(text), lambda: change(f"key={text}")):
        with pytest.raises(click.BadParameter, match="nested too deeply"):
            read()


@pytest.mark.parametrize("depth", [150, 50_000])
def test_arguments_from_a_provider_are_bounded_with_its_own_response(depth: int) -> None:
    arguments = f'{{"value":{nested_text(depth)}}}'
    call = requested_call("c", "t", arguments)
    native = f'[{{"type":"tool_use","input":{arguments}}}]'.encode()
    answer, problems = storable_answer(Answer(calls=(call,), native=native))
    assert problems["c"].startswith("The arguments are nested deeper than 100 levels")
    assert answer.native is None
    assert not is_deeper(msgspec.json.encode(answer.calls[0].params), MAX_DEPTH)


async def test_details_of_a_tool_that_asks_are_bounded(in_memory: MakeRuntime) -> None:
    @tool
    def ask() -> str:
        """Ask a person."""
        raise ApprovalRequired("May I?", details=nested(958))

    turns: list[dict[str, Any]] = [{"calls": [{"tool": "ask"}]}, {"text": "Sorry."}]
    async with in_memory(Agent("a", model=ScriptedModel(turns), tools=[ask])) as rt:
        session = rt.session("s", agent="a")
        assert (await session.run("Go")).output == "Sorry."
        (answer,) = [event for event in await session.events() if event.type == "tool_result"]
        assert "details is nested deeper than 100 levels" in answer.data["result"]
