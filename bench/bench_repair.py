"""How long it takes to repair and render a session, against only writing it as JSON."""

import json
import statistics
import time
from collections.abc import Callable
from typing import Any, get_args

from bench.report import Section, Table, number

from perdure.core.conversation.messages import (
    AskedCall,
    AssistantMessage,
    Message,
    ToolMessage,
    UserMessage,
)
from perdure.core.conversation.repair import IncrementalRepair
from perdure.core.providers import Format, render
from perdure.core.transfer.event_log import conversations

MESSAGES = 10_000
EVENTS = (10_000, 100_000)
WORDS = 40  # in each text: about 240 bytes
SAMPLES = 7
LIMIT = 3.0
LINEAR = 1.5

METHOD = """\
A valid session of 10,000 messages, half of them a tool call or its result, is repaired and rendered
for each provider (`render` does both), against the standard library's `json.dumps` of the same
messages. CPU time, medians of interleaved runs. Then the events of a log that was damaged
throughout (calls without results, results that come late, ids used again) are told apart, repaired
and rendered."""


def measure(*, quick: bool = False) -> Section:
    """Both; `quick` is a tenth of the sizes."""
    size = MESSAGES // 10 if quick else MESSAGES
    messages = session(size)
    works: dict[str, Callable[[], Any]] = {"json.dumps": lambda: json.dumps(messages)}
    for wanted in get_args(Format):
        works[wanted] = lambda wanted=wanted: render(messages, wanted)  # type: ignore[misc]
    own = _own(size)
    works["our own, while it grows by a turn"] = _growing(own)
    took = _medians(works)
    floor = took["json.dumps"]
    rows = [[name, number(1000 * one), f"{one / floor:.2f} x"] for name, one in took.items()]
    worst = max(took[wanted] for wanted in get_args(Format)) / floor
    counts = tuple(count // 10 for count in EVENTS) if quick else EVENTS
    each = [_per_event(count) for count in counts]
    verdicts = (
        f"- repair and render: {worst:.2f} x json.dumps; target ≤ {LIMIT:g} x: "
        f"{'met' if worst <= LIMIT else 'missed'}\n"
        f"- a damaged log, per event: {number(1e6 * each[0])} µs of {counts[0]:,}, "
        f"{number(1e6 * each[1])} µs of {counts[1]:,}: {each[1] / each[0]:.2f} x; linear is ≤ "
        f"{LINEAR:g} x: {'met' if each[1] / each[0] <= LINEAR else 'missed'}"
    )
    table = Table([f"{size:,} messages", "ms", "json.dumps"], rows)
    return Section("Repair and render", [METHOD, table, verdicts])


def session(count: int) -> list[dict[str, Any]]:
    """A valid session: a question, a call, its result, an answer, and again."""
    made: list[dict[str, Any]] = []
    for number_ in range(count // 4):
        call_id = f"toolu_{number_:08d}"
        args = {"path": f"/srv/{number_}.txt", "limit": 100}
        call = {"type": "tool_use", "id": call_id, "name": "read_file", "input": args}
        said = {"type": "text", "text": _text("look", number_)}
        result = {"type": "tool_result", "tool_use_id": call_id, "content": _text("it", number_)}
        made += [
            {"role": "user", "content": _text("question", number_)},
            {"role": "assistant", "content": [said, call]},
            {"role": "user", "content": [result]},
            {"role": "assistant", "content": _text("answer", number_)},
        ]
    return made


def damaged_log(count: int) -> list[dict[str, Any]]:
    """A log in which every fourth call is cut off, ids come again and results come late."""
    made: list[dict[str, Any]] = []
    for number_ in range(count // 4):
        call_id = f"call_{number_ % 1000}"
        made += [
            _event("user", role="user", content=_text("question", number_)),
            _event("tool_call", id=call_id, tool="read", params={"n": number_}, agent="main"),
            _event("assistant", role="assistant", content=_text("answer", number_), agent="main"),
        ]
        if number_ % 4:
            made.append(_event("tool_result", toolCallId=call_id, result={"content": "done"}))
    return made


def _event(kind: str, **data: Any) -> dict[str, Any]:
    return {"type": kind, "timestamp": 1_700_000_000_000, "data": data}


def _text(word: str, number_: int) -> str:
    return f"{number_} " + f"{word} " * WORDS


def _own(count: int) -> list[Message]:
    made: list[Message] = []
    for number_ in range(count // 4):
        call = AskedCall(f"call_{number_:08d}", "read_file", {"path": f"/srv/{number_}.txt"})
        made += [
            UserMessage(_text("question", number_)),
            AssistantMessage(_text("look", number_), (call,)),
            ToolMessage(call.id, call.tool, _text("it", number_)),
            AssistantMessage(_text("answer", number_)),
        ]
    return made


def _growing(own: list[Message]) -> Callable[[], Any]:
    """What one more turn of a long session costs."""
    history = IncrementalRepair()
    history.repaired(own)
    return lambda: history.repaired(own)


def _per_event(count: int) -> float:
    log = damaged_log(count)

    def work() -> None:
        for messages in conversations(log).by_agent.values():
            render(messages, "anthropic")

    return min(_timed(work) for _ in range(3)) / len(log)


def _medians(works: dict[str, Callable[[], Any]]) -> dict[str, float]:
    took: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(SAMPLES):
        for name, work in works.items():
            took[name].append(_timed(work))
    return {name: statistics.median(found) for name, found in took.items()}


def _timed(work: Callable[[], Any]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began
