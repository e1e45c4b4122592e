"""Uses of the public API with the types that users get; checked by mypy and pyright, never run."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Literal, assert_type

from perdure import (
    Agent,
    Approval,
    BackgroundTask,
    Context,
    Delta,
    Event,
    File,
    PendingCall,
    Principal,
    Result,
    Runtime,
    Session,
    Tool,
    tool,
)
from perdure.client import Client
from perdure.options import Budget, DecisionInput, Permissions, RecoveryOptions, WebhookTarget
from perdure.runtime.models import Answer as Response
from perdure.testing import ScriptedModel
from perdure.views import (
    AgentOutcome,
    DecidedCall,
    Permission,
    RecoveryReport,
    SandboxTask,
    Usage,
    replace,
)


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


async def decisions_have_one_shape(rt: Runtime, client: Client, call: PendingCall) -> None:
    """A call or its id, and a word or an object: in a runtime, a client and a run."""
    edit: DecisionInput = {"decision": "edit", "args": {"cents": 1}, "note": "less"}
    assert_type(await rt.decide({call: "approve", "p_2": edit}, by="ann"), list[DecidedCall])
    assert_type(await client.decide({call.id: edit, "p_2": "deny"}), list[DecidedCall])
    result = await rt.session("s").run(decisions={call: edit}, results={"p_3": "up"}, by="ann")
    assert_type(result, Result[Any])
    assert_type(await client.session("s").run(decisions={call.id: "approve"}), Result[Any])


async def calls_have_verbs(rt: Runtime, client: Client) -> None:
    """What settles a call is on the call; a call is taken wherever an id is."""
    async for call in rt.session("s").pending():
        assert_type(await call.approve(by="ann", args={"cents": 1}), DecidedCall)
        assert_type(await call.deny(by="ann", reason="no"), DecidedCall)
        assert_type(await call.respond("yes", by="ann"), DecidedCall)
        assert_type(await call.submit_result("done"), DecidedCall)
        assert_type(await call.submit_error("failed"), DecidedCall)
        assert_type(await call.cancel(), DecidedCall)
        assert_type(await rt.cancel_call(call), DecidedCall)
        assert_type(replace(call, tool="other"), PendingCall)
    async for call in client.session("s").pending():
        assert_type(await call.approve(), DecidedCall)
        assert_type(await client.cancel_call(call), DecidedCall)


def people_act_by_name(rt: Runtime) -> None:
    """`by` is left out where a runtime or client acts as somebody."""
    assert_type(rt.acting_as(Principal("ann", "approver"), via="slack"), Runtime)
    assert_type(Client("https://agents.example", "token", by="ann"), Client)


async def background_tasks_have_verbs(owner: Runtime | Client) -> None:
    """A background agent is a snapshot with verbs, of a runtime or a client."""
    assert_type(await owner.spawn("plain", "Go"), BackgroundTask)
    async for task in owner.background_tasks(parent="s"):
        assert_type(await task.get(), BackgroundTask)
        assert_type(await task.output(block=True, timeout="1m"), AgentOutcome)
        assert_type(await task.resume("More"), AgentOutcome)
        assert_type(await task.cancel(reason="enough"), BackgroundTask)
    assert_type(await owner.background_task("bg_1"), BackgroundTask)
    assert_type(await owner.sandbox_tasks.create({"name": "x"}, exist_ok=True), SandboxTask)


async def agents_run_alone() -> None:
    """An agent runs without a runtime of the program."""
    assert_type(await typed.run("Where?", deps=1, timeout="1m"), Result[Answer])
    assert_type(plain.run_sync("Hello"), Result[str])


async def tools_reach_their_surroundings(ctx: Context[str]) -> None:
    """A tool has the runtime and the task of its session."""
    assert_type(ctx.runtime, Runtime)
    assert_type(await ctx.task(), SandboxTask)


@tool(requires_approval=Approval(by=["lead"], votes=2, allow=["approve", "deny"], timeout="7d"))
def pay(cents: int) -> str:
    """Pay."""
    return str(cents)


def is_large(ctx: Context[Any]) -> bool:
    """Predicate of an approval."""
    return bool(ctx.args["cents"] > 100)


@tool(
    requires_approval=Approval(when=is_large, not_by_starter=True), approval_prompt="Pay {input}?"
)
def pay_more(cents: int) -> str:
    """Pay more."""
    return str(cents)


budget: Budget = {"turns": 5, "cost": 0.5}
permissions: Permissions = {"deny": ["shell:cmd=rm*"], "ask": ["pay"]}
optioned = Agent(
    "optioned",
    model=ScriptedModel([]),
    budget=budget,
    permissions=permissions,
    compaction={"at": 0.5, "keep": 3},
    background={"resume_ended": True},
)
receiver: WebhookTarget = {"url": "https://ci.example", "on": ["failed"]}
recovery: RecoveryOptions = {"running": "fail", "poison_after": 3}
Runtime(
    "memory:",
    recovery=recovery,
    webhooks=[receiver],
    telemetry={"content": True},
    prices={"acme:x": {"input": 1, "output": 2}},
    tasks={"root": "./tasks", "network": {"allow": ["example.com"]}, "limits": {"memory": "1GiB"}},
)


async def reports_are_views(rt: Runtime, session: Session[Answer]) -> None:
    """What recovery, permissions and usage return are views."""
    assert_type(await rt.recover(), RecoveryReport)
    assert_type(await session.permissions(), list[Permission])
    result = await session.get()
    assert_type(result.usage, Usage)
    assert_type(result.usage.input_tokens, int | float)
    assert_type(
        result.stop_reason,
        Literal["max_tokens", "context_window", "refusal", "pause_turn"] | None,
    )


def models_report_usage(text: str) -> Response:
    """A model puts a Usage into its response."""
    return Response(text=text, usage=Usage(input_tokens=3, output_tokens=5))


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
