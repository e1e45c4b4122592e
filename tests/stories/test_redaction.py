"""Arguments that are secret are shown to nobody, and the call runs with them all the same."""

import json
from collections.abc import Callable
from typing import Annotated, Any

import msgspec
import pytest
from pydantic import BaseModel, SecretStr
from tests.runtime.webhooks.test_outbox import OPS, body_of, made, outbox_of

from perdure import Agent, Conflict, PendingCall, Refused, Runtime, tool
from perdure.core.conversation.display import display_messages
from perdure.core.log.redaction import secret_arguments
from perdure.errors import ConfigError
from perdure.pending import AsyncToolRegistry, PendingToolCall
from perdure.runtime.records.entries import SessionRef
from perdure.runtime.records.log import Log
from perdure.runtime.transfer.exports import export_lines
from perdure.runtime.transfer.imports import import_lines
from perdure.store.memory import MemoryStore
from perdure.testing import ScriptedModel

MakeRuntime = Callable[..., Runtime]
CARD, PIN, NEW = "4111-1111", "0451", "4222-2222"
ran: list[Any] = []


class Door(BaseModel):
    """A door and how to open it."""

    name: str
    pin: SecretStr


@tool(requires_approval=True, redact=["card"])
def pay(card: str, cents: int) -> str:
    """Pay."""
    ran.append((card, cents))
    return "paid"


@tool(deferred=True)
def unlock(door: Door, code: SecretStr | None = None, call: PendingCall | None = None) -> str:
    """Unlock a door."""
    ran.append((door.pin.get_secret_value(), code and code.get_secret_value()))
    assert call is not None
    assert call.args["door"]["pin"] == PIN
    return "opening"


PAY = {"tool": "pay", "args": {"card": CARD, "cents": 5}}
UNLOCK = {"tool": "unlock", "args": {"door": {"name": "front", "pin": PIN}, "code": PIN}}


def clerk() -> Agent[str]:
    turns: list[dict[str, Any]] = [{"calls": [PAY, UNLOCK]}, {"text": "Done."}]
    return Agent("clerk", model=ScriptedModel(turns), tools=[pay, unlock])


def hides(*shown: Any) -> None:
    text = " ".join(repr(one) + json.dumps(one, default=str) for one in shown)
    for secret in (CARD, PIN, NEW):
        assert secret not in text


async def surfaces(rt: Runtime) -> list[Any]:
    """Everything that a session is seen through."""
    result = await rt.session("s").get()
    known = await rt._resources.session_inbox.session_entry(SessionRef("", "s"))
    log = Log(rt._resources.store, known.stream)
    await log.catch_up()
    calls = [one async for one in rt.pending(status="all")]
    return [
        result.to_json(),
        result.pending,
        [event.to_json() for event in await rt.session("s").events()],
        [calls, [(one.args, one.prompt, one.decision) for one in calls]],
        await PendingToolCall(rt).list(),
        msgspec.to_builtins(display_messages(log.events)),
        [line async for line in export_lines(rt._resources.store, known)],
        [await body_of(rt, one) for one in await made(rt)],
    ]


async def test_secrets_are_shown_nowhere_and_the_call_runs_with_them(
    runtime: MakeRuntime, caplog: pytest.LogCaptureFixture
) -> None:
    """G11 S0.80"""
    ran.clear()
    caplog.set_level("DEBUG")
    async with runtime(clerk()) as rt:
        outbox_of(rt, OPS)
        result = await rt.session("s", agent="clerk").run("Go")
        hides(*await surfaces(rt))
        approval, door = sorted(result.pending, key=lambda one: one.kind)
        assert approval.args == {"card": "***", "cents": 5}
        assert approval.prompt is not None
        assert '"card": "***"' in approval.prompt
        assert door.args == {"door": "***", "code": "***"}
        decided = await rt.approve(approval.id, by="ana", args={"card": NEW})
        assert decided.decision is not None
        assert decided.decision.args == {"card": "***"}
        with pytest.raises(Conflict) as caught:
            await rt.deny(approval.id, by="bob")
        hides(caught.value.to_json())
        await rt.submit_result(door.id, "open")
        await rt.session("s").run()
        assert ran == [(PIN, PIN), (NEW, 5)]
        hides(*await surfaces(rt), caplog.text)


