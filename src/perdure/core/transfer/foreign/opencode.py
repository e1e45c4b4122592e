"""Sessions of opencode: messages with parts, where a tool part is a call and its result in one."""

from collections.abc import Iterator
from typing import Any, Final

from perdure.core.transfer.foreign.model import (
    ForeignMessage,
    ForeignSession,
    dict_in,
    instant,
    list_in,
    text_in,
)

NAME: Final = "opencode"
_SIGNATURES: Final = ("signature", "redactedData")


def is_match(rows: list[Any]) -> bool:
    """Return True if the file is an exported session or the list of its messages."""
    return bool(_messages(rows))


def read(rows: list[Any]) -> ForeignSession:
    """Return the conversation in a session."""
    info = dict_in(dict_in(rows[0]).get("info")) if len(rows) == 1 else {}
    messages = _messages(rows)
    session = text_in(info.get("id")) if "role" not in info else None
    if session is None:
        session = text_in(dict_in(messages[0]["info"]).get("sessionID"))
    converted = [foreign for message in messages for foreign in _convert(message)]
    return ForeignSession(NAME, tuple(converted), session)


def _messages(rows: list[Any]) -> list[dict[str, Any]]:
    listed = list_in(dict_in(rows[0]).get("messages")) if len(rows) == 1 else rows
    messages = [row for row in listed or rows if _is_message(row)]
    return sorted(messages, key=_created_at) if all(map(_created_at, messages)) else messages


def _is_message(row: Any) -> bool:
    message = dict_in(row)
    return isinstance(message.get("parts"), list) and "role" in dict_in(message.get("info"))


def _created_at(message: dict[str, Any]) -> int:
    return instant(dict_in(message["info"].get("time")).get("created"))


def _convert(message: dict[str, Any]) -> Iterator[ForeignMessage]:
    info, at = message["info"], _created_at(message)
    parts = [dict_in(part) for part in message["parts"]]
    if info["role"] != "assistant":
        yield ForeignMessage(
            {"role": info["role"], "content": [b for p in parts for b in _block(p)]}, at
        )
        return
    origin = {
        name: text
        for name, key in (("provider", "providerID"), ("model", "modelID"))
        if (text := text_in(info.get(key)))
    }
    for step in _steps(parts):
        blocks = [block for part in step for block in _answer_block(part)]
        yield ForeignMessage({"role": "assistant", "content": blocks, **origin}, at)
        results = [result for part in step for result in _result(part)]
        if results:
            yield ForeignMessage({"role": "user", "content": results}, at)


def _steps(parts: list[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """Yield the responses in one message: each step with tools was followed by a new request."""
    step: list[dict[str, Any]] = []
    for part in parts:
        if part.get("type") == "step-start" and step:
            yield step
            step = []
        step.append(part)
    if step:
        yield step


def _block(part: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if part.get("ignored") is True:
        return
    if part.get("type") == "text":
        yield {"type": "text", "text": part.get("text")}
    elif part.get("type") == "file" and text_in(part.get("url")):
        yield _file(part)


def _file(part: dict[str, Any]) -> dict[str, Any]:
    media_type = text_in(part.get("mime")) or "application/octet-stream"
    name = text_in(part.get("filename")) or "a file"
    if media_type.startswith("image/"):
        return {"type": "image_url", "image_url": {"url": part["url"]}}
    return {"type": "text", "text": f"[{name}: {media_type}]"}


def _answer_block(part: dict[str, Any]) -> Iterator[dict[str, Any]]:
    kind = part.get("type")
    if kind == "reasoning":
        yield from _thinking(part)
    elif kind == "tool":
        arguments = dict_in(part.get("state")).get("input")
        yield {
            "type": "tool_use",
            "id": part.get("callID"),
            "name": part.get("tool"),
            "input": arguments if isinstance(arguments, dict) else {},
        }
    else:
        yield from _block(part)


def _thinking(part: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield signed thinking: the provider accepts only what it signed."""
    signed = dict_in(dict_in(part.get("metadata")).get("anthropic"))
    signature, redacted = (text_in(signed.get(key)) for key in _SIGNATURES)
    if redacted:
        yield {"type": "redacted_thinking", "data": redacted}
    elif signature:
        yield {"type": "thinking", "thinking": part.get("text"), "signature": signature}


def _result(part: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the result of a tool; one that was still running when the file was saved has none."""
    state = dict_in(part.get("state"))
    if part.get("type") != "tool" or state.get("status") not in ("completed", "error"):
        return
    is_error = state["status"] == "error"
    result: dict[str, Any] = {
        "type": "tool_result",
        "tool_use_id": part.get("callID"),
        "content": state.get("error" if is_error else "output"),
    }
    yield {**result, "is_error": True} if is_error else result
