"""Rules of Anthropic's Messages API about options: thinking, tools, and the last message."""

from collections.abc import Iterator
from typing import Any, Final

from perdure.testing.provider_rules.rule import CheckedRequest, RuleSet, objects

REQUEST_RULES: Final = RuleSet()
_rule: Final = REQUEST_RULES.rule
_THOUGHTS: Final = ("thinking", "redacted_thinking")


@_rule("A03", "max_tokens: Input should be greater than or equal to 1")
def _max_tokens(request: CheckedRequest) -> Iterator[str]:
    limit = request.body.get("max_tokens")
    if type(limit) is not int or limit < 1:
        yield "max_tokens"


@_rule("A35", "Expected `thinking` or `redacted_thinking`, but found `tool_use`")
def _thinks_first(request: CheckedRequest) -> Iterator[str]:
    messages = list(request.messages())
    if not _is_thinking(request) or len(messages) < 2 or not _kinds(messages[-1][1]):
        return
    index, answer = messages[-2]
    kinds = _kinds(answer)
    if "tool_result" in _kinds(messages[-1][1]) and (not kinds or kinds[0] not in _THOUGHTS):
        yield f"messages.{index}.content.0"


@_rule("A40", "thinking.enabled.budget_tokens: Input should be greater than or equal to 1024")
def _budget(request: CheckedRequest) -> Iterator[str]:
    if _is_thinking(request) and _budget_of(request) < 1024:
        yield "thinking.budget_tokens"


@_rule("A41", "`max_tokens` must be greater than `thinking.budget_tokens`")
def _budget_fits(request: CheckedRequest) -> Iterator[str]:
    limit = request.body.get("max_tokens")
    if _is_thinking(request) and isinstance(limit, int) and _budget_of(request) >= limit:
        yield "max_tokens"


@_rule("A42", "Thinking may not be enabled when tool_choice forces tool use.")
def _choice(request: CheckedRequest) -> Iterator[str]:
    choice = request.body.get("tool_choice")
    if _is_thinking(request) and isinstance(choice, dict) and choice.get("type") in ("any", "tool"):
        yield "tool_choice"


@_rule("A43", "`temperature` may only be set to 1 when thinking is enabled.")
def _temperature(request: CheckedRequest) -> Iterator[str]:
    if _is_thinking(request) and request.body.get("temperature", 1) != 1:
        yield "temperature"


@_rule("A44", "tools: Tool names must be unique.")
def _tool_names(request: CheckedRequest) -> Iterator[str]:
    names = [str(tool.get("name")) for _, tool in objects(request.body.get("tools"))]
    yield from (f"tools.{n}" for n, name in enumerate(names) if name in names[:n])


@_rule("A45", "tools: input_schema: Field required")
def _tool_schema(request: CheckedRequest) -> Iterator[str]:
    for number, tool in objects(request.body.get("tools")):
        if not isinstance(tool.get("input_schema"), dict):
            yield f"tools.{number}"


@_rule("A46", "tools: input_schema.type: Input should be 'object'")
def _schema_type(request: CheckedRequest) -> Iterator[str]:
    for number, schema in _schemas(request):
        if schema.get("type") != "object":
            yield f"tools.{number}.input_schema.type"


@_rule("A47", "tools: input_schema does not support oneOf, allOf, or anyOf at the top level")
def _schema_top(request: CheckedRequest) -> Iterator[str]:
    for number, schema in _schemas(request):
        if {"oneOf", "anyOf", "allOf"} & set(schema):
            yield f"tools.{number}.input_schema"


@_rule("A48", "A maximum of 4 blocks with cache_control may be provided.")
def _cached(request: CheckedRequest) -> Iterator[str]:
    count = sum("cache_control" in block for _, _, block in request.blocks())
    for part in ("system", "tools"):
        count += sum("cache_control" in block for _, block in objects(request.body.get(part)))
    if count > 4:
        yield "messages"


@_rule("A54", "Requests which include `tool_use` or `tool_result` blocks must define tools")
def _tools_defined(request: CheckedRequest) -> Iterator[str]:
    first = next(request.blocks_of_type("tool_use", "tool_result"), None)
    if first is not None and not request.body.get("tools"):
        yield first[0]


@_rule(
    "A60",
    "This model does not support assistant message prefill. The conversation must end with a user "
    "message.",
    strict=True,
)
def _ends(request: CheckedRequest) -> Iterator[str]:
    yield from (f"messages.{n}" for n, _ in _prefill(request))


@_rule("A61", "final assistant content cannot end with trailing whitespace", strict=True)
def _prefill_ends(request: CheckedRequest) -> Iterator[str]:
    for index, message in _prefill(request):
        content = message.get("content")
        if isinstance(content, list) and content and isinstance(content[-1], dict):
            content = content[-1].get("text")
        if isinstance(content, str) and content != content.rstrip():
            yield f"messages.{index}"


@_rule(
    "A62",
    "When thinking is disabled, an `assistant` message in the final position cannot contain "
    "`thinking`",
)
def _prefill_thinks(request: CheckedRequest) -> Iterator[str]:
    for index, message in _prefill(request):
        if not _is_thinking(request) and set(_kinds(message)) & set(_THOUGHTS):
            yield f"messages.{index}"


def _prefill(request: CheckedRequest) -> list[tuple[int, dict[str, Any]]]:
    """Return the last message if it is an assistant message."""
    last = list(request.messages())[-1:]
    return [(index, message) for index, message in last if message.get("role") == "assistant"]


def _is_thinking(request: CheckedRequest) -> bool:
    thinking = request.body.get("thinking")
    return isinstance(thinking, dict) and thinking.get("type") == "enabled"


def _budget_of(request: CheckedRequest) -> int:
    budget = request.body["thinking"].get("budget_tokens")
    return budget if isinstance(budget, int) else 0


def _kinds(message: dict[str, Any]) -> list[str]:
    return [str(block.get("type")) for _, block in objects(message.get("content"))]


def _schemas(request: CheckedRequest) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, tool in objects(request.body.get("tools")):
        if isinstance(tool.get("input_schema"), dict):
            yield number, tool["input_schema"]
