"""Keys and blocks that a provider refuses in a message sent as it is, and their removal.

`repair` keeps them: perdure's own renderers need a response's origin and private blocks, and leave
out what a provider must not get. A list that is sent without them is stricter.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from perdure.core.conversation.repair.model import Block, Issue

MAX_CACHE_MARKS: Final = 4
_ORIGIN: Final = frozenset({"provider", "model"})
_CACHE: Final = "cache_control"
_ANTHROPIC_KEYS: Final = frozenset({"role", "content"})
_BLOCK_KEYS: Final[Mapping[str, frozenset[str]]] = {
    "text": frozenset({"type", "text", "citations", _CACHE}),
    "image": frozenset({"type", "source", _CACHE}),
    "document": frozenset({"type", "source", "title", "context", "citations", _CACHE}),
    "search_result": frozenset({"type", "source", "title", "content", "citations", _CACHE}),
    "tool_use": frozenset({"type", "id", "name", "input", "caller", _CACHE}),
    "tool_result": frozenset({"type", "tool_use_id", "content", "is_error", _CACHE}),
    "thinking": frozenset({"type", "thinking", "signature"}),
    "redacted_thinking": frozenset({"type", "data"}),
}
_ONLY_ANTHROPIC: Final = frozenset(_BLOCK_KEYS) - {"text"}
_ONLY_OPENAI: Final = frozenset({"reasoning"})  # a block of Responses, in a list of Anthropic


def without_origin(message: Any) -> Any:
    """Return a message without the keys that name the provider and model of a response."""
    if type(message) is not dict or not _ORIGIN & message.keys():
        return message
    return {key: value for key, value in message.items() if key not in _ORIGIN}


def sendable(messages: list[Any]) -> tuple[list[Any], list[Issue]]:
    """Return repaired messages without what their provider refuses, and the issues."""
    is_anthropic = any(
        block.get("type") in _ONLY_ANTHROPIC for message in messages for block in _blocks(message)
    )
    sent: list[Any] = []
    issues: list[Issue] = []
    for index, message in enumerate(messages):
        rewritten = without_origin(message)
        rewritten = _anthropic(rewritten) if is_anthropic else rewritten
        if rewritten is not message:
            details = "Removed keys or blocks that the provider refuses"
            issues.append(Issue("invalid_message", index, "skipped", details))
        if rewritten is message or rewritten.get("content") != []:
            sent.append(rewritten)
    return _limit_cache_marks(sent, issues), issues


def _blocks(message: Any) -> Iterator[Block]:
    content = message.get("content") if type(message) is dict else None
    yield from (b for b in (content if type(content) is list else []) if type(b) is dict)


def _anthropic(message: Any) -> Any:
    """Return a message with the keys and blocks that Anthropic accepts; the same if it has them."""
    if type(message) is not dict or "role" not in message or "content" not in message:
        return message
    content = message["content"]
    blocks = [_block(b) for b in content if not _is_foreign(b)] if type(content) is list else None
    is_same = blocks is None or (
        len(blocks) == len(content) and all(a is b for a, b in zip(blocks, content, strict=True))
    )
    if is_same and message.keys() <= _ANTHROPIC_KEYS:
        return message
    return {"role": message["role"], "content": content if is_same else blocks}


def _is_foreign(block: Any) -> bool:
    return type(block) is dict and block.get("type") in _ONLY_OPENAI


def _block(block: Any) -> Any:
    keys = _BLOCK_KEYS.get(str(block.get("type"))) if type(block) is dict else None
    if keys is None or block.keys() <= keys:
        return block
    return {key: value for key, value in block.items() if key in keys}


def _limit_cache_marks(messages: list[Any], issues: list[Issue]) -> list[Any]:
    """Keep the last marks for Anthropic's cache: the earlier ones are within their prefix."""
    excess = sum(_CACHE in b for message in messages for b in _blocks(message)) - MAX_CACHE_MARKS
    if excess <= 0:
        return messages
    limited = []
    for message in messages:
        content = message.get("content") if type(message) is dict else None
        if excess > 0 and type(content) is list:
            blocks = []
            for block in content:
                has_mark = excess > 0 and type(block) is dict and _CACHE in block
                excess -= has_mark
                blocks.append(_without_mark(block) if has_mark else block)
            message = {**message, "content": blocks}  # noqa: PLW2901
        limited.append(message)
    details = f"More than {MAX_CACHE_MARKS} cache_control marks: kept the last ones"
    issues.append(Issue("invalid_message", -1, "skipped", details))
    return limited


def _without_mark(block: Block) -> Block:
    return {key: value for key, value in block.items() if key != _CACHE}
