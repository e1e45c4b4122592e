"""Rules of OpenAI's chat completions."""

import json
import re
from collections.abc import Iterator
from typing import Any, Final

from perdure.testing.provider_rules.rule import CheckedRequest, RuleSet, objects, texts

CHAT: Final = RuleSet()
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
def _messages(request: CheckedRequest) -> Iterator[str]:
    messages = request.body.get("messages")
    if not isinstance(messages, list):
        yield "messages"
        return
    yield from (f"messages[{n}]" for n, item in enumerate(messages) if not isinstance(item, dict))
    if any("\ud800" <= char <= "\udfff" for text in texts(messages) for char in text):
        yield "messages"


@_rule(
    "C02",
    "Invalid 'messages': empty array. Expected an array with minimum length 1, but got an empty "
    "array instead.",
)
def _some(request: CheckedRequest) -> Iterator[str]:
    if request.body.get("messages") == []:
        yield "messages"


@_rule("C03", "Invalid value for role. Supported values are: " + ", ".join(_ROLES))
def _roles(request: CheckedRequest) -> Iterator[str]:
    for index, message in request.messages():
        if message.get("role") not in _ROLES:
            yield f"messages[{index}].role"


@_rule("C04", "Invalid 'content': empty array. Expected an array with minimum length 1")
def _no_parts(request: CheckedRequest) -> Iterator[str]:
    for index, message in request.messages():
        if message.get("content") == []:
            yield f"messages[{index}].content"


@_rule("C05", "Invalid value for 'content': expected a string, got null.")
def _null(request: CheckedRequest) -> Iterator[str]:
    for index, message in request.messages():
        calls = message.get("role") == "assistant" and message.get("tool_calls")
        if message.get("content") is None and not calls and not message.get("refusal"):
            yield f"messages[{index}].content"


@_rule("C06", "Invalid type for 'content': expected one of a string or array of objects")
def _content(request: CheckedRequest) -> Iterator[str]:
    for index, message in request.messages():
        content = message.get("content")
        if isinstance(content, list):
            is_valid = all(isinstance(part, dict) for part in content)
        else:
            is_valid = content is None or isinstance(content, str)
        if not is_valid:
            yield f"messages[{index}].content"


@_rule("C07", "Invalid value for the type of a content part in a message of this role")
def _parts(request: CheckedRequest) -> Iterator[str]:
    for index, message in request.messages():
        types = _PARTS.get(str(message.get("role")), set())
        for number, part in objects(message.get("content")):
            if str(part.get("type")) not in types or not _is_complete(part):
                yield f"messages[{index}].content[{number}]"


@_rule("C08", "'tool_calls' is only allowed in messages with role 'assistant'")
def _callers(request: CheckedRequest) -> Iterator[str]:
    for index, message in request.messages():
        if "tool_calls" in message and message.get("role") != "assistant":
            yield f"messages[{index}].tool_calls"


@_rule("C09", "Invalid 'tool_calls': empty array. Expected an array with minimum length 1")
def _no_calls(request: CheckedRequest) -> Iterator[str]:
    for index, message in request.messages():
        if message.get("tool_calls") == []:
            yield f"messages[{index}].tool_calls"


@_rule("C10", "Missing required parameter: 'tool_calls[].id'")
def _id(request: CheckedRequest) -> Iterator[str]:
    for path, call in _calls(request):
        if not isinstance(call.get("id"), str) or not call["id"]:
            yield f"{path}.id"


@_rule(
    "C11", "Invalid 'tool_calls[].id': string too long. Expected a string with maximum length 40"
)
def _id_length(request: CheckedRequest) -> Iterator[str]:
    yield from (f"{path}.id" for path, call in _calls(request) if len(str(call.get("id"))) > 40)


@_rule("C12", "Missing required parameter: 'tool_calls[].type', which is 'function'")
def _type(request: CheckedRequest) -> Iterator[str]:
    yield from (f"{path}.type" for path, call in _calls(request) if call.get("type") != "function")


@_rule("C13", "Invalid 'function.name': string does not match pattern '^[a-zA-Z0-9_-]+$'")
def _name(request: CheckedRequest) -> Iterator[str]:
    for path, function in _functions(request):
        name = function.get("name")
        if not isinstance(name, str) or not re.fullmatch(r"[a-zA-Z0-9_-]+", name, re.ASCII):
            yield f"{path}.name"


@_rule("C14", "Invalid 'function.name': string too long. Expected a string with maximum length 64")
def _name_length(request: CheckedRequest) -> Iterator[str]:
    for path, function in _functions(request):
        if len(str(function.get("name"))) > 64:
            yield f"{path}.name"


