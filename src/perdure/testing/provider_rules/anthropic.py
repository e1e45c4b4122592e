"""The rules of Anthropic's Messages API."""

import json
import re
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Final

from perdure.testing.provider_rules.anthropic_asking import ASKING
from perdure.testing.provider_rules.anthropic_tools import TOOLS
from perdure.testing.provider_rules.rule import Asked, Book, objects

ANTHROPIC: Final = Book()
_rule: Final = ANTHROPIC.rule

_USER: Final = frozenset({"text", "image", "document", "tool_result", "search_result"})
_ASSISTANT: Final = frozenset(
    {"text", "thinking", "redacted_thinking", "tool_use", "server_tool_use", "mcp_tool_use"}
)
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
def _json(asked: Asked) -> Iterator[str]:
    try:
        json.dumps(asked.body, allow_nan=False, ensure_ascii=False).encode("utf-8")
    except (TypeError, ValueError, RecursionError):
        yield "body"


@_rule("A01", "messages: Input should be a valid list")
def _messages(asked: Asked) -> Iterator[str]:
    if not isinstance(asked.body.get("messages"), list):
        yield "messages"


@_rule("A02", "messages: at least one message is required")
def _some(asked: Asked) -> Iterator[str]:
    if asked.body.get("messages") == []:
        yield "messages"


@_rule("A04", "system: text content blocks must be non-empty")
def _system_empty(asked: Asked) -> Iterator[str]:
    for number, block in objects(asked.body.get("system")):
        if block.get("text") == "":
            yield f"system.{number}"


@_rule("A05", "system: text content blocks must contain non-whitespace text")
def _system_blank(asked: Asked) -> Iterator[str]:
    blocks = [block for _, block in objects(asked.body.get("system"))]
    if blocks and all(_is_blank(block) for block in blocks):
        yield "system"


@_rule("A06", "Extra inputs are not permitted")
def _extra(asked: Asked) -> Iterator[str]:
    for place, message in asked.messages():
        for key in sorted(map(str, set(message) - {"role", "content"})):
            yield f"messages.{place}.{key}"
    for at, _, block in asked.blocks():
        allowed = _BLOCK_KEYS.get(str(block.get("type")))
        for key in sorted(map(str, set(block) - allowed)) if allowed else ():
            yield f"{at}.{key}"


@_rule("A07", 'messages: Unexpected role "system". The Messages API accepts a top-level `system`')
def _no_system(asked: Asked) -> Iterator[str]:
    yield from (
        f"messages.{n}" for n, message in asked.messages() if message.get("role") == "system"
    )


@_rule("A08", "messages: roles must be user or assistant")
def _roles(asked: Asked) -> Iterator[str]:
    for place, message in asked.messages():
        if message.get("role") not in ("user", "assistant", "system"):
            yield f"messages.{place}.role"


@_rule("A09", "messages: each message is an object whose content is a string or a list")
def _contents(asked: Asked) -> Iterator[str]:
    given = asked.body.get("messages")
    for place, message in enumerate(given if isinstance(given, list) else []):
        if not isinstance(message, dict) or not isinstance(message.get("content"), str | list):
            yield f"messages.{place}"


@_rule("A10", "messages: content blocks are objects")
def _block_objects(asked: Asked) -> Iterator[str]:
    for place, message in asked.messages():
        content = message.get("content")
        for number, block in enumerate(content if isinstance(content, list) else []):
            if not isinstance(block, dict):
                yield f"messages.{place}.content.{number}"


@_rule("A11", "user messages must have non-empty content")
def _user_empty(asked: Asked) -> Iterator[str]:
    for place, message in asked.messages():
        if message.get("role") == "user" and message.get("content") in ("", []):
            yield f"messages.{place}"


@_rule(
    "A12",
    "all messages must have non-empty content except for the optional final assistant message",
    strict=True,
)
def _all_empty(asked: Asked) -> Iterator[str]:
    messages = list(asked.messages())
    for place, message in messages:
        is_last = place == messages[-1][0] and message.get("role") == "assistant"
        if message.get("content") in ("", []) and not is_last:
            yield f"messages.{place}"


@_rule("A13", "messages: text content blocks must be non-empty")
def _text_empty(asked: Asked) -> Iterator[str]:
    yield from (at for at, block in asked.of_type("text") if not _text(block))


