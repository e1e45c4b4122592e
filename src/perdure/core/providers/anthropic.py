"""Conversations for Anthropic's Messages API."""

from typing import Any, Final

from perdure.core.providers.target import (
    CLOSED,
    CONTINUE,
    EMPTY,
    Block,
    Message,
    Target,
    decoded,
    is_private,
    missing,
)

_KEYS: Final = {
    "text": frozenset({"type", "text"}),
    "tool_use": frozenset({"type", "id", "name", "input"}),
    "tool_result": frozenset({"type", "tool_use_id", "content", "is_error"}),
    "image": frozenset({"type", "source"}),
    "document": frozenset({"type", "source", "title", "context"}),
    "search_result": frozenset({"type", "source", "title", "content"}),
}
_THOUGHT: Final = frozenset({"thinking", "redacted_thinking"})


def render_anthropic(told: list[tuple[Message, bool]], target: Target) -> dict[str, Any]:
    """`messages`, and `system` if something was said there."""
    system: list[str] = []
    messages: list[Message] = []
    for message, intact in told:
        if message["role"] == "system":
            system += _texts(message["content"])
        else:
            _add(messages, _rendered(message, intact, target))
    if not (told and _goes_on(told[-1][0], target)):
        _end(messages, target)
    body: dict[str, Any] = {"messages": messages}
    return {"system": "\n\n".join(system), **body} if system else body


def _goes_on(last: Message, target: Target) -> bool:
    """Whether the model goes on with its own answer, just because it gets it back."""
    return "paused" in last and target.native(last) is not None


def _texts(content: str | list[Block]) -> list[str]:
    return [content] if isinstance(content, str) else [block["text"] for block in content]


def _rendered(message: Message, intact: bool, target: Target) -> Message | None:
    """One message with what may be sent; None if nothing of it may."""
    content = message["content"]
    native = target.native(message)
    if native is not None:
        return {"role": message["role"], "content": list(filter(_is_said, native))}
    if type(content) is str:
        return message if len(message) == 2 else {"role": message["role"], "content": content}
    private = [block for block in content if is_private(block)]
    keep = intact and all(target.may_have(message, block) for block in private)
    if not private and len(message) == 2 and all(map(_is_ready, content)):
        return message
    blocks = [
        block if is_private(block) else _block(block, target)
        for block in content
        if keep or not is_private(block)
    ]
    return {"role": message["role"], "content": blocks} if blocks else None


def _is_said(block: Block) -> bool:
    """Blank texts come from the provider, and are refused by it."""
    return block["type"] != "text" or bool(block["text"].strip())


def _add(messages: list[Message], message: Message | None) -> None:
    """Two messages of one side in a row become one; thinking belongs to just one answer."""
    if message is None:
        return
    if not messages or messages[-1]["role"] != message["role"]:
        messages.append(message)
        return
    blocks = [*_blocks(messages[-1]), *_blocks(message)]
    if message["role"] == "assistant":
        blocks = [block for block in blocks if not is_private(block)]
    messages[-1] = {"role": message["role"], "content": blocks}


def _blocks(message: Message) -> list[Block]:
    content = message["content"]
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _end(messages: list[Message], target: Target) -> None:
    """A request ends with the user; an open tool loop must have begun with thinking."""
    if not messages:
        messages.append({"role": "user", "content": EMPTY})
    elif messages[-1]["role"] == "assistant":
        messages.append({"role": "user", "content": CONTINUE})
    elif target.thinking and len(messages) > 1 and _is_open_without_thought(messages):
        messages.append({"role": "assistant", "content": CLOSED})
        messages.append({"role": "user", "content": CONTINUE})


def _is_open_without_thought(messages: list[Message]) -> bool:
    answered = any(block["type"] == "tool_result" for block in _blocks(messages[-1]))
    return answered and _blocks(messages[-2])[0]["type"] not in _THOUGHT


def _is_ready(block: Block) -> bool:
    kind = block["type"]
    if kind in ("text", "tool_use"):
        return block.keys() == _KEYS[kind]
    return bool(
        kind == "tool_result"
        and block.keys() <= _KEYS[kind]
        and (type(block.get("content", "")) is str or all(map(_is_ready, block["content"])))
    )


def _block(block: Block, target: Target) -> Block:
    kind = block["type"]
    if kind in ("image", "document"):
        return _media(block, target)
    made = {key: value for key, value in block.items() if key in _KEYS[kind]}
    if kind == "tool_result" and isinstance(made.get("content"), list):
        made["content"] = [_block(inner, target) for inner in made["content"]]
    return made


def _media(block: Block, target: Target) -> Block:
    source = target.source(block)
    kind = source.get("type")
    if kind is None or kind == "openai_file":
        return missing(block)
    if block["type"] == "document" and kind == "base64":
        source = _document_source(source)
        if not source:
            return missing(block)
    made = {key: value for key, value in block.items() if key in _KEYS[block["type"]]}
    return {**made, "source": source}


def _document_source(source: Block) -> Block:
    """Only PDF goes as bytes; what is text goes as text."""
    if source["media_type"] == "application/pdf":
        return source
    text = decoded(source["data"])
    return {} if not text else {"type": "text", "media_type": "text/plain", "data": text}
