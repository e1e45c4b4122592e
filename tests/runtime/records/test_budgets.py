"""The count of what a session spends, and the entry of the budget that it shares with others."""

import pytest
from msgspec.structs import replace

from perdure.core.driver.budget_questions import open_question
from perdure.core.driver.draft_builder import SessionScope
from perdure.core.log import events
from perdure.core.log.events import Bound, StampedEvent
from perdure.core.session.naming import SessionRecord
from perdure.core.session.state import State, fold
from perdure.runtime.records.budgets import Spending, read_budget
from perdure.store.base import VersionMoved, Write
from perdure.store.memory import MemoryStore
from perdure.testing import ManualClock

STREAM, ROOT = "s//child", "s//root"
BOUND = Bound("task_0", ROOT, {"turns": 1, "seconds": 60})
USER = events.User(role="user", content="x", task_id="task_1", bounds=(BOUND,))
TURN = events.Assistant(role="assistant", content="", agent="a", turn=1)


def state_of(*log: events.Event) -> State:
    return fold([StampedEvent(n, n, event) for n, event in enumerate(log, 1)])


BEFORE, AFTER = state_of(USER), state_of(USER, TURN)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def store(clock: ManualClock) -> MemoryStore:
    store = MemoryStore(clock)
    await store.open()
    for stream in (STREAM, ROOT):
        await store.commit([Write(stream, create="session:a", head=0)])
    return store


def spending_of(store: MemoryStore, name: str = "child") -> Spending:
    record = SessionRecord(id=name, agent="a", parent="root", ancestry=("root",))
    return Spending(store, STREAM, record, {})


async def take_turn(store: MemoryStore, spending: Spending) -> None:
    """Count one turn."""
    commit = await spending.plan_commit([TURN], BEFORE, AFTER, store.now(), is_park=False)
    await store.commit([Write(STREAM)], commit.all_puts)
    spending.apply(commit)


async def test_time_in_which_an_approver_was_waited_for_is_not_spent(
    store: MemoryStore, clock: ManualClock
) -> None:
    spending = spending_of(store)
    await spending.read(BEFORE)
    clock.advance("10s")
    spending.skip(4_000)
    (budget,) = spending.budgets(BEFORE)
    assert budget.spent.seconds == 6
    await take_turn(store, spending)
    (budget,) = spending.budgets(AFTER)
    assert (budget.spent.seconds, budget.spent.turns) == (6, 1)


async def test_another_process_continues_the_count(store: MemoryStore) -> None:
    for turns in (1, 2, 3):
        spending = spending_of(store)
        await take_turn(store, spending)
        await spending.read(AFTER)
        (budget,) = spending.budgets(AFTER)
        assert budget.spent.turns == turns


async def test_a_shared_budget_is_read_before_each_turn(store: MemoryStore) -> None:
    spending = spending_of(store)
    assert spending.budgets(BEFORE) == []
    assert not spending.is_current(BEFORE)
    await spending.read(BEFORE)
    assert spending.is_current(BEFORE)
    assert not spending.is_current(AFTER)


async def test_an_answer_between_the_decision_to_wait_and_its_commit_refuses_the_question(
    store: MemoryStore,
) -> None:
    """Otherwise the answer would miss the session, and nobody would wake it."""
    spending = spending_of(store)
    await take_turn(store, spending)
    await spending.read(AFTER)
    (budget,) = spending.budgets(AFTER)
    reached = budget.reached("task_1")
    assert reached is not None
    scope = SessionScope("child", "", "a", 1)
    draft = open_question(AFTER, scope, reached, "p_1", 5)
    stored = await read_budget(store, BOUND.run, ROOT)
    raised = stored.put(replace(stored.record, limits={"turns": 9}))
    await store.commit([Write(ROOT)], [raised])
    with pytest.raises(VersionMoved):
        await store.commit([Write(ROOT)], spending.question_puts(draft.new_records))
    spending.forget()
    await spending.read(AFTER)
    (budget,) = spending.budgets(AFTER)
    assert budget.reached("task_1") is None


async def test_a_question_is_listed_in_the_budget_that_it_is_about(store: MemoryStore) -> None:
    spending = spending_of(store)
    await take_turn(store, spending)
    await spending.read(AFTER)
    (budget,) = spending.budgets(AFTER)
    reached = budget.reached("task_1")
    assert reached is not None
    draft = open_question(AFTER, SessionScope("child", "", "a", 1), reached, "p_1", 5)
    await store.commit([Write(ROOT)], spending.question_puts(draft.new_records))
    assert (await read_budget(store, BOUND.run, ROOT)).record.waiting == ("p_1",)


async def test_the_budget_of_an_erased_session_bounds_nobody(store: MemoryStore) -> None:
    spending = spending_of(store)
    await spending.read(BEFORE)
    assert spending.drop(ROOT)
    assert spending.budgets(BEFORE) == []
    assert not spending.drop(ROOT)
    assert not spending.drop(STREAM)
