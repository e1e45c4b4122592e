"""Logs of events, `{type, timestamp, data}`, as `holdfast.sessions` and others write them."""

from typing import Any, Final

from holdfast.core.foreign.found import Foreign, Said, text_in
from holdfast.core.recovery import MAIN, conversations, is_event

NAME: Final = "session-log"
_TOLD: Final = frozenset({"user", "assistant", "tool_call", "tool_result", "agent_start"})


def fits(rows: list[Any]) -> bool:
    """Whether the lines are such events."""
    return any(is_event(row) and row["type"] in _TOLD for row in rows)


def read(rows: list[Any], agent: str | None = None) -> Foreign:
    """One agent's conversation: the named one's if it is in the log, else that of its own agent."""
    found = conversations(rows)
    chosen = agent if agent in found.by_agent else found.top
    at = next((int(row["timestamp"]) for row in rows if is_event(row)), 0)
    others = tuple(name for name in found.by_agent if name not in (chosen, MAIN))
    return Foreign(
        NAME,
        tuple(Said(message, at) for message in found.of(chosen)),
        agent=text_in(chosen),
        others=others,
        notes=found.warnings,
    )
