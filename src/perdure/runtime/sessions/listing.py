"""Pages of sessions that match a filter: by id with their logs, or by their entries alone."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, cast

import msgspec

from perdure.core.session.naming import SessionRecord, session_key
from perdure.core.session.usage import display_usage
from perdure.errors import NotFound
from perdure.runtime.diagnosis.sessions import entry_findings
from perdure.runtime.records.entries import POISONED_STATE, STUCK, SessionEntry
from perdure.runtime.sessions.service import Service
from perdure.store.shared.paging import listing_cursor, page_cursor
from perdure.views.calls import PendingCall
from perdure.views.literals import RunState
from perdure.views.sessions import Result, SessionSummary, WaitingCall
from perdure.views.usage import Usage

_PAGE: Final = 500
_SMALLEST: Final = 20  # entries per read, however few sessions a page has left
_END_STATES: Final = ("completed", "failed", "cancelled")


@dataclass(frozen=True, slots=True)
class SessionFilter:
    """Filter of a list of sessions; None matches all. Metadata is compared as text or as JSON."""

    tenant: str | None = None
    state: str | None = None
    agent: str | None = None
    parent: str | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    search: str | None = None

    def may_match(self, record: SessionRecord) -> bool:
        """Report whether a session may match, by its entry."""
        return (
            self.tenant in (None, record.tenant)
            and self.agent in (None, record.agent)
            and self.parent in (None, record.parent)
            and self._may_have_state(record)
            and all(_is_equal(record.metadata.get(k), v) for k, v in self.metadata.items())
            and (self.search or "").lower() in f"{record.id} {record.title}".lower()
        )

    def _may_have_state(self, record: SessionRecord) -> bool:
        """An entry says which runs are over; the state of other runs is only in their log."""
        if self.state is None:
            return True
        return record.state == self.state if self.state in _END_STATES else not record.is_over


def _is_equal(value: Any, text: str) -> bool:
    return value == text or (value is not None and msgspec.json.encode(value) == text.encode())


async def session_page(
    service: Service, session_filter: SessionFilter, after: str | None, limit: int
) -> tuple[list[Result[Any]], str | None]:
    """Return up to `limit` sessions after a key, in order, and the key after which more follow."""
    # The keys of a tenant's sessions have a common beginning, and are read without the others'.
    prefix = "" if session_filter.tenant is None else session_key(session_filter.tenant, "")
    last, start = after, after or prefix
    cursor = page_cursor((0, start)) if start else None
    results: list[Result[Any]] = []
    while True:
        page = await service.session_page(cursor, _PAGE)
        for entry in map(SessionEntry.decode_listed, page.entries):
            if not entry.index_entry.key.startswith(prefix):
                return results, None
            result = await _result(service, session_filter, entry)
            if result is None:
                continue
            if len(results) == limit:
                return results, last
            results.append(result)
            last = entry.index_entry.key
        if page.next is None:
            return results, None
        cursor = page.next


async def _result(
    service: Service, session_filter: SessionFilter, entry: SessionEntry
) -> Result[Any] | None:
    if not session_filter.may_match(entry.record):
        return None
    try:
        result = await service.listed_result(entry)
    except NotFound:
        return None  # deleted meanwhile
    return result if session_filter.state in (None, result.state) else None


# --- by their entries -----------------------------------------------------------------------------


def _summary(record: SessionRecord, waiting: Sequence[PendingCall]) -> SessionSummary:
    """Return a session as its entry has it, with the calls that it waits for."""
    state = record.state
    if state == "waiting" and record.waiting and not waiting:
        state = "running"  # its driver has not seen yet that the last call was settled
    return SessionSummary(
        session_id=record.id,
        tenant=record.tenant,
        agent=record.agent,
        queue=record.queue,
        task_id=record.task_id,
        state=state,
        findings=entry_findings(record, state, waiting),
        title=record.title,
        metadata=record.metadata,
        parent=record.parent,
        turns=record.turns,
        usage=Usage.of(display_usage(record.usage)),
        waiting_for=tuple([_waiting_call(call) for call in waiting]),
        seq=record.head,
        created_at_ms=record.created_at,
        updated_at_ms=record.updated_at,
    )


def _waiting_call(call: PendingCall) -> WaitingCall:
    return WaitingCall(
        pending_id=call.id,
        kind=call.kind,
        tool=call.tool,
        prompt=call.prompt,
        external_ref=call.external_ref,
        since_ms=call.time.created,
        expires_at_ms=call.expires_at_ms,
    )


async def recent_sessions(
    service: Service,
    session_filter: SessionFilter,
    after: str | None,
    limit: int,
    most: int | None = None,
) -> tuple[list[SessionSummary], str | None]:
    """Return up to `limit` sessions, the last changed first, and the cursor if more follow.

    Where about `most` entries were read, the page ends early: it then has fewer sessions and a
    cursor. Raises ValueError for a bad cursor.
    """
    summaries: list[SessionSummary] = []
    position, size, count = after, max(limit, _SMALLEST), 0
    while True:
        page = await service.recent_page(position, size)
        entries = [SessionEntry.decode_listed(entry) for entry in page.entries]
        matching = [entry for entry in entries if session_filter.may_match(entry.record)]
        for entry, summary in zip(matching, await _summaries(service, matching), strict=True):
            if session_filter.state not in (None, summary.state):
                continue
            if len(summaries) == limit:
                return summaries, after
            summaries.append(summary)
            after = listing_cursor(entry.index_entry, "newest")
        if page.next is None:
            return summaries, None
        position, count = page.next, count + len(page.entries)
        if len(summaries) < limit:
            after = position  # else it stays behind the last session, to see if another one matches
        if most is not None and count >= most:
            return summaries, after
        size = min(2 * size, _PAGE)


async def _summaries(service: Service, entries: Sequence[SessionEntry]) -> list[SessionSummary]:
    names = [name for entry in entries for name in entry.record.waiting]
    calls = dict(
        zip(names, await asyncio.gather(*map(service.calls.find_open, names)), strict=True)
    )
    return [
        _summary(
            entry.record,
            [
                service.calls.view(call)
                for name in entry.record.waiting
                if (call := calls[name]) is not None
            ],
        )
        for entry in entries
    ]


async def count_sessions(service: Service, session_filter: SessionFilter) -> int | None:
    """Return the number of sessions that match, by the index; None if only their entries tell."""
    is_by_state = session_filter == SessionFilter(state=session_filter.state)
    if not is_by_state:
        return None
    states = await service.count_by_state()
    if session_filter.state is None:
        return sum(states.values())
    names = _INDEX_STATES.get(cast("RunState", session_filter.state), (session_filter.state,))
    return sum(states.get(name, 0) for name in names)


# The states of entries that have more than their own name.
_INDEX_STATES: Final[dict[RunState, tuple[str, ...]]] = {
    "failed": ("failed", POISONED_STATE),
    "waiting": ("waiting", STUCK),
}
