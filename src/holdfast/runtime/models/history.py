"""Our conversation as pydantic-ai's messages, for providers whose format is not written here."""

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError
from pydantic_ai.messages import (
    BinaryContent,
    DocumentUrl,
    ImageUrl,
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelRequestPart,
    ModelResponse,
    ModelResponsePart,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserContent,
    UserPromptPart,
)

from holdfast.core.conversation.messages import (
    AssistantMessage,
    Message,
    ToolMessage,
    UserMessage,
)
from holdfast.core.log.events import Content

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
