"""Sessions as they were after one of their events."""

import asyncio

from perdure.core.session.calls import Call
from perdure.core.session.state import State, fold
from perdure.core.session.usage import display_usage
from perdure.errors import NotFound
from perdure.runtime.records.entries import SessionEntry, erased_as_not_found
from perdure.runtime.records.log import PAGE, decode_record
from perdure.store.base import Store
from perdure.views.sessions import PastCall, PastState
from perdure.views.usage import Usage


async def state_at(store: Store, entry: SessionEntry, seq: int) -> PastState:
    """Return the session after an event. Raises NotFound, Corrupt.

    A long log is read in pages: while one is folded, nothing else in this process runs.
    """
    state = State()
    while state.head < seq:
        limit = min(PAGE, seq - state.head)
        with erased_as_not_found(entry.record.id):
            page = await store.read(entry.stream, state.head, limit)
        if not page.records:
            raise NotFound(
                f"session {entry.record.id!r} has {page.head} events, and none has the seq {seq}",
                code="EVENT_NOT_FOUND",
                hint=f"use a seq from 1 to {page.head}",
            )
        state = fold([decode_record(record) for record in page.records], state)
        await asyncio.sleep(0)
    return _past_state(entry, state)


def _past_state(entry: SessionEntry, state: State) -> PastState:
    return PastState(
        session_id=entry.record.id,
        at=state.head,
        timestamp_ms=state.updated_at,
        state=state.status,
        task_id=None if state.run is None else state.run.id,
        turns=state.turn,
        text=state.text,
        usage=Usage.of(display_usage(state.usage)),
        todos=tuple(state.todos),
        metadata=dict(state.metadata),
        calls=tuple([_past_call(call) for call in state.calls.values()]),
        children=tuple([child.task_id for child in state.children.values()]),
        permissions=tuple([permission.text for permission in state.permissions]),
    )


def _past_call(call: Call) -> PastCall:
    return PastCall(
        call_id=call.id,
        tool=call.tool,
        args=call.redacted_params,
        status=str(call.status),
        kind=call.kind,
        pending_id=call.approval_id or call.pending_id,
    )
