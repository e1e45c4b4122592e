"""The rules of Anthropic's Messages API about tool calls and their results."""

import re
from collections.abc import Iterator
from typing import Any, Final

from perdure.testing.provider_rules.rule import Asked, Book, objects

TOOLS: Final = Book()
_rule: Final = TOOLS.rule


@_rule("A20", "tool_use.id: String should match pattern '^[a-zA-Z0-9_-]+$'")
def _id(asked: Asked) -> Iterator[str]:
    for at, block in asked.of_type("tool_use"):
        if not _matches(r"[a-zA-Z0-9_-]+", block.get("id")):
            yield at


@_rule("A21", "tool_use.name: String should match pattern '^[a-zA-Z0-9_-]{1,128}$'")
def _name(asked: Asked) -> Iterator[str]:
    longest = 64 if asked.strict else 128
    for at, block in asked.of_type("tool_use"):
        if not _matches(rf"[a-zA-Z0-9_-]{{1,{longest}}}", block.get("name")):
            yield at


@_rule("A22", "tool_use.input: Input should be a valid dictionary")
def _input(asked: Asked) -> Iterator[str]:
    for at, block in asked.of_type("tool_use"):
        if not isinstance(block.get("input"), dict):
            yield at


@_rule("A23", "`tool_use` ids must be unique")
def _unique(asked: Asked) -> Iterator[str]:
    seen: set[str] = set()
    for at, block in asked.of_type("tool_use"):
        if str(block.get("id")) in seen:
            yield at
        seen.add(str(block.get("id")))


@_rule("A24", "server_tool_use.id: String should match pattern '^srvtoolu_[a-zA-Z0-9_]+$'")
def _server_id(asked: Asked) -> Iterator[str]:
    for at, block in asked.of_type("server_tool_use"):
        if not _matches(r"srvtoolu_[a-zA-Z0-9_]+", block.get("id")):
            yield at


@_rule("A25", "tool_result.tool_use_id: Field required, matching '^[a-zA-Z0-9_-]+$'")
def _result_id(asked: Asked) -> Iterator[str]:
    for at, block in asked.of_type("tool_result"):
        if not _matches(r"[a-zA-Z0-9_-]+", block.get("tool_use_id")):
            yield at


@_rule("A26", "tool_result.content: Input should be a string or a list of content blocks")
def _result_content(asked: Asked) -> Iterator[str]:
    for at, block in asked.of_type("tool_result"):
        content = block.get("content", "")
        kinds = ("text", "image", "document", "search_result")
        if isinstance(content, list):
            good = all(isinstance(one, dict) and one.get("type") in kinds for one in content)
        else:
            good = isinstance(content, str)
        if not good:
            yield at


@_rule("A27", "tool_result: content cannot be empty if `is_error` is true")
def _error_content(asked: Asked) -> Iterator[str]:
    for at, block in asked.of_type("tool_result"):
        if block.get("is_error") is True and not block.get("content"):
            yield at


@_rule(
    "A50",
    "`tool_use` ids were found without `tool_result` blocks immediately after. Each `tool_use` "
    "block must have a corresponding `tool_result` block in the next message.",
)
def _answered(asked: Asked) -> Iterator[str]:
    messages = list(asked.messages())
    for number, (place, message) in enumerate(messages):
        after = messages[number + 1][1] if number + 1 < len(messages) else {}
        answered = _leading_results(after) if after.get("role") == "user" else set()
        if not _ids(message, "tool_use", "id") <= answered:
            yield f"messages.{place}"


@_rule(
    "A51",
    "unexpected `tool_use_id` found in `tool_result` blocks. Each `tool_result` block must have a "
    "corresponding `tool_use` block in the previous message.",
)
def _called(asked: Asked) -> Iterator[str]:
    before: dict[str, Any] = {}
    for place, message in asked.messages():
        called = _ids(before, "tool_use", "id")
        used: set[str] = set()
        for number, block in objects(message.get("content")):
            kind, at = str(block.get("type")), f"messages.{place}.content.{number}"
            if kind == "server_tool_use":
                used.add(str(block.get("id")))
            elif kind == "tool_result":
                if str(block.get("tool_use_id")) not in called:
                    yield at
            elif kind.endswith("_tool_result") and str(block.get("tool_use_id")) not in used:
                yield at
        before = message


@_rule(
    "A52", "each tool_use must have a single result. Found multiple `tool_result` blocks with id"
)
def _once(asked: Asked) -> Iterator[str]:
    for place, message in asked.messages():
        seen: set[str] = set()
        for number, block in objects(message.get("content")):
            if block.get("type") != "tool_result":
                continue
            if str(block.get("tool_use_id")) in seen:
                yield f"messages.{place}.content.{number}"
            seen.add(str(block.get("tool_use_id")))


def _matches(pattern: str, value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch(pattern, value, re.ASCII) is not None


def _ids(message: dict[str, Any], kind: str, key: str) -> set[str]:
    blocks = (block for _, block in objects(message.get("content")))
    return {str(block.get(key)) for block in blocks if block.get("type") == kind}


def _leading_results(message: dict[str, Any]) -> set[str]:
    """The ids of the results before anything else is said."""
    found: set[str] = set()
    for _, block in objects(message.get("content")):
        if block.get("type") != "tool_result":
            break
        found.add(str(block.get("tool_use_id")))
    return found
