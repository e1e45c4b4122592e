"""Messages of perdure, read as turns and written again."""

from typing import Any, Final, TypeGuard

import msgspec
from msgspec.structs import replace

from perdure.core.conversation.messages import (
    AssistantMessage,
    Message,
    RequestedCall,
    ToolMessage,
    UserMessage,
)
from perdure.core.conversation.repair.blocks import (
    RESULT_MEDIA,
    Unreadable,
    call_part,
    has_only_types,
    is_readable_type,
    read_block,
    result_part,
    text_part,
)
from perdure.core.conversation.repair.json_values import is_json_value
from perdure.core.conversation.repair.model import OWN, Block, Part, RepairTurn
from perdure.core.log.events import Content

NO_TEXT: Final = "[no text]"  # an empty message stays in the history
_OWN: Final = (UserMessage, AssistantMessage, ToolMessage)
_RESULT_TYPES: Final = RESULT_MEDIA | {"text", "file"}


def is_own(message: object) -> TypeGuard[Message]:
    """Report whether the object is a message of perdure."""
    return type(message) in _OWN


def read_own(message: Message, index: int) -> RepairTurn:
    """Read a message as a turn; an empty one gets a text that says so."""
    match message:
        case UserMessage():
            return _user(message, index)
        case AssistantMessage():
            return _assistant(message, index)
        case ToolMessage():
            part = result_part(message.call_id, message.content, is_error=message.is_error)
            part.unchanged = part.unchanged and has_only_types(_RESULT_TYPES, message.content)
            part.original = message
            return RepairTurn("user", [part], index, OWN)


def write_own(turn: RepairTurn) -> list[Message]:
    """Write a turn as messages; an unchanged one as its original objects."""
    if turn.role == "assistant":
        return [_answer(turn)]
    results: list[Message] = [_tool_message(part) for part in turn.parts if part.kind == "result"]
    parts = [part for part in turn.parts if part.kind != "result"]
    if parts and not turn.changed and is_own(turn.original):
        return [*results, turn.original]
    return [*results, UserMessage(_own_content(parts))] if parts else results


def _user(message: UserMessage, index: int) -> RepairTurn:
    parts, unchanged = _parts(message.content)
    return RepairTurn("user", parts or [_empty_text()], index, OWN, message, changed=not unchanged)


def _empty_text() -> Part:
    return Part("text", {"type": "text", "text": NO_TEXT}, unchanged=False)


def _parts(content: Content) -> tuple[list[Part], bool]:
    items: list[Any] = [content] if isinstance(content, str) else content
    parts: list[Part] = []
    for item in items:
        try:
            part = read_block(item, "user")
        except Unreadable:
            continue
        if part is not None and part.kind in ("text", "media"):
            part.original = item
            parts.append(part)
    return parts, len(parts) == len(items) and all(part.unchanged for part in parts)


def _assistant(message: AssistantMessage, index: int) -> RepairTurn:
    output = (message.output or b"").decode("utf-8", "replace").strip()
    text = text_part(message.text if message.text.strip() else output)
    calls = [call_part(call.id, call.tool, call.params) for call in message.calls]
    for part, call in zip(calls, message.calls, strict=True):
        part.unchanged = part.block["name"] == call.tool and part.block["input"] == call.params
        part.original = call
    native, native_parts = _native(message)
    ordered = _native_order(message, native_parts, calls)
    has_private = any(part.kind == "private" for part in native_parts)
    own_parts = [*([] if text is None else [text]), *calls]
    parts = (ordered if has_private else own_parts) or own_parts or [_empty_text()]
    unchanged = all(part.unchanged for part in parts)
    names = {"provider": message.provider, "model": message.model}
    origin = {key: value for key, value in names.items() if value is not None}
    turn = RepairTurn("assistant", parts, index, OWN, message, origin, changed=not unchanged)
    turn.native = native if ordered else None
    turn.paused = message.paused
    return turn


def _native(message: AssistantMessage) -> tuple[list[Any], list[Part]]:
    """Return the native form and its parts; empty if it cannot be read."""
    if message.native is None:
        return [], []
    try:
        native = msgspec.json.decode(message.native)
        parts = [_native_part(block) for item in native for block in _inner_blocks(item)]
    except (msgspec.MsgspecError, UnicodeDecodeError, TypeError, KeyError, Unreadable):
        return [], []
    return native, [part for part in parts if part is not None]


