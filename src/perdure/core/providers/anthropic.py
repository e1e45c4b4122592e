"""Anthropic's Messages API: requests rendered, streams read once, responses given back as sent."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from perdure.core.conversation.messages import RequestedCall
from perdure.core.providers.stream import (
    Chunk,
    Json,
    ProviderStreamError,
    ReceivedResponse,
    ResponseReader,
    add_delta,
    counted_usage,
    join_pieces,
    joined_thinking,
    native_json,
    parse_arguments,
    shape_errors_raised,
)
from perdure.core.providers.target import (
    CLOSED,
    CONTINUE,
    EMPTY,
    Block,
    Message,
    Target,
    decode_text,
    is_private,
    unavailable_text,
)
from perdure.views.usage import Usage

_KEYS: Final = {
    "text": frozenset({"type", "text"}),
    "tool_use": frozenset({"type", "id", "name", "input"}),
    "tool_result": frozenset({"type", "tool_use_id", "content", "is_error"}),
    "image": frozenset({"type", "source"}),
    "document": frozenset({"type", "source", "title", "context"}),
    "search_result": frozenset({"type", "source", "title", "content"}),
}
_THINKING_TYPES: Final = frozenset({"thinking", "redacted_thinking"})


def render_anthropic(conversation: list[tuple[Message, bool]], target: Target) -> dict[str, Any]:
    """Return `messages`, and `system` if there are system messages."""
    system: list[str] = []
    messages: list[Message] = []
    for message, intact in conversation:
        if message["role"] == "system":
            system += _texts(message["content"])
        else:
            _add(messages, _render_message(message, intact, target))
    if not (conversation and _is_continued(conversation[-1][0], target)):
        _add_end(messages, target)
    body: dict[str, Any] = {"messages": messages}
    return {"system": "\n\n".join(system), **body} if system else body


def _is_continued(last: Message, target: Target) -> bool:
    """Report whether the model continues its own paused response when it gets it back."""
    return "paused" in last and target.native(last) is not None


def _texts(content: str | list[Block]) -> list[str]:
    return [content] if isinstance(content, str) else [block["text"] for block in content]


def _render_message(message: Message, intact: bool, target: Target) -> Message | None:
    """Return a message with the blocks that may be sent; None if none may."""
    content = message["content"]
    native = target.native(message)
    if native is not None:
        return {"role": message["role"], "content": list(filter(_is_accepted, native))}
    if type(content) is str:
        return message if len(message) == 2 else {"role": message["role"], "content": content}
    private = [block for block in content if is_private(block)]
    keep = intact and all(target.may_have(message, block) for block in private)
    if not private and len(message) == 2 and all(map(_is_ready, content)):
        return message
    blocks = [
        block if is_private(block) else _block(block, target)
        for block in content
        if keep or not is_private(block)
    ]
    return {"role": message["role"], "content": blocks} if blocks else None


def _is_accepted(block: Block) -> bool:
    """Report whether the provider accepts its own block: it sends blank texts and refuses them."""
    return block["type"] != "text" or bool(block["text"].strip())


def _add(messages: list[Message], message: Message | None) -> None:
    """Append a message or join it with one of the same role; joined responses lose thinking."""
    if message is None:
        return
    if not messages or messages[-1]["role"] != message["role"]:
        messages.append(message)
        return
    blocks = [*_blocks(messages[-1]), *_blocks(message)]
    if message["role"] == "assistant":
        blocks = [block for block in blocks if not is_private(block)]
    messages[-1] = {"role": message["role"], "content": blocks}


def _blocks(message: Message) -> list[Block]:
    content = message["content"]
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _add_end(messages: list[Message], target: Target) -> None:
    """End the request with the user; with thinking, close a tool loop that began without it."""
    if not messages:
        messages.append({"role": "user", "content": EMPTY})
    elif messages[-1]["role"] == "assistant":
        messages.append({"role": "user", "content": CONTINUE})
    elif target.thinking and len(messages) > 1 and _is_open_without_thinking(messages):
        messages.append({"role": "assistant", "content": CLOSED})
        messages.append({"role": "user", "content": CONTINUE})


def _is_open_without_thinking(messages: list[Message]) -> bool:
    has_result = any(block["type"] == "tool_result" for block in _blocks(messages[-1]))
    return has_result and _blocks(messages[-2])[0]["type"] not in _THINKING_TYPES


def _is_ready(block: Block) -> bool:
    kind = block["type"]
    if kind in ("text", "tool_use"):
        return block.keys() == _KEYS[kind]
    return bool(
        kind == "tool_result"
        and block.keys() <= _KEYS[kind]
        and (type(block.get("content", "")) is str or all(map(_is_ready, block["content"])))
    )


def _block(block: Block, target: Target) -> Block:
    kind = block["type"]
    if kind in ("image", "document"):
        return _media(block, target)
    rendered = {key: value for key, value in block.items() if key in _KEYS[kind]}
    if kind == "tool_result" and isinstance(rendered.get("content"), list):
        rendered["content"] = [_block(inner, target) for inner in rendered["content"]]
    return rendered


def _media(block: Block, target: Target) -> Block:
    source = target.source(block)
    kind = source.get("type")
    if kind is None or kind == "openai_file":
        return unavailable_text(block)
    if block["type"] == "document" and kind == "base64":
        source = _document_source(source)
        if not source:
            return unavailable_text(block)
    rendered = {key: value for key, value in block.items() if key in _KEYS[block["type"]]}
    return {**rendered, "source": source}


def _document_source(source: Block) -> Block:
    """Return a PDF as bytes and text as text; empty for anything else."""
    if source["media_type"] == "application/pdf":
        return source
    text = decode_text(source["data"])
    return {} if not text else {"type": "text", "media_type": "text/plain", "data": text}


# --- streams ------------------------------------------------------------------------------------

_CHUNKS: Final[Mapping[str, tuple[Literal["text", "thinking", "args"], str]]] = {
    "text": ("text", "text"),
    "thinking": ("thinking", "thinking"),
    "tool_use": ("args", "partial_json"),
}


@dataclass(slots=True)
class _StreamedBlock:
    native: Json
    arguments: list[str] = field(default_factory=list)

    def add(self, delta: Json) -> None:
        for key, value in delta.items():
            if key == "partial_json":
                self.arguments.append(value)
            elif key == "citation":
                self.native["citations"] = [*(self.native.get("citations") or ()), value]
            elif key != "type":
                add_delta(self.native, key, value)

    def chunk(self, delta: Json) -> Chunk | None:
        """Return the chunk in a delta; None for blocks such as tools that the provider runs."""
        kind, key = _CHUNKS.get(str(self.native.get("type")), ("text", ""))
        text = delta.get(key)
        if not isinstance(text, str) or not text:
            return None
        return Chunk(kind, text, str(self.native.get("id", "")) if kind == "args" else None)


class AnthropicReader(ResponseReader):
    """Reads a stream of the Messages API."""

    def __init__(self) -> None:
        super().__init__()
        self._blocks: dict[int, _StreamedBlock] = {}
        self._id: str | None = None
        self._usage: Json = {}
        self._end: Json = {}
        self._is_exact = True

    def _read_event(self, event: Json) -> Chunk | None:
        match event.get("type"):
            case "content_block_start":
                return self._start_block(event.get("index", 0), event["content_block"])
            case "content_block_delta":
                return self._read_delta(event.get("index", 0), event["delta"])
            case "message_start":
                message = event.get("message") or {}
                self._id = message.get("id")
                self._count(message.get("usage"))
            case "message_delta":
                self._end = {**self._end, **(event.get("delta") or {})}
                self._count(event.get("usage"))
            case "message_stop":
                self._is_ended = True
            case "error":
                raise ProviderStreamError.from_event(event.get("error"), "type")
            case _ if isinstance(event.get("error"), dict):  # as gateways report it
                raise ProviderStreamError.from_event(event["error"], "type")
            case _:
                pass
        return None

    def _start_block(self, index: int, content_block: Json) -> Chunk | None:
        block = self._blocks[index] = _StreamedBlock(dict(content_block))
        params = content_block.get("input")
        whole = {"partial_json": json.dumps(params)} if params else {}
        return block.chunk({**content_block, **whole})

    def _read_delta(self, index: int, delta: Json) -> Chunk | None:
        block = self._blocks.get(index)
        if block is None or not isinstance(delta.get("partial_json", ""), str):
            self._is_exact = False  # the response is readable without it, the native form is not
            return None
        block.add(delta)
        return block.chunk(delta)

    def items(self) -> list[Json]:
        """Return the content blocks; none if arguments were cut off, as by a token limit."""
        blocks, is_exact = self._closed_blocks()
        return [native for native, _ in blocks] if is_exact else []

    def _closed_blocks(self) -> tuple[list[tuple[Json, Any]], bool]:
        """Return each block with its arguments, and whether all blocks can be given back."""
        blocks: list[tuple[Json, Any]] = []
        is_exact = self._is_exact
        for index in sorted(self._blocks):
            block = self._blocks[index]
            native, arguments = join_pieces(block.native), "".join(block.arguments)
            params, is_json = parse_arguments(arguments or native.get("input"))
            if arguments:
                native["input"], is_exact = params, is_exact and is_json
            blocks.append((native, params))
        return blocks, is_exact

    def response(self) -> ReceivedResponse:
        """Return the response after the last event."""
        with shape_errors_raised():
            blocks, is_exact = self._closed_blocks()
            items = [native for native, _ in blocks]
            stop, details = self._end.get("stop_reason"), self._end.get("stop_details") or {}
            return ReceivedResponse(
                text="".join(_block_texts(items, "text")),
                calls=tuple(
                    RequestedCall(str(block.get("id", "")), str(block.get("name", "")), params)
                    for block, params in blocks
                    if block.get("type") == "tool_use"
                ),
                thinking=joined_thinking(_block_texts(items, "thinking")),
                usage=self._usage_counts(),
                stop=stop,
                refusal=str(details.get("explanation") or "") if stop == "refusal" else None,
                native=native_json(items) if is_exact else None,
                is_complete=self.is_complete(items if is_exact else ()),
                id=self._id,
            )

    def _count(self, usage: Json | None) -> None:
        """Take in counts: each is of the whole response so far; one that is missing still holds."""
        self._usage.update(
            {key: count for key, count in (usage or {}).items() if count is not None}
        )

    def _usage_counts(self) -> Usage:
        steps = self._usage.get("iterations") or ()
        summaries = [step for step in steps if step.get("type") == "compaction"]

        def count(key: str) -> int:
            return sum(counts.get(key) or 0 for counts in (self._usage, *summaries))

        read, written = count("cache_read_input_tokens"), count("cache_creation_input_tokens")
        details = self._usage.get("output_tokens_details") or {}
        return counted_usage(
            input_tokens=count("input_tokens") + read + written,
            output_tokens=count("output_tokens"),
            cache_read_tokens=read,
            cache_write_tokens=written,
            reasoning_tokens=details.get("thinking_tokens") or 0,
        )


def _block_texts(blocks: list[Json], kind: str) -> list[str]:
    return [str(block.get(kind) or "") for block in blocks if block.get("type") == kind]
