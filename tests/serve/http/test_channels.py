"""The channel (`via`) that a settled call records: every command by every interface."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.support.http_client import Client
from tests.support.http_shop import parked

from perdure import Runtime
from perdure.cli.backend.open import as_person

Ids = dict[str, str]  # pending ids by kind
Send = Callable[[Runtime, Client, Ids], Awaitable[Any]]


def _cli(verb: str, kind: str, **fields: Any) -> Send:
    async def send(rt: Runtime, _: Client, ids: Ids) -> None:
        call = await as_person(rt).pending_call(ids[kind])
        await getattr(call, verb)(by="ana", **fields)

    return send


async def _cli_cancel(rt: Runtime, _: Client, __: Ids) -> None:
    await as_person(rt).session("s").cancel(by="ana")


def _post(path: str, body: dict[str, Any]) -> Send:
    async def send(rt: Runtime, client: Client, ids: Ids) -> None:
        task = str((await rt.session("s").get()).task_id)
        names = {**ids, "task": task}

        def named(value: Any) -> Any:
            if isinstance(value, dict):
                return {name: named(item) for name, item in value.items()}
            return value.format(**names) if isinstance(value, str) else value

        answer = await client.post(named(path), json=named(body))
        assert answer.status_code in (200, 202), answer.text

    return send


async def _delete(_: Runtime, client: Client, ids: Ids) -> None:
    assert (await client.delete(f"/pending/{ids['tool']}")).status_code == 200


_NOTHING: dict[str, str] = {}
_RESULT = {"pendingID": "{tool}", "result": {"output": "done"}}
_REPLY = {"taskID": "{task}", "decision": {"kind": "deny", "pendingID": "{approval}"}}
# (interface, command) → the kind of the call that it settles, and the command
COMMANDS: dict[tuple[str, str], tuple[str, Send]] = {
    ("python", "approve"): ("approval", lambda rt, _, ids: rt.approve(ids["approval"], by="ana")),
    ("python", "deny"): ("approval", lambda rt, _, ids: rt.deny(ids["approval"], by="ana")),
    ("python", "respond"): (
        "question",
        lambda rt, _, ids: rt.respond(ids["question"], "red", by="ana"),
    ),
    ("python", "result"): ("tool", lambda rt, _, ids: rt.submit_result(ids["tool"], "done")),
    ("python", "error"): ("tool", lambda rt, _, ids: rt.submit_error(ids["tool"], "broken")),
    ("python", "cancel"): ("tool", lambda rt, _, ids: rt.cancel_call(ids["tool"])),
    ("python", "cancel the run"): ("tool", lambda rt, *_: rt.session("s").cancel()),
    **{
        ("cli", command): (kind, _cli(verb, kind, **fields))
        for command, verb, kind, fields in (
            ("approve", "approve", "approval", _NOTHING),
            ("deny", "deny", "approval", _NOTHING),
            ("respond", "respond", "question", {"output": "red"}),
            ("result", "submit_result", "tool", {"output": "red"}),
            ("error", "submit_error", "tool", {"error": "broken"}),
            ("cancel", "cancel", "tool", _NOTHING),
        )
    },
    ("cli", "cancel the run"): ("tool", _cli_cancel),
    ("http:admin", "approve"): ("approval", _post("/pending/{approval}/approve", {})),
    ("http:admin", "deny"): ("approval", _post("/pending/{approval}/deny", {})),
    ("http:admin", "respond"): ("question", _post("/pending/{question}/respond", {"output": "x"})),
    ("http:admin", "result"): ("tool", _post("/async-tool/result", _RESULT)),
    ("http:admin", "error"): (
        "tool",
        _post("/async-tool/error", {"pendingID": "{tool}", "error": "x"}),
    ),
    ("http:admin", "cancel"): ("tool", _delete),
    ("http:admin", "cancel the run"): ("tool", _post("/sessions/s/cancel", {})),
    ("http:admin", "reply"): ("approval", _post("/sessions/s/messages", _REPLY)),
}


@pytest.mark.parametrize("interface, command", COMMANDS)
async def test_a_settled_call_names_the_interface(
    rt: Runtime, client: Client, interface: str, command: str
) -> None:
    ids = await parked(rt)
    kind, send = COMMANDS[interface, command]
    await send(rt, client, ids)
    record = await rt._service.calls.get(ids[kind])
    assert not record.is_open
    assert (record.decision.via if record.decision else record.via) == interface


async def test_calls_that_a_message_cancels_name_the_interface_of_the_message(
    rt: Runtime, client: Client
) -> None:
    ids = await parked(rt)
    rt._service.agents.get("shop").agent.__dict__["while_waiting"] = "cancel_calls"
    answer = await client.post("/sessions/s/messages", json={"content": "Never mind"})
    assert answer.status_code == 202
    record = await rt._service.calls.get(ids["tool"])
    assert (record.status, record.by, record.via) == ("cancelled", "admin", "http:admin")
