"""Our conversation as pydantic-ai's messages, for providers whose format is not written here."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pydantic import ValidationError
from pydantic_ai.messages import (
    BinaryContent,
    DocumentUrl,
    ImageUrl,
    InstructionPart,
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelRequestPart,
    ModelResponse,
    ModelResponsePart,
    ModelResponseStreamEvent,
    PartDeltaEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    ThinkingPart,
    ThinkingPartDelta,
    ToolCallPart,
    ToolCallPartDelta,
    ToolReturnPart,
    UserContent,
    UserPromptPart,
)
from pydantic_ai.models import Model, ModelRequestParameters
from pydantic_ai.output import OutputObjectDefinition
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import ToolDefinition

from perdure.core.conversation.messages import (
    AssistantMessage,
    Message,
    ToolMessage,
    UserMessage,
)
from perdure.core.log.events import Content
from perdure.core.log.stop_reasons import early
from perdure.core.providers.catalog import Provider
from perdure.core.providers.streams import Chunk, ReceivedResponse, asked_call, counted
from perdure.runtime.models.base import Request

Origin = tuple[str, str]  # provider and model
Files = Mapping[str, bytes]  # by digest


def history_of(
    messages: Sequence[Message], origin: Origin, files: Files, instructions: str
) -> list[ModelMessage]:
    """The messages; an answer of the same provider and model is just as it came."""
    told: list[ModelMessage] = []
    for message in messages:
        if isinstance(message, AssistantMessage):
            told.append(_answer(message, origin))
            continue
        part = _part(message, files)
        last = told[-1] if told else None
        if isinstance(last, ModelRequest):
            told[-1] = ModelRequest([*last.parts, part], instructions=instructions)
        else:
            told.append(ModelRequest([part], instructions=instructions))
    return told


def kept(response: ModelResponse) -> bytes:
    """An answer as it is kept in the log, for the same provider and model."""
    return ModelMessagesTypeAdapter.dump_json([response])


def _answer(message: AssistantMessage, origin: Origin) -> ModelResponse:
    if message.native is not None and (message.provider, message.model) == origin:
        try:
            found = ModelMessagesTypeAdapter.validate_json(message.native)
        except ValidationError:
            found = []
        if len(found) == 1 and isinstance(found[0], ModelResponse):
            return found[0]
    said = message.text or (message.output or b"").decode()
    parts: list[ModelResponsePart] = [TextPart(said)] if said.strip() else []
    parts += [ToolCallPart(call.tool, dict(call.params), call.id) for call in message.calls]
    return ModelResponse(parts)


def _part(message: UserMessage | ToolMessage, files: Files) -> ModelRequestPart:
    content = _content(message.content, files)
    if isinstance(message, UserMessage):
        return UserPromptPart(content)
    outcome: Any = "failed" if message.is_error else "success"
    told: Any = content if isinstance(content, str) else list(content)
    return ToolReturnPart(message.tool, told, message.call_id, outcome=outcome)


def _content(content: Content, files: Files) -> str | Sequence[UserContent]:
    if isinstance(content, str):
        return content
    return [_item(item, files) for item in content]


def _item(item: Mapping[str, Any], files: Files) -> UserContent:
    if item.get("type") != "file":
        return str(item.get("text", ""))
    media_type = str(item.get("mediaType", "application/octet-stream"))
    if item.get("url"):
        is_image = media_type.startswith("image/")
        url = str(item["url"])
        return ImageUrl(url) if is_image else DocumentUrl(url, media_type=media_type)
    data = files.get(str(item.get("blob")))
    if data is None:
        return f"[{item.get('name') or media_type}: not available here]"
    return BinaryContent(data, media_type=media_type)


OUTPUT_TOOL: Final = "final_output"
_SAYS: Final = "Give the final answer with this, once nothing else is left to do."
_VALUE: Final = "value"  # holds an output that is no object, which providers want


@dataclass(frozen=True, slots=True)
class OutputRequest:
    """How the output is asked for: as the provider's own structured output, or by a tool."""

    parameters: ModelRequestParameters
    wrapped: bool = False

    def unwrapped(self, text: str) -> bytes | None:
        """The output in what the model gave as its object; None if it gave no JSON."""
        try:
            return self.unwrapped_of(json.loads(text))
        except ValueError:
            return None

    def unwrapped_of(self, value: object) -> bytes:
        """The output in the object itself."""
        if self.wrapped and isinstance(value, dict) and _VALUE in value:
            value = value[_VALUE]
        return json.dumps(value, ensure_ascii=False).encode()


def shape_of(request: Request, model: Model[Any]) -> OutputRequest:
    """The tools and the output type of a request, for this model."""
    tools = [
        ToolDefinition(
            name=tool.name,
            description=tool.description,
            parameters_json_schema=dict(tool.parameters),
        )
        for tool in request.tools
    ]
    said = [InstructionPart(request.instructions)] if request.instructions else None
    if request.output_schema is None:
        return OutputRequest(ModelRequestParameters(function_tools=tools, instruction_parts=said))
    schema, wrapped = _as_object(request.output_schema)
    profile = model.profile
    if profile.get("supports_json_schema_output") and not profile.get(
        "native_output_requires_schema_in_instructions"
    ):
        wanted = OutputObjectDefinition(schema, name=OUTPUT_TOOL)
        parameters = ModelRequestParameters(
            function_tools=tools,
            output_mode="native",
            output_object=wanted,
            instruction_parts=said,
        )
        return OutputRequest(parameters, wrapped)
    last = ToolDefinition(
        name=OUTPUT_TOOL, description=_SAYS, parameters_json_schema=schema, kind="output"
    )
    parameters = ModelRequestParameters(
        function_tools=tools,
        output_mode="tool",
        output_tools=[last],
        allow_text_output=False,
        instruction_parts=said,
    )
    return OutputRequest(parameters, wrapped)


