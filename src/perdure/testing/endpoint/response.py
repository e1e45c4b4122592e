"""The response object of OpenAI's Responses."""

from typing import Any, Final

from perdure.testing.endpoint.play import Body, Play

_CREATED: Final = 1_760_000_000
_ENCRYPTED: Final = "reasoning.encrypted_content"


def items(play: Play) -> list[Body]:
    """The items of an answer; encrypted reasoning only for who asks for it."""
    include = play.asked.get("include") or ()
    if _ENCRYPTED in include:
        return list(play.native)
    return [
        {**item, "encrypted_content": None} if item["type"] == "reasoning" else item
        for item in play.native
    ]


def response(play: Play) -> Body:
    """The whole response."""
    return {
        **begun(play),
        "status": "incomplete" if play.stop else "completed",
        "incomplete_details": {"reason": play.stop} if play.stop else None,
        "output": items(play),
        "usage": _usage(play),
    }


def begun(play: Play) -> Body:
    """The response before anything was said."""
    asked = play.asked
    as_asked: dict[str, Any] = {
        "instructions": None,
        "max_output_tokens": None,
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "reasoning": {"effort": None, "summary": None},
        "store": True,
        "temperature": 1.0,
        "text": {"format": {"type": "text"}},
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0,
        "truncation": "disabled",
        "metadata": {},
    }
    return {
        "id": f"resp_{play.number}",
        "object": "response",
        "created_at": _CREATED,
        "status": "in_progress",
        "background": False,
        "error": None,
        "incomplete_details": None,
        "model": play.model,
        "output": [],
        "usage": None,
        "user": None,
        **{key: asked.get(key, value) for key, value in as_asked.items()},
    }


def _usage(play: Play) -> Body:
    read, written = play.tokens()
    usage = {
        "input_tokens": read,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": written,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": read + written,
    }
    return {**usage, **play.usage}
