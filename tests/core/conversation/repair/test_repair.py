"""Repair, case by case: ids, order, what is damaged, and our own messages."""

import json
import re
from itertools import pairwise
from typing import Any

import pytest

from perdure.core.conversation.messages import (
    AssistantMessage,
    RequestedCall,
    ToolMessage,
    UserMessage,
)
from perdure.core.conversation.repair import (
    LOST_START,
    IncrementalCanonical,
    IncrementalRepair,
    RepairResult,
    canonical,
    repair,
)
from perdure.core.conversation.repair.call_ids import CallIds
from perdure.core.conversation.repair.json_values import json_value
from perdure.core.json_depth import MAX_DEPTH
from perdure.core.pending.settlement import INTERRUPTED
from perdure.core.providers.formats import render

HI = {"role": "user", "content": "hi"}
THOUGHT = {"type": "thinking", "thinking": "let me see", "signature": "c2lnbmVk"}


def use(call_id: Any, **more: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": "read", "input": {}, **more}


def result(call_id: Any, said: Any = "ok", **more: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": call_id, "content": said, **more}


def turn(*blocks: Any, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": list(blocks), **more}


def told(*blocks: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks)}


def pairs(messages: list[Any]) -> list[tuple[str, str]]:
    """Calls with what their results say, checked to stand directly after them."""
    found = []
    for before, after in pairwise(messages):
        if before["role"] == "assistant" and isinstance(before["content"], list):
            said = {one["tool_use_id"]: one["content"] for one in after["content"]}
            calls = [one for one in before["content"] if one["type"] == "tool_use"]
            found += [(one["id"], said[one["id"]]) for one in calls]
    return found


# --- ids --------------------------------------------------------------------------------------

AWKWARD = ["functions.Bash:0", "functions_Bash_0", "", "é", "e", "x" * 41, "x" * 40, "a b", "a_b"]


def test_every_id_becomes_one_that_every_provider_takes_and_no_two_become_one() -> None:
    given = [*AWKWARD, *AWKWARD, *AWKWARD]
    ids = CallIds(given)
    made = [ids.assign(one) for one in given]
    assert len(set(made)) == len(made)
    assert all(re.fullmatch(r"[A-Za-z0-9_-]{1,40}", one) for one in made)
    assert [one for one in AWKWARD if one in made[: len(AWKWARD)]] == [
        "functions_Bash_0",
        "e",
        "x" * 40,
        "a_b",
    ]
    again = CallIds(given)
    assert [again.assign(one) for one in given] == made


@pytest.mark.parametrize("call_id", AWKWARD)
def test_both_sides_of_a_pair_get_the_same_id(call_id: str) -> None:
    history = [HI, turn(use(call_id)), told(result(call_id, "first"))]
    history += [turn(use(call_id)), told(result(call_id, "second"))]
    found = pairs(repair(history).messages)
    assert [said for _, said in found] == ["first", "second"]
    assert len({one for one, _ in found}) == 2


def test_a_made_id_never_takes_one_that_was_given() -> None:
    made = CallIds(["a b"]).assign("a b")
    history = [HI, turn(use("a b"), use(made)), told(result("a b", "1"), result(made, "2"))]
    found = pairs(repair(history).messages)
    assert found[1] == (made, "2")
    assert found[0][0] != made


def test_a_number_is_an_id_too() -> None:
    repaired = repair([HI, turn(use(7)), told(result("7", "ok"))])
    assert pairs(repaired.messages) == [("7", "ok")]


# --- order ------------------------------------------------------------------------------------


def test_a_result_goes_to_the_latest_call_with_its_id_that_waits() -> None:
    history = [
        HI,
        turn(use("a", input={"n": 1})),
        HI,
        turn(use("a", input={"n": 2})),
        told(result("a")),
    ]
    repaired = repair(history)
    assert repaired.messages[2]["content"][0]["input"] == {"n": 2}


def test_calls_of_one_turn_with_one_id_get_their_results_in_order() -> None:
    asked = [use("a", input={"n": 1}), use("a", input={"n": 2})]
    repaired = repair([HI, turn(*asked), told(result("a", "1"), result("a", "2"))])
    first, second = repaired.messages[1]["content"]
    assert (first["input"], second["input"]) == ({"n": 1}, {"n": 2})
    assert pairs(repaired.messages) == [(first["id"], "1"), (second["id"], "2")]


def test_calls_and_results_in_messages_of_the_wrong_side_are_put_right() -> None:
    history = [HI, told(use("a"), {"type": "text", "text": "and"}), turn(result("a"))]
    assert repair(history).messages == [
        HI,
        turn(use("a")),
        told(result("a")),
        {**HI, "content": "and"},
    ]


def test_where_the_beginning_is_missing_that_is_said_and_the_pair_kept() -> None:
    repaired = repair([turn(use("a")), told(result("a"))])
    assert repaired.messages[0] == {"role": "user", "content": LOST_START}
    assert pairs(repaired.messages) == [("a", "ok")]


# --- damage -----------------------------------------------------------------------------------


def test_halves_of_characters_are_joined_or_marked() -> None:
    (message,) = repair([{"role": "user", "content": "\ud83d\ude00 and \ud83d"}]).messages
    assert message["content"] == "\U0001f600 and \N{REPLACEMENT CHARACTER}"


def test_arguments_become_json() -> None:
    value = {"n": float("nan"), "at": object(), 3: (1, {2}), "\ud800": b"xx"}
    repaired = repair([HI, turn(use("a", input=value)), told(result("a"))])
    assert repaired.messages[1]["content"][0]["input"] == {
        "n": "nan",
        "at": "[object]",
        "3": [1, "[set]"],
        "\N{REPLACEMENT CHARACTER}": "[bytes]",
    }


@pytest.mark.parametrize(
    "arguments, read",
    [
        ('{"a": 1}', {"a": 1}),
        ("", {}),
        ("[1]", {"arguments": [1]}),
        ('{"a": ', {"arguments": '{"a": '}),
        ({"a": 1}, {"a": 1}),
        (None, {}),
    ],
)
def test_arguments_of_openai_are_read_as_far_as_they_can(arguments: Any, read: Any) -> None:
    item = {"type": "function_call", "call_id": "a", "name": "read", "arguments": arguments}
    output = {"type": "function_call_output", "call_id": "a", "output": "ok"}
    told = render([HI, item, output], "anthropic")["messages"]
    assert told[1]["content"][0]["input"] == read
    again = repair([HI, item, output]).messages
    assert json.loads(again[1]["arguments"]) == read
    assert [repair(again).messages, repair(again).issues] == [again, ()]


def test_what_nests_without_end_has_an_end() -> None:
    cycle: list[Any] = []
    cycle += [cycle, cycle]
    deep: Any = "end"
    for _ in range(3 * MAX_DEPTH):
        deep = [deep]
    assert "nested too deeply" in str(json_value(deep))
    assert "nested too deeply" in str(json_value(cycle))


def test_an_error_says_something() -> None:
    repaired = repair([HI, turn(use("a")), told(result("a", "", is_error=True))])
    assert repaired.messages[2]["content"][0]["content"]


@pytest.mark.parametrize("spoiled", [{"signature": ""}, {"signature": None}, {"thinking": ""}])
def test_damaged_thinking_takes_all_thinking_of_its_turn_with_it(spoiled: dict[str, Any]) -> None:
    """S2.33"""
    said = {"type": "text", "text": "so"}
    history = [HI, turn(THOUGHT, said), turn(THOUGHT, {**THOUGHT, **spoiled}, said)]
    assert repair(history).messages == [
        HI,
        turn(THOUGHT, said),
        {"role": "assistant", "content": "so"},
    ]


def test_thinking_of_answers_that_were_joined_is_dropped() -> None:
    """S2.33"""
    parted = [HI, turn(THOUGHT, use("a")), turn(THOUGHT, use("b")), told(result("a"), result("b"))]
    assert repair(parted).messages == [HI, turn(use("a"), use("b")), parted[-1]]


def test_thinking_that_led_to_nothing_any_more_is_dropped() -> None:
    said = {"type": "text", "text": "so"}
    assert repair([HI, turn(said, THOUGHT)]).messages == [
        HI,
        {"role": "assistant", "content": "so"},
    ]
    assert repair([HI, turn(THOUGHT, use("a"))]).messages == [HI]


def test_what_a_server_did_stays_only_with_its_result() -> None:
    searched = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}}
    found = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []}
    said = {"type": "text", "text": "so"}
    whole = [HI, turn(searched, found, said)]
    assert repair(whole).messages == whole
    plain_answer = {"role": "assistant", "content": "so"}
    assert repair([HI, turn(searched, said)]).messages == [HI, plain_answer]
    assert repair([HI, turn(found, said)]).messages == [HI, plain_answer]


