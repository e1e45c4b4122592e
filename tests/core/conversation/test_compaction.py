"""Where a conversation that is too long is cut, and what the model is told then."""

import json
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from perdure.core.conversation import compaction
from perdure.core.conversation.compaction import (
    MAX_FIRST_TOKENS,
    CompactionPolicy,
    Cut,
    TokenBound,
    parse_policy,
)
from perdure.core.conversation.messages import (
    AssistantMessage,
    Conversation,
    Message,
    UserMessage,
    conversation,
    summary_message,
)
from perdure.core.conversation.repair import IncrementalRepair
from perdure.core.log import events
from perdure.core.log.events import Event, StampedEvent
from perdure.core.providers.catalog import Format
from perdure.core.providers.formats import render
from perdure.core.session.state import fold
from perdure.core.transfer.forks import copy_events
from perdure.errors import ConfigError
from perdure.testing.provider_rules import check

TOOLS = [{"name": "look", "input_schema": {"type": "object"}}]


def stamped(*log: Event) -> list[StampedEvent]:
    return [StampedEvent(n, n, event) for n, event in enumerate(log, 1)]


def user(content: events.Content = "go on") -> events.User:
    return events.User(role="user", content=content)


def answer(text: str = "Seen.", **more: Any) -> events.Assistant:
    return events.Assistant(role="assistant", content=text, agent="a", **more)


def turn(name: str, size: int = 4, **more: Any) -> list[Event]:
    """An answer with one call and its result: three events."""
    return [
        answer(f"I look at {name}.", **more),
        events.ToolCall(id=name, tool="look", params={}, agent="a"),
        events.ToolResult(tool_call_id=name, result="x" * size),
    ]


def compacted(up_to: int, summary: str = "S", *, first: bool = False) -> events.Compacted:
    return events.Compacted(up_to=up_to, summary=summary, first=first)


def turns(*names: str, **more: Any) -> list[Event]:
    return [event for name in names for event in turn(name, **more)]


# --- where ------------------------------------------------------------------------------------


def test_the_last_turns_are_kept_whole() -> None:
    log = stamped(user(), *turns("a", "b", "c"))
    assert compaction.find_cut(log, CompactionPolicy(keep=1)) == Cut(
        up_to=7, first=True, tokens=compaction.estimate_tokens(log)
    )
    found = compaction.find_cut(log, CompactionPolicy(keep=2))
    assert found is not None
    assert found.up_to == 4


def test_where_all_turns_would_be_kept_the_last_one_is() -> None:
    found = compaction.find_cut(stamped(user(), *turns("a", "b", "c")), CompactionPolicy(keep=9))
    assert found is not None
    assert found.up_to == 7


@pytest.mark.parametrize("log", [[], [user()], [user(), *turns("a")]])
def test_there_is_nothing_to_cut_off_a_single_turn(log: list[Event]) -> None:
    assert compaction.find_cut(stamped(*log), CompactionPolicy(keep=1)) is None


def test_what_a_summary_stands_for_is_not_cut_off_again() -> None:
    log = stamped(user(), *turns("a", "b", "c"), compacted(7))
    assert compaction.find_cut(log, CompactionPolicy(keep=1)) is None
    more = stamped(user(), *turns("a", "b", "c"), compacted(7), *turns("d"))
    found = compaction.find_cut(more, CompactionPolicy(keep=1))
    assert found is not None
    assert found.up_to == 10
    assert compaction.summary_end(more) == 7


def test_a_summary_that_is_too_much_is_made_of_half() -> None:
    log = stamped(user(), *turns(*"abcdefgh"))
    tried = compaction.find_cut(log, CompactionPolicy(keep=1))
    sizes = []
    while tried is not None:
        sizes.append(tried.up_to)
        tried = compaction.shorter_cut(log, tried)
    assert sizes == [22, 10, 4]


def test_a_long_first_message_is_told_in_the_summary_only() -> None:
    log = stamped(user("x" * 4 * (MAX_FIRST_TOKENS + 1)), *turns("a", "b"))
    found = compaction.find_cut(log, CompactionPolicy(keep=1))
    assert found is not None
    assert not found.first


