"""Steps of findings as HTTP requests."""

from collections.abc import Mapping
from typing import Any, Final

_BODIES: Final[Mapping[str, dict[str, Any]]] = {
    "answer": {"output": "no"},
    "respond": {"output": "no"},
    "result": {"result": {"output": "done"}},
}


def request_of(
    step: Mapping[str, Any], changes: Mapping[str, Any] | None = None
) -> tuple[str, str, dict[str, Any] | None] | None:
    """Return method, path and body of a step; None if HTTP has no route for it.

    `subject` is the call that a finding is about, `changes` are what an approver edits.
    """
    if step["path"] is None:
        return None
    body = dict(_BODIES.get(step["label"], {}))
    if step["label"] == "result":
        body["pendingID"] = step["subject"]
    if step["label"] == "edit":
        body["args"] = changes
    return step["method"], step["path"], None if step["method"] == "DELETE" else body
