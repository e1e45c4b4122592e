"""Random lists of messages that one provider accepts unchanged.

They begin with a user message, results directly follow their calls, and ids, names and arguments
are valid for every provider. Nothing here shares code with the repair.
"""

import json
from collections.abc import Callable
from random import Random
from typing import Any

from perdure.testing.provider_rules import Format, check

PNG = {"type": "base64", "media_type": "image/png", "data": "AAAA"}
PDF = {"type": "base64", "media_type": "application/pdf", "data": "AAAA"}
URL = "https://example.org/x"
TEXTS = ("so", "naïve café", "日本語 😀", "x\ny")
MARK = {"cache_control": {"type": "ephemeral"}}


class Source:
    """Random source, and numbers that are used once."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)  # noqa: S311 - the same lists every time
        self.number = 0

    def new(self, prefix: str) -> str:
        self.number += 1
        return f"{prefix}_{self.number}"

    def maybe(self, some: dict[str, Any]) -> dict[str, Any]:
        return some if self.random.randrange(3) == 0 else {}

    def text(self) -> str:
        return f"{self.random.choice(TEXTS)} {self.number}"

    def some(self, makers: list[Callable[[], Any]], least: int = 1) -> list[Any]:
        return [self.random.choice(makers)() for _ in range(self.random.randrange(least, 4))]

    def arguments(self) -> dict[str, Any]:
        return dict(self.random.choice(({}, {"path": "ü"}, {"n": [1, None, {"x": 0.5}]})))


# --- Anthropic --------------------------------------------------------------------------------


def anthropic(source: Source) -> list[Any]:
    messages: list[Any] = [_asked(source)]
    for _ in range(source.random.randrange(4)):
        messages += _anthropic_turn(source)
    return messages


def _asked(source: Source) -> dict[str, Any]:
    makers: list[Callable[[], Any]] = [
        lambda: {"type": "text", "text": source.text(), **source.maybe(MARK)},
        lambda: {"type": "image", "source": PNG},
        lambda: {"type": "image", "source": {"type": "url", "url": URL}, **source.maybe(MARK)},
        lambda: {"type": "document", "source": PDF, **source.maybe({"title": "x.pdf"})},
        lambda: {
            "type": "document",
            "source": {"type": "text", "media_type": "text/plain", "data": "x"},
            **source.maybe({"citations": {"enabled": True}, "context": "found"}),
        },
        lambda: {
            "type": "search_result",
            "source": URL,
            "title": "x",
            "content": [{"type": "text", "text": "x"}],
        },
    ]
    content = source.random.choice((source.text(), source.some(makers)))
    return {"role": "user", "content": content}


def _anthropic_turn(source: Source) -> list[Any]:
    calls = [source.new("toolu") for _ in range(source.random.choice((0, 0, 1, 2)))]
    found = source.new("srvtoolu")
    searched = {"type": "server_tool_use", "id": found, "name": "web_search", "input": {}}
    hits = {"type": "web_search_tool_result", "tool_use_id": found, "content": []}
    blocks: list[Any] = [
        *source.some([lambda: {"type": "thinking", "thinking": "hm", "signature": "c2ln"}], 0),
        *source.random.choice(([], [{"type": "redacted_thinking", "data": "c2ln"}])),
        *source.random.choice(([], [], [searched, hits])),
        {"type": "text", "text": source.text(), **source.maybe(MARK)},
        *(
            {"type": "tool_use", "id": c, "name": "read", "input": source.arguments()}
            for c in calls
        ),
    ]
    answer = {"role": "assistant", "content": source.random.choice((blocks, source.text()))}
    if not calls or answer["content"] is not blocks:
        return [answer, _asked(source)]
    results = [_result(source, call) for call in source.random.sample(calls, len(calls))]
    return [answer, {"role": "user", "content": [*results, *_trailing(source)]}]


def _result(source: Source, call: str) -> dict[str, Any]:
    shown = [{"type": "text", "text": source.text()}, {"type": "image", "source": PNG}]
    content = source.random.choice(({"content": "ok"}, {"content": ""}, {"content": shown}, {}))
    failed = {"content": "no such file", "is_error": True}
    return {"type": "tool_result", "tool_use_id": call, **content, **source.maybe(failed)}


def _trailing(source: Source) -> list[Any]:
    return source.some([lambda: {"type": "text", "text": source.text()}], 0)


# --- OpenAI chat ------------------------------------------------------------------------------


def openai_chat(source: Source) -> list[Any]:
    start = {"role": source.random.choice(("system", "developer")), "content": "be kind"}
    messages: list[Any] = [*source.random.choice(([], [start])), _chat_asked(source)]
    for _ in range(source.random.randrange(4)):
        messages += _chat_turn(source)
    return messages


def _chat_asked(source: Source) -> dict[str, Any]:
    makers: list[Callable[[], Any]] = [
        lambda: {"type": "text", "text": source.text()},
        lambda: {"type": "image_url", "image_url": {"url": URL, **source.maybe({"detail": "low"})}},
        lambda: {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
        lambda: {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
        lambda: {"type": "file", "file": {"file_id": "file-1"}},
        lambda: {
            "type": "file",
            "file": {"filename": "x.pdf", "file_data": "data:application/pdf;base64,AAAA"},
        },
    ]
    content = source.random.choice((source.text(), source.some(makers)))
    return {"role": "user", "content": content, **source.maybe({"name": "ana"})}


def _chat_turn(source: Source) -> list[Any]:
    calls = [source.new("call") for _ in range(source.random.choice((0, 0, 1, 2)))]
    parts = [{"type": "text", "text": source.text()}, {"type": "refusal", "refusal": "no"}]
    contents = [source.text(), parts, *([None] if calls else [])]
    answer: dict[str, Any] = {"role": "assistant", "content": source.random.choice(contents)}
    if not calls:
        return [{**answer, **source.maybe({"refusal": None})}, _chat_asked(source)]
    answer["tool_calls"] = [
        {
            "id": call,
            "type": "function",
            "function": {"name": "read", "arguments": json.dumps(source.arguments())},
        }
        for call in calls
    ]
    texts = [{"type": "text", "text": source.text()}]
    results = [
        {"role": "tool", "tool_call_id": call, "content": source.random.choice(("ok", "", texts))}
        for call in source.random.sample(calls, len(calls))
    ]
    return [answer, *results, *source.random.choice(([], [_chat_asked(source)]))]


# --- OpenAI Responses -------------------------------------------------------------------------


def openai_responses(source: Source) -> list[Any]:
    start = {"role": source.random.choice(("system", "developer")), "content": "be kind"}
    items: list[Any] = [*source.random.choice(([], [start])), _item_asked(source)]
    for _ in range(source.random.randrange(4)):
        items += _items_of_turn(source)
    return items


def _item_asked(source: Source) -> dict[str, Any]:
    content = source.random.choice((source.text(), source.some(_inputs(source))))
    named = {"type": "message", **source.maybe({"id": source.new("msg"), "status": "completed"})}
    return {"role": "user", "content": content, **source.random.choice((named, {}))}


def _inputs(source: Source) -> list[Callable[[], Any]]:
    return [
        lambda: {"type": "input_text", "text": source.text()},
        lambda: {"type": "input_image", "image_url": URL, **source.maybe({"detail": "auto"})},
        lambda: {"type": "input_image", "file_id": "file-1"},
        lambda: {"type": "input_file", "file_id": "file-1"},
        lambda: {"type": "input_file", "file_url": URL},
        lambda: {
            "type": "input_file",
            "filename": "x.pdf",
            "file_data": "data:application/pdf;base64,AAAA",
        },
    ]


def _items_of_turn(source: Source) -> list[Any]:
    calls = [source.new("call") for _ in range(source.random.choice((0, 0, 1, 2)))]
    said: list[Any] = [_message_item(source)] if not calls or source.maybe(MARK) else []
    said += [_call_item(source, call) for call in calls]
    items: list[Any] = []
    for item in source.random.sample(said, len(said)):
        thought = _reasoning(source) if source.random.randrange(2) else None
        stored = {"id": source.new("fc" if "call_id" in item else "msg"), "status": "completed"}
        items += [item] if thought is None else [thought, {**item, **source.maybe(stored)}]
    if not calls:
        return [*items, _item_asked(source)]
    outputs = [_output(source, call) for call in source.random.sample(calls, len(calls))]
    return [*items, *outputs, *source.random.choice(([], [_item_asked(source)]))]


def _reasoning(source: Source) -> dict[str, Any]:
    summary = source.random.choice(([], [{"type": "summary_text", "text": "hm"}]))
    thought = {"type": "reasoning", "summary": summary, "encrypted_content": "Z2Vo"}
    return {**thought, **source.maybe({"id": source.new("rs"), "content": []})}


def _message_item(source: Source) -> dict[str, Any]:
    makers: list[Callable[[], Any]] = [
        lambda: {"type": "output_text", "text": source.text(), **source.maybe({"annotations": []})},
        lambda: {"type": "refusal", "refusal": "no"},
    ]
    content = source.random.choice((source.text(), source.some(makers)))
    named = source.random.choice(({"type": "message"}, {}))
    return {"role": "assistant", "content": content, **named}


def _call_item(source: Source, call: str) -> dict[str, Any]:
    arguments = json.dumps(source.arguments())
    return {"type": "function_call", "call_id": call, "name": "read", "arguments": arguments}


def _output(source: Source, call: str) -> dict[str, Any]:
    said = source.random.choice(("ok", "", source.some(_inputs(source))))
    named = source.maybe({"id": source.new("fc"), "status": "completed"})
    return {"type": "function_call_output", "call_id": call, "output": said, **named}


MAKERS: dict[Format, tuple[str, Callable[[Source], list[Any]]]] = {
    "anthropic": ("messages", anthropic),
    "openai-chat": ("messages", openai_chat),
    "openai-responses": ("input", openai_responses),
}


def accepted(seed: int, wanted: Format) -> list[Any] | None:
    """Return a list that the provider accepts; None if its rules refuse the generated one."""
    key, make = MAKERS[wanted]
    made = make(Source(seed))
    tools = [{"name": "read", "input_schema": {"type": "object"}}]
    body = {"max_tokens": 2048, "tools": tools, "store": False, key: made}
    return None if check(body, wanted) else made