@pytest.mark.parametrize(
    "hiding",
    [
        events.ToolCall(id="a", tool="look", params={}, agent="a", redact=("pin",)),
        events.User(role="user", content="pin 1234", redact=True),
    ],
)
def test_a_summary_of_what_is_not_shown_is_not_shown(hiding: Event) -> None:
    log = stamped(user(), hiding, *turns("b", "c"))
    open_, hidden = (
        compaction.find_cut(one, CompactionPolicy(keep=1)) for one in (log[:1] + log[2:], log)
    )
    assert open_ is not None
    assert hidden is not None
    assert (open_.redact, hidden.redact) == (False, True)


# --- when -------------------------------------------------------------------------------------


def test_the_size_is_what_the_last_answer_reported_and_an_estimate_of_the_rest() -> None:
    used = {"inputTokens": 1000, "outputTokens": 50}
    log = stamped(user("x" * 400), *turn("a", 80, usage=used))
    assert compaction.estimate_tokens(log) == 1050 + 20


def test_an_input_that_the_answer_had_not_seen_counts_too() -> None:
    used = {"inputTokens": 1000}
    log = stamped(
        user("x" * 400), user("y" * 40), answer(usage=used, request_head=1), user("z" * 4)
    )
    assert compaction.estimate_tokens(log) == 1000 + 10 + 1


def test_without_reports_all_is_estimated() -> None:
    parts: list[events.Part] = [{"type": "text", "text": "x" * 400}, {"type": "file"}]
    log = stamped(user(parts), answer("y" * 40))
    assert compaction.estimate_tokens(log) == 100 + 1_500 + 10


def test_after_a_summary_only_what_is_still_told_counts() -> None:
    used = {"inputTokens": 9_000}
    log = [user("f" * 40), *turn("a", 4_000, usage=used), *turn("b", 400, usage=used)]
    after = stamped(*log, compacted(4, "s" * 80))
    assert compaction.estimate_tokens(after) == int(13 / 4 + 2 / 4 + 100 + 20)
    answered = [*log, compacted(4, "s" * 80), *turn("c", 8, usage={"inputTokens": 50})]
    assert compaction.estimate_tokens(stamped(*answered)) == 52


def test_whoever_has_seen_enough_looks_no_further() -> None:
    log = stamped(user("x" * 4_000), *turns("a", "b", "c", size=400))
    assert 100 <= compaction.estimate_tokens(log, 100) < 200
    assert compaction.estimate_tokens(log) > 1_300


@pytest.mark.parametrize(
    "policy,window,is_wanted",
    [
        (CompactionPolicy(), 1_250, True),
        (CompactionPolicy(), 1_251, False),
        (CompactionPolicy(), None, False),
        (CompactionPolicy(at=0.5), 2_000, True),
        (CompactionPolicy(at=0.5, window=4_000), 2_000, False),
        (CompactionPolicy(at=1_000), None, True),
        (CompactionPolicy(at=1_001), 10, False),
    ],
)
def test_it_is_wanted_from_a_share_of_the_window_or_a_number_on(
    policy: CompactionPolicy, window: int | None, *, is_wanted: bool
) -> None:
    used = {"inputTokens": 900, "outputTokens": 99}
    log = stamped(user(), *turns("a"), *turn("b", 4, usage=used))
    found = compaction.automatic_cut(log, policy, window)
    assert (found is not None) is is_wanted
    assert found is None or found.tokens == 1_000


def test_there_is_one_summary_at_most_before_an_answer() -> None:
    log = [user(), *turns("a", "b", "c", usage={"inputTokens": 5_000})]
    policy = CompactionPolicy(at=100, keep=2)
    assert compaction.automatic_cut(stamped(*log), policy, None) is not None
    assert compaction.automatic_cut(stamped(*log, compacted(4)), policy, None) is None
    again = compaction.automatic_cut(
        stamped(*log, compacted(4), *turns("d", size=9_999)), policy, None
    )
    assert again is not None
    assert again.up_to == 7


# --- what is told -----------------------------------------------------------------------------