# --- items of OpenAI Responses ----------------------------------------------------------------

ASK = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]}
REASONED = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "Z2Vo"}
CALLED = {"type": "function_call", "id": "fc_1", "call_id": "a", "name": "read", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "a", "output": "ok"}
SAID = {
    "type": "message",
    "id": "msg_1",
    "status": "completed",
    "role": "assistant",
    "content": [{"type": "output_text", "text": "so", "annotations": []}],
}


def test_a_plain_list_of_items_comes_back_equal() -> None:
    """S2.53"""
    items = [ASK, REASONED, CALLED, OUTPUT, SAID, {"role": "developer", "content": "be kind"}, ASK]
    assert repair(items) == RepairResult(items)


def test_of_broken_items_the_whole_ones_stay_as_they_are() -> None:
    """S2.53: and what was stored with reasoning that is gone is not named any more."""
    lost = {**CALLED, "call_id": "lost", "id": "fc_2"}
    assert repair([ASK, CALLED, OUTPUT, lost, SAID]).messages == [ASK, CALLED, OUTPUT, _bare(SAID)]
    empty = {**REASONED, "encrypted_content": None}
    assert repair([ASK, empty, CALLED, OUTPUT]).messages == [ASK, _bare(CALLED), OUTPUT]
    again = repair([ASK, REASONED, CALLED, OUTPUT, ASK, REASONED, SAID]).messages
    assert again[5] == {key: value for key, value in REASONED.items() if key != "id"}


