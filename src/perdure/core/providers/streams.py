"""Streams of Anthropic's and of OpenAI's Responses read here, event by event.

Their libraries check each event against everything that an event can be, which takes longer than
all the rest of a turn. What an answer says is little: texts, calls, counts and why it ended.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol

from perdure.core.conversation.messages import AskedCall
from perdure.core.providers.catalog import Format

Json = dict[str, Any]
_COUNTS: Final = ("inputTokens", "outputTokens")  # are told even where they are 0


@dataclass(frozen=True, slots=True)
class Chunk:
    """A part of an answer while it comes; `call` is the id of the call whose arguments it is of."""

    kind: Literal["text", "thinking", "args"]
    text: str
    call: str | None = None


@dataclass(frozen=True, slots=True)
class ReceivedResponse:
    """What an answer says, whoever read it. `refusal` is set if it says that there is none."""

    text: str
    calls: tuple[AskedCall, ...]
    thinking: str | None
    usage: dict[str, float]
    stop: str | None
    refusal: str | None = None


class Broken(Exception):
    """The provider ended its stream with an error."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}" if code else message)
        self.code = code
        self.message = message


class Reader(Protocol):
    """Reads one answer."""

    @property
    def format(self) -> Format:
        """Of the stream."""
        ...

    def take(self, event: Json) -> Chunk | None:
        """The piece in an event. Raises Broken for one that says what failed."""
        ...

    def told(self, items: Sequence[Json]) -> ReceivedResponse:
        """What was said; `items` are what the provider would want back."""
        ...


def reader_of(format_: Format | None) -> Reader | None:
    """A reader for one answer; None where the library reads better than we do."""
    make = _READERS.get(format_)
    return None if make is None else make()


def asked_call(call_id: str, tool: str, args: Any) -> AskedCall:
    """A call; arguments that are no JSON stay text, which is told to the model."""
    if isinstance(args, str):
        with suppress(ValueError):
            args = json.loads(args) if args.strip() else {}
    return AskedCall(call_id, tool, {} if args is None else args)


def counted(counts: Mapping[str, int]) -> dict[str, float]:
    """The counts that say something."""
    return {key: count for key, count in counts.items() if count or key in _COUNTS}


# --- Anthropic ---------------------------------------------------------------------------------

_TEXTS: Final = {"text": "text", "thinking": "thinking", "input_json": "partial_json"}


@dataclass(slots=True)
class _Block:
    kind: str
    pieces: list[str] = field(default_factory=list)
    id: str = ""
    tool: str = ""
    input: Any = None  # where it came whole

    @property
    def text(self) -> str:
        return "".join(self.pieces)


class _Anthropic:
    format: Final = "anthropic"

    def __init__(self) -> None:
        self._blocks: dict[int, _Block] = {}
        self._usage: Json = {}
        self._end: Json = {}

    def take(self, event: Json) -> Chunk | None:
        match event.get("type"):
            case "content_block_start":
                return self._begun(event.get("index", 0), event["content_block"])
            case "content_block_delta":
                return self._grown(event.get("index", 0), event["delta"])
            case "message_start":
                self._count((event.get("message") or {}).get("usage"))
            case "message_delta":
                self._end = {**self._end, **(event.get("delta") or {})}
                self._count(event.get("usage"))
            case "error":
                raise _broken(event.get("error"), "type")
            case _ if isinstance(event.get("error"), dict):  # as gateways tell it
                raise _broken(event["error"], "type")
            case _:
                pass
        return None

    def told(self, items: Sequence[Json]) -> ReceivedResponse:
        """Its own blocks: arguments that were cut off leave no items."""
        del items
        blocks = [self._blocks[place] for place in sorted(self._blocks)]
        stop, details = self._end.get("stop_reason"), self._end.get("stop_details") or {}
        return ReceivedResponse(
            text="".join(block.text for block in blocks if block.kind == "text"),
            calls=tuple(
                asked_call(block.id, block.tool, block.text or block.input)
                for block in blocks
                if block.kind == "tool_use"
            ),
            thinking=_joined(block.text for block in blocks if block.kind == "thinking"),
            usage=self._counted(),
            stop=stop,
            refusal=str(details.get("explanation") or "") if stop == "refusal" else None,
        )

    def _begun(self, place: int, block: Json) -> Chunk | None:
        kind = str(block.get("type"))
        made = _Block(kind, id=str(block.get("id", "")), tool=str(block.get("name", "")))
        self._blocks[place] = made
        if kind == "tool_use":
            made.input = block.get("input")
            return Chunk("args", json.dumps(made.input), made.id) if made.input else None
        return self._grown(place, {"type": f"{kind}_delta", kind: block.get(kind)})

    def _grown(self, place: int, delta: Json) -> Chunk | None:
        kind = str(delta.get("type")).removesuffix("_delta")
        text = delta.get(_TEXTS.get(kind, ""))
        block = self._blocks.get(place)
        if not isinstance(text, str) or not text or block is None:
            return None
        block.pieces.append(text)
        match block.kind:
            case "text" | "thinking":
                return Chunk(block.kind, text)
            case "tool_use":
                return Chunk("args", text, block.id)
            case _:  # what the provider calls itself
                return None

    def _count(self, usage: Json | None) -> None:
        """Counts are of the whole answer so far; what is not told again stands."""
        self._usage.update({key: one for key, one in (usage or {}).items() if one is not None})

    def _counted(self) -> dict[str, float]:
        summaries = [
            one for one in self._usage.get("iterations") or () if one.get("type") == "compaction"
        ]

        def count(key: str) -> int:
            return sum(one.get(key) or 0 for one in (self._usage, *summaries))

        read, written = count("cache_read_input_tokens"), count("cache_creation_input_tokens")
        thought = (self._usage.get("output_tokens_details") or {}).get("thinking_tokens")
        return counted(
            {
                "inputTokens": count("input_tokens") + read + written,
                "outputTokens": count("output_tokens"),
                "cacheReadTokens": read,
                "cacheWriteTokens": written,
                "reasoningTokens": thought or 0,
            }
        )


