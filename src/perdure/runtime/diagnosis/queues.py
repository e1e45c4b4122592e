"""Findings about workers and queues: dead workers, and due sessions that nobody drives."""

from collections.abc import Collection, Sequence
from typing import Final

from perdure.core.session.naming import parse_session_stream, parse_stream_kind
from perdure.core.session.queues import DEFAULT, MANY_QUEUES, is_worker
from perdure.findings.severities import MAX_LISTED, Findings, fine, warning
from perdure.findings.steps import NO_WORKER, here_step, worker_step
from perdure.findings.texts import line, plural
from perdure.runtime.diagnosis.agents import GRACE_MS
from perdure.runtime.queues import due_by_queue, workers_by_queue
from perdure.store.inspect import Vitals
from perdure.views.durations import format_ms
from perdure.views.findings import Finding, Step

STALE_LEASE: Final = "STALE_LEASE"


def worker_findings(vitals: Vitals, now: int) -> Findings:
    """Yield the workers that died with sessions, or the number of those that live."""
    expired = [holder for holder in vitals.holders if holder[1] <= now - GRACE_MS]
    for name, until, count in expired:
        silence = format_ms((now - until) // 1000 * 1000)
        held = f" and still holds {plural(count, 'session')}" if count else ""
        text = f"worker {name} has been silent for {silence} beyond its lease{held}"
        note = "the next worker takes over"
        yield warning(STALE_LEASE, text, note, subject=name, steps=[worker_step()])
    if not expired:
        alive = sum(is_worker(name) for name, _, _ in vitals.holders)
        yield fine("WORKERS", f"workers: {alive} alive")


def due_findings(vitals: Vitals, now: int, agents: Collection[str]) -> Findings:
    """Yield the queues that no worker serves, and due sessions that no worker drives.

    `agents` are those that are defined here; none if they are not known.
    """
    unserved = _unserved(vitals, now)
    for queue, count in unserved.items():
        sessions = "1 session is" if count == 1 else f"{count} sessions are"
        text = f"{sessions} due in queue {queue}, and no worker serves it"
        yield _no_worker(queue, text, queue, [worker_step(queue)])
    overdue = [
        (stream, *parse_stream_kind(kind), since)
        for stream, kind, since in vitals.due.streams
        if since <= now - GRACE_MS and parse_stream_kind(kind)[1] not in unserved
    ]
    yield from _overdue(overdue[:MAX_LISTED], now, agents)
    if len(overdue) > MAX_LISTED:
        text = f"{vitals.due.count} sessions in all"
        yield _no_worker(DEFAULT, text, DEFAULT, [worker_step()])
    if not overdue and not unserved:
        yield fine("DUE", "sessions: none is due without a driver")


def _overdue(
    sessions: Sequence[tuple[str, str, str, int]], now: int, agents: Collection[str]
) -> Findings:
    for stream, agent, queue, since in sessions:
        tenant, session_id = parse_session_stream(stream) or ("", stream)
        waits = format_ms((now - since) // 1000 * 1000)
        text = f"session {session_id} of agent {agent} has been due for {waits}, and no worker"
        steps = [] if agents and agent not in agents else [worker_step(queue)]
        steps += [here_step(session_id, tenant)] if agent in agents else []
        note = "" if steps else f"\nstart a worker that has agent {line(agent)}"
        yield _no_worker(session_id, f"{text} drives it{note}", queue, steps, agent)


def _no_worker(
    subject: str, text: str, queue: str, steps: Sequence[Step], agent: str = ""
) -> Finding:
    name = "a worker" if queue == DEFAULT else f"a worker for queue {queue}"
    return Finding(
        code=NO_WORKER,
        severity="warning",
        subject=subject,
        text=text,
        missing=f"{name} with agent {agent}" if agent else name,
        steps=tuple(steps),
    )


def _unserved(vitals: Vitals, now: int) -> dict[str, int]:
    """Return the queues with due sessions that no live worker serves.

    `default` is not among them: any worker may serve it, and only time tells.
    """
    served = workers_by_queue(vitals, now)
    due = {} if served[MANY_QUEUES] else due_by_queue(vitals)
    return {name: due[name] for name in sorted(due) if name != DEFAULT and not served[name]}
