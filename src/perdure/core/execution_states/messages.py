"""Messages of an execution state: from a conversation to JSON objects, and back to events.

{"role": "user", "parts": [{"type": "text", "text": …} | {"type": "file", …} | …]}
{"role": "assistant", "parts": [thinking | text | {"type": "tool_use", id, name, input}, …]}
{"role": "tool", "parts": [{"type": "tool_result", tool_call_id, name, content, is_error}]}
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw

from perdure.core.conversation.messages import (
    AssistantMessage,
    Message,
    ToolMessage,
    UserMessage,
)
from perdure.core.log import codec, events
from perdure.core.log.events import Content, Event
from perdure.errors import Corrupt, Refused

Json = dict[str, Any]


def message_json(message: Message, redact: Mapping[str, tuple[str, ...]]) -> Json:
    """Return a message as JSON, complete enough to recreate its events.

    `redact` names the secret arguments of each call, by call id.
    """
    match message:
        case UserMessage():
            return {"role": "user", "parts": _parts(message.content)}
        case AssistantMessage():
            return _assistant_json(message, redact)
        case ToolMessage():
            part: Json = {
                "type": "tool_result",
                "tool_call_id": message.call_id,
                "name": message.tool,
                "content": message.content,
                "is_error": message.is_error,
            }
            return {"role": "tool", "parts": [part]}


def _parts(content: Content) -> list[Json]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else list(content)


def _assistant_json(message: AssistantMessage, redact: Mapping[str, tuple[str, ...]]) -> Json:
    parts: list[Json] = []
    if message.thinking is not None:
        parts.append({"type": "thinking", "thinking": message.thinking})
    if message.text:
        parts.append({"type": "text", "text": message.text})
    for call in message.calls:
        part = {"type": "tool_use", "id": call.id, "name": call.tool, "input": dict(call.params)}
        parts.append({**part, "redact": list(redact[call.id])} if redact.get(call.id) else part)
    data: Json = {"role": "assistant", "parts": parts}
    for name in ("provider", "model"):
        if (value := getattr(message, name)) is not None:
            data[name] = value
    for name in ("native", "output"):
        if (value := getattr(message, name)) is not None:
            data[name] = msgspec.json.decode(value)
    return data


def message_events(message: Mapping[str, Any], agent: str, task: str | None) -> list[Event]:
    """Return the events that recreate a message. Raises Refused if one could not be read again."""
    try:
        recreated = list(_message_events(message, agent, task))
        for event in recreated:
            codec.decode(*codec.encode(event))
    except (Corrupt, TypeError, ValueError, msgspec.MsgspecError, RecursionError) as error:
        raise _broken(f"a message of role {message.get('role')!r}: {error}") from error
    return recreated


def _message_events(message: Mapping[str, Any], agent: str, task: str | None) -> Iterator[Event]:
    role, parts = message.get("role"), message.get("parts")
    if not isinstance(parts, list) or not all(isinstance(part, dict) for part in parts):
        raise _broken("a message has no parts")
    match role:
        case "user":
            yield events.User(role="user", content=_content(parts), task_id=task)
        case "assistant" | "agent":
            yield from _assistant_events(message, parts, agent, task)
        case "tool":
            for part in parts:
                yield _result_event(part, task)
        case _:
            raise _broken(f"a message of role {role!r}")


def _broken(reason: str) -> Refused:
    return Refused(
        f"failed to load execution state: {reason}",
        code="STATE_CORRUPT",
        hint="correct the history or the current turn of the state, or load it again",
    )


_REQUIRED: Final = {"text": "text", "file": "mediaType"}  # by type of a part
_TEXTS: Final = ("type", "text", "mediaType", "name", "url", "blob")  # text, or not there


def _content(parts: list[Json]) -> Content:
    for part in parts:
        required = ("type", _REQUIRED.get(str(part.get("type"))))
        for name in _TEXTS:
            value = part.get(name)
            if not isinstance(value, str) and (value is not None or name in required):
                raise _broken(f"the {name} of a part is {value!r}")
    is_text = len(parts) == 1 and set(parts[0]) == {"type", "text"}
    return str(parts[0]["text"]) if is_text else parts


def _assistant_events(
    message: Mapping[str, Any], parts: list[Json], agent: str, task: str | None
) -> Iterator[Event]:
    thinking = [str(part.get("thinking", "")) for part in parts if part.get("type") == "thinking"]
    yield events.Assistant(
        role="assistant",
        content="".join(str(part.get("text", "")) for part in parts if part.get("type") == "text"),
        agent=agent,
        task_id=task,
        thinking="".join(thinking) if thinking else None,
        provider=message.get("provider"),
        model=message.get("model"),
        native=_raw(message, "native"),
        output=_raw(message, "output"),
        redact=any(part.get("redact") for part in parts),
    )
    for part in parts:
        if part.get("type") == "tool_use":
            yield events.ToolCall(
                id=str(part.get("id")),
                tool=str(part.get("name")),
                params=dict(part.get("input") or {}),
                agent=agent,
                task_id=task,
                redact=tuple(map(str, part.get("redact") or ())),
            )


def _raw(message: Mapping[str, Any], name: str) -> Raw | Any:
    return UNSET if name not in message else events.raw_json(message[name])


def _result_event(part: Json, task: str | None) -> events.ToolResult:
    return events.ToolResult(
        tool_call_id=str(part.get("tool_call_id")),
        result=part.get("content") or "",
        is_error=bool(part.get("is_error")),
        task_id=task,
    )
