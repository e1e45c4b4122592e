"""Our own messages as turns and back."""

from dataclasses import replace
from typing import Any, Final, TypeGuard

import msgspec

from perdure.core.conversation.messages import (
    AskedCall,
    AssistantMessage,
    Message,
    ToolMessage,
    UserMessage,
)
from perdure.core.conversation.repair.blocks import (
    RESULT_MEDIA,
    Unreadable,
    call_part,
    is_known,
    is_made_of,
    read_block,
    result_part,
    text_part,
)
from perdure.core.conversation.repair.json_values import is_plain
from perdure.core.conversation.repair.model import OWN, Block, Part, Turn
from perdure.core.log.events import Content

SAID_NOTHING: Final = "[no text]"  # a turn of ours keeps its place, also with nothing in it
_OWN: Final = (UserMessage, AssistantMessage, ToolMessage)
_RESULT: Final = RESULT_MEDIA | {"text", "file"}


def is_own(message: object) -> TypeGuard[Message]:
    """Whether it is one of our own messages."""
    return type(message) in _OWN


def read_own(message: Message, at: int) -> Turn:
    """One of our messages as a turn; where there is nothing in it, that is said."""
    match message:
        case UserMessage():
            return _user(message, at)
        case AssistantMessage():
            return _assistant(message, at)
        case ToolMessage():
            part = result_part(message.call_id, message.content, is_error=message.is_error)
            part.same = part.same and is_made_of(_RESULT, message.content)
            part.given = message
            return Turn("user", [part], at, OWN)


def write_own(turn: Turn) -> list[Message]:
    """A turn as our messages: as it was given where nothing was changed in it."""
    if turn.role == "assistant":
        return [_answer(turn)]
    told: list[Message] = [_tool_message(part) for part in turn.parts if part.kind == "result"]
    said = [part for part in turn.parts if part.kind != "result"]
    if said and not turn.changed and is_own(turn.given):
        return [*told, turn.given]
    return [*told, UserMessage(_own_content(said))] if said else told


def _user(message: UserMessage, at: int) -> Turn:
    parts, same = _parts(message.content)
    return Turn("user", parts or [_nothing()], at, OWN, message, changed=not same)


def _nothing() -> Part:
    return Part("text", {"type": "text", "text": SAID_NOTHING}, same=False)


def _parts(content: Content) -> tuple[list[Part], bool]:
    items: list[Any] = [content] if isinstance(content, str) else content
    parts: list[Part] = []
    for item in items:
        try:
            part = read_block(item, "user")
        except Unreadable:
            continue
        if part is not None and part.kind in ("text", "media"):
            part.given = item
            parts.append(part)
    return parts, len(parts) == len(items) and all(part.same for part in parts)


def _assistant(message: AssistantMessage, at: int) -> Turn:
    said = message.text.strip() or (message.output or b"").decode("utf-8", "replace").strip()
    text = text_part(said if not message.text.strip() else message.text)
    calls = [call_part(call.id, call.tool, call.params) for call in message.calls]
    for part, call in zip(calls, message.calls, strict=True):
        part.same = part.block["name"] == call.tool and part.block["input"] == call.params
        part.given = call
    native, sent = _native(message)
    told = _as_sent(message, sent, calls)
    private = any(part.kind == "private" for part in sent)
    plain = [*([] if text is None else [text]), *calls]
    parts = (told if private else plain) or plain or [_nothing()]
    same = all(part.same for part in parts)
    origin = {"provider": message.provider, "model": message.model}
    more = {key: value for key, value in origin.items() if value is not None}
    turn = Turn("assistant", parts, at, OWN, message, more, changed=not same)
    turn.native = native if told else None
    turn.paused = message.paused
    return turn


def _native(message: AssistantMessage) -> tuple[list[Any], list[Part]]:
    """What the provider sent, and its parts; nothing if it cannot be read."""
    if message.native is None:
        return [], []
    try:
        native = msgspec.json.decode(message.native)
        found = [_sent(block) for item in native for block in _inner(item)]
    except (msgspec.MsgspecError, UnicodeDecodeError, TypeError, KeyError, Unreadable):
        return [], []
    return native, [part for part in found if part is not None]


