"""Conversations, outputs, settings and responses in the types of pydantic-ai, and back."""

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
from perdure.core.log.stop_reasons import stop_reason
from perdure.core.providers.catalog import Provider
from perdure.core.providers.stream import (
    Chunk,
    ReceivedResponse,
    counted_usage,
    joined_thinking,
    requested_call,
)
from perdure.runtime.models.base import Request
from perdure.views.usage import Usage

Origin = tuple[str, str]  # provider and model
Files = Mapping[str, bytes]  # by digest


def library_messages(
    messages: Sequence[Message], origin: Origin, files: Files, instructions: str
) -> list[ModelMessage]:
    """Return the messages; a response of the same provider and model is just as it was recorded."""
    history: list[ModelMessage] = []
    for message in messages:
        if isinstance(message, AssistantMessage):
            history.append(_response(message, origin))
            continue
        part = _part(message, files)
        last = history[-1] if history else None
        if isinstance(last, ModelRequest):
            history[-1] = ModelRequest([*last.parts, part], instructions=instructions)
        else:
            history.append(ModelRequest([part], instructions=instructions))
    return history


def dump_response(response: ModelResponse) -> bytes:
    """Return a response as the log keeps it, for the same provider and model."""
    return ModelMessagesTypeAdapter.dump_json([response])


def _response(message: AssistantMessage, origin: Origin) -> ModelResponse:
    if message.native is not None and (message.provider, message.model) == origin:
        try:
            recorded = ModelMessagesTypeAdapter.validate_json(message.native)
        except ValidationError:
            recorded = []
        if len(recorded) == 1 and isinstance(recorded[0], ModelResponse):
            return recorded[0]
    text = message.text or (message.output or b"").decode()
    parts: list[ModelResponsePart] = [TextPart(text)] if text.strip() else []
    parts += [ToolCallPart(call.tool, dict(call.params), call.id) for call in message.calls]
    return ModelResponse(parts)


def _part(message: UserMessage | ToolMessage, files: Files) -> ModelRequestPart:
    content = _content(message.content, files)
    if isinstance(message, UserMessage):
        return UserPromptPart(content)
    outcome: Any = "failed" if message.is_error else "success"
    result: Any = content if isinstance(content, str) else list(content)
    return ToolReturnPart(message.tool, result, message.call_id, outcome=outcome)


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
_OUTPUT_DESCRIPTION: Final = "Give the final answer with this, once nothing else is left to do."
_VALUE: Final = "value"  # key of an output that is not an object: providers accept objects only


@dataclass(frozen=True, slots=True)
class OutputRequest:
    """Parameters of a request: tools and, if there is an output type, how the model gives it."""

    parameters: ModelRequestParameters
    wrapped: bool = False

    def parse_output(self, text: str) -> bytes | None:
        """Return the output in the text of a response; None if it is not JSON."""
        try:
            return self.encode_output(json.loads(text))
        except (ValueError, RecursionError):
            return None

    def encode_output(self, value: object) -> bytes:
        """Return the output in the object of the model, as JSON."""
        if self.wrapped and isinstance(value, dict) and _VALUE in value:
            value = value[_VALUE]
        return json.dumps(value, ensure_ascii=False).encode()


def output_request(request: Request, model: Model[Any]) -> OutputRequest:
    """Return the parameters of a request for this model."""
    tools = [
        ToolDefinition(
            name=tool.name,
            description=tool.description,
            parameters_json_schema=dict(tool.parameters),
        )
        for tool in request.tools
    ]
    parts = [InstructionPart(request.instructions)] if request.instructions else None
    if request.output_schema is None:
        return OutputRequest(ModelRequestParameters(function_tools=tools, instruction_parts=parts))
    schema, wrapped = _as_object(request.output_schema)
    profile = model.profile
    if profile.get("supports_json_schema_output") and not profile.get(
        "native_output_requires_schema_in_instructions"
    ):
        parameters = ModelRequestParameters(
            function_tools=tools,
            output_mode="native",
            output_object=OutputObjectDefinition(schema, name=OUTPUT_TOOL),
            instruction_parts=parts,
        )
        return OutputRequest(parameters, wrapped)
    output_tool = ToolDefinition(
        name=OUTPUT_TOOL,
        description=_OUTPUT_DESCRIPTION,
        parameters_json_schema=schema,
        kind="output",
    )
    parameters = ModelRequestParameters(
        function_tools=tools,
        output_mode="tool",
        output_tools=[output_tool],
        allow_text_output=False,
        instruction_parts=parts,
    )
    return OutputRequest(parameters, wrapped)