def test_the_summary_stands_for_what_was_said_before() -> None:
    log = [user("first"), *turns("a", "b"), user("more"), *turn("c"), compacted(7, "S")]
    messages = conversation(stamped(*log))
    whole = conversation(stamped(*log[:-1]))
    assert messages == [summary_message("S"), *whole[5:]]
    with_first = conversation(stamped(*log[:-1], compacted(7, "S", first=True)))
    assert with_first == [UserMessage("first"), summary_message("S"), *whole[5:]]


def test_an_input_that_no_covered_answer_had_seen_is_kept() -> None:
    log = [user("first"), answer(request_head=1), user("queued"), *turn("b", request_head=3)]
    log = [user("first"), user("queued"), answer(request_head=1), *turn("b", request_head=3)]
    messages = conversation(stamped(*log, compacted(3)))
    assert messages[:2] == [summary_message("S"), UserMessage("queued")]


def test_a_second_summary_takes_the_place_of_the_first() -> None:
    log = stamped(
        user("first"),
        *turns("a", "b"),
        compacted(4, "one", first=True),
        *turns("c", "d"),
        compacted(11, "two", first=True),
    )
    messages = conversation(log)
    assert messages[:2] == [UserMessage("first"), summary_message("two")]
    assert [m.text for m in messages if isinstance(m, AssistantMessage)] == ["I look at d."]


def test_an_event_that_covers_nothing_changes_nothing() -> None:
    log = [user("first"), *turns("a", "b")]
    assert conversation(stamped(*log, compacted(0))) == conversation(stamped(*log))
    assert conversation(stamped(compacted(9))) == []


def test_it_is_counted_as_a_request_but_is_no_turn() -> None:
    log = [user(), *turns("a", "b", usage={"inputTokens": 10, "cost": 1.0})]
    summary = events.Compacted(up_to=4, summary="S", usage={"inputTokens": 7, "cost": 0.5})
    before, after = fold(stamped(*log)), fold(stamped(*log, summary))
    assert after.usage == {"requests": 3, "inputTokens": 27, "cost": 2.5}
    assert before.run is not None
    assert after.run is not None
    assert (after.turn, after.run.turns) == (before.turn, before.run.turns)
    assert after.run.tokens == before.run.tokens + 7
    assert after.is_model_due


def test_a_fork_finds_the_same_cut_under_its_own_numbers() -> None:
    start = events.AgentStart(run="r", agent="a", worker="w")
    log = stamped(user("first"), start, *turns("a", "b"), compacted(5), *turns("c"))
    fork = copy_events(log, log[-1].seq, lambda name: name)
    assert conversation(fork) == conversation(log)
    early = copy_events(log, 8, lambda name: name)
    assert conversation(early) == conversation(log[:8])


# --- always valid -----------------------------------------------------------------------------

THOUGHT = {"type": "thinking", "thinking": "hm", "signature": "sig"}


def native(name: str, *, calls: bool) -> Raw:
    blocks: list[Any] = [THOUGHT, {"type": "text", "text": f"I look at {name}."}]
    if calls:
        blocks.append({"type": "tool_use", "id": name, "name": "look", "input": {}})
    return Raw(json.dumps(blocks).encode())


@st.composite
def logs(draw: st.DrawFn) -> list[Event]:
    """Turns with and without calls, thinking, inputs in between, and summaries anywhere settled."""
    log: list[Event] = [user(draw(st.sampled_from(["first", " ", "f" * 9])))]
    ends: list[int] = []
    for n in range(draw(st.integers(1, 8))):
        calls = [f"c{n}_{k}" for k in range(draw(st.integers(0, 2)))]
        thinks = draw(st.booleans()) and len(calls) < 2
        name = calls[0] if calls else f"t{n}"
        more: dict[str, Any] = {"provider": "anthropic", "model": "claude-x"} if thinks else {}
        if thinks:
            more["native"] = native(name, calls=bool(calls))
        log.append(answer(f"I look at {name}.", request_head=len(log), **more))
        log += [events.ToolCall(id=one, tool="look", params={}, agent="a") for one in calls]
        for one in draw(st.permutations(calls)):
            if draw(st.integers(0, 9)):  # else it was lost
                log.append(events.ToolResult(tool_call_id=one, result=f"result of {one}"))
        ends.append(len(log))
        if draw(st.booleans()):
            log.append(user(f"input {n}"))
        if draw(st.integers(0, 3)) == 0:
            up_to = draw(st.sampled_from(ends))
            log.append(
                compacted(up_to, draw(st.sampled_from(["S", " "])), first=draw(st.booleans()))
            )
    if not isinstance(log[-1], events.User):
        log.append(user("and now?"))
    return log