# --- OpenAI's Responses ------------------------------------------------------------------------

_DELTAS: Final[Mapping[str, Literal["text", "thinking"]]] = {
    "response.output_text.delta": "text",
    "response.reasoning_summary_text.delta": "thinking",
}
_ENDS: Final = frozenset({"response.completed", "response.incomplete"})


class _Responses:
    format: Final = "openai-responses"

    def __init__(self) -> None:
        self._calls: dict[Any, str] = {}  # ids, by the places of their items
        self._end: Json = {}

    def take(self, event: Json) -> Chunk | None:
        kind = str(event.get("type"))
        if kind in _DELTAS:
            return Chunk(_DELTAS[kind], event["delta"]) if event.get("delta") else None
        if kind == "response.output_item.added":
            return self._begun(event.get("output_index"), event["item"])
        if kind == "response.function_call_arguments.delta":
            call = self._calls.get(event.get("output_index"))
            return Chunk("args", event["delta"], call) if event.get("delta") else None
        if kind in _ENDS:
            self._end = event["response"]
        elif kind == "response.failed":
            raise _broken(event["response"].get("error"), "code")
        elif kind == "error" or isinstance(event.get("error"), dict):  # or as gateways tell it
            raise _broken(event.get("error") or event, "code")
        return None

    def told(self, items: Sequence[Json]) -> ReceivedResponse:
        texts, refusals = list[str](), list[str]()
        for part in _parts_of(items, "message", "content"):
            texts.append(str(part.get("text") or ""))
            refusals += [str(part["refusal"])] if part.get("type") == "refusal" else []
        stop = (self._end.get("incomplete_details") or {}).get("reason") or self._end.get("status")
        refused = bool(refusals) or stop == "content_filter"
        return ReceivedResponse(
            text="".join(texts),
            calls=tuple(
                asked_call(item["call_id"], item["name"], item.get("arguments"))
                for item in items
                if item["type"] == "function_call"
            ),
            thinking=_joined(
                str(part.get("text") or "") for part in _parts_of(items, "reasoning", "summary")
            ),
            usage=self._counted(),
            stop=stop,
            refusal="".join(refusals) if refused else None,
        )

    def _begun(self, place: Any, item: Json) -> Chunk | None:
        if item.get("type") != "function_call":
            return None
        self._calls[place] = item["call_id"]
        begun = item.get("arguments")
        return Chunk("args", begun, item["call_id"]) if begun else None

    def _counted(self) -> dict[str, float]:
        used = self._end.get("usage") or {}
        given = used.get("input_tokens_details") or {}
        made = used.get("output_tokens_details") or {}
        return counted(
            {
                "inputTokens": used.get("input_tokens") or 0,
                "outputTokens": used.get("output_tokens") or 0,
                "cacheReadTokens": given.get("cached_tokens") or 0,
                "cacheWriteTokens": given.get("cache_write_tokens") or 0,
                "reasoningTokens": made.get("reasoning_tokens") or 0,
            }
        )


def _parts_of(items: Sequence[Json], kind: str, key: str) -> Iterator[Json]:
    for item in items:
        if item["type"] == kind:
            yield from item.get(key) or ()


def _joined(thoughts: Iterator[str]) -> str | None:
    return "\n\n".join(filter(None, thoughts)) or None


def _broken(error: Json | None, key: str) -> Broken:
    said = error or {}
    return Broken(str(said.get(key) or ""), str(said.get("message") or "the answer failed"))


_READERS: Final[Mapping[Format | None, Callable[[], Reader]]] = {
    "anthropic": _Anthropic,
    "openai-responses": _Responses,
}
