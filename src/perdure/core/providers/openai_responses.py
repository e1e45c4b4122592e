"""OpenAI's Responses API: requests rendered, streams read once, responses given back as sent."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal

from perdure.core.providers.openai_chat import is_audio, source_text, source_url
from perdure.core.providers.stream import (
    Chunk,
    Json,
    ProviderStreamError,
    ReceivedResponse,
    ResponseReader,
    counted_usage,
    joined_thinking,
    native_json,
    requested_call,
    shape_errors_raised,
)
from perdure.core.providers.target import EMPTY, Block, Message, Target, unavailable_text
from perdure.views.usage import Usage

Item = dict[str, Any]
_encode: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def render_openai_responses(
    conversation: list[tuple[Message, bool]], target: Target
) -> dict[str, Any]:
    """Return `input`: one item for each text, call, result and piece of reasoning."""
    items: list[Item] = []
    item_ids: set[str] = set()
    for message, intact in conversation:
        content, role = message["content"], message["role"]
        native = _native_items(message, item_ids, target)
        if native:
            items += native
        elif type(content) is str:
            items.append(_message(role, [{"type": _text_type(role), "text": content}]))
        elif role == "assistant":
            _add_answer(items, message, intact, target)
        else:
            _add_input(items, role, content, target)
    return {"input": items or [_message("user", [{"type": "input_text", "text": EMPTY}])]}


def _native_items(message: Message, item_ids: set[str], target: Target) -> list[Item]:
    """Return the items of a response as they were sent.

    For another model, and if their ids were sent before, return only the items that any model can
    read, without ids: the provider refuses an id twice, and may not have stored its item.
    """
    native = target.native(message, of_any_model=True) or []
    if not all("type" in item for item in native):
        return []
    ids = [item["id"] for item in native if isinstance(item.get("id"), str)]
    if target.native(message) is not None and item_ids.isdisjoint(ids):
        item_ids.update(ids)
        return native
    return [
        {key: value for key, value in item.items() if key not in ("id", "status")}
        for item in native
        if item["type"] in ("message", "function_call")
    ]


def _message(role: str, parts: list[Block]) -> Item:
    return {"type": "message", "role": role, "content": parts}


def _text_type(role: str) -> str:
    return "output_text" if role == "assistant" else "input_text"


def _add_answer(items: list[Item], message: Message, intact: bool, target: Target) -> None:
    content: list[Block] = message["content"]
    keep = intact and _is_reasoning_followed(content)
    for block in content:
        kind = block["type"]
        if kind == "text":
            items.append(_message("assistant", [{"type": "output_text", "text": block["text"]}]))
        elif kind == "tool_use":
            items.append(
                {
                    "type": "function_call",
                    "call_id": block["id"],
                    "name": block["name"],
                    "arguments": _encode(block["input"]),
                }
            )
        elif kind == "reasoning" and keep and target.may_have(message, block):
            items.append(_reasoning(block))


def _is_reasoning_followed(content: list[Block]) -> bool:
    """Report whether each piece of reasoning directly precedes its text or call."""
    following = [block["type"] for block in content[1:]] + ["reasoning"]
    return all(
        after in ("text", "tool_use")
        for block, after in zip(content, following, strict=True)
        if block["type"] == "reasoning"
    )


def _reasoning(block: Block) -> Item:
    """Return a reasoning item without its id, since the provider may not have stored the item."""
    summary = block.get("summary")
    return {
        "type": "reasoning",
        "summary": summary if isinstance(summary, list) else [],
        "encrypted_content": block["encrypted_content"],
    }


def _add_input(items: list[Item], role: str, content: list[Block], target: Target) -> None:
    parts: list[Block] = []
    for block in content:
        if block["type"] == "tool_result":
            items.append(_result(block, target))
        else:
            parts.append(_part(block, target))
    if parts:
        items.append(_message(role, parts))


def _result(block: Block, target: Target) -> Item:
    content = block.get("content", "")
    if type(content) is list:
        content = [_part(inner, target) for inner in content] or ""
    return {"type": "function_call_output", "call_id": block["tool_use_id"], "output": content}


def _part(block: Block, target: Target) -> Block:
    if block["type"] == "text":
        return {"type": "input_text", "text": block["text"]}
    if block["type"] == "search_result":
        return {"type": "input_text", "text": _encode(block)}
    source = target.source(block)
    url = source_url(source)
    if block["type"] == "image" and url:
        return {"type": "input_image", "image_url": url}
    text = source_text(source)
    if text:
        return {"type": "input_text", "text": text}
    return _file(block, source)


def _file(block: Block, source: Block) -> Block:
    kind = source.get("type")
    if kind == "openai_file":
        name = "input_image" if block["type"] == "image" else "input_file"
        return {"type": name, "file_id": source["file_id"]}
    if kind == "url":
        return {"type": "input_file", "file_url": source["url"]}
    if kind == "base64" and not is_audio(source):
        name = block.get("title") or "document"
        return {"type": "input_file", "filename": name, "file_data": source_url(source)}
    return {"type": "input_text", "text": unavailable_text(block)["text"]}


# --- streams ------------------------------------------------------------------------------------

_DELTAS: Final[Mapping[str, Literal["text", "thinking"]]] = {
    "response.output_text.delta": "text",
    "response.reasoning_summary_text.delta": "thinking",
}
_ENDS: Final = frozenset({"response.completed", "response.incomplete"})


class OpenAIResponsesReader(ResponseReader):
    """Reads a stream of the Responses API."""

    def __init__(self) -> None:
        super().__init__()
        self._call_ids: dict[Any, str] = {}  # by the index of their items
        self._items: dict[Any, Json] = {}
        self._end: Json = {}

    def _read_event(self, event: Json) -> Chunk | None:
        kind = str(event.get("type"))
        if kind in _DELTAS:
            return Chunk(_DELTAS[kind], event["delta"]) if event.get("delta") else None
        if kind == "response.output_item.added":
            return self._start_item(event.get("output_index"), event["item"])
        if kind == "response.function_call_arguments.delta":
            call_id = self._call_ids.get(event.get("output_index"))
            return Chunk("args", event["delta"], call_id) if event.get("delta") else None
        if kind == "response.output_item.done":
            self._items[event.get("output_index", len(self._items))] = event["item"]
        elif kind in _ENDS:
            self._end, self._is_ended = event["response"], True
        elif kind == "response.failed":
            raise ProviderStreamError.from_event(event["response"].get("error"), "code")
        elif kind == "error" or isinstance(event.get("error"), dict):  # or as gateways report it
            raise ProviderStreamError.from_event(event.get("error") or event, "code")
        return None

    def _start_item(self, index: Any, item: Json) -> Chunk | None:
        if item.get("type") != "function_call":
            return None
        self._call_ids[index] = item["call_id"]
        arguments = item.get("arguments")
        return Chunk("args", arguments, item["call_id"]) if arguments else None

    def items(self) -> list[Json]:
        """Return the items of the last event, or else those that were done before."""
        items = list(self._end.get("output") or ())
        return items or [self._items[index] for index in sorted(self._items)]

    def response(self) -> ReceivedResponse:
        """Return the response after the last event."""
        with shape_errors_raised():
            items = self.items()
            content = list(_inner_parts(items, "message", "content"))
            refusals = [str(part["refusal"]) for part in content if part.get("type") == "refusal"]
            details = self._end.get("incomplete_details") or {}
            stop = details.get("reason") or self._end.get("status")
            is_refused = bool(refusals) or stop == "content_filter"
            return ReceivedResponse(
                text="".join(str(part.get("text") or "") for part in content),
                calls=tuple(
                    requested_call(item["call_id"], item["name"], item.get("arguments"))
                    for item in items
                    if item["type"] == "function_call"
                ),
                thinking=joined_thinking(
                    str(part.get("text") or "")
                    for part in _inner_parts(items, "reasoning", "summary")
                ),
                usage=self._usage_counts(),
                stop=stop,
                refusal="".join(refusals) if is_refused else None,
                native=native_json(items),
                is_complete=self.is_complete(items),
                id=self._end.get("id"),
            )

    def _usage_counts(self) -> Usage:
        usage = self._end.get("usage") or {}
        input_details = usage.get("input_tokens_details") or {}
        output_details = usage.get("output_tokens_details") or {}
        return counted_usage(
            input_tokens=usage.get("input_tokens") or 0,
            output_tokens=usage.get("output_tokens") or 0,
            cache_read_tokens=input_details.get("cached_tokens") or 0,
            cache_write_tokens=input_details.get("cache_write_tokens") or 0,
            reasoning_tokens=output_details.get("reasoning_tokens") or 0,
        )


def _inner_parts(items: Sequence[Json], kind: str, key: str) -> Iterator[Json]:
    for item in items:
        if item["type"] == kind:
            yield from item.get(key) or ()
