"""OpenAI's chat completions: what was answered before, and how an answer is sent."""

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from perdure.testing.endpoint.exact import same
from perdure.testing.endpoint.play import (
    Answered,
    Body,
    Change,
    Dialect,
    Event,
    Play,
    Private,
    pieces,
)
from perdure.testing.provider_rules.openai_chat import is_object
from perdure.testing.provider_rules.rule import objects

_CREATED: Final = 1_760_000_000
_OWN: Final = frozenset({"role", "content", "tool_calls", "refusal", "reasoning_content"})


def answers(body: Body) -> list[Answered]:
    """The assistant's messages, each as one block."""
    return [
        Answered(f"messages[{place}]", [message])
        for place, message in objects(body.get("messages"))
        if message.get("role") == "assistant"
    ]


def changes(answered: Answered, sent: Body, private: Private) -> Iterator[Change]:
    """What is not as it was sent: the words, the calls, the reasoning that goes with calls."""
    posted = answered.blocks[0]
    if _said(posted) != _said(sent):
        yield Change(f"{answered.where}.content", "The content of this answer was changed.")
    calls, given = sent.get("tool_calls") or [], posted.get("tool_calls") or []
    if not _same_calls(given, calls, exact=private == "must"):
        yield Change(f"{answered.where}.tool_calls", "The tool calls of this answer were changed.")
    thought, back = sent.get("reasoning_content"), posted.get("reasoning_content")
    if thought and private == "must" and back != thought and (calls or back is not None):
        yield Change(
            f"{answered.where}.reasoning_content",
            "Missing `reasoning_content` field in the assistant message.",
        )


def _said(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    parts = [part for _, part in objects(content)] if isinstance(content, list) else []
    said = content if isinstance(content, str) else ""
    said += "".join(str(part.get("text") or part.get("refusal") or "") for part in parts)
    return said or str(message.get("refusal") or "")


def _same_calls(given: list[Any], sent: list[Any], *, exact: bool) -> bool:
    if len(given) != len(sent):
        return False
    for theirs, ours in zip(given, sent, strict=True):
        told, said = theirs["function"]["arguments"], ours["function"]["arguments"]
        if (theirs["id"], theirs["function"]["name"]) != (ours["id"], ours["function"]["name"]):
            return False
        if not is_object(said):
            continue  # it is refused itself, so anything may stand for it
        if told != said and (exact or not same(json.loads(told), json.loads(said))):
            return False
    return True


def whole(play: Play) -> Body:
    """The answer in one piece."""
    choice = {"index": 0, "message": play.native, "logprobs": None, "finish_reason": _stop(play)}
    return {
        "id": f"chatcmpl-{play.number}",
        "object": "chat.completion",
        "created": _CREATED,
        "model": play.model,
        "choices": [choice],
        "usage": _usage(play),
        "service_tier": "default",
        "system_fingerprint": None,
    }


def _stop(play: Play) -> str:
    return play.stop or ("tool_calls" if play.native.get("tool_calls") else "stop")


def _usage(play: Play) -> Body:
    read, written = play.tokens()
    usage = {
        "prompt_tokens": read,
        "completion_tokens": written,
        "total_tokens": read + written,
        "prompt_tokens_details": {"cached_tokens": 0, "audio_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 0, "audio_tokens": 0},
    }
    return {**usage, **play.usage}


def events(play: Play) -> Iterator[Event]:
    """The answer in the order in which it is streamed; its usage only for who asks."""
    options = play.asked.get("stream_options")
    counted = isinstance(options, Mapping) and options.get("include_usage") is True
    for delta in _deltas(play.native):
        yield _chunk(play, [_choice(delta)], counted)
    yield _chunk(play, [{**_choice({}), "finish_reason": _stop(play)}], counted)
    if counted:
        yield _chunk(play, [], counted, _usage(play))
    yield Event("[DONE]")


def _choice(delta: Body) -> Body:
    return {"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}


def _chunk(play: Play, choices: list[Body], counted: bool, usage: Body | None = None) -> Event:
    chunk: Body = {
        "id": f"chatcmpl-{play.number}",
        "object": "chat.completion.chunk",
        "created": _CREATED,
        "model": play.model,
        "service_tier": "default",
        "system_fingerprint": None,
        "choices": choices,
    }
    return Event({**chunk, "usage": usage} if counted else chunk)


def _deltas(message: Body) -> Iterator[Body]:
    calls = message.get("tool_calls") or []
    yield {"role": "assistant", "content": None if calls else "", "refusal": None}
    for key in ("reasoning_content", "content", "refusal"):
        yield from ({key: piece} for piece in pieces(message.get(key) or ""))
    for index, call in enumerate(calls):
        function = call["function"]
        opened = {"name": function["name"], "arguments": ""}
        yield {"tool_calls": [{"index": index, **call, "function": opened}]}
        text = function["arguments"]
        for at in range(0, len(text), 9):
            yield {"tool_calls": [{"index": index, "function": {"arguments": text[at : at + 9]}}]}
    rest = {key: value for key, value in message.items() if key not in _OWN}
    if rest:
        yield rest


def failed(_play: Play, body: Body, _after: int) -> Event:
    """An error in the middle of a stream."""
    return Event(body)


CHAT: Final = Dialect(answers, changes, whole, events, failed)