def refused(messages: list[Message]) -> list[Any]:
    found: list[Any] = []
    for wanted in get_args(Format):
        body = {"max_tokens": 1, "tools": TOOLS, **render(messages, wanted)}
        found += check(body, wanted)
    return found


@given(logs())
def test_every_provider_takes_the_conversation_before_and_after(log: list[Event]) -> None:
    """G6"""
    told, history = Conversation(), IncrementalRepair()
    for one in stamped(*log):
        told.add(one)
        if isinstance(one.event, events.Compacted):
            history = IncrementalRepair()
        if isinstance(one.event, events.Compacted | events.User):
            messages = history.repair(told.messages())
            if isinstance(messages[-1], UserMessage):
                assert refused(messages) == []
    whole = told.messages()
    for up_to in range(1, len(log)):
        asked = [
            *IncrementalRepair().repair(told.messages_up_to(up_to)),
            UserMessage("Summarise."),
        ]
        assert refused(asked) == []
    assert conversation(stamped(*log)) == whole


@given(logs())
def test_turns_after_the_cut_are_told_as_they_were(log: list[Event]) -> None:
    """G6"""
    cuts = [event.up_to for event in log if isinstance(event, events.Compacted)]
    plain = [event for event in log if not isinstance(event, events.Compacted)]
    if not cuts:
        return
    kept = [
        event.content
        for seq, event in enumerate(log, 1)
        if isinstance(event, events.Assistant) and seq > max(cuts)
    ]
    after, whole = conversation(stamped(*log)), conversation(stamped(*plain))
    answers = [one for one in after if isinstance(one, AssistantMessage)]
    assert [one.text for one in answers] == kept
    count = len(kept)
    first = next((n for n, one in enumerate(after) if one in answers), len(after))
    originals = [one for one in whole if isinstance(one, AssistantMessage)][-count:]
    assert answers == (originals if count else [])
    assert after[first:] == (whole[whole.index(originals[0]) :] if count else [])


# --- what an agent says -----------------------------------------------------------------------


def test_it_is_on_unless_it_is_off() -> None:
    assert parse_policy(True, "a") == CompactionPolicy() == parse_policy({}, "a")
    assert parse_policy(False, "a") is None
    assert parse_policy({"at": 5_000, "keep": 2}, "a") == CompactionPolicy(at=5_000, keep=2)


@pytest.mark.parametrize(
    "said,told",
    [
        ({"at": 0}, "at"),
        ({"keep": 0}, "keep"),
        ({"keep": 1.5}, "keep"),
        ({"window": "200k"}, "window"),
        ({"instructions": ""}, "instructions"),
        ({"until": 1}, "until"),
    ],
)
def test_what_cannot_be_is_refused(said: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=f"agent 'a': compaction: .*{told}") as refusal:
        parse_policy(said, "a")
    assert refusal.value.code == "AGENT_INVALID"


@given(st.data())
def test_the_bound_of_a_growing_log_is_never_below_its_estimate(data: st.DataObject) -> None:
    bound = TokenBound()
    log: list[Event] = []
    for _ in range(data.draw(st.integers(1, 6))):
        text = "x" * data.draw(st.integers(0, 50))
        usage = data.draw(st.none() | st.integers(0, 200).map(lambda n: {"inputTokens": n}))
        log += [user(text), answer(text, usage=usage, request_head=len(log))]
        if data.draw(st.booleans()):
            log.append(compacted(data.draw(st.integers(1, len(log)))))
        assert bound.update(stamped(*log)) >= compaction.estimate_tokens(stamped(*log))
