"""Anthropic's Messages: what was answered before, and how an answer is sent."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from perdure.testing.endpoint.exact import same_block
from perdure.testing.endpoint.play import (
    Answered,
    Body,
    Change,
    Dialect,
    Event,
    Play,
    Private,
    dumps,
    pieces,
)
from perdure.testing.provider_rules.rule import objects

_SHARED: Final = frozenset({"text", "tool_use"})  # what another model can read as well
_THOUGHTS: Final = frozenset({"thinking", "redacted_thinking"})
_TOUCHED: Final = (
    "blocks of an assistant message cannot be modified. These blocks must remain as they were in "
    "the original response."
)


def answers(body: Body) -> list[Answered]:
    """The assistant's messages."""
    return [
        Answered(f"messages.{place}", _blocks(message.get("content")))
        for place, message in objects(body.get("messages"))
        if message.get("role") == "assistant"
    ]


def _blocks(content: Any) -> list[Any]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return content if isinstance(content, list) else []


def changes(answered: Answered, sent: list[Body], private: Private) -> Iterator[Change]:
    """The first block that is not as it was sent."""
    posted = [_bare(block) for block in answered.blocks]
    whole = _repeatable(sent)
    shared = [block for block in whole if block["type"] in _SHARED]
    if private != "must" and _first_change(posted, shared, may_lack=["citations"]) is None:
        return
    found = _first_change(posted, whole)
    if found is None or not whole:
        return
    kind = (whole[found] if found < len(whole) else posted[found]).get("type")
    named = "`thinking` or `redacted_thinking`" if kind in _THOUGHTS else f"`{kind}`"
    yield Change(f"{answered.where}.content.{found}", f"{named} {_TOUCHED}")


def _bare(block: Any) -> Any:
    """A block without what a client may add to it."""
    if not isinstance(block, Mapping):
        return {}
    return {key: value for key, value in block.items() if key != "cache_control"}


def _repeatable(sent: list[Body]) -> list[Body]:
    """What of an answer can be said again: no blank text, no thought without what it led to."""
    kept = [one for one in sent if one["type"] != "text" or one["text"].strip()]
    while kept and kept[-1]["type"] in _THOUGHTS:
        kept.pop()
    return kept


def _first_change(
    posted: list[Any], sent: list[Body], *, may_lack: Sequence[str] = ()
) -> int | None:
    for place, (theirs, ours) in enumerate(zip(posted, sent, strict=False)):
        if isinstance(ours.get("input"), str) and theirs.get("id") == ours["id"]:
            continue  # half of it is refused itself, so anything may stand for it
        direct = ours.get("caller") in (None, {"type": "direct"})
        if not same_block(theirs, ours, may_lack=[*may_lack, *(["caller"] if direct else [])]):
            return place
    return None if len(posted) == len(sent) else min(len(posted), len(sent))


def whole(play: Play) -> Body:
    """The answer in one piece."""
    read, written = play.tokens()
    usage = {
        "input_tokens": read,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
        "output_tokens": written,
        "service_tier": "standard",
    }
    calls = any(block["type"] == "tool_use" for block in play.native)
    return {
        "id": f"msg_{play.number}",
        "type": "message",
        "role": "assistant",
        "model": play.model,
        "content": play.native,
        "stop_reason": play.stop or ("tool_use" if calls else "end_turn"),
        "stop_sequence": None,
        "usage": {**usage, **play.usage},
    }


def events(play: Play) -> Iterator[Event]:
    """The answer in the order in which it is streamed."""
    message = whole(play)
    usage = message["usage"]
    started = {
        **message,
        "content": [],
        "stop_reason": None,
        "usage": {**usage, "output_tokens": 1},
    }
    yield _event("message_start", message=started)
    for index, block in enumerate(play.native):
        yield _event("content_block_start", index=index, content_block=_opened(block))
        if index == 0:
            yield _event("ping")
        for delta in _deltas(block):
            yield _event("content_block_delta", index=index, delta=delta)
        yield _event("content_block_stop", index=index)
    ended = {key: message[key] for key in ("stop_reason", "stop_sequence")}
    yield _event("message_delta", delta=ended, usage=usage)
    yield _event("message_stop")


def _event(name: str, **data: Any) -> Event:
    return Event({"type": name, **data}, name)


def _opened(block: Body) -> Body:
    """A block before its deltas; what has none comes whole."""
    empty: dict[str, Body] = {
        "text": {"text": ""},
        "thinking": {"thinking": "", "signature": ""},
        "tool_use": {"input": {}},
        "server_tool_use": {"input": {}},
        "mcp_tool_use": {"input": {}},
    }
    opened = {**block, **empty.get(block["type"], {})}
    if block["type"] == "text" and block.get("citations"):
        opened["citations"] = []
    return opened


def _deltas(block: Body) -> Iterator[Body]:
    kind = block["type"]
    if kind == "text":
        for citation in block.get("citations") or ():
            yield {"type": "citations_delta", "citation": citation}
        yield from ({"type": "text_delta", "text": piece} for piece in pieces(block["text"]))
    elif kind == "thinking":
        for piece in pieces(block["thinking"]):
            yield {"type": "thinking_delta", "thinking": piece}
        yield {"type": "signature_delta", "signature": block["signature"]}
    elif kind.endswith("tool_use"):
        # Arguments begin with an empty piece; a call without arguments has no other.
        given = block["input"]  # text is what was written of it before the answer was cut off
        text = given if isinstance(given, str) else dumps(given) if given else ""
        for piece in ["", *(text[at : at + 9] for at in range(0, len(text), 9))]:
            yield {"type": "input_json_delta", "partial_json": piece}
    elif kind != "redacted_thinking" and not kind.endswith("tool_result"):
        yield {"type": f"{kind}_delta"}  # one day there are more kinds, with pieces of their own


def failed(_play: Play, body: Body, _after: int) -> Event:
    """An error in the middle of a stream."""
    return Event(body, "error")


ANTHROPIC: Final = Dialect(answers, changes, whole, events, failed)