def _sent(block: Any) -> Part | None:
    """A block that a provider sent; one of a kind that only it knows is private to it."""
    kind = block.get("type") if isinstance(block, dict) else None
    strange = isinstance(kind, str) and not is_known(kind)
    if (strange or is_withheld(block)) and is_plain(block):
        return Part("private", block)
    return read_block(block, "assistant")


def is_withheld(block: Any) -> bool:
    """Whether it is thinking that the provider keeps to itself: a signature without text.

    In what it sent itself, that is; elsewhere it is thinking from which somebody took the text.
    """
    is_thinking = isinstance(block, dict) and block.get("type") == "thinking"
    return is_thinking and block.get("thinking") == "" and bool(block.get("signature"))


def _inner(item: Any) -> list[Any]:
    """A block, or those in a message of OpenAI, Responses or chat."""
    if not isinstance(item, dict):
        return [item]
    if item.get("type") == "message":
        return list(item["content"]) if isinstance(item.get("content"), list) else []
    if "type" in item or item.get("role") != "assistant":
        return [item]
    said = item.get("content")
    texts = said if isinstance(said, list) else [said] if isinstance(said, str) else []
    return [*texts, *map(_chat_call, item.get("tool_calls") or [])]


def _chat_call(call: dict[str, Any]) -> Block:
    function = call["function"]
    said = {**function, "arguments": function.get("arguments") or "{}"}
    return {**said, "type": "function_call", "call_id": call["id"]}


def _as_sent(message: AssistantMessage, sent: list[Part], calls: list[Part]) -> list[Part]:
    """Our parts in the order in which the provider sent them, if they are the same; else none."""
    asked = iter(calls)
    told = [next(asked, part) if part.kind == "call" else part for part in sent]
    # A provider does not take back what it sent as arguments if that is no object.
    sound = [part.id for part in sent if part.kind == "call" and part.same]
    same = sound == [part.id for part in calls]
    texts = "".join(part.block["text"] for part in sent if part.kind == "text")
    return told if same and _bare(texts) == _bare(message.text) else []


def _bare(text: str) -> str:
    """The text without blanks: with which an answer's blocks were joined does not matter."""
    return "".join(text.split())


def _answer(turn: Turn) -> Message:
    given = turn.given
    if not turn.changed and isinstance(given, AssistantMessage):
        return given
    said = [part for part in turn.parts if part.kind == "text"]
    told = [part for part in said if part.same or part.block["text"] != SAID_NOTHING]
    text = "\n\n".join(part.block["text"] for part in told or said)
    calls = tuple(_asked(part) for part in turn.parts if part.kind == "call")
    if isinstance(given, AssistantMessage):
        return replace(given, text=text, calls=calls, native=None)
    return AssistantMessage(text, calls)


def _asked(part: Part) -> AskedCall:
    given = part.given
    if isinstance(given, AskedCall) and part.same and given.id == part.block["id"]:
        return given
    return AskedCall(part.block["id"], part.block["name"], part.block["input"])


def _tool_message(part: Part) -> ToolMessage:
    given = part.given
    call_id = part.block["tool_use_id"]
    if isinstance(given, ToolMessage):
        if part.same and given.call_id == call_id:
            return given
        content = given.content if part.same else _own_result(part.block["content"])
        return replace(given, call_id=call_id, content=content)
    tool = "" if part.answer is None else part.answer.block["name"]
    content = _own_result(part.block.get("content", ""))
    return ToolMessage(call_id, tool, content, part.block.get("is_error") is True)


def _own_result(content: str | list[Block]) -> Content:
    return content


def _own_content(parts: list[Part]) -> Content:
    if len(parts) == 1 and parts[0].kind == "text":
        return str(parts[0].block["text"])
    items = [part.given if isinstance(part.given, dict) else part.block for part in parts]
    return [item for item in items if isinstance(item, dict)]
