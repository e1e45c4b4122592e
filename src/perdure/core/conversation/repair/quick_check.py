"""A fast check that finds most valid histories: those in Anthropic's shape.

A history that passes needs no repair. One that does not may still be valid in another shape;
repair then returns it unchanged.
"""

from typing import Any, Final, TypeGuard

from perdure.core.conversation.repair.call_ids import is_valid_id, is_valid_name
from perdure.core.conversation.repair.json_values import is_json_value
from perdure.core.conversation.repair.model import Block

_KEYS: Final = frozenset({"role", "content", "provider", "model"})
_CALL_KEYS: Final = frozenset({"type", "id", "name", "input"})
_RESULT_KEYS: Final = frozenset({"type", "tool_use_id", "content", "is_error"})
_THINKING_KEYS: Final = frozenset({"type", "thinking", "signature"})


def is_certainly_valid(messages: object) -> TypeGuard[list[dict[str, Any]]]:
    """Report whether the history is certainly valid; False if it has to be read in full."""
    if type(messages) is not list:
        return False
    check = _QuickCheck()
    for message in messages:
        if type(message) is not dict or not check.is_valid(message):
            return False
    return not check.open_ids


class _QuickCheck:
    """State of the check between messages."""

    def __init__(self) -> None:
        self.open_ids: list[str] = []  # calls whose results the next message must have
        self._ids: set[str] = set()
        self._has_user = False
        self._checks = {"text": _is_text, "tool_use": self._is_call, "thinking": _is_thinking}

    def is_valid(self, message: dict[str, Any]) -> bool:
        role, content = message.get("role"), message.get("content")
        if type(role) is not str or not self._may_follow(role):
            return False
        if len(message) != 2 and not (message.keys() <= _KEYS and is_json_value(message)):
            return False
        if type(content) is str:
            return not self.open_ids and has_text(content)
        if type(content) is not list or not content or role == "system":
            return False
        is_valid = self._is_user_content if role == "user" else self._is_assistant_content
        return is_valid(content)

    def _may_follow(self, role: str) -> bool:
        if role == "user":
            self._has_user = True
            return True
        return not self.open_ids if role == "system" else role == "assistant" and self._has_user

    def _is_user_content(self, content: list[Any]) -> bool:
        count = len(self.open_ids)
        if count and not self._has_all_results(content[:count]):
            return False
        return all(_is_text(block) for block in content[count:])

    def _has_all_results(self, blocks: list[Any]) -> bool:
        missing, self.open_ids = set(self.open_ids), []
        for block in blocks:
            if not _is_result(block) or block["tool_use_id"] not in missing:
                return False
            missing.discard(block["tool_use_id"])
        return not missing

    def _is_assistant_content(self, content: list[Any]) -> bool:
        if self.open_ids:
            return False
        for block in content:
            if type(block) is not dict:
                return False
            kind = block.get("type")
            check = self._checks.get(kind) if type(kind) is str else None
            if check is None or not check(block):
                return False
        return bool(content[-1]["type"] != "thinking")

    def _is_call(self, block: Block) -> bool:
        call_id, name, arguments = block.get("id"), block.get("name"), block.get("input")
        if type(call_id) is not str or call_id in self._ids or not is_valid_id(call_id):
            return False
        if type(name) is not str or not is_valid_name(name) or block.keys() != _CALL_KEYS:
            return False
        self._ids.add(call_id)
        self.open_ids.append(call_id)
        return type(arguments) is dict and is_json_value(arguments)


def has_text(text: str) -> bool:
    """Report whether a text is not blank and is valid Unicode."""
    return bool(text) and not text.isspace() and (text.isascii() or is_json_value(text))


def _is_text(block: Any) -> bool:
    if type(block) is not dict or len(block) != 2:
        return False
    kind, text = block.get("type"), block.get("text")
    return type(kind) is str and kind == "text" and type(text) is str and has_text(text)


def _is_result(block: Any) -> bool:
    kind = block.get("type") if type(block) is dict else None
    if type(kind) is not str or kind != "tool_result":
        return False
    content, failed = block.get("content"), block.get("is_error", False)
    if type(failed) is not bool or not block.keys() <= _RESULT_KEYS:
        return False
    if type(block.get("tool_use_id")) is not str:
        return False
    if type(content) is str:
        return bool(content or not failed) and is_json_value(content)
    return type(content) is list and bool(content) and all(map(_is_text, content))


def _is_thinking(block: Block) -> bool:
    if block.keys() != _THINKING_KEYS:
        return False
    thinking, signature = block["thinking"], block["signature"]
    are_texts = type(thinking) is str and type(signature) is str
    return (
        are_texts
        and bool(thinking and signature)
        and is_json_value(thinking)
        and is_json_value(signature)
    )
