"""Rules of OpenAI's Responses API."""

import re
from collections.abc import Iterator
from typing import Any, Final

from perdure.testing.provider_rules.rule import CheckedRequest, RuleSet, objects, texts

RESPONSES: Final = RuleSet()
_rule: Final = RESPONSES.rule

_TYPES: Final = frozenset(
    {
        "message",
        "reasoning",
        "compaction",
        "item_reference",
        "function_call",
        "function_call_output",
        "custom_tool_call",
        "custom_tool_call_output",
        "computer_call",
        "computer_call_output",
        "local_shell_call",
        "local_shell_call_output",
        "web_search_call",
        "file_search_call",
        "code_interpreter_call",
        "image_generation_call",
        "mcp_call",
        "mcp_list_tools",
        "mcp_approval_request",
        "mcp_approval_response",
    }
)
_PREFIXES: Final = {
    "function_call": "fc",
    "function_call_output": "fc",
    "reasoning": "rs",
    "message": "msg",
}
_ROLES: Final = ("user", "assistant", "system", "developer")
_FOLLOW_REASONING: Final = ("message", "function_call")


@_rule("R01", "Missing required parameter: 'input', a string or a non-empty array")
def _input(request: CheckedRequest) -> Iterator[str]:
    value = request.body.get("input")
    if (
        not isinstance(value, str | list)
        or not value
        or any("\ud800" <= char <= "\udfff" for text in texts(value) for char in text)
    ):
        yield "input"


@_rule("R02", "Previous response with id not found.")
def _previous(request: CheckedRequest) -> Iterator[str]:
    id_ = request.body.get("previous_response_id")
    if id_ is not None and not (isinstance(id_, str) and id_.startswith("resp_")):
        yield "previous_response_id"


@_rule("R03", "Invalid value for the type of an input item")
def _types(request: CheckedRequest) -> Iterator[str]:
    items = request.body.get("input")
    for index, item in enumerate(items if isinstance(items, list) else []):
        kind = _type(item) if isinstance(item, dict) else None
        is_valid = kind in _TYPES and (kind != "message" or item.get("role") in _ROLES)
        if not is_valid:
            yield f"input[{index}]"


@_rule(
    "R04",
    "Invalid 'input[].id'. Expected an ID that contains letters, numbers, underscores, or dashes",
)
def _id(request: CheckedRequest) -> Iterator[str]:
    for index, item in _with_id(request):
        if not re.fullmatch(r"[A-Za-z0-9_-]+", str(item["id"]), re.ASCII):
            yield f"input[{index}].id"


@_rule("R05", "Invalid 'input[].id': string too long. Expected a string with maximum length 64")
def _id_length(request: CheckedRequest) -> Iterator[str]:
    yield from (f"input[{n}].id" for n, item in _with_id(request) if len(str(item["id"])) > 64)


@_rule("R06", "Invalid 'input[].id'. Expected an ID that begins with 'fc', 'rs' or 'msg'")
def _id_prefix(request: CheckedRequest) -> Iterator[str]:
    for index, item in _with_id(request):
        if not str(item["id"]).startswith(_PREFIXES.get(_type(item), "")):
            yield f"input[{index}].id"


@_rule("R07", "Duplicate item found with id. Remove duplicate items from your input and try again.")
def _id_once(request: CheckedRequest) -> Iterator[str]:
    ids: set[str] = set()
    for index, item in _with_id(request):
        if str(item["id"]) in ids:
            yield f"input[{index}].id"
        ids.add(str(item["id"]))


@_rule(
    "R08",
    "Item with id not found. Items are not persisted when `store` is set to false. Try again with "
    "`store` set to true, or remove this item from your input.",
)
def _stored(request: CheckedRequest) -> Iterator[str]:
    for index, item in request.items():
        is_reference = _type(item) == "item_reference"
        is_stored = _type(item) == "reasoning" and not item.get("encrypted_content")
        if (is_reference or is_stored) and request.body.get("store") is False:
            yield f"input[{index}]"


@_rule("R09", "Missing required parameter: 'input[].call_id'.")
def _call_id(request: CheckedRequest) -> Iterator[str]:
    for index, item in _tools(request):
        if not isinstance(item.get("call_id"), str):
            yield f"input[{index}].call_id"


@_rule("R10", "Invalid 'input[].call_id': empty string. Expected a string with minimum length 1")
def _call_id_empty(request: CheckedRequest) -> Iterator[str]:
    yield from (f"input[{n}].call_id" for n, item in _tools(request) if item.get("call_id") == "")


@_rule(
    "R11", "Invalid 'input[].call_id': string too long. Expected a string with maximum length 64"
)
def _call_id_length(request: CheckedRequest) -> Iterator[str]:
    for index, item in _tools(request):
        if len(str(item.get("call_id"))) > 64:
            yield f"input[{index}].call_id"


@_rule("R12", "Invalid 'input[].name': expected a string that matches '^[a-zA-Z0-9_-]+$'")
def _name(request: CheckedRequest) -> Iterator[str]:
    for index, item in _tools(request, "function_call"):
        name = item.get("name")
        if not isinstance(name, str) or not re.fullmatch(r"[a-zA-Z0-9_-]+", name, re.ASCII):
            yield f"input[{index}].name"


