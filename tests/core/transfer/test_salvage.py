"""What is kept of a log that has lost events."""

from perdure.core.conversation.messages import ToolMessage, UserMessage, conversation
from perdure.core.conversation.repair import find_errors
from perdure.core.log import events
from perdure.core.log.events import Event, StampedEvent
from perdure.core.transfer.salvage import salvage

LOG: list[Event] = [
    events.User(role="user", content="one"),
    events.Assistant(role="assistant", content="a", agent="x", turn=1, request_head=1),
    events.ToolCall(id="c1", tool="t", params={}, agent="x", turn=1),
    events.ToolResult(tool_call_id="c1", result="ok"),
    events.User(role="user", content="while it answered"),
    events.Assistant(role="assistant", content="b", agent="x", turn=2, request_head=4),
]


def log(*lost: int) -> list[StampedEvent]:
    every = [StampedEvent(seq, seq * 10, event) for seq, event in enumerate(LOG, 1)]
    return salvage([one for one in every if one.seq not in lost], ["gone"], 5)


def test_what_is_whole_stays_as_it_is_with_a_word_about_it() -> None:
    kept = log()
    assert [one.event for one in kept[:-1]] == LOG
    assert kept[-1] == StampedEvent(7, 60, events.SessionRecovery(issues=["gone"]))


def test_events_are_numbered_anew_and_answers_know_what_they_had_seen() -> None:
    """The message that came while the model answered still comes after the answer."""
    kept = log(1, 2, 3)
    assert [one.seq for one in kept] == [1, 2, 3, 4]
    assert conversation(kept)[-1] == UserMessage("while it answered")


def test_a_call_whose_result_was_lost_is_told_as_cut_off() -> None:
    """S2.43: it stays, and the conversation is valid."""
    messages = conversation(log(4))
    result = messages[2]
    assert isinstance(result, ToolMessage)
    assert "outcome is unknown" in str(result.content)
    assert not find_errors(messages)


def test_any_event_may_be_lost() -> None:
    """S2.34"""
    for seq in range(1, 7):
        kept = log(seq)
        assert [one.seq for one in kept] == list(range(1, len(kept) + 1))
        assert not [e for e in find_errors(conversation(kept)) if "tool_call" in e]


def test_of_nothing_only_the_word_is_left() -> None:
    assert [one.event for one in salvage([], ["x"], 5)] == [events.SessionRecovery(issues=["x"])]
