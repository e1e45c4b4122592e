"""The conversation in parts, and where each call stands in it."""

from typing import Any

import msgspec

from perdure.core.conversation.display import display_messages
from perdure.core.log import events
from perdure.core.log.events import Event, StampedEvent

USER = events.User(role="user", content="go", task_id="task_1")


def answer(turn: int, request_head: int = 0, **more: Any) -> events.Assistant:
    said = {"content": f"answer {turn}", **more}
    return events.Assistant(
        role="assistant", agent="a", turn=turn, request_head=request_head, **said
    )


CALL = events.ToolCall(id="c1", tool="refund", params={"cents": 5}, agent="a")
OTHER = events.ToolCall(id="c2", tool="deploy", params={}, agent="a")
GATE = events.Pending(
    pending_id="p1", kind="approval", call_id="c1", tool="refund", input={"cents": 5}, effect_id="e"
)
WAIT = events.Pending(
    pending_id="p2", kind="tool", call_id="c2", tool="deploy", input={}, effect_id="f"
)
EDIT = events.Decision(
    pending_id="p1", kind="edit", by="ana", via="ui", call_id="c1", args={"cents": 4}
)
INTENT = events.ToolStarted(id="c1", effect_id="e", attempt=1, epoch=1)


def shown(*log: Event) -> list[dict[str, Any]]:
    stamped = [StampedEvent(n, 1_000 + n, event) for n, event in enumerate(log, 1)]
    told: list[dict[str, Any]] = msgspec.json.decode(msgspec.json.encode(display_messages(stamped)))
    return told


def tool(*log: Event, which: int = 0) -> dict[str, Any]:
    """The state of a call after these events, which begin with 1 user and 2 answer."""
    parts = shown(USER, answer(1), *log)[-1]["parts"]
    found: dict[str, Any] = [part for part in parts if part["type"] == "tool"][which]
    return found


def test_a_call_that_runs_says_since_when() -> None:
    part = tool(CALL, INTENT)
    assert (part["id"], part["callID"], part["tool"]) == ("m1.0", "c1", "refund")
    assert part["state"] == {"status": "running", "input": {"cents": 5}, "time": {"start": 1_004}}


def test_a_call_that_waits_names_its_pending_id() -> None:
    """S0.24"""
    assert tool(CALL, GATE)["state"] == {
        "status": "waiting_async",
        "input": {"cents": 5},
        "pendingID": "p1",
        "time": {"start": 1_004},
    }


def test_an_approved_call_runs_with_what_was_approved() -> None:
    state = tool(CALL, GATE, EDIT, INTENT)["state"]
    assert (state["status"], state["input"]) == ("running", {"cents": 4})
    assert state["time"] == {"start": 1_006}


def test_a_result_completes_its_part() -> None:
    """S0.33: start is when the work began outside, else when the call was opened."""
    result = events.ToolResult(
        tool_call_id="c2", result="up", title="Deployed", metadata={"url": "x"}
    )
    began = events.Progress(pending_id="p2", call_id="c2", started=True)
    assert tool(OTHER, WAIT, began, result)["state"] == {
        "status": "completed",
        "input": {},
        "pendingID": "p2",
        "output": "up",
        "title": "Deployed",
        "metadata": {"url": "x"},
        "time": {"start": 1_005, "end": 1_006},
    }
    assert tool(OTHER, WAIT, result)["state"]["time"] == {"start": 1_004, "end": 1_005}


def test_an_error_says_what_went_wrong() -> None:
    """S0.37"""
    failed = events.ToolResult(tool_call_id="c1", result="no money", is_error=True)
    state = tool(CALL, INTENT, failed)["state"]
    assert (state["status"], state["error"]) == ("error", "no money")
    assert state["time"]["end"] == 1_005


def test_the_first_result_of_a_call_counts() -> None:
    first = events.ToolResult(tool_call_id="c1", result="one")
    second = events.ToolResult(tool_call_id="c1", result="two")
    assert tool(CALL, first, second)["state"]["output"] == "one"


def test_parts_are_numbered_as_their_records_are() -> None:
    assert [tool(CALL, OTHER, which=n)["id"] for n in (0, 1)] == ["m1.0", "m1.1"]
    two = shown(USER, answer(1), CALL, answer(2), OTHER)
    assert [message["id"] for message in two] == ["u1", "m1", "m2"]
    assert two[2]["parts"][-1]["id"] == "m2.0"


def test_an_input_stands_after_the_answer_that_had_not_seen_it() -> None:
    more = events.User(role="user", content="wait", by="ana", key="k")
    told = shown(USER, more, answer(1, request_head=1))
    assert [message["role"] for message in told] == ["user", "assistant", "user"]
    assert (told[2]["by"], told[2]["key"]) == ("ana", "k")


def test_files_are_named_and_never_inlined() -> None:
    picture = {"type": "file", "mediaType": "image/png", "name": "a.png", "blob": "sha256:1"}
    said = events.User(role="user", content=[{"type": "text", "text": "see"}, picture])
    parts = shown(said)[0]["parts"]
    assert parts == [
        {"type": "text", "id": "u1.0", "text": "see"},
        {"id": "u1.1", **picture},
    ]
    drawn = events.ToolResult(
        tool_call_id="c1", result=[{"type": "text", "text": "drawn"}, picture]
    )
    state = tool(CALL, drawn)["state"]
    assert (state["output"], state["files"]) == ("drawn", [picture])


def test_what_the_model_thought_is_a_part() -> None:
    parts = shown(USER, answer(1, thinking="hm"))[1]["parts"]
    assert [(part["type"], part["id"]) for part in parts] == [
        ("thinking", "m1.thinking"),
        ("text", "m1.text"),
    ]
