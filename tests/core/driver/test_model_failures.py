"""A model that does not answer: asked again, replaced, given up."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.core.driver import drafts as turns
from perdure.core.driver.model_failures import (
    FALLBACK_CODES,
    FIRST_MS,
    LONGEST_MS,
    LONGEST_REQUESTED_MS,
    ModelFailure,
    RetryPolicy,
    delay_ms,
    retry_or_give_up,
)
from perdure.core.driver.verdicts import GiveUp
from perdure.core.log import events
from perdure.core.log.events import Event, StampedEvent
from perdure.core.session.state import State, fold

NOW = 1_000_000
BUSY = ModelFailure("overloaded", "MODEL_UNAVAILABLE", is_transient=True)
KEY = ModelFailure("no such key", "MODEL_KEY", "set ANTHROPIC_API_KEY")
USER = events.User(role="user", content="hi", task_id="task_1")


def state_of(*log: Event) -> State:
    return fold([StampedEvent(n, n, event) for n, event in enumerate(log, 1)])


def failing(state: State, trouble: ModelFailure, patience: RetryPolicy) -> list[Event]:
    """What is recorded while the model fails the same way again and again."""
    log: list[Event] = []
    while state.run is not None and state.run.end is None:
        assert len(log) < 100, "it never gives up"
        (fact,) = turns.record_model_failure(state, trouble, patience, NOW).facts
        log.append(fact)
        state = fold([StampedEvent(state.head + 1, NOW, fact)], state)
    return log


def test_a_passing_trouble_is_counted_and_ends_the_run_after_so_many_retries() -> None:
    """S0.25"""
    *again, end = failing(state_of(USER), BUSY, RetryPolicy(retries=3))
    assert [one.attempt for one in again if isinstance(one, events.Retry)] == [1, 2, 3]
    assert isinstance(end, events.AgentError)
    assert (end.error, end.code) == ("overloaded (asked 4 times)", "MODEL_UNAVAILABLE")
    assert end.hint == "when the provider answers again, resume the session"


def test_without_retries_the_first_failure_is_the_last() -> None:
    (end,) = failing(state_of(USER), BUSY, RetryPolicy(retries=0))
    assert isinstance(end, events.AgentError)
    assert end.error == "overloaded (asked once)"


def test_an_answer_and_a_new_run_begin_to_count_anew() -> None:
    retry = events.Retry(attempt=6, message="overloaded", next=5)
    answer = events.Assistant(role="assistant", content="", agent="a", turn=1, request_head=1)
    call = events.ToolCall(id="c", tool="t", params={}, agent="a", turn=1)
    result = events.ToolResult(tool_call_id="c", result="ok")
    error = events.AgentError(run="task_1", error="overloaded")
    again = events.AgentStart(run="task_2", agent="a")
    for log in ((USER, retry, answer, call, result), (USER, retry, error, again)):
        then = retry_or_give_up(state_of(*log), BUSY, RetryPolicy(), NOW)
        assert isinstance(then, events.Retry)
        assert then.attempt == 1


def test_a_permanent_trouble_ends_the_run_at_once_with_its_hint() -> None:
    then = retry_or_give_up(state_of(USER), KEY, RetryPolicy(), NOW)
    assert then == GiveUp("no such key", "MODEL_KEY", "set ANTHROPIC_API_KEY")


@pytest.mark.parametrize("code", sorted(FALLBACK_CODES - {"MODEL_UNAVAILABLE"}))
def test_what_is_not_the_request_s_fault_goes_to_the_next_model(code: str) -> None:
    trouble = ModelFailure("no", code)
    then = retry_or_give_up(state_of(USER), trouble, RetryPolicy(models=("a:1", "b:2")), NOW)
    assert isinstance(then, events.Retry)
    assert (then.model, then.next, then.message) == ("b:2", NOW, "no")


@pytest.mark.parametrize("code", ["MODEL_CONTEXT", "MODEL_REFUSED", "MODEL_ERROR", "INTERNAL"])
def test_what_is_the_request_s_fault_does_not(code: str) -> None:
    trouble = ModelFailure("no", code)
    then = retry_or_give_up(state_of(USER), trouble, RetryPolicy(models=("a:1", "b:2")), NOW)
    assert isinstance(then, GiveUp)


def test_each_model_has_its_own_count_and_the_last_one_ends_the_run() -> None:
    patience = RetryPolicy(retries=1, models=("a:1", "b:2", "c:3"))
    *again, end = failing(state_of(USER), BUSY, patience)
    seen = [(one.attempt, one.model) for one in again if isinstance(one, events.Retry)]
    assert seen == [(1, None), (2, "b:2"), (1, None), (2, "c:3"), (1, None)]
    assert isinstance(end, events.AgentError)


def test_the_model_that_stands_in_stays_for_the_run_and_no_longer() -> None:
    switch = events.Retry(attempt=1, message="no", next=5, model="b:2")
    answer = events.Assistant(role="assistant", content="", agent="a", turn=1, request_head=1)
    call = events.ToolCall(id="c", tool="t", params={}, agent="a", turn=1)
    state = state_of(USER, switch, answer, call)
    assert state.run is not None
    assert state.run.model == "b:2"
    done = events.AgentComplete(run="task_1", output=events.raw_json("x"), duration=1)
    new = state_of(USER, switch, done, events.User(role="user", content="more", task_id="task_2"))
    assert new.run is not None
    assert new.run.model is None


def test_a_model_that_is_no_longer_named_counts_as_the_first() -> None:
    switch = events.Retry(attempt=1, message="no", next=5, model="gone:1")
    then = retry_or_give_up(state_of(USER, switch), KEY, RetryPolicy(models=("a:1", "b:2")), NOW)
    assert isinstance(then, events.Retry)
    assert then.model == "b:2"


@given(salt=st.text(), failed=st.integers(1, 10_000), asked=st.none() | st.integers(-1, 10**12))
def test_a_delay_has_its_bounds_and_is_the_same_again(
    salt: str, failed: int, asked: int | None
) -> None:
    delay = delay_ms(salt, failed, asked)
    assert delay == delay_ms(salt, failed, asked)
    assert delay >= FIRST_MS // 2
    if asked is None:
        assert delay <= LONGEST_MS
    else:
        assert delay >= min(asked, LONGEST_REQUESTED_MS)
        assert delay <= max(LONGEST_MS, min(asked, LONGEST_REQUESTED_MS) + FIRST_MS)


def test_delays_grow_and_differ_between_sessions() -> None:
    mean = [sum(delay_ms(f"{n}", failed, None) for n in range(200)) / 200 for failed in range(1, 8)]
    assert all(before * 1.5 < after for before, after in pairwise(mean))
    assert len({delay_ms(f"{n}", 3, None) for n in range(200)}) > 150


def test_somebody_may_let_it_ask_at_once() -> None:
    retry = events.Retry(attempt=2, message="busy", next=NOW)
    state = state_of(USER, retry, events.AgentStart(run="task_1", agent="a"))
    assert state.retry is not None
    assert (state.retry.next, state.retry.attempt) == (3, 2)
    assert state.run is not None
    assert state.run.number == 1
