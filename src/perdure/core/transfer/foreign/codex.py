"""Rollouts of Codex: items of OpenAI Responses, in envelopes or (older ones) as they are."""

from collections.abc import Iterable, Iterator
from typing import Any, Final

from perdure.core.transfer.foreign.model import (
    Foreign,
    ForeignMessage,
    dict_in,
    instant,
    kind_in,
    list_in,
    text_in,
)

PROVIDER: Final = "openai-responses"
ITEMS: Final = frozenset({"message", "reasoning", "function_call", "function_call_output"})


def grouped(items: Iterable[ForeignMessage], model: str | None = None) -> Iterator[ForeignMessage]:
    """The messages that these items are; `model` is who answered, where that is known."""
    turn = _Turn(model)
    for said in items:
        item = dict_in(said.message)
        if turn.ends_before(item):
            yield from turn.flushed()
        if turn.takes(item, said.at):
            continue
        yield from turn.flushed()
        yield said
    yield from turn.flushed()


class _Turn:
    """What the model said, and what its tools answered."""

    def __init__(self, model: str | None) -> None:
        self._origin: dict[str, Any] = {"provider": PROVIDER, "model": model} if model else {}
        self._answer: list[Any] = []
        self._results: list[Any] = []
        self._at = 0

    def ends_before(self, item: dict[str, Any]) -> bool:
        """Whether the item begins a new turn: tools have answered, and the model speaks again."""
        return bool(self._results) and kind_in(item) != "function_call_output"

    def takes(self, item: dict[str, Any], at: int) -> bool:
        """Put the item where it belongs; False if it is none of the model's or its tools'."""
        kind = kind_in(item)
        if kind == "reasoning":
            self._answer.append(item)
        elif kind == "function_call":
            self._answer.append(_requested_call(item))
        elif kind == "function_call_output":
            self._results.append(_result(item))
        elif kind in ("", "message") and item.get("role") == "assistant":
            content = item.get("content")
            self._answer += list_in(content) or [content]
        else:
            return False
        self._at = self._at or at
        return True

    def flushed(self) -> Iterator[ForeignMessage]:
        """The answer and its results, if there are; from here on the next one."""
        if self._answer:
            answer = {"role": "assistant", "content": self._answer, **self._origin}
            yield ForeignMessage(answer, self._at)
        if self._results:
            yield ForeignMessage({"role": "user", "content": self._results}, self._at)
        self._answer, self._results, self._at = [], [], 0


def _requested_call(item: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "tool_use",
        "id": item.get("call_id"),
        "name": item.get("name"),
        "input": item.get("arguments"),
    }


def _result(item: dict[str, Any]) -> dict[str, Any]:
    output = item.get("output")
    return {"type": "tool_result", "tool_use_id": item.get("call_id"), "content": output}


NAME: Final = "codex"
_ENVELOPES: Final = frozenset(
    {"session_meta", "response_item", "turn_context", "event_msg", "compacted"}
)


def fits(rows: list[Any]) -> bool:
    """Whether the lines are a rollout."""
    if any(_is_envelope(row) for row in rows):
        return True
    if not rows:
        return False
    first = dict_in(rows[0])
    is_meta = "timestamp" in first and text_in(first.get("id")) and "type" not in first
    return bool(is_meta) and any(kind_in(row) in ITEMS for row in rows[1:])


def _is_envelope(row: Any) -> bool:
    return kind_in(row) in _ENVELOPES and isinstance(row.get("payload"), dict)


def read(rows: list[Any]) -> Foreign:
    """The conversation in a rollout."""
    rollout = _Rollout()
    for row in rows:
        rollout.take(dict_in(row))
    notes = tuple(f"{count} {kind} left out" for kind, count in sorted(rollout.left_out.items()))
    said = tuple(grouped(rollout.said, rollout.model))
    return Foreign(NAME, said, rollout.session_id, notes=notes)


class _Rollout:
    """What has been read of one."""

    def __init__(self) -> None:
        self.said: list[ForeignMessage] = []
        self.session_id: str | None = None
        self.left_out: dict[str, int] = {}
        self.model: str | None = None  # the last one that was asked

    def take(self, row: dict[str, Any]) -> None:
        """The next line."""
        kind, payload = kind_in(row), dict_in(row.get("payload"))
        at = instant(row.get("timestamp"))
        if not _is_envelope(row):
            self._bare(row, at)
        elif kind == "session_meta":
            self.session_id = self.session_id or text_in(payload.get("id"))
        elif kind == "turn_context":
            self.model = text_in(payload.get("model")) or self.model
        elif kind == "compacted":
            self._compacted(payload, at)
        elif kind == "response_item":
            self._item(payload, at)

    def _bare(self, row: dict[str, Any], at: int) -> None:
        if kind_in(row) in ITEMS or "call_id" in row:
            self._item(row, at)
        elif self.session_id is None and "type" not in row:
            self.session_id = text_in(row.get("id"))

    def _item(self, item: dict[str, Any], at: int) -> None:
        made = _as_function(item)
        if made is None:
            kind = f"{kind_in(item)} item(s)"
            self.left_out[kind] = self.left_out.get(kind, 0) + 1
            return
        self.said.append(ForeignMessage(made, at))

    def _compacted(self, payload: dict[str, Any], at: int) -> None:
        """What Codex went on with after it had made the history shorter."""
        history = payload.get("replacement_history")
        if isinstance(history, list):
            self.said.clear()
            for item in history:
                self._item(dict_in(item), at)
        elif text := text_in(payload.get("message")):
            self.said.append(ForeignMessage({"role": "user", "content": text}, at))


def _as_function(item: dict[str, Any]) -> dict[str, Any] | None:
    """The item as one that repair knows; None for what only Codex itself can use."""
    kind = kind_in(item)
    if kind in ("message", ""):
        return item if "role" in item else None
    call_id = item.get("call_id")
    if kind == "function_call_output":
        return {**item, "output": _output(item.get("output"))}
    if kind == "custom_tool_call":
        arguments = {"input": item.get("input")}
        return _call(call_id, item.get("name"), arguments)
    if kind == "custom_tool_call_output":
        output = _output(item.get("output"))
        return {"type": "function_call_output", "call_id": call_id, "output": output}
    if kind == "local_shell_call":
        return _call(call_id or item.get("id"), "local_shell", dict_in(item.get("action")))
    return item if kind in ITEMS else None


def _call(call_id: Any, name: Any, arguments: dict[str, Any]) -> dict[str, Any]:
    # Arguments may be an object here: repair writes them as whoever is asked wants them.
    return {"type": "function_call", "call_id": call_id, "name": name, "arguments": arguments}


def _output(output: Any) -> Any:
    """Older ones wrap what a tool said."""
    content = dict_in(output).get("content")
    return content if isinstance(content, str | list) else output
