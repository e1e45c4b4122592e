"""Uses of the public API with the types that users get; checked by mypy and pyright, never run."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Literal, assert_type

from perdure import (
    Agent,
    Context,
    Delta,
    Event,
    File,
    PendingCall,
    Result,
    Runtime,
    Session,
    Tool,
    tool,
)
from perdure.testing import ScriptedModel
from perdure.views.calls import DecidedCall


@dataclass(frozen=True)
class Answer:
    """The output type of an agent."""

    city: str


@tool
def weather(city: str) -> str:
    """Look up the weather."""
    return city


@tool(requires_approval=True)
async def refund(ctx: Context[str], cents: int) -> str:
    """Refund a customer."""
    return f"{ctx.session_id} {cents}"


@tool(external=True, timeout="7d")
def upload(name: str) -> None:
    """Ask the user for a file."""


plain = Agent("plain", model=ScriptedModel([]), tools=[weather])
typed = Agent("typed", model=ScriptedModel([]), output_type=Answer)

assert_type(plain, Agent[str])
assert_type(typed, Agent[Answer])
assert_type(weather("Bern"), str)
_: Tool[..., Any] = refund
assert_type(upload.external, bool)


async def outputs_have_the_type_of_the_agent(rt: Runtime) -> None:
    """`result.output` is what `output_type` says, and None until the run has completed."""
    result = await rt.session("s", agent=typed).run("Where?")
    assert_type(result, Result[Answer])
    assert_type(result.output, Answer | None)
    assert_type(result.unwrap(), Answer)
    assert_type((await rt.session(agent=plain).run("Hello")).output, str | None)


async def names_leave_the_output_open(rt: Runtime) -> None:
    """The type of an agent that is only named is not known."""
    assert_type(rt.session("s", agent="typed"), Session[Any])
    assert_type(rt.session("s"), Session[Any])


async def methods_of_a_session_keep_the_type(session: Session[Answer]) -> None:
    """Every method that returns a result or a session keeps the output type."""
    assert_type(await session.get(), Result[Answer])
    assert_type(await session.resume(), Result[Answer])
    assert_type(await session.cancel(by="ann"), Result[Answer])
    assert_type(await session.compact(), Result[Answer])
    assert_type(await session.fork(at=3), Session[Answer])
    assert_type(await session.send(["Look:", File("image/png", data=b"")]), int)
    assert_type(await session.events(), list[Event])
    async for item in session.stream("Go"):
        assert_type(item, Event | Delta | Result[Answer])


async def exports_are_lines(rt: Runtime, session: Session[Answer]) -> None:
    """An export is an async iterator of lines, which an import accepts."""
    assert_type(session.export(secrets=True), AsyncIterator[str])
    assert_type(await rt.import_sessions(session.export(secrets=True)), list[str])
    assert_type(await rt.import_sessions("text"), list[str])
    with open("export.jsonl", encoding="utf-8") as file:  # noqa: ASYNC230, PTH123 - never run
        assert_type(await rt.import_sessions(file), list[str])


async def decisions_return_the_call(rt: Runtime) -> None:
    """Every decision and submission returns the pending call."""
    async for call in rt.pending(kind="approval"):
        assert_type(call, PendingCall)
        assert_type(await rt.approve(call.id, by="ann", args={"cents": 1}), DecidedCall)
        assert_type(await rt.deny(call.id, by="ann", reason="no"), DecidedCall)
        assert_type(await rt.respond(call.id, "yes", by="ann"), DecidedCall)
        assert_type(await rt.submit_result(call.id, "done"), DecidedCall)
        assert_type(await rt.submit_error(call.id, "failed"), DecidedCall)
        assert_type(await rt.cancel_call(call.id), DecidedCall)


async def lists_and_streams(rt: Runtime) -> None:
    """Lists of all sessions know no output type."""
    async for result in rt.sessions(state="waiting"):
        assert_type(result, Result[Any])
        assert_type(
            result.state,
            Literal["pending", "running", "waiting", "completed", "failed", "cancelled"],
        )
    async for event in rt.stream(types=["assistant"]):
        assert_type(event, Event)


async def main(rt: Runtime) -> int:
    """A program for `run_sync`."""
    await rt.work(once=True, queues=["default"])
    return 0


assert_type(Runtime("memory:", agents=[plain, typed]).run_sync(main), int)
