"""Lists of messages in the format of Anthropic or OpenAI, alone or within a request."""

from typing import Any, Final

from perdure.core.transfer.foreign.codex import group_items
from perdure.core.transfer.foreign.model import (
    ForeignMessage,
    ForeignSession,
    dict_in,
    instant,
    kind_in,
    list_in,
    text_in,
)

ANTHROPIC: Final = "anthropic-messages"
CHAT: Final = "openai-messages"
RESPONSES: Final = "openai-responses"
_ITEMS: Final = frozenset({"function_call", "function_call_output", "reasoning"})
_ANTHROPIC_BLOCKS: Final = frozenset({"tool_use", "tool_result", "thinking", "redacted_thinking"})


def is_match(rows: list[Any]) -> bool:
    """Return True if the rows contain messages."""
    return any(_is_message(row) for row in _messages(rows))


def read(rows: list[Any]) -> ForeignSession:
    """Return the messages, in any of the formats."""
    request = dict_in(rows[0]) if len(rows) == 1 else {}
    messages = _messages(rows)
    foreign = tuple(ForeignMessage(message, _at(message)) for message in messages)
    name = _format(messages)
    if name == RESPONSES:
        foreign = tuple(group_items(foreign, text_in(request.get("model"))))
    session = text_in(request.get("session_id")) or text_in(request.get("sessionID"))
    return ForeignSession(name, foreign, session, text_in(request.get("agent")))


def _at(message: Any) -> int:
    data = dict_in(message)
    return instant(data.get("timestamp") or data.get("created_at"))


def _messages(rows: list[Any]) -> list[Any]:
    request = dict_in(rows[0]) if len(rows) == 1 else {}
    return list_in(request.get("messages")) or list_in(request.get("input")) or rows


def _is_message(row: Any) -> bool:
    message = dict_in(row)
    return isinstance(message.get("role"), str) or kind_in(row) in _ITEMS


def _format(messages: list[Any]) -> str:
    items = [dict_in(message) for message in messages]
    if any(kind_in(item) in _ITEMS for item in items):
        return RESPONSES
    blocks = [dict_in(block) for item in items for block in list_in(item.get("content"))]
    if any(kind_in(block) in _ANTHROPIC_BLOCKS for block in blocks):
        return ANTHROPIC
    if any(kind_in(block).startswith(("input_", "output_")) for block in blocks):
        return RESPONSES
    is_chat = any(
        "tool_calls" in item or str(item.get("role")) in ("tool", "system") for item in items
    )
    return CHAT if is_chat else ANTHROPIC
