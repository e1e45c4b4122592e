"""The rules of OpenAI's chat completions."""

import json
import re
from collections.abc import Iterator
from typing import Any, Final

from perdure.testing.provider_rules.rule import Asked, Book, objects, texts

CHAT: Final = Book()
_rule: Final = CHAT.rule

_ROLES: Final = ("system", "developer", "user", "assistant", "tool", "function")
_PARTS: Final = {
    "system": {"text"},
    "developer": {"text"},
    "user": {"text", "image_url", "input_audio", "file"},
    "assistant": {"text", "refusal"},
    "tool": {"text"},
}


@_rule("C01", "Invalid type for 'messages': expected an array of objects")
def _messages(asked: Asked) -> Iterator[str]:
    given = asked.body.get("messages")
    if not isinstance(given, list):
        yield "messages"
        return
    yield from (f"messages[{n}]" for n, one in enumerate(given) if not isinstance(one, dict))
    if any("\ud800" <= sign <= "\udfff" for text in texts(given) for sign in text):
        yield "messages"


@_rule(
    "C02",
    "Invalid 'messages': empty array. Expected an array with minimum length 1, but got an empty "
    "array instead.",
)
def _some(asked: Asked) -> Iterator[str]:
    if asked.body.get("messages") == []:
        yield "messages"


@_rule("C03", "Invalid value for role. Supported values are: " + ", ".join(_ROLES))
def _roles(asked: Asked) -> Iterator[str]:
    for place, message in asked.messages():
        if message.get("role") not in _ROLES:
            yield f"messages[{place}].role"


@_rule("C04", "Invalid 'content': empty array. Expected an array with minimum length 1")
def _no_parts(asked: Asked) -> Iterator[str]:
    for place, message in asked.messages():
        if message.get("content") == []:
            yield f"messages[{place}].content"


@_rule("C05", "Invalid value for 'content': expected a string, got null.")
def _null(asked: Asked) -> Iterator[str]:
    for place, message in asked.messages():
        calls = message.get("role") == "assistant" and message.get("tool_calls")
        if message.get("content") is None and not calls and not message.get("refusal"):
            yield f"messages[{place}].content"


@_rule("C06", "Invalid type for 'content': expected one of a string or array of objects")
def _content(asked: Asked) -> Iterator[str]:
    for place, message in asked.messages():
        content = message.get("content")
        if isinstance(content, list):
            good = all(isinstance(part, dict) for part in content)
        else:
            good = content is None or isinstance(content, str)
        if not good:
            yield f"messages[{place}].content"


@_rule("C07", "Invalid value for the type of a content part in a message of this role")
def _parts(asked: Asked) -> Iterator[str]:
    for place, message in asked.messages():
        known = _PARTS.get(str(message.get("role")), set())
        for number, part in objects(message.get("content")):
            if str(part.get("type")) not in known or not _is_whole(part):
                yield f"messages[{place}].content[{number}]"


@_rule("C08", "'tool_calls' is only allowed in messages with role 'assistant'")
def _callers(asked: Asked) -> Iterator[str]:
    for place, message in asked.messages():
        if "tool_calls" in message and message.get("role") != "assistant":
            yield f"messages[{place}].tool_calls"


@_rule("C09", "Invalid 'tool_calls': empty array. Expected an array with minimum length 1")
def _no_calls(asked: Asked) -> Iterator[str]:
    for place, message in asked.messages():
        if message.get("tool_calls") == []:
            yield f"messages[{place}].tool_calls"


@_rule("C10", "Missing required parameter: 'tool_calls[].id'")
def _id(asked: Asked) -> Iterator[str]:
    for at, call in _calls(asked):
        if not isinstance(call.get("id"), str) or not call["id"]:
            yield f"{at}.id"


@_rule(
    "C11", "Invalid 'tool_calls[].id': string too long. Expected a string with maximum length 40"
)
def _id_length(asked: Asked) -> Iterator[str]:
    yield from (f"{at}.id" for at, call in _calls(asked) if len(str(call.get("id"))) > 40)


@_rule("C12", "Missing required parameter: 'tool_calls[].type', which is 'function'")
def _type(asked: Asked) -> Iterator[str]:
    yield from (f"{at}.type" for at, call in _calls(asked) if call.get("type") != "function")


@_rule("C13", "Invalid 'function.name': string does not match pattern '^[a-zA-Z0-9_-]+$'")
def _name(asked: Asked) -> Iterator[str]:
    for at, function in _functions(asked):
        name = function.get("name")
        if not isinstance(name, str) or not re.fullmatch(r"[a-zA-Z0-9_-]+", name, re.ASCII):
            yield f"{at}.name"