@_rule("C15", "Invalid type for 'function.arguments': expected a string")
def _arguments(request: CheckedRequest) -> Iterator[str]:
    for path, function in _functions(request):
        if not isinstance(function.get("arguments"), str):
            yield f"{path}.arguments"


@_rule("C16", "'function.arguments' must be the JSON text of an object", strict=True)
def _arguments_json(request: CheckedRequest) -> Iterator[str]:
    for path, function in _functions(request):
        if isinstance(function.get("arguments"), str) and not is_object(function["arguments"]):
            yield f"{path}.arguments"


@_rule("C17", "Duplicate value for 'tool_call_id': each call must have an id of its own")
def _unique(request: CheckedRequest) -> Iterator[str]:
    ids: set[str] = set()
    for path, call in _calls(request):
        if str(call.get("id")) in ids:
            yield f"{path}.id"
        ids.add(str(call.get("id")))


@_rule(
    "C20",
    "An assistant message with 'tool_calls' must be followed by tool messages responding to each "
    "'tool_call_id'. The following tool_call_ids did not have response messages",
)
def _answered(request: CheckedRequest) -> Iterator[str]:
    open_at, open_ids = 0, set[str]()
    for index, message in request.messages():
        if message.get("role") == "tool":
            open_ids.discard(str(message.get("tool_call_id")))
            continue
        if open_ids:
            yield f"messages.[{open_at}].role"
        open_at, open_ids = index, _ids(message)
    if open_ids:
        yield f"messages.[{open_at}].role"


@_rule(
    "C21", "Missing parameter 'tool_call_id': messages with role 'tool' must have a 'tool_call_id'."
)
def _result_id(request: CheckedRequest) -> Iterator[str]:
    for index, message in _results(request):
        if not isinstance(message.get("tool_call_id"), str) or not message["tool_call_id"]:
            yield f"messages.[{index}].tool_call_id"


@_rule(
    "C22",
    "Invalid parameter: messages with role 'tool' must be a response to a preceeding message with "
    "'tool_calls'.",
)
def _called(request: CheckedRequest) -> Iterator[str]:
    called: set[str] = set()
    for index, message in request.messages():
        if message.get("role") != "tool":
            called = _ids(message)
        elif str(message.get("tool_call_id")) not in called:
            yield f"messages.[{index}].role"


@_rule("C23", "Duplicate value for 'tool_call_id': a call has one response message")
def _once(request: CheckedRequest) -> Iterator[str]:
    ids: set[str] = set()
    for index, message in _results(request):
        if str(message.get("tool_call_id")) in ids:
            yield f"messages.[{index}].tool_call_id"
        ids.add(str(message.get("tool_call_id")))


@_rule("C24", "'parallel_tool_calls' is only allowed when 'tools' are specified.")
def _parallel(request: CheckedRequest) -> Iterator[str]:
    if "parallel_tool_calls" in request.body and not request.body.get("tools"):
        yield "parallel_tool_calls"


@_rule("C25", "Invalid 'tools': empty array. Expected an array with minimum length 1")
def _tools(request: CheckedRequest) -> Iterator[str]:
    if request.body.get("tools") == []:
        yield "tools"


def is_object(text: str) -> bool:
    """Return True for the JSON text of an object without NaN."""
    try:
        return isinstance(json.loads(text, parse_constant=_refuse), dict)
    except (ValueError, RecursionError):
        return False


def _refuse(constant: str) -> Any:
    raise ValueError(constant)


def _is_complete(part: dict[str, Any]) -> bool:
    kind = part.get("type")
    if kind == "text":
        return isinstance(part.get("text"), str)
    if kind == "image_url":
        image = part.get("image_url")
        return isinstance(image, dict) and isinstance(image.get("url"), str)
    return isinstance(part.get(str(kind)), dict | str)


def _calls(request: CheckedRequest) -> Iterator[tuple[str, dict[str, Any]]]:
    for index, message in request.messages():
        for number, call in objects(message.get("tool_calls")):
            yield f"messages[{index}].tool_calls[{number}]", call


def _functions(request: CheckedRequest) -> Iterator[tuple[str, dict[str, Any]]]:
    for path, call in _calls(request):
        function = call.get("function")
        yield f"{path}.function", function if isinstance(function, dict) else {}


def _results(request: CheckedRequest) -> Iterator[tuple[int, dict[str, Any]]]:
    return ((n, message) for n, message in request.messages() if message.get("role") == "tool")


def _ids(message: dict[str, Any]) -> set[str]:
    return {str(call.get("id")) for _, call in objects(message.get("tool_calls"))}
