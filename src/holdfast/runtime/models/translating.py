"""What pydantic-ai's reading of a stream says, in our words."""

import json

from pydantic_ai.messages import (
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
)

from holdfast.core.log.stop_reasons import early
from holdfast.runtime.models.reading import Piece, Told, asked_call, counted


def piece_of(event: ModelResponseStreamEvent, calls: dict[int, str]) -> Piece | None:
    """The piece in an event; `calls` are the ids of those that began, by their place."""
    match event:
        case (
            PartStartEvent(part=TextPart(content=text))
            | PartDeltaEvent(delta=TextPartDelta(content_delta=text))
        ):
            return Piece("text", text) if text else None
        case (
            PartStartEvent(part=ThinkingPart(content=text))
            | PartDeltaEvent(delta=ThinkingPartDelta(content_delta=text))
        ):
            return Piece("thinking", text) if text else None
        case PartStartEvent(index=place, part=ToolCallPart() as call):
            calls[place] = call.tool_call_id
            return _args(call.args, call.tool_call_id)
        case PartDeltaEvent(index=place, delta=ToolCallPartDelta(args_delta=args)):
            # What a provider's own tool is called with is no call of ours.
            return _args(args, calls[place]) if place in calls else None
        case _:
            return None


def _args(args: str | dict[str, object] | None, call: str) -> Piece | None:
    text = json.dumps(args) if isinstance(args, dict) else args
    return Piece("args", text, call) if text and text != "{}" else None


def told_by(response: ModelResponse) -> Told:
    """What a whole answer says."""
    parts, details = response.parts, response.provider_details or {}
    refused = response.finish_reason == "content_filter"
    thoughts = [part.content for part in parts if isinstance(part, ThinkingPart)]
    return Told(
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
