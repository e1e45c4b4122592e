"""Items of OpenAI Responses as messages: what the model said in one turn is one answer again."""

from collections.abc import Iterable, Iterator
from typing import Any, Final

from holdfast.core.transfer.foreign.model import Said, dict_in, kind_in, list_in

PROVIDER: Final = "openai-responses"
ITEMS: Final = frozenset({"message", "reasoning", "function_call", "function_call_output"})


def grouped(items: Iterable[Said], model: str | None = None) -> Iterator[Said]:
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
            self._answer.append(_call(item))
        elif kind == "function_call_output":
            self._results.append(_result(item))
        elif kind in ("", "message") and item.get("role") == "assistant":
            content = item.get("content")
            self._answer += list_in(content) or [content]
        else:
            return False
        self._at = self._at or at
        return True

    def flushed(self) -> Iterator[Said]:
        """The answer and its results, if there are; from here on the next one."""
        if self._answer:
            answer = {"role": "assistant", "content": self._answer, **self._origin}
            yield Said(answer, self._at)
        if self._results:
            yield Said({"role": "user", "content": self._results}, self._at)
        self._answer, self._results, self._at = [], [], 0


def _call(item: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "tool_use",
        "id": item.get("call_id"),
        "name": item.get("name"),
        "input": item.get("arguments"),
    }


def _result(item: dict[str, Any]) -> dict[str, Any]:
    output = item.get("output")
    return {"type": "tool_result", "tool_use_id": item.get("call_id"), "content": output}
