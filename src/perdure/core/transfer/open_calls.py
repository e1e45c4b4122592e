"""Pending records of a session's open calls, recreated from its log alone."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from msgspec.structs import replace

from perdure.core.log import events
from perdure.core.log.events import StampedEvent
from perdure.core.pending.record import PendingRecord, PendingTime, PendingVote, Verb, moved


@dataclass(slots=True)
class _OpenCalls:
    """The open calls of a session while its log is read."""

    session_id: str
    tenant: str
    agent: str
    turn: int = 0
    positions: dict[str, tuple[int, int]] = field(default_factory=dict)  # turn and index by call
    turn_calls: int = 0
    records: dict[str, PendingRecord] = field(default_factory=dict)


def open_records(
    log: Iterable[StampedEvent], session_id: str, tenant: str, agent: str
) -> list[PendingRecord]:
    """Return the records of the open pending calls, oldest first.

    Fields that the log does not contain have their defaults: `on_expire`, `late`, `progress`.
    """
    calls = _OpenCalls(session_id, tenant, agent)
    for stamped in log:
        apply = _APPLY.get(type(stamped.event))
        if apply is not None:
            apply(calls, stamped, stamped.event)
    return list(calls.records.values())


def _assistant(calls: _OpenCalls, _: StampedEvent, event: events.Assistant) -> None:
    calls.turn, calls.turn_calls = event.turn or calls.turn + 1, 0


def _tool_call(calls: _OpenCalls, _: StampedEvent, event: events.ToolCall) -> None:
    calls.positions[event.id] = (event.turn or calls.turn, calls.turn_calls)
    calls.turn_calls += 1


def _pending(calls: _OpenCalls, stamped: StampedEvent, event: events.Pending) -> None:
    turn, index = calls.positions.get(event.call_id, (calls.turn, 0))
    calls.records[event.pending_id] = PendingRecord(
        id=event.pending_id,
        session_id=calls.session_id,
        tenant=calls.tenant,
        agent=calls.agent,
        task_id=event.task_id or "",
        message_id=f"m{turn}",
        part_id=f"m{turn}.{index}",
        call_id=event.call_id,
        effect_id=event.effect_id,
        tool=event.tool,
        input=event.input,
        kind=event.kind,
        time=PendingTime(created=stamped.at),
        timeout=event.expires_at,
        prompt=event.prompt,
        reason=event.reason,
        budget=event.budget,
        epoch=event.epoch,
        details=event.details,
        schema=event.schema,
        choices=event.choices,
        policy=event.policy,
        started_by=event.started_by,
        redact=event.redact,
    )


def _progress(calls: _OpenCalls, stamped: StampedEvent, event: events.Progress) -> None:
    record = calls.records.get(event.pending_id)
    if record is None:
        return
    if event.started:
        record = moved(record, Verb.START, stamped.at)
    if event.problem:
        record = moved(record, Verb.RESET, stamped.at)
    calls.records[record.id] = replace(
        record,
        external_ref=event.external_ref or record.external_ref,
        output=event.output or record.output,
        estimated_duration=event.estimated_duration or record.estimated_duration,
        timeout=record.timeout if event.expires_at is None else event.expires_at or None,
        problem=event.problem if event.returned else event.problem or record.problem,
    )


def _vote(calls: _OpenCalls, stamped: StampedEvent, event: events.Vote) -> None:
    record = calls.records.get(event.pending_id)
    if record is not None:
        vote = PendingVote(event.by, event.via, stamped.at, event.args, event.note)
        calls.records[record.id] = replace(record, votes=(*record.votes, vote))


def _settled(calls: _OpenCalls, _: StampedEvent, event: events.Decision | events.Settled) -> None:
    calls.records.pop(event.pending_id, None)


_APPLY: Final[dict[type, Callable[[_OpenCalls, StampedEvent, Any], None]]] = {
    events.Assistant: _assistant,
    events.ToolCall: _tool_call,
    events.Pending: _pending,
    events.Progress: _progress,
    events.Vote: _vote,
    events.Decision: _settled,
    events.Settled: _settled,
}
