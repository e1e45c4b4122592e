"""Rules of Anthropic's Messages API."""

import json
import re
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Final

from perdure.testing.provider_rules.anthropic_request import REQUEST_RULES
from perdure.testing.provider_rules.anthropic_tools import TOOL_RULES
from perdure.testing.provider_rules.rule import CheckedRequest, RuleSet, objects

ANTHROPIC: Final = RuleSet()
_rule: Final = ANTHROPIC.rule

_USER: Final = frozenset({"text", "image", "document", "tool_result", "search_result"})
_ASSISTANT: Final = frozenset(
    {"text", "thinking", "redacted_thinking", "tool_use", "server_tool_use", "mcp_tool_use"}
)
_KINDS: Final = {"user": _USER, "system": frozenset({"text"})}
_MESSAGE_KEYS: Final = frozenset({"role", "content"})
_SYSTEM_KEYS: Final = frozenset({"output_config"})  # of the newest models, as the role itself
_BLOCK_KEYS: Final = {
    "text": {"type", "text", "citations", "cache_control"},
    "image": {"type", "source", "cache_control"},
    "document": {"type", "source", "title", "context", "citations", "cache_control"},
    "search_result": {"type", "source", "title", "content", "citations", "cache_control"},
    "tool_use": {"type", "id", "name", "input", "caller", "cache_control"},
    "tool_result": {"type", "tool_use_id", "content", "is_error", "cache_control"},
    "thinking": {"type", "thinking", "signature"},
    "redacted_thinking": {"type", "data"},
}


@_rule("A00", "The request body is not valid JSON: no lone surrogates, no NaN")
def _json(request: CheckedRequest) -> Iterator[str]:
    try:
        json.dumps(request.body, allow_nan=False, ensure_ascii=False).encode("utf-8")
    except (TypeError, ValueError, RecursionError):
        yield "body"


@_rule("A01", "messages: Input should be a valid list")
def _messages(request: CheckedRequest) -> Iterator[str]:
    if not isinstance(request.body.get("messages"), list):
        yield "messages"


@_rule("A02", "messages: at least one message is required")
def _some(request: CheckedRequest) -> Iterator[str]:
    if request.body.get("messages") == []:
        yield "messages"


@_rule("A04", "system: text content blocks must be non-empty")
def _system_empty(request: CheckedRequest) -> Iterator[str]:
    for number, block in objects(request.body.get("system")):
        if block.get("text") == "":
            yield f"system.{number}"


@_rule("A05", "system: text content blocks must contain non-whitespace text")
def _system_blank(request: CheckedRequest) -> Iterator[str]:
    blocks = [block for _, block in objects(request.body.get("system"))]
    if blocks and all(_is_blank(block) for block in blocks):
        yield "system"


@_rule("A06", "Extra inputs are not permitted")
def _extra(request: CheckedRequest) -> Iterator[str]:
    for index, message in request.messages():
        is_newest = not request.strict and message.get("role") == "system"
        allowed_keys = _MESSAGE_KEYS | _SYSTEM_KEYS if is_newest else _MESSAGE_KEYS
        for key in sorted(map(str, set(message) - allowed_keys)):
            yield f"messages.{index}.{key}"
    for path, _, block in request.blocks():
        allowed = _BLOCK_KEYS.get(str(block.get("type")))
        for key in sorted(map(str, set(block) - allowed)) if allowed else ():
            yield f"{path}.{key}"


@_rule(
    "A07",
    'messages: Unexpected role "system". The Messages API accepts a top-level `system` '
    'parameter, not "system" as an input message role.',
    strict=True,
)
def _no_system(request: CheckedRequest) -> Iterator[str]:
    yield from (
        f"messages.{n}" for n, message in request.messages() if message.get("role") == "system"
    )


@_rule("A08", "messages: roles must be user or assistant")
def _roles(request: CheckedRequest) -> Iterator[str]:
    for index, message in request.messages():
        if message.get("role") not in ("user", "assistant", "system"):
            yield f"messages.{index}.role"


@_rule("A09", "messages: each message is an object whose content is a string or a list")
def _contents(request: CheckedRequest) -> Iterator[str]:
    messages = request.body.get("messages")
    for index, message in enumerate(messages if isinstance(messages, list) else []):
        if not isinstance(message, dict) or not isinstance(message.get("content"), str | list):
            yield f"messages.{index}"


@_rule("A10", "messages: content blocks are objects")
def _block_objects(request: CheckedRequest) -> Iterator[str]:
    for index, message in request.messages():
        content = message.get("content")
        for number, block in enumerate(content if isinstance(content, list) else []):
            if not isinstance(block, dict):
                yield f"messages.{index}.content.{number}"


@_rule("A11", "user messages must have non-empty content")
def _user_empty(request: CheckedRequest) -> Iterator[str]:
    for index, message in request.messages():
        if message.get("role") == "user" and message.get("content") in ("", []):
            yield f"messages.{index}"