def _bare(item: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in item.items() if key != "id"}


# --- our own messages -------------------------------------------------------------------------

ASKED = AssistantMessage("", (RequestedCall("a", "read", {"n": 1}), RequestedCall("b", "read", {})))
DONE = [ToolMessage("a", "read", "A"), ToolMessage("b", "read", "B")]


def test_our_own_messages_that_are_valid_are_the_same_ones() -> None:
    messages: list[Any] = [UserMessage("hi"), ASKED, *DONE, UserMessage("a"), UserMessage("b")]
    assert IncrementalRepair().repair(messages) is messages
    repaired = repair(messages)
    assert all(one is other for one, other in zip(repaired.messages, messages, strict=True))


def test_a_result_of_ours_with_a_file_comes_back_equal() -> None:
    """S2.53"""
    file = {"type": "file", "mediaType": "image/png", "name": "x.png", "blob": "sha256:00"}
    shown: list[Any] = [{"type": "text", "text": "here"}, file]
    asked = AssistantMessage("", (RequestedCall("a", "read", {}),))
    messages: list[Any] = [UserMessage("hi"), asked, ToolMessage("a", "read", shown)]
    assert repair(messages) == RepairResult(messages)


def test_a_call_of_ours_that_was_cut_off_is_told_of() -> None:
    """S2.43"""
    history = IncrementalRepair()
    lost = history.repair([UserMessage("hi"), ASKED, DONE[1], UserMessage("well?")])
    assert lost == [
        UserMessage("hi"),
        ASKED,
        ToolMessage("a", "read", INTERRUPTED, is_error=True),
        DONE[1],
        UserMessage("well?"),
    ]


def test_a_reused_id_of_ours_is_told_apart() -> None:
    again = AssistantMessage("again", (RequestedCall("a", "read", {}),))
    said = [UserMessage("and?"), AssistantMessage("this")]
    messages: list[Any] = [UserMessage("hi"), ASKED, *DONE, *said]
    messages += [again, ToolMessage("a", "read", "C")]
    for known in ([], [4], [4, 5], [4, 5, 6]):  # as far as it was looked at before
        history = IncrementalRepair()
        for length in known:
            assert history.repair(messages[:length]) == messages[:length]
        repaired = history.repair(messages)
        assert repaired[:6] == messages[:6]
        renamed = repaired[6]
        assert isinstance(renamed, AssistantMessage)
        assert renamed.calls[0].id not in ("a", "b")
        assert repaired[7] == ToolMessage(renamed.calls[0].id, "read", "C")


