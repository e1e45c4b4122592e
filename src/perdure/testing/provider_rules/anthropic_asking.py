"""The rules of Anthropic's Messages API about what is asked: thinking, tools, the last message."""

from collections.abc import Iterator
from typing import Any, Final

from perdure.testing.provider_rules.rule import Asked, Book, objects

ASKING: Final = Book()
_rule: Final = ASKING.rule
_THOUGHTS: Final = ("thinking", "redacted_thinking")


@_rule("A03", "max_tokens: Input should be greater than or equal to 1")
def _max_tokens(asked: Asked) -> Iterator[str]:
    given = asked.body.get("max_tokens")
    if type(given) is not int or given < 1:
        yield "max_tokens"


@_rule("A35", "Expected `thinking` or `redacted_thinking`, but found `tool_use`")
def _thinks_first(asked: Asked) -> Iterator[str]:
    messages = list(asked.messages())
    if not _thinks(asked) or len(messages) < 2 or not _kinds(messages[-1][1]):
        return
    place, answer = messages[-2]
    kinds = _kinds(answer)
    if "tool_result" in _kinds(messages[-1][1]) and (not kinds or kinds[0] not in _THOUGHTS):
        yield f"messages.{place}.content.0"


@_rule("A40", "thinking.enabled.budget_tokens: Input should be greater than or equal to 1024")
def _budget(asked: Asked) -> Iterator[str]:
    if _thinks(asked) and _budget_of(asked) < 1024:
        yield "thinking.budget_tokens"


@_rule("A41", "`max_tokens` must be greater than `thinking.budget_tokens`")
def _budget_fits(asked: Asked) -> Iterator[str]:
    limit = asked.body.get("max_tokens")
    if _thinks(asked) and isinstance(limit, int) and _budget_of(asked) >= limit:
        yield "max_tokens"


@_rule("A42", "Thinking may not be enabled when tool_choice forces tool use.")
def _choice(asked: Asked) -> Iterator[str]:
    choice = asked.body.get("tool_choice")
    if _thinks(asked) and isinstance(choice, dict) and choice.get("type") in ("any", "tool"):
        yield "tool_choice"


@_rule("A43", "`temperature` may only be set to 1 when thinking is enabled.")
def _temperature(asked: Asked) -> Iterator[str]:
    if _thinks(asked) and asked.body.get("temperature", 1) != 1:
        yield "temperature"


@_rule("A44", "tools: Tool names must be unique.")
def _tool_names(asked: Asked) -> Iterator[str]:
    names = [str(tool.get("name")) for _, tool in objects(asked.body.get("tools"))]
    yield from (f"tools.{n}" for n, name in enumerate(names) if name in names[:n])


@_rule("A45", "tools: input_schema: Field required")
def _tool_schema(asked: Asked) -> Iterator[str]:
    for number, tool in objects(asked.body.get("tools")):
        if not isinstance(tool.get("input_schema"), dict):
            yield f"tools.{number}"


@_rule("A46", "tools: input_schema.type: Input should be 'object'")
def _schema_type(asked: Asked) -> Iterator[str]:
    for number, schema in _schemas(asked):
        if schema.get("type") != "object":
            yield f"tools.{number}.input_schema.type"


@_rule("A47", "tools: input_schema does not support oneOf, allOf, or anyOf at the top level")
def _schema_top(asked: Asked) -> Iterator[str]:
    for number, schema in _schemas(asked):
        if {"oneOf", "anyOf", "allOf"} & set(schema):
            yield f"tools.{number}.input_schema"


@_rule("A48", "A maximum of 4 blocks with cache_control may be provided.")
def _cached(asked: Asked) -> Iterator[str]:
    marks = sum("cache_control" in block for _, _, block in asked.blocks())
    for part in ("system", "tools"):
        marks += sum("cache_control" in one for _, one in objects(asked.body.get(part)))
    if marks > 4:
        yield "messages"


@_rule("A54", "Requests which include `tool_use` or `tool_result` blocks must define tools")
def _tools_defined(asked: Asked) -> Iterator[str]:
    first = next(asked.of_type("tool_use", "tool_result"), None)
    if first is not None and not asked.body.get("tools"):
        yield first[0]


@_rule(
    "A60",
    "This model does not support assistant message prefill. The conversation must end with a user "
    "message.",
    strict=True,
)
def _ends(asked: Asked) -> Iterator[str]:
    yield from (f"messages.{n}" for n, _ in _prefill(asked))


@_rule("A61", "final assistant content cannot end with trailing whitespace", strict=True)
def _prefill_ends(asked: Asked) -> Iterator[str]:
    for place, message in _prefill(asked):
        content = message.get("content")
        if isinstance(content, list) and content and isinstance(content[-1], dict):
            content = content[-1].get("text")
        if isinstance(content, str) and content != content.rstrip():
            yield f"messages.{place}"


@_rule(
    "A62",
    "When thinking is disabled, an `assistant` message in the final position cannot contain "
    "`thinking`",
)
def _prefill_thinks(asked: Asked) -> Iterator[str]:
    for place, message in _prefill(asked):
        if not _thinks(asked) and set(_kinds(message)) & set(_THOUGHTS):
            yield f"messages.{place}"


def _prefill(asked: Asked) -> list[tuple[int, dict[str, Any]]]:
    """The last message, if it is the assistant's."""
    last = list(asked.messages())[-1:]
    return [(place, one) for place, one in last if one.get("role") == "assistant"]


def _thinks(asked: Asked) -> bool:
    thinking = asked.body.get("thinking")
    return isinstance(thinking, dict) and thinking.get("type") == "enabled"


def _budget_of(asked: Asked) -> int:
    budget = asked.body["thinking"].get("budget_tokens")
    return budget if isinstance(budget, int) else 0


def _kinds(message: dict[str, Any]) -> list[str]:
    return [str(block.get("type")) for _, block in objects(message.get("content"))]


def _schemas(asked: Asked) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, tool in objects(asked.body.get("tools")):
        if isinstance(tool.get("input_schema"), dict):
            yield number, tool["input_schema"]
