"""The sanitizer: what is removed, what is kept, and what is said of it."""

import copy
from typing import Any

import pytest

from perdure.sessions import (
    SanitizationIssue,
    format_sanitization_issues,
    sanitize_recovered_messages,
    validate_message_structure,
)
from perdure.sessions.sanitizer import fall_back

HI = {"role": "user", "content": "hi"}
HELLO = {"role": "assistant", "content": "hello"}
THOUGHT = {"type": "thinking", "thinking": "let me see", "signature": "c2lnbmVk"}


def text(said: str) -> dict[str, Any]:
    return {"type": "text", "text": said}


def use(call_id: str, name: str = "read") -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": name, "input": {"path": "x"}}


def result(call_id: str, said: str = "ok") -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": call_id, "content": said}


def answer(*blocks: dict[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": list(blocks)}


def told(*blocks: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks)}


def asked(*ids: str, content: str | None = None) -> dict[str, Any]:
    """Calls as OpenAI writes them."""
    calls = [
        {"id": one, "type": "function", "function": {"name": "read", "arguments": "{}"}}
        for one in ids
    ]
    return {"role": "assistant", "content": content, "tool_calls": calls}


def tool(call_id: str, said: str = "ok") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": said}


def types(messages: object) -> list[str]:
    return [issue.type for issue in sanitize_recovered_messages(messages).issues]


def test_an_empty_session_is_a_fresh_start() -> None:
    """S2.47"""
    done = sanitize_recovered_messages([])
    assert (done.messages, done.issues, done.recovered) == ([], [], True)


@pytest.mark.parametrize("given", [None, 3, "messages", {"role": "user"}, object()])
def test_what_is_no_list_is_one_issue_about_the_whole(given: object) -> None:
    """S2.46 S2.47"""
    done = sanitize_recovered_messages(given)
    assert (done.messages, done.recovered) == ([], True)
    assert [(issue.type, issue.index) for issue in done.issues] == [("invalid_message", -1)]


@pytest.mark.parametrize(
    "wrong",
    [
        None,
        3,
        "text",
        [],
        {},
        {"content": "no role"},
        {"role": "robot", "content": "x"},
        {"role": 3, "content": "x"},
        {"role": "tool", "content": "no id"},
    ],
)
def test_what_is_no_message_is_removed(wrong: object) -> None:
    """S2.46 S2.48 S2.49"""
    done = sanitize_recovered_messages([HI, wrong, HELLO])
    assert done.messages == [HI, HELLO]
    (issue,) = done.issues
    assert (issue.type, issue.index, issue.action) == ("invalid_message", 1, "removed_message")


@pytest.mark.parametrize(
    "empty",
    [
        {"role": "user"},
        {"role": "user", "content": ""},
        {"role": "user", "content": "  \n"},
        {"role": "assistant", "content": None},
        {"role": "assistant", "content": []},
        {"role": "assistant", "content": [text("")]},
    ],
)
def test_an_empty_message_is_removed(empty: object) -> None:
    """S2.50"""
    done = sanitize_recovered_messages([HI, empty, HELLO])
    assert done.messages == [HI, HELLO]
    (issue,) = done.issues
    assert (issue.type, issue.index, issue.action) == ("empty_message", 1, "removed_message")


def test_a_message_with_raw_content_only_is_not_empty() -> None:
    """S2.50"""
    raw = {"role": "assistant", "raw_content": [THOUGHT, text("so")]}
    assert sanitize_recovered_messages([HI, raw]).messages == [HI, raw]


@pytest.mark.parametrize(
    "messages, left",
    [
        ([HI, answer(use("a"))], [HI]),
        ([HI, answer(text("I look"), use("a"))], [HI, {"role": "assistant", "content": "I look"}]),
        (
            [HI, answer(THOUGHT, text("I look"), use("a"))],
            [HI, answer(THOUGHT, text("I look"))],
        ),
        ([HI, answer(use("a")), HI, HELLO], [HI, HI, HELLO]),
        ([HI, asked("a", content="I look")], [HI, {"role": "assistant", "content": "I look"}]),
        ([HI, asked("a", "b")], [HI]),
    ],
    ids=["only a call", "with text", "with thinking", "in the middle", "openai", "all of them"],
)
def test_an_unanswered_call_is_removed_and_what_was_said_with_it_kept(
    messages: list[Any], left: list[Any]
) -> None:
    """S2.51"""
    done = sanitize_recovered_messages(messages)
    assert done.messages == left
    (issue,) = done.issues
    assert (issue.type, issue.action) == ("incomplete_tool_call", "removed_tool_calls")
    assert issue.index == 1
    assert not any("tool_calls" in message for message in done.messages)


def test_thinking_in_raw_content_is_kept_when_a_call_is_removed() -> None:
    """S2.51"""
    saved = asked("a", "b", content="I look")
    saved["raw_content"] = [THOUGHT, text("I look"), use("a"), use("b")]
    kept = sanitize_recovered_messages([HI, saved, tool("b")])
    assert kept.messages[1]["raw_content"][:2] == [THOUGHT, text("I look")]
    assert [call["id"] for call in kept.messages[1]["tool_calls"]] == ["b"]
    assert sanitize_recovered_messages(kept.messages).issues == []


def test_of_calls_in_parallel_the_answered_ones_are_kept() -> None:
    """S2.51"""
    done = sanitize_recovered_messages(
        [HI, answer(use("a"), use("b"), use("c")), told(result("b"))]
    )
    assert done.messages == [HI, answer(use("b")), told(result("b"))]
    assert [issue.details for issue in done.issues] == [
        "Removed 2 incomplete tool call(s): a, c",
    ]


def test_an_orphaned_result_is_removed_one_issue_each() -> None:
    """S2.52"""
    done = sanitize_recovered_messages([HI, told(result("x"), result("y"), text("and"))])
    assert done.messages == [HI, {"role": "user", "content": "and"}]
    assert [(issue.type, issue.index) for issue in done.issues] == [
        ("orphaned_tool_result", 1),
        ("orphaned_tool_result", 1),
    ]


def test_a_result_before_its_call_is_an_orphan() -> None:
    """S2.52"""
    done = sanitize_recovered_messages([HI, told(result("a")), answer(text("so"), use("a"))])
    assert done.messages == [HI, {"role": "assistant", "content": "so"}]
    assert {issue.type for issue in done.issues} == {"orphaned_tool_result", "incomplete_tool_call"}


@pytest.mark.parametrize("count", [1, 2, 5, 50, 200])
def test_complete_pairs_are_untouched_however_many(count: int) -> None:
    """S2.53"""
    ids = [f"call_{number}" for number in range(count)]
    anthropic = [HI, answer(text("I look"), *map(use, ids)), told(*map(result, ids)), HELLO]
    openai = [HI, asked(*ids), *map(tool, ids), HELLO]
    for messages in (anthropic, openai):
        done = sanitize_recovered_messages(messages)
        assert done.messages == messages
        assert done.issues == []
        assert validate_message_structure(messages).valid


@pytest.mark.parametrize(
    "messages",
    [
        [HI, HELLO],
        [HI, HI, HELLO, HELLO],
        [{"role": "system", "content": "be kind"}, HI, HELLO],
        [HI, answer(THOUGHT, text("so"))],
        [HI, answer(use("b"), use("a")), told(result("a"), result("b"), text("and?"))],
        [HI, asked("a", "b"), tool("b"), tool("a")],
    ],
)
def test_what_is_valid_comes_back_equal(messages: list[Any]) -> None:
    """S2.53 S2.54"""
    done = sanitize_recovered_messages(messages)
    assert done.messages == messages
    assert done.issues == []


def test_what_stands_between_a_call_and_its_result_is_moved_after() -> None:
    """S2.54"""
    done = sanitize_recovered_messages([HI, answer(use("a")), HI, told(result("a")), HELLO])
    assert done.messages == [HI, answer(use("a")), told(result("a")), HI, HELLO]
    assert types([HI, answer(use("a")), HI, told(result("a")), HELLO]) == ["invalid_message"]


def test_of_two_results_for_one_call_the_first_is_kept() -> None:
    """S2.54"""
    given = [HI, answer(use("a")), told(result("a", "first")), told(result("a", "second"))]
    done = sanitize_recovered_messages(given)
    assert done.messages == given[:3]
    assert [issue.type for issue in done.issues] == ["orphaned_tool_result"]


def test_a_reused_id_is_told_apart_on_both_sides() -> None:
    """S2.54"""
    pair = [answer(use("a")), told(result("a"))]
    done = sanitize_recovered_messages([HI, *pair, *pair])
    (first,), (second,) = (done.messages[n]["content"] for n in (1, 3))
    assert first["id"] == "a" != second["id"]
    assert done.messages[4]["content"][0]["tool_use_id"] == second["id"]


def test_a_conversation_begins_with_the_user() -> None:
    """S2.54"""
    done = sanitize_recovered_messages([{"role": "system", "content": "be kind"}, HELLO])
    assert [message["role"] for message in done.messages] == ["system", "user", "assistant"]


def test_no_text_block_is_empty() -> None:
    """S2.54"""
    done = sanitize_recovered_messages([told(text("a"), text(""), text(" "), text("b"))])
    assert done.messages == [told(text("a"), text("b"))]


def test_calls_of_one_turn_that_were_saved_one_by_one_are_put_together() -> None:
    """S2.31 S2.32"""
    saved = [HI, answer(use("a")), answer(use("b")), told(result("b")), told(result("a")), HELLO]
    assert sanitize_recovered_messages(saved).messages == [
        HI,
        answer(use("a"), use("b")),
        told(result("a"), result("b")),
        HELLO,
    ]


def test_what_is_wrong_is_said_in_sentences() -> None:
    """S2.55"""
    found = validate_message_structure([HI, answer(use("a"), use("b")), told(result("c"))])
    assert not found.valid
    assert found.errors == [
        "message 1: tool_call a missing matching tool_result",
        "message 1: tool_call b missing matching tool_result",
        "message 2: tool_result c missing matching tool_call",
    ]


def test_a_result_is_looked_for_however_far_away_it_is() -> None:
    """S2.55"""
    far = [HI, answer(use("a")), *[HI] * 500, told(result("a"))]
    assert "missing" not in " ".join(validate_message_structure(far).errors)
    assert not validate_message_structure(far[:-1]).valid


def test_what_was_sanitized_is_valid() -> None:
    """S2.58"""
    given = [None, HELLO, answer(use("a"), use("b")), HI, told(result("b"), result("z"))]
    done = sanitize_recovered_messages(given)
    assert validate_message_structure(done.messages).valid
    again = sanitize_recovered_messages(done.messages)
    assert (again.messages, again.issues) == (done.messages, [])


def test_nothing_is_changed_in_what_was_given() -> None:
    """S2.59"""
    given = [HELLO, answer(use("a"), use("a")), HI, told(result("a"), text(""))]
    before = copy.deepcopy(given)
    sanitize_recovered_messages(given)
    assert given == before


@pytest.mark.parametrize(
    "invalid, left",
    [
        ([HI, HELLO, answer(use("a"))], [HI, HELLO]),
        ([HI, HELLO, *[answer(use(str(n))) for n in range(5)]], [HI, HELLO]),
        ([HI, HELLO, *[answer(use(str(n))) for n in range(6)]], []),
        ([HI, HELLO, HI, HELLO, *[answer(use(str(n))) for n in range(4)], HELLO, HELLO], []),
        ([*[HI] * 6, answer(use("a")), *[HI] * 5], [HI] * 6),
        ([HELLO], []),
        ([HI, HELLO], [HI, HELLO]),
    ],
)
def test_should_that_ever_fail_less_and_less_is_kept_until_it_is_valid(
    invalid: list[Any], left: list[Any]
) -> None:
    """S2.56"""
    assert fall_back(invalid) == left
    assert validate_message_structure(fall_back(invalid)).valid


def test_issues_are_told_in_one_line() -> None:
    """S2.57"""
    issues = [
        SanitizationIssue("incomplete_tool_call", 1, "removed_tool_calls", "one"),
        SanitizationIssue("empty_message", 2, "removed_message", "two"),
    ]
    assert format_sanitization_issues([]) == "No issues found"
    assert format_sanitization_issues(issues) == (
        "Sanitized 2 issue(s): [incomplete_tool_call] one; [empty_message] two"
    )
