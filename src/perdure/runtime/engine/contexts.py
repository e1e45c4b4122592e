"""The context that tools, predicates and instructions of a drive get."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from msgspec.structs import replace

from perdure.core.conversation.messages import RequestedCall
from perdure.core.session.calls import Call
from perdure.core.session.state import State
from perdure.runtime.agents.delegation import BACKGROUND_TOOLS
from perdure.runtime.engine.children import SessionChildren
from perdure.runtime.engine.writer import LeasedWriter
from perdure.runtime.thread_calls import callable_from_threads
from perdure.runtime.tools.shell import EXECUTE_COMMAND
from perdure.runtime.values import Context
from perdure.runtime.views import decision_view
from perdure.views.calls import Decision, PendingCall
from perdure.views.events import Delta
from perdure.views.tasks import SandboxTask


def tool_context(
    drive: LeasedWriter,
    state: State,
    *,
    call: RequestedCall | Call | None = None,
    args: dict[str, Any] | None = None,
    pending: PendingCall | None = None,
) -> Context[Any]:
    """Return the context of a tool, predicate or instruction."""
    running = call if isinstance(call, Call) else None
    record = drive.entry.record
    return Context(
        deps=drive.resources.deps.value,
        session_id=record.id,
        tenant=record.tenant,
        agent=drive.agent.name,
        metadata=dict(state.metadata),
        tool=call.tool if call is not None else "",
        args=args or {},
        call_id=call.id if call is not None else "",
        effect_id=running.effect_id if running is not None else "",
        attempt=running.attempt - running.parked_attempts if running is not None else 1,
        decision=_decision(running),
        pending=pending,
        decisions=_raised_decisions(running),
        answers=() if running is None else running.answers,
        _progress=None if running is None else _progress(drive, running, state.turn),
        _children=None if running is None else _children(drive, running, state),
        _runtime=drive.resources.runtime,
        _task=None if running is None else _task(drive),
        _shell=None if running is None else _shell(drive, running),
    )


def _children(drive: LeasedWriter, call: Call, state: State) -> SessionChildren | None:
    """Return the background agents of the session, for the tools that manage them."""
    if call.tool not in BACKGROUND_TOOLS:
        return None
    record = drive.entry.record
    names = (record.tenant, record.id)
    return SessionChildren(drive.resources, drive.agent, *names, state, call.effect_id)


def _task(drive: LeasedWriter) -> Callable[[], Awaitable[SandboxTask]]:
    """Return the function that reads the session's own task."""
    shell, record = drive.resources.shell, drive.entry.record

    async def task() -> SandboxTask:
        return await shell().task(record.tenant, record.id, drive.agent.name)

    return task


def _shell(drive: LeasedWriter, call: Call) -> Callable[[str, float], Awaitable[str]] | None:
    """Return the function that runs a command in the session's own task, for its tool only."""
    if call.tool != EXECUTE_COMMAND.name:
        return None
    record = drive.entry.record
    return partial(drive.resources.shell().run, record.tenant, record.id, drive.agent.name)


def _progress(
    drive: LeasedWriter, call: Call, turn: int
) -> Callable[[str, float | None], Awaitable[None]]:
    """Return the function that reports progress; it outlives no drive, and holds none."""
    resources, record = drive.resources, drive.entry.record

    async def report(message: str, percent: float | None) -> None:
        text = message if percent is None else f"{message} ({percent:g} %)"
        resources.bus.publish_alone(
            record.tenant, Delta(record.id, turn, "progress", text, call.id)
        )
        if call.pending_id is not None:
            progress = {"message": message, "percent": percent, "at": resources.store.now()}
            await resources.pending_inbox.update(
                call.pending_id, lambda record: replace(record, progress=progress)
            )

    return callable_from_threads(report)


def _decision(call: Call | None) -> Decision | None:
    if call is None or call.decision is None:
        return None
    return decision_view(call.decision, call.decided_at)


def _raised_decisions(call: Call | None) -> tuple[Decision, ...]:
    if call is None:
        return ()
    return tuple([decision_view(event, at) for event, at in call.raised_decisions])
