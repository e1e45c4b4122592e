"""Words for events, which the terminal and the pages share."""

from typing import Any

import pytest

from perdure.runtime.diagnosis.events import event_text


@pytest.mark.parametrize(
    "kind, data, words",
    [
        ("user", {"content": "Hi\n you", "by": "ana"}, ("message from ana", "Hi you", "")),
        ("assistant", {"content": ""}, ("model", "(calls only)", "")),
        ("tool_call", {"tool": "list", "params": {}}, ("list", "called", "")),
        ("tool_result", {"toolCallId": "c", "result": "ok"}, ("refund", "returned ok", "good")),
        (
            "decision",
            {"kind": "edit", "by": "ana", "via": "cli", "args": {"cents": 4}},
            ("ana approved with changes", "on the command line · with cents=4", "good"),
        ),
        (
            "compacted",
            {"upTo": 7, "tokens": 1200, "summary": "All\nwell."},
            ("summary", "of events up to 7, at about 1,200 tokens: All well.", ""),
        ),
        ("todo_update", {"todos": 1}, ("todo update", '{"todos": 1}', "")),
    ],
)
def test_an_event_has_a_name_and_one_line(
    kind: str, data: dict[str, Any], words: tuple[str, ...]
) -> None:
    assert event_text(kind, data, {"c": "refund"}) == words
