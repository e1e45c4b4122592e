"""The rules of OpenAI's Responses API."""

import re
from collections.abc import Iterator
from typing import Any, Final

from perdure.testing.provider_rules.rule import Asked, Book, objects, texts

RESPONSES: Final = Book()
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
_LED_TO: Final = ("message", "function_call")


@_rule("R01", "Missing required parameter: 'input', a string or a non-empty array")
def _input(asked: Asked) -> Iterator[str]:
    given = asked.body.get("input")
    if (
        not isinstance(given, str | list)
        or not given
        or any("\ud800" <= sign <= "\udfff" for text in texts(given) for sign in text)
    ):
        yield "input"


@_rule("R02", "Previous response with id not found.")
def _previous(asked: Asked) -> Iterator[str]:
    given = asked.body.get("previous_response_id")
    if given is not None and not (isinstance(given, str) and given.startswith("resp_")):
        yield "previous_response_id"


@_rule("R03", "Invalid value for the type of an input item")
def _types(asked: Asked) -> Iterator[str]:
    given = asked.body.get("input")
    for place, item in enumerate(given if isinstance(given, list) else []):
        kind = _type(item) if isinstance(item, dict) else None
        good = kind in _TYPES and (kind != "message" or item.get("role") in _ROLES)
        if not good:
            yield f"input[{place}]"


@_rule(
    "R04",
    "Invalid 'input[].id'. Expected an ID that contains letters, numbers, underscores, or dashes",
)
def _id(asked: Asked) -> Iterator[str]:
    for place, item in _with_id(asked):
        if not re.fullmatch(r"[A-Za-z0-9_-]+", str(item["id"]), re.ASCII):
            yield f"input[{place}].id"


@_rule("R05", "Invalid 'input[].id': string too long. Expected a string with maximum length 64")
def _id_length(asked: Asked) -> Iterator[str]:
    yield from (f"input[{n}].id" for n, item in _with_id(asked) if len(str(item["id"])) > 64)


@_rule("R06", "Invalid 'input[].id'. Expected an ID that begins with 'fc', 'rs' or 'msg'")
def _id_prefix(asked: Asked) -> Iterator[str]:
    for place, item in _with_id(asked):
        if not str(item["id"]).startswith(_PREFIXES.get(_type(item), "")):
            yield f"input[{place}].id"


@_rule("R07", "Duplicate item found with id. Remove duplicate items from your input and try again.")
def _id_once(asked: Asked) -> Iterator[str]:
    seen: set[str] = set()
    for place, item in _with_id(asked):
        if str(item["id"]) in seen:
            yield f"input[{place}].id"
        seen.add(str(item["id"]))


@_rule(
    "R08",
    "Item with id not found. Items are not persisted when `store` is set to false. Try again with "
    "`store` set to true, or remove this item from your input.",
)
def _stored(asked: Asked) -> Iterator[str]:
    for place, item in asked.items():
        refers = _type(item) == "item_reference"
        bare = _type(item) == "reasoning" and not item.get("encrypted_content")
        if (refers or bare) and asked.body.get("store") is False:
            yield f"input[{place}]"


@_rule("R09", "Missing required parameter: 'input[].call_id'.")
def _call_id(asked: Asked) -> Iterator[str]:
    for place, item in _tools(asked):
        if not isinstance(item.get("call_id"), str):
            yield f"input[{place}].call_id"


@_rule("R10", "Invalid 'input[].call_id': empty string. Expected a string with minimum length 1")
def _call_id_empty(asked: Asked) -> Iterator[str]:
    yield from (f"input[{n}].call_id" for n, item in _tools(asked) if item.get("call_id") == "")


@_rule(
    "R11", "Invalid 'input[].call_id': string too long. Expected a string with maximum length 64"
)
def _call_id_length(asked: Asked) -> Iterator[str]:
    for place, item in _tools(asked):
        if len(str(item.get("call_id"))) > 64:
            yield f"input[{place}].call_id"


@_rule("R12", "Invalid 'input[].name': expected a string that matches '^[a-zA-Z0-9_-]+$'")
def _name(asked: Asked) -> Iterator[str]:
    for place, item in _tools(asked, "function_call"):
        name = item.get("name")
        if not isinstance(name, str) or not re.fullmatch(r"[a-zA-Z0-9_-]+", name, re.ASCII):
            yield f"input[{place}].name"


@_rule("R13", "Invalid type for 'input[].arguments': expected a string")
def _arguments(asked: Asked) -> Iterator[str]:
    for place, item in _tools(asked, "function_call"):
        if not isinstance(item.get("arguments"), str):
            yield f"input[{place}].arguments"