@_rule("C14", "Invalid 'function.name': string too long. Expected a string with maximum length 64")
def _name_length(asked: Asked) -> Iterator[str]:
    for at, function in _functions(asked):
        if len(str(function.get("name"))) > 64:
            yield f"{at}.name"


@_rule("C15", "Invalid type for 'function.arguments': expected a string")
def _arguments(asked: Asked) -> Iterator[str]:
    for at, function in _functions(asked):
        if not isinstance(function.get("arguments"), str):
            yield f"{at}.arguments"


@_rule("C16", "'function.arguments' must be the JSON text of an object", strict=True)
def _arguments_json(asked: Asked) -> Iterator[str]:
    for at, function in _functions(asked):
        if isinstance(function.get("arguments"), str) and not is_object(function["arguments"]):
            yield f"{at}.arguments"


@_rule("C17", "Duplicate value for 'tool_call_id': each call must have an id of its own")
def _unique(asked: Asked) -> Iterator[str]:
    seen: set[str] = set()
    for at, call in _calls(asked):
        if str(call.get("id")) in seen:
            yield f"{at}.id"
        seen.add(str(call.get("id")))


@_rule(
    "C20",
    "An assistant message with 'tool_calls' must be followed by tool messages responding to each "
    "'tool_call_id'. The following tool_call_ids did not have response messages",
)
def _answered(asked: Asked) -> Iterator[str]:
    open_at, wanted = 0, set[str]()
    for place, message in asked.messages():
        if message.get("role") == "tool":
            wanted.discard(str(message.get("tool_call_id")))
            continue
        if wanted:
            yield f"messages.[{open_at}].role"
        open_at, wanted = place, _ids(message)
    if wanted:
        yield f"messages.[{open_at}].role"


@_rule(
    "C21", "Missing parameter 'tool_call_id': messages with role 'tool' must have a 'tool_call_id'."
)
def _result_id(asked: Asked) -> Iterator[str]:
    for place, message in _results(asked):
        if not isinstance(message.get("tool_call_id"), str) or not message["tool_call_id"]:
            yield f"messages.[{place}].tool_call_id"


@_rule(
    "C22",
    "Invalid parameter: messages with role 'tool' must be a response to a preceeding message with "
    "'tool_calls'.",
)
def _called(asked: Asked) -> Iterator[str]:
    called: set[str] = set()
    for place, message in asked.messages():
        if message.get("role") != "tool":
            called = _ids(message)
        elif str(message.get("tool_call_id")) not in called:
            yield f"messages.[{place}].role"


@_rule("C23", "Duplicate value for 'tool_call_id': a call has one response message")
def _once(asked: Asked) -> Iterator[str]:
    seen: set[str] = set()
    for place, message in _results(asked):
        if str(message.get("tool_call_id")) in seen:
            yield f"messages.[{place}].tool_call_id"
        seen.add(str(message.get("tool_call_id")))


@_rule("C24", "'parallel_tool_calls' is only allowed when 'tools' are specified.")
def _parallel(asked: Asked) -> Iterator[str]:
    if "parallel_tool_calls" in asked.body and not asked.body.get("tools"):
        yield "parallel_tool_calls"


@_rule("C25", "Invalid 'tools': empty array. Expected an array with minimum length 1")
def _tools(asked: Asked) -> Iterator[str]:
    if asked.body.get("tools") == []:
        yield "tools"


def is_object(text: str) -> bool:
    """Whether a text is the JSON of an object, without NaN."""
    try:
        return isinstance(json.loads(text, parse_constant=_refuse), dict)
    except (ValueError, RecursionError):
        return False


def _refuse(constant: str) -> Any:
    raise ValueError(constant)


def _is_whole(part: dict[str, Any]) -> bool:
    kind = part.get("type")
    if kind == "text":
        return isinstance(part.get("text"), str)
    if kind == "image_url":
        image = part.get("image_url")
        return isinstance(image, dict) and isinstance(image.get("url"), str)
    return isinstance(part.get(str(kind)), dict | str)


def _calls(asked: Asked) -> Iterator[tuple[str, dict[str, Any]]]:
    for place, message in asked.messages():
        for number, call in objects(message.get("tool_calls")):
            yield f"messages[{place}].tool_calls[{number}]", call


def _functions(asked: Asked) -> Iterator[tuple[str, dict[str, Any]]]:
    for at, call in _calls(asked):
        function = call.get("function")
        yield f"{at}.function", function if isinstance(function, dict) else {}


def _results(asked: Asked) -> Iterator[tuple[int, dict[str, Any]]]:
    return ((n, message) for n, message in asked.messages() if message.get("role") == "tool")


def _ids(message: dict[str, Any]) -> set[str]:
    return {str(call.get("id")) for _, call in objects(message.get("tool_calls"))}