def _as_object(schema: Mapping[str, Any]) -> tuple[dict[str, Any], bool]:
    if schema.get("type") == "object" or "$ref" in schema:
        return dict(schema), False
    inner = {key: value for key, value in schema.items() if key != "$defs"}
    made = {"type": "object", "properties": {_VALUE: inner}, "required": [_VALUE]}
    return ({**made, "$defs": schema["$defs"]} if "$defs" in schema else made), True


def piece_of(event: ModelResponseStreamEvent, calls: dict[int, str]) -> Chunk | None:
    """The piece in an event; `calls` are the ids of those that began, by their place."""
    match event:
        case (
            PartStartEvent(part=TextPart(content=text))
            | PartDeltaEvent(delta=TextPartDelta(content_delta=text))
        ):
            return Chunk("text", text) if text else None
        case (
            PartStartEvent(part=ThinkingPart(content=text))
            | PartDeltaEvent(delta=ThinkingPartDelta(content_delta=text))
        ):
            return Chunk("thinking", text) if text else None
        case PartStartEvent(index=place, part=ToolCallPart() as call):
            calls[place] = call.tool_call_id
            return _args(call.args, call.tool_call_id)
        case PartDeltaEvent(index=place, delta=ToolCallPartDelta(args_delta=args)):
            # What a provider's own tool is called with is no call of ours.
            return _args(args, calls[place]) if place in calls else None
        case _:
            return None


def _args(args: str | dict[str, object] | None, call: str) -> Chunk | None:
    text = json.dumps(args) if isinstance(args, dict) else args
    return Chunk("args", text, call) if text and text != "{}" else None


def told_by(response: ModelResponse) -> ReceivedResponse:
    """What a whole answer says."""
    parts, details = response.parts, response.provider_details or {}
    refused = response.finish_reason == "content_filter"
    thoughts = [part.content for part in parts if isinstance(part, ThinkingPart)]
    return ReceivedResponse(
        # A block of a kind that the library does not know comes as text without any.
        text="".join(part.content or "" for part in parts if isinstance(part, TextPart)),
        calls=tuple(
            asked_call(part.tool_call_id, part.tool_name, part.args)
            for part in parts
            if isinstance(part, ToolCallPart)
        ),
        thinking="\n\n".join(filter(None, thoughts)) or None,
        usage=_usage(response),
        stop=_stop(response),
        refusal=str(details.get("refusal") or "") if refused else None,
    )


def _stop(response: ModelResponse) -> str | None:
    """Why it ended, in the provider's word where that is known here, else in the library's."""
    theirs = str((response.provider_details or {}).get("finish_reason") or "")
    if response.finish_reason == "length" and early(theirs) is None:
        return response.finish_reason
    return theirs or response.finish_reason


def _usage(response: ModelResponse) -> dict[str, float]:
    """What was counted; the input includes what was read from a cache or written to it."""
    used = response.usage
    return counted(
        {
            "inputTokens": used.input_tokens,
            "outputTokens": used.output_tokens,
            "cacheReadTokens": used.cache_read_tokens,
            "cacheWriteTokens": used.cache_write_tokens,
            "reasoningTokens": used.details.get("reasoning_tokens", 0),
        }
    )


_UNIFIED: Final = frozenset(ModelSettings.__annotations__)
_DEFAULTS: Final[Mapping[str | None, Mapping[str, Any]]] = {
    # Instructions, tools and the conversation so far are read from the provider's cache.
    "anthropic": {"cache": True},
    # Nothing is left at the provider, so that a session goes on when it has long forgotten it.
    "openai-responses": {"openai_store": False},
}


def settings_of(
    given: Mapping[str, Any], provider: Provider, known: Mapping[str, Any]
) -> dict[str, Any]:
    """The settings: names of pydantic-ai as such, any other as a key of the provider's own request.

    What a model object has as `known` settings stands unless it is `given` otherwise.

    `thinking` is both: `true` or a level for every provider, an object for Anthropic's own.
    """
    family = provider.name.partition("-")[0]
    prefixes = ("openai_", f"{family}_")
    usual = _DEFAULTS.get(provider.format, {})
    made = {key: value for key, value in usual.items() if key not in known}
    body = dict(given.get("extra_body") or known.get("extra_body") or {})
    for key, value in given.items():
        own = key.startswith(prefixes) or key in _UNIFIED
        if own and not (key == "thinking" and isinstance(value, Mapping)):
            made[key] = value
        else:
            body[key] = value
    made.pop("extra_body", None)
    return {**made, "extra_body": body} if body else made


def thinks(settings: Mapping[str, Any]) -> bool:
    """Whether the model is told to think, so that an open tool loop must have begun with it."""
    body = settings.get("extra_body") or {}
    for said in (body.get("thinking"), settings.get("anthropic_thinking")):
        if isinstance(said, Mapping):
            return said.get("type") == "enabled"
    return bool(settings.get("thinking"))