@_rule("R13", "Invalid type for 'input[].arguments': expected a string")
def _arguments(request: CheckedRequest) -> Iterator[str]:
    for index, item in _tools(request, "function_call"):
        if not isinstance(item.get("arguments"), str):
            yield f"input[{index}].arguments"


@_rule("R14", "Duplicate function call: each call must have a call_id of its own", strict=True)
def _call_once(request: CheckedRequest) -> Iterator[str]:
    yield from _duplicates(request, "function_call")


@_rule("R15", "Invalid type for 'input[].output': expected a string or an array of content")
def _output(request: CheckedRequest) -> Iterator[str]:
    for index, item in _tools(request, "function_call_output"):
        output = item.get("output")
        if isinstance(output, list):
            kinds = ("input_text", "input_image", "input_file")
            is_valid = all(isinstance(part, dict) and part.get("type") in kinds for part in output)
        else:
            is_valid = isinstance(output, str)
        if not is_valid:
            yield f"input[{index}].output"


@_rule("R20", "No tool call found for function call output with call_id.")
def _called(request: CheckedRequest) -> Iterator[str]:
    called: set[str] = set()
    for index, item in _tools(request):
        if _type(item) == "function_call":
            called.add(str(item.get("call_id")))
        elif str(item.get("call_id")) not in called:
            yield f"input[{index}]"


@_rule("R21", "Duplicate function call output: a call has one output", strict=True)
def _output_once(request: CheckedRequest) -> Iterator[str]:
    yield from _duplicates(request, "function_call_output")


@_rule("R24", "Invalid value: assistant content is 'output_text' or 'refusal', all other 'input_*'")
def _parts(request: CheckedRequest) -> Iterator[str]:
    for index, item in request.items():
        if _type(item) != "message":
            continue
        content = item.get("content")
        if not isinstance(content, str | list) or not content:
            yield f"input[{index}].content"
        output = ("output_text", "refusal") if item.get("role") == "assistant" else ()
        for number, part in objects(content):
            kind = str(part.get("type"))
            if kind not in output if output else not kind.startswith("input_"):
                yield f"input[{index}].content[{number}]"


@_rule("R25", "Missing required parameter: 'input[].summary', an array")
def _summary(request: CheckedRequest) -> Iterator[str]:
    for index, item in request.items():
        if _type(item) == "reasoning" and not isinstance(item.get("summary"), list):
            yield f"input[{index}].summary"


@_rule("R26", "Item of type 'reasoning' was provided without its required following item.")
def _reasoned(request: CheckedRequest) -> Iterator[str]:
    items = list(request.items())
    following: list[dict[str, Any]] = [item for _, item in items[1:]]
    for (index, item), after in zip(items, [*following, {}], strict=False):
        is_output = after.get("role") == "assistant" or _type(after).endswith("_call")
        if _type(item) == "reasoning" and not is_output:
            yield f"input[{index}]"


@_rule("R27", "No tool output found for function call.")
def _answered(request: CheckedRequest) -> Iterator[str]:
    answered = {str(item.get("call_id")) for _, item in _tools(request, "function_call_output")}
    for index, item in _tools(request, "function_call"):
        if str(item.get("call_id")) not in answered:
            yield f"input[{index}]"


@_rule(
    "R28",
    "Item of type 'function_call' was provided without its required 'reasoning' item.",
)
def _reasoning_kept(request: CheckedRequest) -> Iterator[str]:
    """Yield items with an id whose reasoning, stored with them, is missing."""
    before: dict[str, Any] = {}
    has_reasoning = False  # in this response
    for index, item in request.items():
        is_stored = _type(item) in _FOLLOW_REASONING and "id" in item and item.get("role") != "user"
        if is_stored and request.led is None and _type(before) != "reasoning":
            yield f"input[{index}]"
        if is_stored and request.led is not None and request.led(item) and not has_reasoning:
            yield f"input[{index}]"
        is_input = item.get("role", "assistant") != "assistant" or _type(item).endswith("_output")
        has_reasoning = not is_input and (has_reasoning or _type(item) == "reasoning")
        before = item


def _type(item: dict[str, Any]) -> str:
    return str(item.get("type", "message" if "role" in item else ""))


def _with_id(request: CheckedRequest) -> Iterator[tuple[int, dict[str, Any]]]:
    return ((index, item) for index, item in request.items() if "id" in item)


def _tools(request: CheckedRequest, *kinds: str) -> Iterator[tuple[int, dict[str, Any]]]:
    kinds = kinds or ("function_call", "function_call_output")
    return ((index, item) for index, item in request.items() if _type(item) in kinds)


def _duplicates(request: CheckedRequest, kind: str) -> Iterator[str]:
    ids: set[str] = set()
    for index, item in _tools(request, kind):
        if str(item.get("call_id")) in ids:
            yield f"input[{index}].call_id"
        ids.add(str(item.get("call_id")))