@_rule("A13s", "tool_result: text content blocks must be non-empty", strict=True)
def _result_text_empty(asked: Asked) -> Iterator[str]:
    for at, block in asked.of_type("tool_result"):
        for number, inner in objects(block.get("content")):
            if inner.get("type") == "text" and not _text(inner):
                yield f"{at}.content.{number}"


@_rule("A14", "messages: text content blocks must contain non-whitespace text")
def _blank(asked: Asked) -> Iterator[str]:
    for place, message in asked.messages():
        content = message.get("content")
        said = [{"type": "text", "text": content}] if isinstance(content, str) else content
        if isinstance(said, list) and said and all(_is_blank(block) for block in said):
            yield f"messages.{place}"


@_rule(
    "A14s", "text content blocks must contain non-whitespace text, beside others too", strict=True
)
def _blank_beside(asked: Asked) -> Iterator[str]:
    yield from (at for at, block in asked.of_type("text") if _is_blank(block))


@_rule("A15", "messages: this type of content block is not permitted in this role")
def _kinds(asked: Asked) -> Iterator[str]:
    for at, role, block in asked.blocks():
        kind = str(block.get("type"))
        server = kind.endswith("_tool_result") and kind != "tool_result"
        if kind not in (_USER if role == "user" else _ASSISTANT) and not (
            server and role == "assistant"
        ):
            yield at


@_rule("A16", "cache_control cannot be set for empty text blocks")
def _cached_empty(asked: Asked) -> Iterator[str]:
    for at, block in asked.of_type("text"):
        if "cache_control" in block and not _text(block):
            yield at


@_rule(
    "A17",
    'roles must alternate between "user" and "assistant", but found multiple roles in a row',
    strict=True,
)
def _alternate(asked: Asked) -> Iterator[str]:
    messages = list(asked.messages())
    for (_, before), (place, message) in pairwise(messages):
        if before.get("role") == message.get("role"):
            yield f"messages.{place}"


@_rule("A18", "messages: first message must use the user role", strict=True)
def _first(asked: Asked) -> Iterator[str]:
    first = next(asked.messages(), None)
    if first is not None and first[1].get("role") != "user":
        yield "messages.0"


@_rule("A30", "messages: thinking: signature: Field required")
def _signature(asked: Asked) -> Iterator[str]:
    for at, block in asked.of_type("thinking"):
        if not isinstance(block.get("signature"), str) or not block["signature"]:
            yield at


@_rule("A31", "Invalid `signature` in `thinking` block")
def _issued(asked: Asked) -> Iterator[str]:
    for at, block in asked.of_type("thinking", "redacted_thinking"):
        if asked.signed is not None and not asked.signed(block):
            yield at


@_rule(
    "A32",
    "`thinking` or `redacted_thinking` blocks in the latest assistant message cannot be modified. "
    "These blocks must remain as they were in the original response.",
)
def _latest(asked: Asked) -> Iterator[str]:
    answers = [(n, one) for n, one in asked.messages() if one.get("role") == "assistant"]
    for place, message in answers[-1:]:
        for number, block in objects(message.get("content")):
            known = block.get("type") in ("thinking", "redacted_thinking")
            if known and asked.signed is not None and not asked.signed(block):
                yield f"messages.{place}.content.{number}"


@_rule("A34", "The final block in an assistant message cannot be `thinking`.")
def _final(asked: Asked) -> Iterator[str]:
    messages = list(asked.messages())
    for place, message in messages if asked.strict else messages[-1:]:
        blocks = [block for _, block in objects(message.get("content"))]
        if message.get("role") == "assistant" and blocks and _is_thought(blocks[-1]):
            yield f"messages.{place}"


def _text(block: Any) -> str:
    text = block.get("text") if isinstance(block, dict) else None
    return text if isinstance(text, str) else ""


def _is_blank(block: Any) -> bool:
    """Whether a block is a text with nothing but white space (an empty one is another rule's)."""
    is_text = isinstance(block, dict) and block.get("type") == "text"
    return is_text and _text(block) != "" and not _text(block).strip()


def _is_thought(block: dict[str, Any]) -> bool:
    return block.get("type") in ("thinking", "redacted_thinking")


ANTHROPIC.rules += TOOLS.rules + ASKING.rules
assert not [one for one, n in Counter(rule.id for rule in ANTHROPIC.rules).items() if n > 1]
assert all(re.fullmatch(r"A\d\ds?", rule.id) for rule in ANTHROPIC.rules)
