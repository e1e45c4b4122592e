"""A fast look at a history: whether it is a valid one, in its most common shape.

What it calls sound needs no repair. What it does not may still be valid, in a rarer shape: then
taking it apart and putting it together again gives the same.
"""

from typing import Any, Final, TypeGuard

from perdure.core.conversation.repair.call_ids import is_good, is_good_name
from perdure.core.conversation.repair.json_values import is_plain
from perdure.core.conversation.repair.model import Block

_KEYS: Final = frozenset({"role", "content", "provider", "model"})
_CALL_KEYS: Final = frozenset({"type", "id", "name", "input"})
_RESULT_KEYS: Final = frozenset({"type", "tool_use_id", "content", "is_error"})
_THOUGHT_KEYS: Final = frozenset({"type", "thinking", "signature"})


def is_sound(messages: object) -> TypeGuard[list[dict[str, Any]]]:
    """Whether the history is certainly valid as it stands."""
    if type(messages) is not list:
        return False
    look = _Look()
    for message in messages:
        if type(message) is not dict or not look.takes(message):
            return False
    return not look.open


class _Look:
    """What must be remembered from one message to the next."""

    def __init__(self) -> None:
        self.open: list[str] = []  # calls that the next message must answer
        self._ids: set[str] = set()
        self._begun = False
        self._looks = {"text": _is_text, "tool_use": self._calls, "thinking": _is_thought}

    def takes(self, message: dict[str, Any]) -> bool:
        role, content = message.get("role"), message.get("content")
        if type(role) is not str or not self._may_speak(role):
            return False
        if len(message) != 2 and not (message.keys() <= _KEYS and is_plain(message)):
            return False
        if type(content) is str:
            return not self.open and is_said(content)
        if type(content) is not list or not content or role == "system":
            return False
        return self._user(content) if role == "user" else self._assistant(content)

    def _may_speak(self, role: str) -> bool:
        if role == "user":
            self._begun = True
            return True
        return not self.open if role == "system" else role == "assistant" and self._begun

    def _user(self, content: list[Any]) -> bool:
        place = len(self.open)
        if place and not self._answers(content[:place]):
            return False
        return all(_is_text(block) for block in content[place:])

    def _answers(self, blocks: list[Any]) -> bool:
        wanted, self.open = set(self.open), []
        for block in blocks:
            if not _is_result(block) or block["tool_use_id"] not in wanted:
                return False
            wanted.discard(block["tool_use_id"])
        return not wanted

    def _assistant(self, content: list[Any]) -> bool:
        if self.open:
            return False
        for block in content:
            if type(block) is not dict:
                return False
            kind = block.get("type")
            look = self._looks.get(kind) if type(kind) is str else None
            if look is None or not look(block):
                return False
        return bool(content[-1]["type"] != "thinking")

    def _calls(self, block: Block) -> bool:
        call_id, name, arguments = block.get("id"), block.get("name"), block.get("input")
        if type(call_id) is not str or call_id in self._ids or not is_good(call_id):
            return False
        if type(name) is not str or not is_good_name(name) or block.keys() != _CALL_KEYS:
            return False
        self._ids.add(call_id)
        self.open.append(call_id)
        return type(arguments) is dict and is_plain(arguments)


def is_said(text: str) -> bool:
    """Whether a text has something in it, and only whole characters."""
    return bool(text) and not text.isspace() and (text.isascii() or is_plain(text))


def _is_text(block: Any) -> bool:
    if type(block) is not dict or len(block) != 2:
        return False
    kind, text = block.get("type"), block.get("text")
    return type(kind) is str and kind == "text" and type(text) is str and is_said(text)


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
        return bool(content or not failed) and is_plain(content)
    return type(content) is list and bool(content) and all(map(_is_text, content))


def _is_thought(block: Block) -> bool:
    if block.keys() != _THOUGHT_KEYS:
        return False
    thinking, signature = block["thinking"], block["signature"]
    told = type(thinking) is str and type(signature) is str
    return told and bool(thinking and signature) and is_plain(thinking) and is_plain(signature)