@_rule("R14", "Duplicate function call: each call must have a call_id of its own", strict=True)
def _call_once(asked: Asked) -> Iterator[str]:
    yield from _twice(asked, "function_call")


@_rule("R15", "Invalid type for 'input[].output': expected a string or an array of content")
def _output(asked: Asked) -> Iterator[str]:
    for place, item in _tools(asked, "function_call_output"):
        output = item.get("output")
        if isinstance(output, list):
            kinds = ("input_text", "input_image", "input_file")
            good = all(isinstance(part, dict) and part.get("type") in kinds for part in output)
        else:
            good = isinstance(output, str)
        if not good:
            yield f"input[{place}].output"


@_rule("R20", "No tool call found for function call output with call_id.")
def _called(asked: Asked) -> Iterator[str]:
    called: set[str] = set()
    for place, item in _tools(asked):
        if _type(item) == "function_call":
            called.add(str(item.get("call_id")))
        elif str(item.get("call_id")) not in called:
            yield f"input[{place}]"


@_rule("R21", "Duplicate function call output: a call has one output", strict=True)
def _output_once(asked: Asked) -> Iterator[str]:
    yield from _twice(asked, "function_call_output")


@_rule("R24", "Invalid value: assistant content is 'output_text' or 'refusal', all other 'input_*'")
def _parts(asked: Asked) -> Iterator[str]:
    for place, item in asked.items():
        if _type(item) != "message":
            continue
        content = item.get("content")
        if not isinstance(content, str | list) or not content:
            yield f"input[{place}].content"
        own = ("output_text", "refusal") if item.get("role") == "assistant" else ()
        for number, part in objects(content):
            kind = str(part.get("type"))
            if kind not in own if own else not kind.startswith("input_"):
                yield f"input[{place}].content[{number}]"


@_rule("R25", "Missing required parameter: 'input[].summary', an array")
def _summary(asked: Asked) -> Iterator[str]:
    for place, item in asked.items():
        if _type(item) == "reasoning" and not isinstance(item.get("summary"), list):
            yield f"input[{place}].summary"


@_rule("R26", "Item of type 'reasoning' was provided without its required following item.")
def _reasoned(asked: Asked) -> Iterator[str]:
    items = list(asked.items())
    following: list[dict[str, Any]] = [item for _, item in items[1:]]
    for (place, item), after in zip(items, [*following, {}], strict=False):
        said = after.get("role") == "assistant" or _type(after).endswith("_call")
        if _type(item) == "reasoning" and not said:
            yield f"input[{place}]"


@_rule("R27", "No tool output found for function call.")
def _answered(asked: Asked) -> Iterator[str]:
    answered = {str(item.get("call_id")) for _, item in _tools(asked, "function_call_output")}
    for place, item in _tools(asked, "function_call"):
        if str(item.get("call_id")) not in answered:
            yield f"input[{place}]"


@_rule(
    "R28",
    "Item of type 'function_call' was provided without its required 'reasoning' item.",
)
def _reasoning_kept(asked: Asked) -> Iterator[str]:
    """An item that is named by its id wants the reasoning that it was stored with."""
    before: dict[str, Any] = {}
    reasoned = False  # in this answer
    for place, item in asked.items():
        stored = _type(item) in _LED_TO and "id" in item and item.get("role") != "user"
        if stored and asked.led is None and _type(before) != "reasoning":
            yield f"input[{place}]"
        if stored and asked.led is not None and asked.led(item) and not reasoned:
            yield f"input[{place}]"
        ours = item.get("role", "assistant") != "assistant" or _type(item).endswith("_output")
        reasoned = not ours and (reasoned or _type(item) == "reasoning")
        before = item


def _type(item: dict[str, Any]) -> str:
    return str(item.get("type", "message" if "role" in item else ""))


def _with_id(asked: Asked) -> Iterator[tuple[int, dict[str, Any]]]:
    return ((place, item) for place, item in asked.items() if "id" in item)


def _tools(asked: Asked, *kinds: str) -> Iterator[tuple[int, dict[str, Any]]]:
    wanted = kinds or ("function_call", "function_call_output")
    return ((place, item) for place, item in asked.items() if _type(item) in wanted)


def _twice(asked: Asked, kind: str) -> Iterator[str]:
    seen: set[str] = set()
    for place, item in _tools(asked, kind):
        if str(item.get("call_id")) in seen:
            yield f"input[{place}].call_id"
        seen.add(str(item.get("call_id")))
