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

_CHAT_ROLES: Final = frozenset({"tool", "system", "developer"})


def is_match(rows: list[Any]) -> bool:
    """Return True if the rows contain messages."""
    return any(_is_message(row) for row in _messages(rows))


def read(rows: list[Any]) -> ForeignSession:
    """Return the messages, in any of the formats."""
    request = dict_in(rows[0]) if len(rows) == 1 else {}
    messages = [*_instructions(request), *_messages(rows)]
    foreign = tuple(ForeignMessage(message, _at(message)) for message in messages)
    name = _format(messages)
    if name == RESPONSES:
        foreign = tuple(group_items(foreign, text_in(request.get("model"))))
    session = text_in(request.get("session_id")) or text_in(request.get("sessionID"))
    has_tools = bool(list_in(request.get("tools")))
    notes = ("the tools of the request were left out: the agent has its own",) if has_tools else ()
    return ForeignSession(name, foreign, session, text_in(request.get("agent")), notes=notes)


def _instructions(request: dict[str, Any]) -> list[Any]:
    """Return the instructions beside the messages of a request, as a system message."""
    for key in ("system", "instructions"):
        if text_in(request.get(key)) or list_in(request.get(key)):
            return [{"role": "system", "content": request[key]}]
    return []


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
    is_chat = any("tool_calls" in item or str(item.get("role")) in _CHAT_ROLES for item in items)
    return CHAT if is_chat else ANTHROPIC