@pytest.mark.parametrize(
    "nothing", [UserMessage(""), UserMessage([]), AssistantMessage(" "), AssistantMessage("")]
)
def test_a_turn_of_ours_keeps_its_place_with_nothing_in_it(nothing: Any) -> None:
    repaired = IncrementalRepair().repair([UserMessage("hi"), nothing, UserMessage("well?")])
    assert [type(one) for one in repaired] == [UserMessage, type(nothing), UserMessage]
    assert "[no text]" in str(repaired[1])


def test_what_stands_for_nothing_goes_where_something_is_said_beside_it() -> None:
    asked = AssistantMessage("I look.", (RequestedCall("a", "read", {}),))
    parted: list[Any] = [UserMessage("hi"), asked, AssistantMessage(""), DONE[0]]
    assert repair(parted).messages == [UserMessage("hi"), asked, DONE[0]]


def test_an_answer_of_ours_with_only_an_output_is_its_output() -> None:
    messages: list[Any] = [UserMessage("hi"), AssistantMessage("", output=b'{"n":1}')]
    assert IncrementalRepair().repair(messages) is messages
    assert repair(messages).messages == messages
    told = render([*messages, UserMessage("and?")], "anthropic")["messages"]
    assert told[1] == {"role": "assistant", "content": '{"n":1}'}


NATIVE = b'[{"type": "thinking", "thinking": "h", "signature": "s"},{"type": "text", "text": "x"}]'
GROWN: list[Any] = [
    UserMessage("hi"),
    ASKED,
    *DONE,
    AssistantMessage("x", provider="anthropic", model="m", native=NATIVE),
    AssistantMessage("so", (RequestedCall("c", "read", {"deep": [1.0]}),)),
    ToolMessage("c", "read", "failed", is_error=True),
    UserMessage("and?"),
    UserMessage([{"type": "text", "text": "two"}, {"type": "text", "text": "parts"}]),
    AssistantMessage("", output=b'{"n":1}'),
]
ENDS = [1, 4, 5, 7, 8, 9, 10]  # of what is told at one time


def test_a_history_that_grows_is_told_as_if_it_were_told_at_once() -> None:
    growing = IncrementalCanonical()
    for end in ENDS:
        assert growing.canonical(GROWN[:end]) == canonical(GROWN[:end])
    assert growing.canonical(GROWN[:4]) == canonical(GROWN[:4])  # a fork, or a summary before it
    other = [UserMessage("else"), *GROWN[1:]]
    assert growing.canonical(other) == canonical(other)


def test_a_history_that_grows_may_be_broken_in_between() -> None:
    growing = IncrementalCanonical()
    for end in (1, 3, 4, 6, 7, 10):  # results are missing at two of these
        assert growing.canonical(GROWN[:end]) == canonical(GROWN[:end])
    again = [*GROWN, AssistantMessage("again", (RequestedCall("a", "read", {}),))]
    again.append(ToolMessage("a", "read", "C"))
    assert growing.canonical(again) == canonical(again)


def test_what_was_told_of_a_growing_history_is_not_taken_apart_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read = list[int]()

    def count(messages: Any) -> Any:
        read.append(len(messages))
        return canonical(messages)

    monkeypatch.setattr("perdure.core.conversation.repair.incremental.canonical", count)
    growing = IncrementalCanonical()
    for end in ENDS:
        growing.canonical(GROWN[:end])
    assert sum(read) == len(GROWN) + len(ENDS)  # each with what stands for the rest


def test_a_growing_history_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """S2.45"""
    looked = 0

    def count(text: str) -> bool:
        nonlocal looked
        looked += 1
        return bool(text)

    monkeypatch.setattr("perdure.core.conversation.repair.incremental.has_text", count)
    history, messages = IncrementalRepair(), list[Any]()
    for number in range(200):
        messages += [UserMessage(f"message {number}"), AssistantMessage(f"answer {number}")]
        assert history.repair(messages) is messages
    assert looked <= 3 * len(messages)
