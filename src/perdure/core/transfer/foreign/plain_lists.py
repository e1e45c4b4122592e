"""Lists of messages as programs send them to Anthropic or OpenAI, alone or in a request."""

from typing import Any, Final

from perdure.core.transfer.foreign.codex import grouped
from perdure.core.transfer.foreign.model import (
    Foreign,
    ForeignMessage,
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


def fits(rows: list[Any]) -> bool:
    """Whether there are messages in it."""
    return any(_is_message(row) for row in _messages(rows))


def read(rows: list[Any]) -> Foreign:
    """The messages, in whichever shape they are."""
    whole = dict_in(rows[0]) if len(rows) == 1 else {}
    messages = _messages(rows)
    said = tuple(ForeignMessage(one, _at(one)) for one in messages)
    name = _name(messages)
    if name == RESPONSES:
        said = tuple(grouped(said, text_in(whole.get("model"))))
    session = text_in(whole.get("session_id")) or text_in(whole.get("sessionID"))
    return Foreign(name, said, session, text_in(whole.get("agent")))


def _at(message: Any) -> int:
    found = dict_in(message)
    return instant(found.get("timestamp") or found.get("created_at"))


def _messages(rows: list[Any]) -> list[Any]:
    whole = dict_in(rows[0]) if len(rows) == 1 else {}
    return list_in(whole.get("messages")) or list_in(whole.get("input")) or rows


def _is_message(row: Any) -> bool:
    found = dict_in(row)
    return isinstance(found.get("role"), str) or kind_in(row) in _ITEMS


def _name(messages: list[Any]) -> str:
    found = [dict_in(one) for one in messages]
    if any(kind_in(one) in _ITEMS for one in found):
        return RESPONSES
    blocks = [dict_in(block) for one in found for block in list_in(one.get("content"))]
    if any(kind_in(block) in _ANTHROPIC_BLOCKS for block in blocks):
        return ANTHROPIC
    if any(kind_in(block).startswith(("input_", "output_")) for block in blocks):
        return RESPONSES
    is_chat = any(
        "tool_calls" in one or str(one.get("role")) in ("tool", "system") for one in found
    )
    return CHAT if is_chat else ANTHROPIC