@_rule(
    "A12",
    "all messages must have non-empty content except for the optional final assistant message",
    strict=True,
)
def _all_empty(request: CheckedRequest) -> Iterator[str]:
    messages = list(request.messages())
    for index, message in messages:
        is_last = index == messages[-1][0] and message.get("role") == "assistant"
        if message.get("content") in ("", []) and not is_last:
            yield f"messages.{index}"


@_rule("A13", "messages: text content blocks must be non-empty")
def _text_empty(request: CheckedRequest) -> Iterator[str]:
    yield from (path for path, block in request.blocks_of_type("text") if not _text(block))


@_rule("A13s", "tool_result: text content blocks must be non-empty", strict=True)
def _result_text_empty(request: CheckedRequest) -> Iterator[str]:
    for path, block in request.blocks_of_type("tool_result"):
        for number, inner in objects(block.get("content")):
            if inner.get("type") == "text" and not _text(inner):
                yield f"{path}.content.{number}"


@_rule("A14", "messages: text content blocks must contain non-whitespace text")
def _blank(request: CheckedRequest) -> Iterator[str]:
    for index, message in request.messages():
        content = message.get("content")
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        if isinstance(blocks, list) and blocks and all(_is_blank(block) for block in blocks):
            yield f"messages.{index}"


@_rule(
    "A14s", "text content blocks must contain non-whitespace text, beside others too", strict=True
)
def _blank_beside(request: CheckedRequest) -> Iterator[str]:
    yield from (path for path, block in request.blocks_of_type("text") if _is_blank(block))


@_rule("A15", "messages: this type of content block is not permitted in this role")
def _kinds(request: CheckedRequest) -> Iterator[str]:
    for path, role, block in request.blocks():
        kind = str(block.get("type"))
        is_server_result = kind.endswith("_tool_result") and kind != "tool_result"
        if kind not in _KINDS.get(role, _ASSISTANT) and not (
            is_server_result and role == "assistant"
        ):
            yield path


@_rule("A16", "cache_control cannot be set for empty text blocks")
def _cached_empty(request: CheckedRequest) -> Iterator[str]:
    for path, block in request.blocks_of_type("text"):
        if "cache_control" in block and not _text(block):
            yield path


@_rule(
    "A17",
    'roles must alternate between "user" and "assistant", but found multiple roles in a row',
    strict=True,
)
def _alternate(request: CheckedRequest) -> Iterator[str]:
    messages = list(request.messages())
    for (_, before), (index, message) in pairwise(messages):
        if before.get("role") == message.get("role"):
            yield f"messages.{index}"


@_rule("A18", "messages: first message must use the user role", strict=True)
def _first(request: CheckedRequest) -> Iterator[str]:
    first = next(request.messages(), None)
    if first is not None and first[1].get("role") != "user":
        yield "messages.0"


@_rule("A30", "messages: thinking: signature: Field required")
def _signature(request: CheckedRequest) -> Iterator[str]:
    for path, block in request.blocks_of_type("thinking"):
        if not isinstance(block.get("signature"), str) or not block["signature"]:
            yield path


@_rule("A31", "Invalid `signature` in `thinking` block")
def _issued(request: CheckedRequest) -> Iterator[str]:
    for path, block in request.blocks_of_type("thinking", "redacted_thinking"):
        if request.signed is not None and not request.signed(block):
            yield path


@_rule(
    "A32",
    "`thinking` or `redacted_thinking` blocks in the latest assistant message cannot be modified. "
    "These blocks must remain as they were in the original response.",
)
def _latest(request: CheckedRequest) -> Iterator[str]:
    messages = [item for item in request.messages() if item[1].get("role") == "assistant"]
    for index, message in messages[-1:]:
        for number, block in objects(message.get("content")):
            if _is_thinking(block) and request.signed is not None and not request.signed(block):
                yield f"messages.{index}.content.{number}"


@_rule("A34", "The final block in an assistant message cannot be `thinking`.")
def _final(request: CheckedRequest) -> Iterator[str]:
    messages = list(request.messages())
    for index, message in messages if request.strict else messages[-1:]:
        blocks = [block for _, block in objects(message.get("content"))]
        if message.get("role") == "assistant" and blocks and _is_thinking(blocks[-1]):
            yield f"messages.{index}"


def _text(block: Any) -> str:
    text = block.get("text") if isinstance(block, dict) else None
    return text if isinstance(text, str) else ""


def _is_blank(block: Any) -> bool:
    """Return True for a text block of white space only; an empty one breaks another rule."""
    is_text = isinstance(block, dict) and block.get("type") == "text"
    return is_text and _text(block) != "" and not _text(block).strip()


def _is_thinking(block: dict[str, Any]) -> bool:
    return block.get("type") in ("thinking", "redacted_thinking")


ANTHROPIC.rules += TOOL_RULES.rules + REQUEST_RULES.rules
assert not [id_ for id_, n in Counter(rule.id for rule in ANTHROPIC.rules).items() if n > 1]
assert all(re.fullmatch(r"A\d\ds?", rule.id) for rule in ANTHROPIC.rules)
