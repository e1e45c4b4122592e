"""Starts and ends of background agents that a damaged log has lost, from the agents' sessions."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from perdure.core.log import events
from perdure.core.log.events import Event, StampedEvent
from perdure.core.session.child_tasks import END_STATUSES
from perdure.core.session.children import Child, mail_id
from perdure.core.session.naming import session_key
from perdure.core.session.state import fold
from perdure.errors import Corrupt, NotFound
from perdure.runtime.records.entries import SessionEntry
from perdure.runtime.records.log import read_log
from perdure.runtime.transfer.create import count_resumes
from perdure.store.base import Store

_DELIVERIES: Final = (events.User, events.ToolResult, events.MailTaken)


async def with_child_events(
    store: Store, tenant: str, log: Sequence[StampedEvent], now: int
) -> list[StampedEvent]:
    """Return a rebuilt log, followed by what it has lost of its background agents.

    Without their ends, the session would wait for agents that will not report again.
    """
    facts: list[Event] = []
    delivered = {
        mail for item in log if isinstance(item.event, _DELIVERIES) for mail in item.event.mail
    }
    for child in fold(log).children.values():
        entry = await store.get("session", session_key(tenant, child.session_id))
        if entry is None or child.is_cleared:
            continue
        with suppress(Corrupt, NotFound):  # damaged too, and rebuilt by itself; or deleted
            facts += await _lost_events(store, child, SessionEntry.decode(entry), delivered)
    seq, at = log[-1].seq, max(now, log[-1].at)
    return [*log, *(StampedEvent(n, at, fact) for n, fact in enumerate(facts, seq + 1))]


async def _lost_events(
    store: Store, child: Child, session: SessionEntry, delivered: set[str]
) -> list[Event]:
    is_same = child.run in ("", session.record.task_id)
    if is_same and not (child.is_active and session.record.is_over):
        return []
    log = await read_log(store, session)
    facts: list[Event] = []
    run = log.state.run
    if run is None or run.number < child.number:
        return []
    if not is_same:
        count, _ = count_resumes(log.events)
        facts.append(
            events.DelegationResumed(
                task_id=child.task_id, run=run.id, number=run.number, resume_count=count
            )
        )
    if run.end is not None:
        is_quiet = mail_id(child.task_id, run.number) in delivered
        facts.append(
            events.DelegationComplete(
                task_id=child.task_id,
                status=END_STATUSES[run.end],
                number=run.number,
                quiet=is_quiet,
                queued=bool(log.state.queued),
            )
        )
    return facts