def _as_object(schema: Mapping[str, Any]) -> tuple[dict[str, Any], bool]:
    if schema.get("type") == "object" or "$ref" in schema:
        return dict(schema), False
    inner = {key: value for key, value in schema.items() if key != "$defs"}
    wrapped = {"type": "object", "properties": {_VALUE: inner}, "required": [_VALUE]}
    return ({**wrapped, "$defs": schema["$defs"]} if "$defs" in schema else wrapped), True


def read_event(event: ModelResponseStreamEvent, call_ids: dict[int, str]) -> Chunk | None:
    """Return the chunk in an event; `call_ids` has the ids of started calls by their index."""
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
        case PartStartEvent(index=index, part=ToolCallPart() as call):
            call_ids[index] = call.tool_call_id
            return _args_chunk(call.args, call.tool_call_id)
        case PartDeltaEvent(index=index, delta=ToolCallPartDelta(args_delta=args)):
            # The provider runs its own tools itself: their arguments are not of our calls.
            return _args_chunk(args, call_ids[index]) if index in call_ids else None
        case _:
            return None


def _args_chunk(args: str | dict[str, object] | None, call_id: str) -> Chunk | None:
    text = json.dumps(args) if isinstance(args, dict) else args
    return Chunk("args", text, call_id) if text and text != "{}" else None


def received_response(response: ModelResponse) -> ReceivedResponse:
    """Return the complete response that the library has read, without native form."""
    parts, details = response.parts, response.provider_details or {}
    is_refused = response.finish_reason == "content_filter"
    return ReceivedResponse(
        # The library returns a block of an unknown kind as a text part without content.
        text="".join(part.content or "" for part in parts if isinstance(part, TextPart)),
        calls=tuple(
            requested_call(part.tool_call_id, part.tool_name, part.args)
            for part in parts
            if isinstance(part, ToolCallPart)
        ),
        thinking=joined_thinking(part.content for part in parts if isinstance(part, ThinkingPart)),
        usage=_usage(response),
        stop=_stop(response),
        refusal=str(details.get("refusal") or "") if is_refused else None,
        id=response.provider_response_id,
    )


def _stop(response: ModelResponse) -> str | None:
    """Return the stop reason of the provider if perdure knows it, else that of the library."""
    reason = str((response.provider_details or {}).get("finish_reason") or "")
    if response.finish_reason == "length" and stop_reason(reason) is None:
        return response.finish_reason
    return reason or response.finish_reason


def _usage(response: ModelResponse) -> Usage:
    """Return the token counts; input includes tokens read from and written to a cache."""
    usage = response.usage
    return counted_usage(
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        cache_read_tokens=usage.cache_read_tokens,
        cache_write_tokens=usage.cache_write_tokens,
        reasoning_tokens=usage.details.get("reasoning_tokens", 0),
    )


_UNIFIED: Final = frozenset(ModelSettings.__annotations__)
_DEFAULTS: Final[Mapping[str | None, Mapping[str, Any]]] = {
    # The provider reads instructions, tools and the conversation so far from its cache.
    "anthropic": {"cache": True},
    # The provider stores nothing: a session must continue after the provider has deleted it.
    "openai-responses": {"openai_store": False},
}


def library_settings(
    settings: Mapping[str, Any], provider: Provider, model_settings: Mapping[str, Any]
) -> dict[str, Any]:
    """Return settings of pydantic-ai; any other setting is a key in the body of the request.

    `settings` override `model_settings`, those of a model object. `thinking` is both: `true` or a
    level for every provider, an object for Anthropic only.
    """
    family = provider.name.partition("-")[0]
    prefixes = ("openai_", f"{family}_")
    defaults = _DEFAULTS.get(provider.format, {})
    merged = {key: value for key, value in defaults.items() if key not in model_settings}
    body = dict(settings.get("extra_body") or model_settings.get("extra_body") or {})
    for key, value in settings.items():
        is_library = key.startswith(prefixes) or key in _UNIFIED
        if is_library and not (key == "thinking" and isinstance(value, Mapping)):
            merged[key] = value
        else:
            body[key] = value
    merged.pop("extra_body", None)
    return {**merged, "extra_body": body} if body else merged


def is_thinking_enabled(settings: Mapping[str, Any]) -> bool:
    """Report whether thinking is enabled: an open tool loop must then have begun with thinking."""
    body = settings.get("extra_body") or {}
    for thinking in (body.get("thinking"), settings.get("anthropic_thinking")):
        if isinstance(thinking, Mapping):
            return thinking.get("type") == "enabled"
    return bool(settings.get("thinking"))
