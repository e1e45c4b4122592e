"""Drafts of the question that a run asks when it reaches a limit of its budget."""

from perdure.core.driver.draft_builder import Draft, SessionScope, draft_builder
from perdure.core.log import events
from perdure.core.log.events import ReachedLimit
from perdure.core.pending.record import PendingRecord, PendingTime, Verb, pending_event
from perdure.core.pending.settlement import CANCELLED
from perdure.core.session.budgets import limit_prompt, limit_schema
from perdure.core.session.state import State


def open_question(
    state: State, scope: SessionScope, reached: ReachedLimit, pending_id: str, now: int
) -> Draft:
    """Let the run wait, with a question of its own, for a higher limit of a budget."""
    builder = draft_builder(state, now)
    record = PendingRecord(
        id=pending_id,
        session_id=scope.session_id,
        tenant=scope.tenant,
        agent=scope.agent,
        task_id=builder.task,
        message_id=f"m{state.turn}",
        part_id="",
        call_id="",
        effect_id="",
        tool=events.BUDGET,
        input={},
        kind="question",
        time=PendingTime(created=now),
        prompt=limit_prompt(reached),
        reason=events.BUDGET,
        budget=reached,
        started_by=builder.authors,
        schema=limit_schema(reached),
        ancestry=scope.ancestry,
        hooks=scope.hooks,
    )
    builder.draft.new_records.append(record)
    builder.add(pending_event(record))
    return builder.draft


def close_question(state: State, now: int) -> Draft:
    """Cancel the question of a run that ends for another reason."""
    builder = draft_builder(state, now)
    wait = None if state.run is None else state.run.wait
    if wait is not None and not wait.is_denied:
        builder.settle_pending("", wait.pending_id, Verb.CANCEL, CANCELLED)
    return builder.draft
