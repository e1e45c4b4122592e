"""One request to a model of pydantic-ai, streamed: pieces first, then the whole answer."""

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from typing import Any

from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    ModelResponseStreamEvent,
    PartDeltaEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    ThinkingPart,
    ThinkingPartDelta,
    ToolCallPart,
    ToolCallPartDelta,
    UserPromptPart,
)
from pydantic_ai.models import Model
from pydantic_ai.settings import ModelSettings

from holdfast.core.messages import Answer, AskedCall
from holdfast.core.providers import Format, Provider
from holdfast.core.render import render
from holdfast.core.stops import early
from holdfast.errors import ModelUnavailable
from holdfast.runtime.models.base import Delta, Request
from holdfast.runtime.models.failures import failure, refused
from holdfast.runtime.models.files import encoded, files_of
from holdfast.runtime.models.history import history_of, kept
from holdfast.runtime.models.listening import Ear, listening
from holdfast.runtime.models.sent import Sent, sent_in
from holdfast.runtime.models.settings import settings_of, thinks
from holdfast.runtime.models.shaping import OUTPUT_TOOL, Shape, shape_of

_PLACE = [ModelRequest([UserPromptPart("…")])]  # where the conversation stands in the request


@dataclass(frozen=True, slots=True)
class Asking:
    """A model that can be asked; with a `format` the log's own bytes go out and come in."""

    model: Model[Any]
    provider: Provider
    model_name: str
    format: Format | None

    async def answer(self, request: Request) -> AsyncIterator[Delta | Answer]:
        """Ask for one turn; what the provider refuses or fails at is raised as ModelError."""
        ear = Ear()
        shape = shape_of(request, self.model)
        label = f"{self.provider.name}:{self.model_name}"
        try:
            async with AsyncExitStack() as stack:
                messages, settings = await self._asked(request)
                with listening(ear):
                    stream = await stack.enter_async_context(
                        self.model.request_stream(messages, settings, shape.parameters)
                    )
                calls: dict[int, str] = {}
                async for event in stream:
                    delta = _delta(event, request, calls)
                    if delta is not None:
                        yield delta
                response = stream.get()
            sent = sent_in(ear.events(), self.format) if self.format and ear.chunks else None
        except Exception as error:
            ours = failure(error, label, _command(request))
            if ours is None:
                raise
            raise ours from error
        if response.finish_reason == "content_filter":
            said = str((response.provider_details or {}).get("refusal") or "")
            raise refused(said, label, _command(request))
        if sent is not None and not sent.whole:
            raise ModelUnavailable(f"{label}: the answer was cut off")
        yield self._whole(response, sent, shape)

    async def _asked(self, request: Request) -> tuple[list[ModelMessage], ModelSettings]:
        files = await files_of(request)
        settings = settings_of(request.settings, self.provider, self.model.settings or {})
        if self.format is None:
            origin = (self.provider.recorded, self.model_name)
            told = history_of(request.messages, origin, files, request.instructions)
            return told, ModelSettings(**settings)  # type: ignore[typeddict-item]
        body = render(
            list(request.messages),
            self.format,
            provider=self.provider.recorded,
            model=self.model_name,
            files=encoded(files),
            thinking=self.format == "anthropic" and thinks(settings),
        )
        if self.format == "openai-chat":
            body["messages"] = self._chat(request.instructions, body["messages"])
        settings["extra_body"] = {**settings.get("extra_body", {}), **body}
        return list(_PLACE), ModelSettings(**settings)  # type: ignore[typeddict-item]

    def _chat(self, instructions: str, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        profile: Mapping[str, Any] = self.model.profile
        role = profile.get("openai_system_prompt_role") or "system"
        first = [{"role": role, "content": instructions}] if instructions else []
        if profile.get("openai_chat_send_back_thinking_parts", "auto") in (False, "tags"):
            messages = [_without_thinking(message) for message in messages]
        return first + messages

    def _whole(self, response: ModelResponse, sent: Sent | None, shape: Shape) -> Answer:
        parts = response.parts
        # A block of a kind that the library does not know comes as text without any.
        text = "".join(part.content or "" for part in parts if isinstance(part, TextPart))
        calls = [part for part in parts if isinstance(part, ToolCallPart)]
        asked = tuple(_asked_call(part) for part in calls if part.tool_name != OUTPUT_TOOL)
        last = next((part for part in calls if part.tool_name == OUTPUT_TOOL), None)
        output = None
        if last is not None and not asked:
            output = shape.unwrapped(last.args_as_json_str())
        elif shape.wrapped and not asked:
            output = shape.unwrapped(text)
        thoughts = [part.content for part in parts if isinstance(part, ThinkingPart)]
        return Answer(
            text=text,
            calls=asked,
            thinking="\n\n".join(filter(None, thoughts)) or None,
            output=output,
            usage=_usage(response),
            stop=_stop(response),
            provider=self.provider.recorded,
            model=self.model_name,
            native=self._native(response, sent),
        )

    def _native(self, response: ModelResponse, sent: Sent | None) -> bytes | None:
        """What goes back to the provider one day: its own bytes, or what pydantic-ai has of it."""
        if sent is not None:
            return sent.native
        return kept(response) if self.format is None else None


def _command(request: Request) -> str:
    """What to type once what stopped a request is put right."""
    verb = "resume" if request.purpose == "turn" else "compact"
    return f"holdfast sessions {verb} {request.session_id}"


def _stop(response: ModelResponse) -> str | None:
    """Why it ended, in the provider's word where that is known here, else in the library's."""
    theirs = str((response.provider_details or {}).get("finish_reason") or "")
    if response.finish_reason == "length" and early(theirs) is None:
        return response.finish_reason
    return theirs or response.finish_reason


def _without_thinking(message: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in message.items() if not key.startswith("reasoning")}


def _delta(
    event: ModelResponseStreamEvent, request: Request, calls: dict[int, str]
) -> Delta | None:
    """The piece in an event; `calls` are the ids of those that began, by their place."""
    where = (request.session_id, request.turn)
    match event:
        case (
            PartStartEvent(part=TextPart(content=text))
            | PartDeltaEvent(delta=TextPartDelta(content_delta=text))
        ):
            return Delta(*where, "text", text) if text else None
        case (
            PartStartEvent(part=ThinkingPart(content=text))
            | PartDeltaEvent(delta=ThinkingPartDelta(content_delta=text))
        ):
            return Delta(*where, "thinking", text) if text else None
        case PartStartEvent(index=place, part=ToolCallPart() as call):
            calls[place] = call.tool_call_id
            return _args(where, call.args, call.tool_call_id)
        case PartDeltaEvent(index=place, delta=ToolCallPartDelta(args_delta=args)):
            return _args(where, args, calls.get(place, ""))
        case _:
            return None


def _args(where: tuple[str, int], args: str | dict[str, Any] | None, call: str) -> Delta | None:
    text = json.dumps(args) if isinstance(args, dict) else args
    return Delta(*where, "args", text, call) if text and text != "{}" else None


def _asked_call(part: ToolCallPart) -> AskedCall:
    args: Any = part.args
    if isinstance(args, str):
        with suppress(ValueError):  # what is no JSON is told to the model as it is
            args = json.loads(args) if args.strip() else {}
    return AskedCall(part.tool_call_id, part.tool_name, {} if args is None else args)


def _usage(response: ModelResponse) -> dict[str, float]:
    """What was counted; the input includes what was read from a cache or written to it."""
    used = response.usage
    counted = {
        "inputTokens": used.input_tokens,
        "outputTokens": used.output_tokens,
        "cacheReadTokens": used.cache_read_tokens,
        "cacheWriteTokens": used.cache_write_tokens,
        "reasoningTokens": used.details.get("reasoning_tokens", 0),
    }
    always = ("inputTokens", "outputTokens")
    return {key: count for key, count in counted.items() if count or key in always}
