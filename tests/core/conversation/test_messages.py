"""The conversation in a log: whose words come where."""

from hypothesis import given
from hypothesis import strategies as st

from perdure.core.conversation.messages import (
    AssistantMessage,
    Message,
    RequestedCall,
    ToolMessage,
    UserMessage,
    conversation,
)
from perdure.core.log import events
from perdure.core.log.events import Event, StampedEvent


def user(content: events.Content) -> events.User:
    return events.User(role="user", content=content)


def answer(text: str, turn: int, head: int) -> events.Assistant:
    return events.Assistant(role="assistant", content=text, agent="a", turn=turn, request_head=head)


def asked(call_id: str) -> events.ToolCall:
    return events.ToolCall(id=call_id, tool=f"t_{call_id}", params={"n": 1}, agent="a", turn=1)


def told(
    call_id: str, result: events.Content = "ok", *, is_error: bool = False
) -> events.ToolResult:
    return events.ToolResult(tool_call_id=call_id, result=result, is_error=is_error)


def said(*log: Event) -> list[Message]:
    return conversation([StampedEvent(n, n, event) for n, event in enumerate(log, 1)])


def test_results_keep_the_order_of_the_calls() -> None:
    """S0.27"""
    log: list[Event] = [user("go"), answer("", 1, 1), asked("a"), asked("b"), asked("c")]
    messages = said(*log, told("c", "3"), told("a", "1"), told("b", "2"))
    assert messages[2:] == [
        ToolMessage("a", "t_a", "1"),
        ToolMessage("b", "t_b", "2"),
        ToolMessage("c", "t_c", "3"),
    ]


def test_the_calls_of_a_turn_stand_in_its_answer() -> None:
    messages = said(user("go"), answer("I will", 1, 1), asked("a"), asked("b"))
    asking = AssistantMessage(
        "I will", (RequestedCall("a", "t_a", {"n": 1}), RequestedCall("b", "t_b", {"n": 1}))
    )
    assert messages == [UserMessage("go"), asking]


def test_what_an_answer_had_not_seen_comes_after_it() -> None:
    """E6"""
    log: list[Event] = [user("one"), user("two"), answer("to one", 1, 1), answer("to two", 2, 3)]
    assert said(*log) == [
        UserMessage("one"),
        AssistantMessage("to one"),
        UserMessage("two"),
        AssistantMessage("to two"),
    ]


def test_a_message_while_calls_are_open_comes_after_their_results() -> None:
    """S0.30"""
    log: list[Event] = [
        user("go"),
        answer("", 1, 1),
        asked("a"),
        user("hurry"),
        told("a"),
        user("please"),
    ]
    kinds = [type(one) for one in said(*log)]
    assert kinds == [UserMessage, AssistantMessage, ToolMessage, UserMessage, UserMessage]
    then = said(*log, answer("done", 2, 6))
    assert then[-3:] == [UserMessage("hurry"), UserMessage("please"), AssistantMessage("done")]


def test_the_first_result_wins() -> None:
    """S0.35"""
    messages = said(
        user("go"), answer("", 1, 1), asked("a"), told("a", "no", is_error=True), told("a", "yes")
    )
    assert messages[2:] == [ToolMessage("a", "t_a", "no", is_error=True)]


def test_a_call_id_may_come_again_in_a_later_turn() -> None:
    log: list[Event] = [user("go"), answer("", 1, 1), asked("a"), told("a", "first")]
    messages = said(*log, answer("", 2, 4), asked("a"), told("a", "second"))
    assert [one.content for one in messages if isinstance(one, ToolMessage)] == ["first", "second"]


def test_content_of_parts_is_kept_as_it_is() -> None:
    parts: events.Content = [{"type": "text", "text": "ž"}, {"type": "file", "blob": "sha256:0"}]
    messages = said(user(parts), answer("", 1, 1), asked("a"), told("a", parts))
    assert messages[0] == UserMessage(parts)
    assert messages[2] == ToolMessage("a", "t_a", parts)


@st.composite
def settled_logs(draw: st.DrawFn) -> tuple[list[Event], int]:
    """Turns with up to four calls, results in any order, messages anywhere; and how many said."""
    log: list[Event] = [user("m0")]
    count = 1
    for turn in range(1, draw(st.integers(1, 4)) + 1):
        seen = len(log)
        for _ in range(draw(st.integers(0, 2))):  # said while the model was thinking
            log.append(user(f"m{count}"))
            count += 1
        log.append(answer(f"answer {turn}", turn, seen))
        names = [f"c{turn}_{n}" for n in range(draw(st.integers(0, 4)))]
        log += [asked(name) for name in names]
        for name in draw(st.permutations(names)):
            if draw(st.booleans()):
                log.append(user(f"m{count}"))
                count += 1
            log.append(told(name))
            if draw(st.booleans()):
                log.append(told(name, "again"))
    return log, count


@given(settled_logs())
def test_every_call_of_a_settled_log_has_one_result_directly_after_it(
    made: tuple[list[Event], int],
) -> None:
    """S0.27 G6"""
    messages = said(*made[0])
    while messages:
        first = messages.pop(0)
        assert not isinstance(first, ToolMessage)
        if isinstance(first, AssistantMessage):
            results, messages = messages[: len(first.calls)], messages[len(first.calls) :]
            answered = [one.call_id for one in results if isinstance(one, ToolMessage)]
            assert answered == [call.id for call in first.calls]
            assert all(isinstance(one, ToolMessage) and one.content == "ok" for one in results)


@given(settled_logs())
def test_every_message_has_exactly_one_place_in_the_order_it_came(
    made: tuple[list[Event], int],
) -> None:
    """S0.30"""
    words = [one.content for one in said(*made[0]) if isinstance(one, UserMessage)]
    assert words == [f"m{n}" for n in range(made[1])]


@given(settled_logs())
def test_what_was_shown_to_the_model_stays_a_prefix(made: tuple[list[Event], int]) -> None:
    """G2 E6: later records never change what an answer was asked with."""
    log = made[0]
    heads = [one.request_head for one in log if isinstance(one, events.Assistant)]
    whole = said(*log)
    for head in heads:
        shown = said(*log[:head])
        assert whole[: len(shown)] == shown
