"""The log of a session in memory."""

import asyncio
import gc
from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from perdure.core.conversation.messages import AssistantMessage, Conversation, Message
from perdure.core.conversation.repair import IncrementalRepair, incremental
from perdure.core.log.events import Assistant, Compacted, Event, StampedEvent, User
from perdure.runtime.records.log import PAGE, Log, as_record
from perdure.store.memory import MemoryStore


def test_a_log_compares_stored_records_with_its_own_by_their_bytes() -> None:
    log = Log(MemoryStore(), "s/t/1")
    facts = [User(role="user", content=text) for text in ("one", "two")]
    records = [as_record(fact, 1) for fact in facts]
    log.append(facts, records)
    assert log.has_records(records, 0)
    assert log.has_records(records[1:], 1)
    assert not log.has_records(records[1:], 0)
    assert not log.has_records([records[0], replace(records[1], data=b"{}")], 0)
    assert not log.has_records([records[0], replace(records[1], type="other")], 0)
    assert not log.has_records([*records, records[0]], 0)


def long_log(*last: Event) -> Log:
    """Return a log of three pages of turns, and these events."""
    log = Log(MemoryStore(), "s/t/1")
    facts: list[Event] = []
    for turn in range(1, 3 * PAGE // 2):
        facts.append(User(role="user", content=f"question {turn}"))
        facts.append(Assistant(role="assistant", content=f"answer {turn}", agent="a", turn=turn))
    facts += last
    log.append(facts, [as_record(fact, 1) for fact in facts])
    return log


def test_the_garbage_collector_visits_no_event_of_a_long_log() -> None:
    """A full collection stops the event loop for as long as all objects take that it visits."""
    before = len(gc.get_objects())
    log = long_log()
    messages = log.messages()
    after = len(gc.get_objects())
    assert len(messages) > 2 * PAGE
    assert after - before < PAGE / 10


SUMMARY = Compacted(summary="so far", up_to=PAGE + 10)
EMPTY = Assistant(role="assistant", content="", agent="a")


@pytest.mark.parametrize("last", [(), (SUMMARY,), (EMPTY,)])
async def test_a_log_that_is_prepared_in_pages_has_the_same_messages(last: Sequence[Event]) -> None:
    log, twin = long_log(*last), long_log(*last)
    await log.prepare_messages()
    assert log.is_prepared
    assert log.messages() == twin.messages()
    assert log.covered_messages(PAGE) == twin.covered_messages(PAGE)
    assert log.token_bound.update(log.events) == twin.token_bound.update(twin.events)


async def test_between_two_pages_the_event_loop_runs_other_tasks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log, longest = long_log(), 0
    added = 0
    add = Conversation.add

    def counted(self: Conversation, stamped: StampedEvent) -> None:
        nonlocal added, longest
        added += 1
        longest = max(longest, added)
        add(self, stamped)

    async def tick() -> None:
        nonlocal added
        while True:
            added = 0
            await asyncio.sleep(0)

    monkeypatch.setattr(Conversation, "add", counted)
    ticking = asyncio.create_task(tick())
    await asyncio.sleep(0)
    await log.prepare_messages()
    log.messages()
    ticking.cancel()
    assert longest == PAGE


async def test_a_log_with_an_invalid_turn_is_not_checked_again_for_each_page(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = Log(MemoryStore(), "s/t/1")
    facts: list[Event] = [User(role="user", content="go")]
    facts += [Assistant(role="assistant", content="", agent="a") for _ in range(5 * PAGE)]
    log.append(facts, [as_record(fact, 1) for fact in facts])
    checks = 0
    is_valid = IncrementalRepair.is_valid

    def counted(self: IncrementalRepair, messages: list[Message]) -> bool:
        nonlocal checks
        checks += 1
        return is_valid(self, messages)

    monkeypatch.setattr(IncrementalRepair, "is_valid", counted)
    await log.prepare_messages()
    assert checks == 1


async def test_turns_that_were_checked_are_not_checked_again_for_a_summary(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log, plain = long_log(), long_log()
    whole = IncrementalRepair().repair(plain.covered_messages(PAGE))
    log.messages()
    turns = 0
    is_turn = incremental._is_turn

    def counted(answer: AssistantMessage, results: list[Message]) -> bool:
        nonlocal turns
        turns += 1
        return is_turn(answer, results)

    monkeypatch.setattr(incremental, "_is_turn", counted)
    assert log.covered_messages(PAGE) == whole
    assert turns == 1  # the last turn may still grow
