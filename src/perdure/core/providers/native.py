"""Streams of the three formats put together again: just what the provider sent, nothing of ours."""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from perdure.core.providers.catalog import Format

Json = dict[str, Any]
DONE: Final = b"[DONE]"  # some servers end with it and give no reason


@dataclass(slots=True)
class NativeResponse:
    """An answer as its provider would want it back; `whole` once it said that this was all."""

    items: list[Json] = field(default_factory=list)
    whole: bool = False

    def ended(self, *, done: bool) -> bool:
        """Whether this was all; `done` counts only after something was said."""
        return self.whole or (done and any(map(_says, self.items)))

    @property
    def native(self) -> bytes | None:
        """The items as JSON, each key and number as it came; None if there are none."""
        try:
            text = json.dumps(self.items, ensure_ascii=False, allow_nan=False)
            return text.encode() if self.items else None
        except ValueError:  # half a character, or a number that is none
            return None


def _says(item: Json) -> bool:
    return any(value for key, value in item.items() if key != "role")


def sent_in(events: Iterable[bytes], format_: Format) -> NativeResponse:
    """The answer in a stream's events. ValueError if one of them is no JSON.

    Servers differ: what is put together otherwise than here leaves nothing to give back.
    """
    told = list(events)
    sent = put_together((json.loads(event) for event in told if event != DONE), format_)
    sent.whole = sent.ended(done=DONE in told)
    return sent


def put_together(events: Iterable[Any], format_: Format) -> NativeResponse:
    """The answer in a stream's events, which were read as JSON already."""
    try:
        return _READERS[format_](one for one in events if isinstance(one, dict))
    except (LookupError, TypeError, AttributeError):
        return NativeResponse(whole=True)


def _anthropic(events: Iterable[Json]) -> NativeResponse:
    sent = NativeResponse()
    blocks: dict[int, Json] = {}
    arguments: dict[int, str] = {}
    for event in events:
        kind, place = event.get("type"), event.get("index", 0)
        if kind == "content_block_start":
            blocks[place] = dict(event["content_block"])
        elif kind == "content_block_delta":
            piece = event["delta"]
            arguments[place] = arguments.get(place, "") + piece.get("partial_json", "")
            _add_piece(blocks[place], piece)
        sent.whole = sent.whole or kind == "message_stop"
    if all(_takes(blocks[place], text) for place, text in arguments.items()):
        sent.items = [blocks[place] for place in sorted(blocks)]
    return sent


def _takes(block: Json, arguments: str) -> bool:
    """Give a call its arguments; False if they are no JSON, as when the answer grew too long."""
    try:
        block.update({"input": json.loads(arguments)} if arguments else {})
    except ValueError:
        return False
    return True


def _add_piece(block: Json, piece: Json) -> None:
    for key, value in piece.items():
        if key == "citation":
            block["citations"] = [*(block.get("citations") or []), value]
        elif key not in ("type", "partial_json"):
            block[key] = _joined(block.get(key), value)


def _chat(events: Iterable[Json]) -> NativeResponse:
    sent = NativeResponse()
    message: Json = {"role": "assistant", "content": None}
    calls: dict[int, Json] = {}
    for event in events:
        for choice in event.get("choices") or ():
            for key, value in (choice.get("delta") or {}).items():
                if key == "tool_calls":
                    _add_calls(calls, value or ())
                elif key != "role":
                    message[key] = _joined(message.get(key), value)
            sent.whole = sent.whole or choice.get("finish_reason") is not None
    if calls:
        message["tool_calls"] = [calls[place] for place in sorted(calls)]
    sent.items = [message]
    return sent


def _add_calls(calls: dict[int, Json], pieces: Iterable[Json]) -> None:
    for piece in pieces:
        place = piece.get("index", len(calls))
        call = calls.setdefault(place, {})
        for key, value in piece.items():
            if key == "function":
                told = call.setdefault("function", {})
                for part, text in (value or {}).items():
                    told[part] = _joined(told.get(part), text)
            elif key != "index" and value is not None:
                call[key] = value


def _joined(before: Any, value: Any) -> Any:
    """Pieces of a text or a list grow; anything else stands for itself."""
    if value is None or (isinstance(before, str | list) and type(before) is not type(value)):
        return before
    return before + value if isinstance(before, str | list) else value


def _responses(events: Iterable[Json]) -> NativeResponse:
    sent = NativeResponse()
    done: dict[int, Json] = {}
    for event in events:
        kind = event.get("type")
        if kind == "response.output_item.done":
            done[event.get("output_index", len(done))] = event["item"]
        elif kind in ("response.completed", "response.incomplete"):
            sent.items = list(event["response"].get("output") or ())
            sent.whole = True
    sent.items = sent.items or [done[place] for place in sorted(done)]
    return sent


_READERS: Final[Mapping[Format, Callable[[Iterable[Json]], NativeResponse]]] = {
    "anthropic": _anthropic,
    "openai-chat": _chat,
    "openai-responses": _responses,
}
