"""Execution states without the arguments that are shown to nobody.

Names stand beside the arguments (`redact`), so that what is restored elsewhere hides them again.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from perdure.core.log.redaction import MASK, masked
from perdure.errors import Refused
from perdure.hitl.state import ExecutionState, Message, ToolCall

Hidden = Callable[[str, str], Collection[str]]  # of a call's id and tool: what it does not show


def _nothing(_id: str, _tool: str) -> Collection[str]:
    return ()


def without_secrets(state: ExecutionState, hidden: Hidden = _nothing) -> ExecutionState:
    """The state as it may be stored and shown: what it says itself is secret, and what is known."""
    snapshot, call = state.reasoning_state, state.pending_tool_call
    first = tuple(_call(one, hidden) for one in snapshot.first_iteration_tool_calls)
    return replace(
        state,
        pending_tool_call=None if call is None else _call(call, hidden),
        reasoning_state=replace(
            snapshot,
            history=tuple(_message(one, hidden) for one in snapshot.history),
            current_turn=tuple(_message(one, hidden) for one in snapshot.current_turn),
            first_iteration_tool_calls=first,
        ),
    )


def check_whole(calls: Sequence[ToolCall]) -> None:
    """Raises Refused if one of the calls could not run, for its secrets were left out."""
    for call in calls:
        if lost := [name for name in call.redact if call.args.get(name) == MASK]:
            raise Refused(
                f"the state was saved without the secret {lost[0]!r} of {call.name!r}, "
                "and the call could not run",
                code="STATE_REDACTED",
                hint="load it where it was paused, with secrets=True",
            )


def _call(call: ToolCall, hidden: Hidden) -> ToolCall:
    names = _names(call.args, call.redact, hidden(call.id, call.name))
    return replace(call, args=masked(call.args, names), redact=names) if names else call


def _message(message: Message, hidden: Hidden) -> Message:
    parts = message.get("parts")
    told = [_part(part, hidden) for part in parts] if isinstance(parts, list) else parts
    if told == parts and not _has_secrets(parts):
        return message
    # what the provider sent holds the arguments once more
    return {**{key: value for key, value in message.items() if key != "native"}, "parts": told}


def _part(part: Any, hidden: Hidden) -> Any:
    given = part.get("input") if isinstance(part, dict) else None
    if not isinstance(given, Mapping) or part.get("type") != "tool_use":
        return part
    known = hidden(str(part.get("id")), str(part.get("name")))
    names = _names(given, part.get("redact") or (), known)
    return {**part, "input": masked(given, names), "redact": list(names)} if names else part


def _has_secrets(parts: Any) -> bool:
    found = parts if isinstance(parts, list) else []
    return any(isinstance(part, dict) and bool(part.get("redact")) for part in found)


def _names(args: Mapping[str, Any], *names: Collection[str]) -> tuple[str, ...]:
    return tuple(sorted({name for some in names for name in some if name in args}))
