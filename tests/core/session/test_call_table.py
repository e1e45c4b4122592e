"""The table of a turn's calls: what a step looks at, and what a fold may change."""

from typing import Any

import pytest

from perdure.core.driver.effects import StartCalls
from perdure.core.driver.plan import SLOTS, DriveView, plan
from perdure.core.log import events
from perdure.core.log.events import Event, StampedEvent
from perdure.core.session.call_table import CallTable
from perdure.core.session.calls import Call, CallStatus
from perdure.core.session.state import State, fold


def log_of(*facts: Event, after: int = 0) -> list[StampedEvent]:
    return [StampedEvent(seq, 0, fact) for seq, fact in enumerate(facts, after + 1)]


def turn_of(number: int) -> list[Event]:
    answer = events.Assistant(role="assistant", content="", agent="a", turn=1, request_head=1)
    user = events.User(role="user", content="hi", task_id="task_1")
    names = [f"c{index}" for index in range(number)]
    calls = [events.ToolCall(id=n, tool="t", params={}, agent="a", turn=1) for n in names]
    return [user, answer, *calls]


def intent(call_id: str) -> events.ToolStarted:
    return events.ToolStarted(id=call_id, effect_id=f"e_{call_id}", attempt=1, epoch=2)


def result(call_id: str) -> events.ToolResult:
    return events.ToolResult(tool_call_id=call_id, result="ok")


def test_a_call_is_kept_with_others_of_its_status() -> None:
    table = CallTable()
    for status, place in [
        (CallStatus.NEW, "new"),
        (CallStatus.RUNNING, "active"),
        (CallStatus.SETTLED, None),
    ]:
        table.put(Call("c", "t", {}, 1, 0, status=status))
        places = {name for name in ("new", "active", "strays") if getattr(table, name)}
        assert places == ({place} if place else set())
        assert list(table) == ["c"]


def test_a_settled_call_with_an_open_pending_record_is_a_stray() -> None:
    table = CallTable()
    table.put(Call("c", "t", {}, 1, 0, status=CallStatus.SETTLED, pending_id="p_1"))
    assert list(table.strays) == ["c"]
    assert not table.has_open


def test_a_fold_changes_no_earlier_state() -> None:
    before = fold(log_of(*turn_of(3)))
    after = fold(log_of(intent("c0"), result("c0"), after=5), before)
    assert [c.status for c in before.calls.values()] == [CallStatus.NEW] * 3
    assert [c.id for c in after.open_calls] == ["c1", "c2"]
    assert fold(log_of(intent("c1"), after=7), after).calls.new.keys() == {"c2"}
    assert after.calls.new.keys() == {"c1", "c2"}


def test_a_fold_copies_the_calls_of_a_turn_once(monkeypatch: pytest.MonkeyPatch) -> None:
    before = fold(log_of(*turn_of(100)))
    copies = []
    create = CallTable.__init__

    def counted(self: CallTable, table: Any = None) -> None:
        copies.append(self)
        create(self, table)

    monkeypatch.setattr(CallTable, "__init__", counted)
    fold(log_of(*[intent(f"c{index}") for index in range(100)], after=102), before)
    assert len(copies) == 1


class _Counted(dict[str, Call]):
    looked_at = 0

    def values(self) -> Any:
        for call in super().values():
            self.looked_at += 1
            yield call


def test_a_step_looks_at_no_more_new_calls_than_it_can_start() -> None:
    state: State = fold(log_of(*turn_of(10_000)))
    counted = state.calls.new = _Counted(state.calls.new)
    effect = plan(state, DriveView(epoch=2), 0)
    assert isinstance(effect, StartCalls)
    assert [call.id for call in effect.calls] == [f"c{index}" for index in range(SLOTS)]
    assert counted.looked_at <= SLOTS + 1
