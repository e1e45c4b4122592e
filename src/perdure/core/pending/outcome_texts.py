"""Texts for the model about calls that an approver denied, or that nobody decided in time.

A gated call did not run. One whose tool asked while it ran was not completed. One that a crash
interrupted is not run again.
"""

from typing import Final

from perdure.core.log.events import RAISED
from perdure.views.literals import CallKind

TIMED_OUT: Final = "Tool execution timed out"
UNANSWERED: Final = "Nobody answered this question in time."
DECLINED: Final = "The user declined to answer."
_NOT_RUN: Final = "Do not proceed as if it had run, and do not invent its result."
_NOT_COMPLETED: Final = "Do not proceed as if it had been, and do not invent its result."


def denial_text(kind: CallKind, tool: str, cause: str | None, reason: str | None) -> str:
    """Return the result text of a denied call: by the `cause` of its wait, with a `reason`."""
    because = f" Reason: {reason.rstrip('.')}." if reason else ""
    if cause == RAISED and kind == "question":
        return (
            f"The user declined to answer what this call to {tool} asked while it ran; "
            f"it was not completed.{because} {_NOT_COMPLETED}"
        )
    if cause == RAISED:
        return (
            f"The user denied this call to {tool} at the point where it asked for approval; "
            f"it was not completed.{because} {_NOT_COMPLETED}"
        )
    if kind == "question":
        return f"{DECLINED} {reason}" if reason else DECLINED
    if cause == "interrupted":
        happened = f"The user decided that this call to {tool} is not run again."
    else:
        happened = f"The user denied this call to {tool}; it was not run."
    return f"{happened}{because} {_NOT_RUN}"


def expiry_text(kind: CallKind, tool: str, cause: str | None = None) -> str:
    """Return the result text of a call that expired: by the `cause` of its wait."""
    if cause == RAISED and kind in ("approval", "question"):
        missing = "answered in time what" if kind == "question" else "decided in time what"
        return (
            f"Nobody {missing} this call to {tool} asked while it ran; "
            f"it was not completed. {_NOT_COMPLETED}"
        )
    if kind == "question":
        return UNANSWERED
    if kind != "approval":
        return TIMED_OUT
    if cause == "interrupted":
        return f"Nobody decided in time whether this call to {tool} is run again; it was not."
    return f"Nobody decided about this call to {tool} in time; it was not run. {_NOT_RUN}"
