"""Rollouts of Codex: items of OpenAI Responses, in envelopes or (older files) bare."""

from collections.abc import Iterable, Iterator
from typing import Any, Final

from perdure.core.transfer.foreign.model import (
    ForeignMessage,
    ForeignSession,
    dict_in,
    instant,
    kind_in,
    list_in,
    text_in,
)

PROVIDER: Final = "openai-responses"
ITEMS: Final = frozenset({"message", "reasoning", "function_call", "function_call_output"})


def group_items(
    items: Iterable[ForeignMessage], model: str | None = None
) -> Iterator[ForeignMessage]:
    """Yield these items grouped into messages; `model` is the model that responded, if known."""
    turn = _CodexTurn(model)
    for message in items:
        item = dict_in(message.message)
        if turn.is_complete_before(item):
            yield from turn.flush()
        if turn.add(item, message.at):
            continue
        yield from turn.flush()
        yield message
    yield from turn.flush()


class _CodexTurn:
    """A response of the model and the results of its calls, while items are read."""

    def __init__(self, model: str | None) -> None:
        self._origin: dict[str, Any] = {"provider": PROVIDER, "model": model} if model else {}
        self._answer: list[Any] = []
        self._results: list[Any] = []
        self._at = 0

    def is_complete_before(self, item: dict[str, Any]) -> bool:
        """Return True if the item begins a new turn: it follows results and is not one."""
        return bool(self._results) and kind_in(item) != "function_call_output"

    def add(self, item: dict[str, Any], at: int) -> bool:
        """Add the item; return False if it is neither the model's nor a result."""
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

    def flush(self) -> Iterator[ForeignMessage]:
        """Yield the response and its results, if there are any, and start the next turn."""
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


def is_match(rows: list[Any]) -> bool:
    """Return True if the lines are a rollout."""
    if any(_is_envelope(row) for row in rows):
        return True
    if not rows:
        return False
    first = dict_in(rows[0])
    is_meta = "timestamp" in first and text_in(first.get("id")) and "type" not in first
    return bool(is_meta) and any(kind_in(row) in ITEMS for row in rows[1:])


def _is_envelope(row: Any) -> bool:
    return kind_in(row) in _ENVELOPES and isinstance(row.get("payload"), dict)


def read(rows: list[Any]) -> ForeignSession:
    """Return the conversation in a rollout."""
    rollout = _Rollout()
    for row in rows:
        rollout.read_row(dict_in(row))
    notes = tuple(f"{count} {kind} left out" for kind, count in sorted(rollout.left_out.items()))
    messages = tuple(group_items(rollout.messages, rollout.model))
    return ForeignSession(NAME, messages, rollout.session_id, notes=notes)


class _Rollout:
    """A rollout while its lines are read."""

    def __init__(self) -> None:
        self.messages: list[ForeignMessage] = []
        self.session_id: str | None = None
        self.left_out: dict[str, int] = {}
        self.model: str | None = None  # the last one that was requested

    def read_row(self, row: dict[str, Any]) -> None:
        """Read the next line."""
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
        message = _as_function(item)
        if message is None:
            kind = f"{kind_in(item)} item(s)"
            self.left_out[kind] = self.left_out.get(kind, 0) + 1
            return
        self.messages.append(ForeignMessage(message, at))

    def _compacted(self, payload: dict[str, Any], at: int) -> None:
        """Replace the history as Codex did at a compaction."""
        history = payload.get("replacement_history")
        if isinstance(history, list):
            self.messages.clear()
            for item in history:
                self._item(dict_in(item), at)
        elif text := text_in(payload.get("message")):
            self.messages.append(ForeignMessage({"role": "user", "content": text}, at))


def _as_function(item: dict[str, Any]) -> dict[str, Any] | None:
    """Return the item as one that `repair` knows; None for items that only Codex can use."""
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
    # Arguments may be an object here: repair renders them in each provider's format.
    return {"type": "function_call", "call_id": call_id, "name": name, "arguments": arguments}


def _output(output: Any) -> Any:
    """Return the output of a tool, which older files wrap in an object."""
    content = dict_in(output).get("content")
    return content if isinstance(content, str | list) else output
