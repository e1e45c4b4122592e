"""Content of a history, read from the raw list. Nothing here shares code with the repair."""

from typing import Any

from perdure.core.conversation.messages import AssistantMessage, ToolMessage, UserMessage

SAID = ("text", "input_text", "output_text")
ROLES = ("system", "developer", "user", "assistant")


def pairs_of_log(events: list[Any]) -> int:
    """Count the calls of a log that have a result after them."""
    seen: list[tuple[str, Any]] = []
    for event in events:
        if type(event) is not dict or type(event.get("data")) is not dict:
            continue
        if type(event.get("timestamp")) not in (int, float):
            continue
        data, kind = event["data"], event.get("type")
        names = [name for name in (data.get("role"), data.get("agent")) if type(name) is str]
        if type(kind) is not str or "system" in names:
            continue
        if kind == "tool_call":
            seen.append(("call", data.get("id")))
        elif kind == "tool_result":
            seen.append(("result", data.get("toolCallId")))
    return _completed(seen)


def pairs_of_messages(messages: Any) -> int:
    """Count the calls of a list of messages that have a result after them."""
    seen: list[tuple[str, Any]] = []
    for message in messages:
        seen += _mentions(message)
    return _completed(seen)


def calls_of_messages(messages: Any) -> int:
    """Count the calls, with or without a result."""
    return sum(kind == "call" for message in messages for kind, _ in _mentions(message))


def texts_of_messages(messages: Any) -> list[str]:
    """Return the texts of users and agents in order, without lone surrogates."""
    said: list[str] = []
    for given in messages:
        message = _exact(given)
        if type(message.get("role")) is not str or message["role"] not in ROLES:
            continue
        content = message.get("content")
        if type(content) is str:
            said.append(content)
        for block in content if type(content) is list else []:
            text = block if type(block) is str else None
            kind = block.get("type") if type(block) is dict else None
            kind = kind if type(kind) is str else None
            if kind in SAID:
                text = block.get("text")
            elif type(kind) is str and kind == "refusal":
                text = block.get("refusal")
            said += [text] if type(text) is str else []
    return [whole(text) for text in said if text.strip()]


def whole(text: str) -> str:
    """Return the text without lone surrogates, which cannot be sent."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _exact(message: Any) -> dict[Any, Any]:
    """Return a message as a plain object; ours in OpenAI's format."""
    match message:
        case UserMessage():
            return {"role": "user", "content": message.content}
        case AssistantMessage():
            calls = [{"id": call.id, "function": {}} for call in message.calls]
            return {"role": "assistant", "content": message.text, "tool_calls": calls}
        case ToolMessage():
            return {"role": "tool", "tool_call_id": message.call_id}
        case _:
            return dict(dict.items(message)) if isinstance(message, dict) else {}


def _mentions(given: Any) -> list[tuple[str, Any]]:
    message = _exact(given)
    role, kind = message.get("role"), message.get("type")
    if type(role) is str and role in ("tool", "function"):
        return [("result", message.get("tool_call_id"))]
    if type(role) is str:
        return [*_in_blocks(message), *_in_calls(message)] if role in ROLES else []
    items = {"function_call": "call", "function_call_output": "result"}
    is_item = type(kind) is str and kind in items
    return [(items[str(kind)], message.get("call_id"))] if is_item else []


def _in_blocks(message: dict[Any, Any]) -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    content = message.get("content")
    for block in content if type(content) is list else []:
        kind = block.get("type") if type(block) is dict else None
        if type(kind) is str and kind == "tool_use":
            found.append(("call", block.get("id")))
        elif type(kind) is str and kind == "tool_result":
            found.append(("result", block.get("tool_use_id")))
    return found


def _in_calls(message: dict[Any, Any]) -> list[tuple[str, Any]]:
    calls = message.get("tool_calls")
    return [
        ("call", call.get("id"))
        for call in (calls if type(calls) is list else [])
        if type(call) is dict and type(call.get("function")) is dict
    ]


def _completed(seen: list[tuple[str, Any]]) -> int:
    """Match calls and results in order: a result completes one open call with its id."""
    waiting: dict[str, int] = {}
    done = 0
    for kind, given in seen:
        if type(given) not in (str, int):
            continue
        call_id = str(given)
        if kind == "call":
            waiting[call_id] = waiting.get(call_id, 0) + 1
        elif waiting.get(call_id, 0) > 0:
            waiting[call_id] -= 1
            done += 1
    return done
