"""The records of a session's open calls, made anew from its log alone."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from msgspec.structs import replace

from perdure.core.log import events
from perdure.core.log.events import Stamped
from perdure.core.pending.record import PendingRecord, PendingStatus, PendingTime


@dataclass(slots=True)
class _Rebuilding:
    session_id: str
    tenant: str
    agent: str
    turn: int = 0
    places: dict[str, tuple[int, int]] = field(default_factory=dict)  # call: turn and index in it
    asked: int = 0
    open: dict[str, PendingRecord] = field(default_factory=dict)


def open_records(
    log: Iterable[Stamped], session_id: str, tenant: str, agent: str
) -> list[PendingRecord]:
    """What its entries would say of the calls that wait, oldest first.

    What the log does not know stays as it is by default: `on_expire`, `late`, `progress`.
    """
    made = _Rebuilding(session_id, tenant, agent)
    for stamped in log:
        take = _TAKES.get(type(stamped.event))
        if take is not None:
            take(made, stamped, stamped.event)
    return list(made.open.values())


def _assistant(made: _Rebuilding, _: Stamped, event: events.Assistant) -> None:
    made.turn, made.asked = event.turn or made.turn + 1, 0


def _tool_call(made: _Rebuilding, _: Stamped, event: events.ToolCall) -> None:
    made.places[event.id] = (event.turn or made.turn, made.asked)
    made.asked += 1


def _pending(made: _Rebuilding, stamped: Stamped, event: events.Pending) -> None:
    turn, index = made.places.get(event.call_id, (made.turn, 0))
    made.open[event.pending_id] = PendingRecord(
        id=event.pending_id,
        session_id=made.session_id,
        tenant=made.tenant,
        agent=made.agent,
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
        epoch=event.epoch,
        redact=event.redact,
    )


def _progress(made: _Rebuilding, stamped: Stamped, event: events.Progress) -> None:
    record = made.open.get(event.pending_id)
    if record is None:
        return
    status, time = record.status, record.time
    if event.started:
        status, time = PendingStatus.PROCESSING, replace(time, started=time.started or stamped.at)
    made.open[record.id] = replace(
        record,
        status=PendingStatus.WAITING if event.problem else status,
        time=time,
        external_ref=event.external_ref or record.external_ref,
        output=event.output or record.output,
        estimated_duration=event.estimated_duration or record.estimated_duration,
        timeout=record.timeout if event.expires_at is None else event.expires_at or None,
        problem=event.problem if event.returned else event.problem or record.problem,
    )


def _closed(made: _Rebuilding, _: Stamped, event: events.Decision | events.Settled) -> None:
    made.open.pop(event.pending_id, None)


_TAKES: Final[dict[type, Callable[[_Rebuilding, Stamped, Any], None]]] = {
    events.Assistant: _assistant,
    events.ToolCall: _tool_call,
    events.Pending: _pending,
    events.Progress: _progress,
    events.Decision: _closed,
    events.Settled: _closed,
}
