"""Repair as one call: look whether anything is wrong, and only then take the history apart."""

from dataclasses import dataclass
from typing import Any, Final, Literal

from holdfast.core.conversation.repair.fixes import Mender
from holdfast.core.conversation.repair.model import EVERY, OWN, Action, Issue, Shape, Turn
from holdfast.core.conversation.repair.own_messages import is_withheld
from holdfast.core.conversation.repair.quick_check import is_sound
from holdfast.core.conversation.repair.reader import Reader
from holdfast.core.conversation.repair.writing import WRITERS, write_anthropic
from holdfast.core.pending.settlement import INTERRUPTED

Unanswered = Literal["drop", "tell"]
_PREFERRED: Final[tuple[Shape, ...]] = ("anthropic", "openai", "responses", "own")


@dataclass(frozen=True, slots=True)
class Repaired:
    """A valid conversation, and what had to be done for it."""

    messages: list[Any]
    issues: tuple[Issue, ...] = ()


def repair(messages: object, *, unanswered: Unanswered = "drop") -> Repaired:
    """The conversation that a history holds, valid for every provider.

    A call without a result is dropped; with `unanswered="tell"` it stays, with a result that says
    that it was cut off. Messages that need no repair are the given objects themselves.
    """
    if is_sound(messages):
        return Repaired(list(messages))
    turns, issues = mend(messages, unanswered)
    shape = shape_of(turns)
    if any(shape not in turn.shapes for turn in turns):
        issues.append(_whole("Messages in several shapes: rewrote them in one", "skipped"))
    if shape != "own":
        turns = [_readable(turn) for turn in turns]
    write = WRITERS[shape]
    return Repaired([message for turn in turns for message in write(turn)], tuple(issues))


def errors_of(messages: object) -> list[str]:
    """What a provider would not take, a sentence each; empty for a valid conversation."""
    return [text for issue in repair(messages).issues for text in _sentences(issue)]


def canonical(messages: object) -> list[tuple[dict[str, Any], bool]]:
    """The repaired conversation Anthropic-shaped, each message with whether it is as given.

    An answer of ours that nothing was changed in has what its provider sent as `native`, and is
    `paused` if that provider goes on with it.
    """
    if is_sound(messages):
        return [(message, True) for message in messages]
    turns, _ = mend(messages, "drop")
    return [
        (_with_native(message, turn), not turn.changed)
        for turn in turns
        for message in write_anthropic(turn)
    ]


def _with_native(message: dict[str, Any], turn: Turn) -> dict[str, Any]:
    rest = {key: value for key, value in message.items() if key not in ("native", "paused")}
    if turn.native is None or turn.changed:
        return rest
    return {**rest, "native": turn.native, **({"paused": True} if turn.paused else {})}


def mend(messages: object, unanswered: Unanswered) -> tuple[list[Turn], list[Issue]]:
    """The turns of the repaired conversation."""
    if not issubclass(type(messages), list):
        return [], [_whole("Removed what is not a list of messages")]
    reader = Reader()
    reader.read(messages)  # type: ignore[arg-type]
    mender = Mender(reader.turns, INTERRUPTED if unanswered == "tell" else None)
    turns = mender.mend()
    return turns, sorted(reader.issues + mender.issues, key=lambda issue: issue.index)


def shape_of(turns: list[Turn]) -> Shape:
    """The shape in which a repaired conversation is written."""
    shapes = (EVERY | OWN).intersection(*(turn.shapes for turn in turns))
    return next((shape for shape in _PREFERRED if shape in shapes), "anthropic")


def _readable(turn: Turn) -> Turn:
    """An answer of ours without what nobody could tell from damage when it is no longer ours."""
    if turn.shapes == OWN and any(is_withheld(part.block) for part in turn.parts):
        turn.parts = [part for part in turn.parts if part.kind != "private"]
    return turn


def _whole(details: str, action: Action = "removed_message") -> Issue:
    return Issue("invalid_message", -1, action, details)


def _sentences(issue: Issue) -> list[str]:
    where = f"message {issue.index}: " if issue.index >= 0 else ""
    if issue.type == "incomplete_tool_call":
        return [f"{where}tool_call {one} missing matching tool_result" for one in issue.ids]
    if issue.type == "orphaned_tool_result":
        return [f"{where}tool_result {one} missing matching tool_call" for one in issue.ids]
    return [f"{where}{issue.details}"]
