"""Rules of Anthropic's Messages API about tool calls and their results."""

import re
from collections.abc import Iterator
from typing import Any, Final

from perdure.testing.provider_rules.rule import CheckedRequest, RuleSet, objects

TOOL_RULES: Final = RuleSet()
_rule: Final = TOOL_RULES.rule


@_rule("A20", "tool_use.id: String should match pattern '^[a-zA-Z0-9_-]+$'")
def _id(request: CheckedRequest) -> Iterator[str]:
    for path, block in request.blocks_of_type("tool_use"):
        if not _is_match(r"[a-zA-Z0-9_-]+", block.get("id")):
            yield path


@_rule("A21", "tool_use.name: String should match pattern '^[a-zA-Z0-9_-]{1,128}$'")
def _name(request: CheckedRequest) -> Iterator[str]:
    longest = 64 if request.strict else 128
    for path, block in request.blocks_of_type("tool_use"):
        if not _is_match(rf"[a-zA-Z0-9_-]{{1,{longest}}}", block.get("name")):
            yield path


@_rule("A22", "tool_use.input: Input should be a valid dictionary")
def _input(request: CheckedRequest) -> Iterator[str]:
    for path, block in request.blocks_of_type("tool_use"):
        if not isinstance(block.get("input"), dict):
            yield path


@_rule("A23", "`tool_use` ids must be unique")
def _unique(request: CheckedRequest) -> Iterator[str]:
    ids: set[str] = set()
    for path, block in request.blocks_of_type("tool_use"):
        if str(block.get("id")) in ids:
            yield path
        ids.add(str(block.get("id")))


@_rule("A24", "server_tool_use.id: String should match pattern '^srvtoolu_[a-zA-Z0-9_]+$'")
def _server_id(request: CheckedRequest) -> Iterator[str]:
    for path, block in request.blocks_of_type("server_tool_use"):
        if not _is_match(r"srvtoolu_[a-zA-Z0-9_]+", block.get("id")):
            yield path


@_rule("A25", "tool_result.tool_use_id: Field required, matching '^[a-zA-Z0-9_-]+$'")
def _result_id(request: CheckedRequest) -> Iterator[str]:
    for path, block in request.blocks_of_type("tool_result"):
        if not _is_match(r"[a-zA-Z0-9_-]+", block.get("tool_use_id")):
            yield path


@_rule("A26", "tool_result.content: Input should be a string or a list of content blocks")
def _result_content(request: CheckedRequest) -> Iterator[str]:
    for path, block in request.blocks_of_type("tool_result"):
        content = block.get("content", "")
        kinds = ("text", "image", "document", "search_result")
        if isinstance(content, list):
            is_valid = all(
                isinstance(block, dict) and block.get("type") in kinds for block in content
            )
        else:
            is_valid = isinstance(content, str)
        if not is_valid:
            yield path


@_rule("A27", "tool_result: content cannot be empty if `is_error` is true")
def _error_content(request: CheckedRequest) -> Iterator[str]:
    for path, block in request.blocks_of_type("tool_result"):
        if block.get("is_error") is True and not block.get("content"):
            yield path


@_rule(
    "A50",
    "`tool_use` ids were found without `tool_result` blocks immediately after. Each `tool_use` "
    "block must have a corresponding `tool_result` block in the next message.",
)
def _answered(request: CheckedRequest) -> Iterator[str]:
    messages = list(request.messages())
    for number, (index, message) in enumerate(messages):
        after = messages[number + 1][1] if number + 1 < len(messages) else {}
        answered = _leading_results(after) if after.get("role") == "user" else set()
        if not _ids(message, "tool_use", "id") <= answered:
            yield f"messages.{index}"


@_rule(
    "A51",
    "unexpected `tool_use_id` found in `tool_result` blocks. Each `tool_result` block must have a "
    "corresponding `tool_use` block in the previous message.",
)
def _called(request: CheckedRequest) -> Iterator[str]:
    before: dict[str, Any] = {}
    for index, message in request.messages():
        called = _ids(before, "tool_use", "id")
        used: set[str] = set()
        for number, block in objects(message.get("content")):
            kind, path = str(block.get("type")), f"messages.{index}.content.{number}"
            if kind == "server_tool_use":
                used.add(str(block.get("id")))
            elif kind == "tool_result":
                if str(block.get("tool_use_id")) not in called:
                    yield path
            elif kind.endswith("_tool_result") and str(block.get("tool_use_id")) not in used:
                yield path
        before = message


@_rule(
    "A52", "each tool_use must have a single result. Found multiple `tool_result` blocks with id"
)
def _once(request: CheckedRequest) -> Iterator[str]:
    for index, message in request.messages():
        ids: set[str] = set()
        for number, block in objects(message.get("content")):
            if block.get("type") != "tool_result":
                continue
            if str(block.get("tool_use_id")) in ids:
                yield f"messages.{index}.content.{number}"
            ids.add(str(block.get("tool_use_id")))


def _is_match(pattern: str, value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch(pattern, value, re.ASCII) is not None


def _ids(message: dict[str, Any], kind: str, key: str) -> set[str]:
    blocks = (block for _, block in objects(message.get("content")))
    return {str(block.get(key)) for block in blocks if block.get("type") == kind}


def _leading_results(message: dict[str, Any]) -> set[str]:
    """Return the ids of the results at the beginning of a message."""
    ids: set[str] = set()
    for _, block in objects(message.get("content")):
        if block.get("type") != "tool_result":
            break
        ids.add(str(block.get("tool_use_id")))
    return ids