def _native_part(block: Any) -> Part | None:
    """Read a block that a provider sent; one of an unknown type is private to that provider."""
    kind = block.get("type") if isinstance(block, dict) else None
    is_foreign = isinstance(kind, str) and not is_readable_type(kind)
    if (is_foreign or is_withheld(block)) and is_json_value(block):
        return Part("private", block)
    return read_block(block, "assistant")


def is_withheld(block: Any) -> bool:
    """Report whether a block is thinking without text, which some providers withhold.

    That holds for native blocks only: anywhere else the text was removed later.
    """
    is_thinking = isinstance(block, dict) and block.get("type") == "thinking"
    return is_thinking and block.get("thinking") == "" and bool(block.get("signature"))


def _inner_blocks(item: Any) -> list[Any]:
    """Return the block, or the blocks in a message of OpenAI chat or Responses."""
    if not isinstance(item, dict):
        return [item]
    if item.get("type") == "message":
        return list(item["content"]) if isinstance(item.get("content"), list) else []
    if "type" in item or item.get("role") != "assistant":
        return [item]
    content = item.get("content")
    texts = content if isinstance(content, list) else [content] if isinstance(content, str) else []
    return [*texts, *map(_chat_call, item.get("tool_calls") or [])]


def _chat_call(call: dict[str, Any]) -> Block:
    function = call["function"]
    arguments = {**function, "arguments": function.get("arguments") or "{}"}
    return {**arguments, "type": "function_call", "call_id": call["id"]}


def _native_order(
    message: AssistantMessage, native_parts: list[Part], calls: list[Part]
) -> list[Part]:
    """Return the parts of a message in the order of the provider; none if they differ."""
    own_calls = iter(calls)
    ordered = [next(own_calls, part) if part.kind == "call" else part for part in native_parts]
    # A provider refuses arguments that are not an object, even those that it sent itself.
    native_ids = [part.id for part in native_parts if part.kind == "call" and part.unchanged]
    is_same = native_ids == [part.id for part in calls]
    texts = "".join(part.block["text"] for part in native_parts if part.kind == "text")
    return ordered if is_same and _without_blanks(texts) == _without_blanks(message.text) else []


def _without_blanks(text: str) -> str:
    """Remove all blanks: how the blocks of a response were joined does not matter."""
    return "".join(text.split())


def _answer(turn: RepairTurn) -> Message:
    original = turn.original
    if not turn.changed and isinstance(original, AssistantMessage):
        return original
    texts = [part for part in turn.parts if part.kind == "text"]
    written = [part for part in texts if part.unchanged or part.block["text"] != NO_TEXT]
    text = "\n\n".join(part.block["text"] for part in written or texts)
    calls = tuple(_call(part) for part in turn.parts if part.kind == "call")
    if isinstance(original, AssistantMessage):
        return replace(original, text=text, calls=calls, native=None)
    return AssistantMessage(text, calls)


def _call(part: Part) -> RequestedCall:
    original = part.original
    if isinstance(original, RequestedCall) and part.unchanged and original.id == part.block["id"]:
        return original
    return RequestedCall(part.block["id"], part.block["name"], part.block["input"])


def _tool_message(part: Part) -> ToolMessage:
    original = part.original
    call_id = part.block["tool_use_id"]
    if isinstance(original, ToolMessage):
        if part.unchanged and original.call_id == call_id:
            return original
        content = original.content if part.unchanged else part.block["content"]
        return replace(original, call_id=call_id, content=content)
    tool = "" if part.counterpart is None else part.counterpart.block["name"]
    content = part.block.get("content", "")
    return ToolMessage(call_id, tool, content, part.block.get("is_error") is True)


def _own_content(parts: list[Part]) -> Content:
    if len(parts) == 1 and parts[0].kind == "text":
        return str(parts[0].block["text"])
    items = [part.original if isinstance(part.original, dict) else part.block for part in parts]
    return [item for item in items if isinstance(item, dict)]
