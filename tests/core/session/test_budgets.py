"""What a run and everything below it have spent, and the limits that bound it."""

import pytest
from msgspec.structs import replace

from perdure.core.json_values import schema_defect
from perdure.core.log import events
from perdure.core.log.events import Bound, ReachedLimit, StampedEvent
from perdure.core.pending.commands import CancelCall, Deny, Respond
from perdure.core.pending.record import PendingRecord, PendingTime
from perdure.core.pending.settlement import settle
from perdure.core.session.budgets import (
    LIMITS,
    BudgetRecord,
    BudgetState,
    Spent,
    UsageRecord,
    decode,
    encode,
    limit_prompt,
    limit_schema,
    raised,
    run_bounds,
    spent_in,
    total_spent,
    usage_below,
)
from perdure.core.session.children import BACKGROUND_AUTHOR
from perdure.core.session.state import Run, fold
from perdure.errors import Corrupt, Refused

OUTER = Bound("task_0", "s//top", {"turns": 50})
REACHED = ReachedLimit("task_1", "cost", 2.5, {"turns": 4, "cost": 2.6})


def run_of(*log: events.Event) -> Run:
    run = fold([StampedEvent(n, n, event) for n, event in enumerate(log, 1)]).run
    assert run is not None
    return run


def message(task: str, by: str | None = None, bounds: tuple[Bound, ...] = ()) -> events.User:
    return events.User(role="user", content="x", task_id=task, by=by, bounds=bounds)


END = events.AgentComplete(run="task_1", output=events.raw_json("x"), duration=1)
FAILED = events.AgentError(run="task_1", error="no")


def test_a_run_is_bounded_by_those_that_launched_it_and_by_its_own_agent() -> None:
    run = run_of(message("task_1", bounds=(OUTER,)))
    own = Bound("task_1", "s//s", {"cost": 1})
    assert run_bounds(run, "s//s", {"cost": 1}) == (OUTER, own)
    assert run_bounds(run, "s//s", {}) == (OUTER,)
    assert run_bounds(None, "s//s", {"cost": 1}) == ()


def test_a_notification_continues_the_budgets_of_the_run_before_it() -> None:
    first = message("task_1", bounds=(OUTER,))
    run = run_of(first, END, message("task_2", BACKGROUND_AUTHOR))
    assert (run.id, run.budget_run, run.bounds) == ("task_2", "task_1", (OUTER,))
    after = run_of(first, END, message("task_2", BACKGROUND_AUTHOR), END, message("task_3"))
    assert (after.budget_run, after.bounds) == ("task_3", ())


def test_a_run_that_starts_again_stays_bounded_from_above() -> None:
    again = events.AgentStart(run="task_2", agent="a")
    run = run_of(message("task_1", bounds=(OUTER,)), FAILED, again)
    assert (run.budget_run, run.bounds) == ("task_2", (OUTER,))


def test_a_queued_message_changes_no_bounds() -> None:
    assert run_of(message("task_1"), message("task_1", bounds=(OUTER,))).bounds == ()


def test_turns_and_summaries_are_spent_and_other_events_cost_nothing() -> None:
    usage = {"inputTokens": 10.0, "outputTokens": 5.0, "cost": 0.5}
    turn = events.Assistant(role="assistant", content="", agent="a", usage=usage)
    summary = events.Compacted(up_to=2, summary="s", usage=usage)
    assert spent_in([turn, summary, FAILED], 1_500) == Spent(1, 30, 1.5, 1.0)
    assert spent_in([replace(turn, usage=None)]) == Spent(turns=1)
    assert total_spent([Spent(1, 2, 0.1, 0.1), Spent(1, 2, 0.2, 0.2)]) == Spent(2, 4, 0.3, 0.3)


def test_new_limits_replace_old_ones_and_end_the_waits_that_they_answer() -> None:
    record = BudgetRecord({"turns": 9}, 3, ("task_1",), ("p_1", "p_2", "p_3"))
    budget = BudgetState(OUTER, Spent(turns=9), record)
    after = raised(budget, {"turns": 20, "cost": 1}, ["p_1", "p_3"])
    assert after == BudgetRecord({"turns": 20, "cost": 1}, 3, (), ("p_2",))


@pytest.mark.parametrize("limits", [{"turns": 9}, {"turns": 12, "tokens": 5}, {"children": 3}])
def test_new_limits_must_exceed_what_is_spent(limits: dict[str, float]) -> None:
    budget = BudgetState(OUTER, Spent(turns=9, tokens=5), BudgetRecord(children=3))
    with pytest.raises(Refused) as caught:
        raised(budget, limits, [])
    assert caught.value.code == "ANSWER_INVALID"


def test_the_question_names_the_limit_and_an_answer_to_it() -> None:
    assert limit_prompt(REACHED) == (
        "The run reached the limit of its budget: cost 2.5. Respond with a new limit such as "
        '{"cost":5.0} to continue it, or deny to end it.'
    )
    schema = limit_schema(REACHED)
    assert schema_defect(schema) is None
    assert (set(schema["properties"]), schema["required"]) == (set(LIMITS), ["cost"])


def question() -> PendingRecord:
    return PendingRecord(
        id="p_1",
        session_id="s",
        agent="a",
        task_id="task_1",
        message_id="m4",
        part_id="",
        call_id="",
        effect_id="",
        tool=events.BUDGET,
        input={},
        kind="question",
        time=PendingTime(1),
        reason=events.BUDGET,
        budget=REACHED,
        schema=limit_schema(REACHED),
    )


def test_no_outcome_of_the_question_is_the_result_of_a_call() -> None:
    outcomes = [
        settle(question(), Respond("ana", "ui", {"cost": 9}), 5),
        settle(question(), Deny("ana", "ui"), 5),
        settle(question(), CancelCall("ana"), 5),
    ]
    assert [[type(fact).__name__ for fact in outcome.facts] for outcome in outcomes] == [
        ["Decision"],
        ["Decision"],
        ["Settled"],
    ]
    (decision,) = outcomes[0].facts
    assert isinstance(decision, events.Decision)
    assert decision.output == {"cost": 9}


def test_the_usage_below_a_session_is_that_of_its_descendants() -> None:
    records = [
        UsageRecord("mid", ("top",), {"requests": 1}),
        UsageRecord("leaf", ("top", "mid"), {"requests": 2}),
        UsageRecord("other", ("top", "second"), {"requests": 4}),
    ]
    assert usage_below(records, "top", 0) == [{"requests": n} for n in (1, 2, 4)]
    assert usage_below(records, "mid", 1) == [{"requests": 2}]
    assert usage_below(records, "leaf", 2) == []


def test_records_survive_their_entries_and_damage_is_reported() -> None:
    record = BudgetRecord({"turns": 9}, 3, ("task_1",), ("p_1",))
    assert decode(encode(record), BudgetRecord) == record
    assert decode(encode(Spent(1, 2, 3.5, 0.25)), Spent) == Spent(1, 2, 3.5, 0.25)
    with pytest.raises(Corrupt):
        decode(b"{", Spent)
