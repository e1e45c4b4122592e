"""Logs of events, `{type, timestamp, data}`, as `perdure.sessions` and others write them."""

from collections.abc import Iterator
from typing import Any, Final

from perdure.core.transfer.event_log import (
    MAIN,
    Conversations,
    Message,
    Times,
    conversations,
    is_event,
)
from perdure.core.transfer.foreign.model import Foreign, ForeignMessage, instant, text_in

NAME: Final = "session-log"
_TOLD: Final = frozenset({"user", "assistant", "tool_call", "tool_result", "agent_start"})


def fits(rows: list[Any]) -> bool:
    """Whether the lines are such events."""
    return any(is_event(row) and row["type"] in _TOLD for row in rows)


def read(rows: list[Any], agent: str | None = None) -> Foreign:
    """One agent's conversation: the named one's if it is in the log, else that of its own agent."""
    found = conversations(rows)
    chosen = agent if agent is not None and agent in found.by_agent else found.top
    others = tuple(name for name in found.by_agent if name not in (chosen, MAIN))
    return Foreign(
        NAME,
        tuple(_said(message, times) for message, times in _timed(found, chosen)),
        agent=text_in(chosen),
        others=others,
        notes=found.warnings,
    )


def _timed(found: Conversations, agent: str) -> Iterator[tuple[Message, Times]]:
    return zip(found.of(agent), found.times.get(agent, []), strict=True)


def _said(message: Message, times: Times) -> ForeignMessage:
    by_id = {call_id: instant(at) for call_id, at in times.by_id.items()}
    return ForeignMessage(message, instant(times.at), by_id)