@pytest.mark.parametrize(
    "call",
    [
        {"tool": "pay", "args": {"kard": CARD, "cents": 5}},
        {"tool": "pays", "args": {"number": CARD}},
    ],
)
async def test_a_call_that_the_model_misspelled_hides_them_too(
    in_memory: MakeRuntime, call: dict[str, Any]
) -> None:
    """G11"""
    turns: list[dict[str, Any]] = [{"calls": [call]}, {"text": "Done."}]
    async with in_memory(Agent("clerk", model=ScriptedModel(turns), tools=[pay])) as rt:
        result = await rt.session("s", agent="clerk").run("Go")
        assert result.output == "Done."
        hides(*await surfaces(rt))


async def test_a_process_without_the_tool_s_code_hides_them_too(
    memory: MemoryStore, in_memory: MakeRuntime
) -> None:
    """G11"""
    async with in_memory(clerk()) as rt:
        outbox_of(rt, OPS)
        await rt.session("s", agent="clerk").run("Go")
    async with Runtime(memory) as stranger:
        hides(*await surfaces(stranger))


async def test_the_model_still_reads_what_it_wrote(in_memory: MakeRuntime) -> None:
    one = clerk()
    async with in_memory(one) as rt:
        result = await rt.session("s", agent="clerk").run("Go")
        for call in result.pending:
            await (rt.deny(call.id, by="a") if call.kind == "approval" else rt.cancel_call(call.id))
        await rt.session("s").run()
    assert isinstance(one.model, ScriptedModel)
    asked = one.model.requests[-1].messages
    assert CARD in str(asked)
    assert PIN in str(asked)


async def test_an_export_is_without_secrets_and_says_so_when_it_is_imported(
    in_memory: MakeRuntime,
) -> None:
    """G11"""
    async with in_memory(clerk()) as rt:
        await rt.session("s", agent="clerk").run("Go")
        known = await rt._resources.session_inbox.session_entry(SessionRef("", "s"))
        without = [line async for line in export_lines(rt._resources.store, known)]
        whole = [line async for line in export_lines(rt._resources.store, known, secrets=True)]
    hides(without)
    assert CARD in str(whole)
    async with Runtime(MemoryStore()) as other:
        with pytest.raises(Refused, match="exported without their secrets") as caught:
            await import_lines(other._resources.store, without)
        assert caught.value.hint == "export it with secrets=True (--secrets)"
        await import_lines(other._resources.store, whole)
        again = await other._resources.session_inbox.session_entry(SessionRef("", "s"))
        made_anew = export_lines(other._resources.store, again, secrets=True)
        assert [line async for line in made_anew] == whole
        hides(*await surfaces(other))


async def test_what_a_program_starts_without_a_model_is_hidden_too(in_memory: MakeRuntime) -> None:
    """G11"""
    async with in_memory() as rt:
        registry = AsyncToolRegistry(rt)
        registry.register(unlock)
        args = {"door": {"name": "front", "pin": PIN}, "code": PIN}
        started = await registry.execute("unlock", args)
        record = await PendingToolCall(rt).get(started["pendingID"])
        assert record is not None
        hides(record)
        session = rt.session(record["sessionID"])
        hides([event.to_json() for event in await session.events()])
        known = await rt._resources.session_inbox.session_entry(SessionRef("", session.id))
        hides(known.record.title)


def test_what_is_typed_as_a_secret_is_found_however_deep() -> None:
    @tool
    def deep(
        a: SecretStr,
        b: list[SecretStr],
        c: dict[str, Door],
        d: Annotated[SecretStr | None, "x"] = None,
        e: str = "",
    ) -> str:
        """Deep."""
        return ""

    assert deep.hidden_arguments == {"a", "b", "c", "d"}
    assert secret_arguments({}) == frozenset()
    loop = {"properties": {"x": {"$ref": "#/$defs/X"}}, "$defs": {"X": {"$ref": "#/$defs/X"}}}
    assert secret_arguments(loop) == frozenset()


def test_an_argument_that_is_not_there_cannot_be_hidden() -> None:
    with pytest.raises(ConfigError, match="redact names 'crad', which is not one of its arguments"):

        @tool(redact=["crad"])
        def wrong(card: str) -> str:
            """Wrong."""
            return card

    with pytest.raises(ConfigError, match="redact must be a list of names"):
        tool(redact="card", name="x")(lambda card: card)
