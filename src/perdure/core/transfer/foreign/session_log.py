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
from perdure.core.transfer.foreign.model import ForeignMessage, ForeignSession, instant, text_in

NAME: Final = "session-log"
_EVENT_TYPES: Final = frozenset({"user", "assistant", "tool_call", "tool_result", "agent_start"})


def is_match(rows: list[Any]) -> bool:
    """Return True if the lines are such events."""
    return any(is_event(row) and row["type"] in _EVENT_TYPES for row in rows)


def read(rows: list[Any], agent: str | None = None) -> ForeignSession:
    """Return one agent's conversation: the named one's if the log has it, else its own agent's."""
    log = conversations(rows)
    chosen = agent if agent is not None and agent in log.by_agent else log.top
    others = tuple(name for name in log.by_agent if name not in (chosen, MAIN))
    return ForeignSession(
        NAME,
        tuple(_foreign(message, times) for message, times in _timed_messages(log, chosen)),
        agent=text_in(chosen),
        other_agents=others,
        notes=log.warnings,
    )


def _timed_messages(log: Conversations, agent: str) -> Iterator[tuple[Message, Times]]:
    return zip(log.messages(agent), log.times.get(agent, []), strict=True)


def _foreign(message: Message, times: Times) -> ForeignMessage:
    by_id = {call_id: instant(at) for call_id, at in times.by_id.items()}
    return ForeignMessage(message, instant(times.at), by_id)
