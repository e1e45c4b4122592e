"""Time to repair and render a session, compared with only writing it as JSON."""

import json
import statistics
import time
from collections.abc import Callable
from typing import Any, get_args

from bench.report import Section, Table, number

from perdure.core.conversation.messages import (
    AssistantMessage,
    Message,
    RequestedCall,
    ToolMessage,
    UserMessage,
)
from perdure.core.conversation.repair import IncrementalRepair
from perdure.core.providers.catalog import Format
from perdure.core.providers.formats import render
from perdure.core.transfer.event_log import conversations

MESSAGES = 10_000
EVENTS = (10_000, 100_000)
WORDS = 40  # in each text: about 240 bytes
SAMPLES = 7
LIMIT = 3.0
LINEAR = 1.5

METHOD = """\
A valid session of 10,000 messages, half of them a tool call or its result, is repaired and rendered
for each provider (`render` does both), and compared with `json.dumps` of the same messages. CPU
time, medians of interleaved runs. Then the events of a log with damage throughout (calls without
results, late results, reused ids) are split into conversations, repaired and rendered."""


def measure(*, quick: bool = False) -> Section:
    """Measure a valid session and a damaged log; `quick` uses a tenth of the sizes."""
    size = MESSAGES // 10 if quick else MESSAGES
    messages = session(size)
    works: dict[str, Callable[[], Any]] = {"json.dumps": lambda: json.dumps(messages)}
    for format_ in get_args(Format):
        works[format_] = lambda format_=format_: render(messages, format_)  # type: ignore[misc]
    own_messages = _own_messages(size)
    works["perdure, incrementally, per turn"] = _incremental_repair(own_messages)
    medians = _medians(works)
    floor = medians["json.dumps"]
    rows = [
        [name, number(1000 * seconds), f"{seconds / floor:.2f} x"]
        for name, seconds in medians.items()
    ]
    worst = max(medians[format_] for format_ in get_args(Format)) / floor
    counts = tuple(count // 10 for count in EVENTS) if quick else EVENTS
    short, long = (_per_event(count) for count in counts)
    verdicts = (
        f"- repair and render: {worst:.2f} x json.dumps; target ≤ {LIMIT:g} x: "
        f"{'met' if worst <= LIMIT else 'missed'}\n"
        f"- a damaged log, per event: {number(1e6 * short)} µs with {counts[0]:,} events, "
        f"{number(1e6 * long)} µs with {counts[1]:,}: {long / short:.2f} x; "
        f"target ≤ {LINEAR:g} x (linear): {'met' if long / short <= LINEAR else 'missed'}"
    )
    table = Table([f"{size:,} messages", "ms", "json.dumps"], rows)
    return Section("Repair and render", [METHOD, table, verdicts])


def session(count: int) -> list[dict[str, Any]]:
    """Return a valid session: question, call, result and response, repeated."""
    messages: list[dict[str, Any]] = []
    for number_ in range(count // 4):
        call_id = f"toolu_{number_:08d}"
        args = {"path": f"/srv/{number_}.txt", "limit": 100}
        call = {"type": "tool_use", "id": call_id, "name": "read_file", "input": args}
        text = {"type": "text", "text": _text("look", number_)}
        result = {"type": "tool_result", "tool_use_id": call_id, "content": _text("it", number_)}
        messages += [
            {"role": "user", "content": _text("question", number_)},
            {"role": "assistant", "content": [text, call]},
            {"role": "user", "content": [result]},
            {"role": "assistant", "content": _text("answer", number_)},
        ]
    return messages


def damaged_log(count: int) -> list[dict[str, Any]]:
    """Return a log in which every fourth call has no result, ids repeat and results are late."""
    events: list[dict[str, Any]] = []
    for number_ in range(count // 4):
        call_id = f"call_{number_ % 1000}"
        events += [
            _event("user", role="user", content=_text("question", number_)),
            _event("tool_call", id=call_id, tool="read", params={"n": number_}, agent="main"),
            _event("assistant", role="assistant", content=_text("answer", number_), agent="main"),
        ]
        if number_ % 4:
            events.append(_event("tool_result", toolCallId=call_id, result={"content": "done"}))
    return events


def _event(kind: str, **data: Any) -> dict[str, Any]:
    return {"type": kind, "timestamp": 1_700_000_000_000, "data": data}


def _text(word: str, number_: int) -> str:
    return f"{number_} " + f"{word} " * WORDS


def _own_messages(count: int) -> list[Message]:
    messages: list[Message] = []
    for number_ in range(count // 4):
        call = RequestedCall(f"call_{number_:08d}", "read_file", {"path": f"/srv/{number_}.txt"})
        messages += [
            UserMessage(_text("question", number_)),
            AssistantMessage(_text("look", number_), (call,)),
            ToolMessage(call.id, call.tool, _text("it", number_)),
            AssistantMessage(_text("answer", number_)),
        ]
    return messages


def _incremental_repair(messages: list[Message]) -> Callable[[], Any]:
    """Return a function that repairs one more turn of a long session."""
    history = IncrementalRepair()
    history.repair(messages)
    return lambda: history.repair(messages)


def _per_event(count: int) -> float:
    log = damaged_log(count)

    def work() -> None:
        for messages in conversations(log).by_agent.values():
            render(messages, "anthropic")

    return min(_time(work) for _ in range(3)) / len(log)


def _medians(works: dict[str, Callable[[], Any]]) -> dict[str, float]:
    timings: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(SAMPLES):
        for name, work in works.items():
            timings[name].append(_time(work))
    return {name: statistics.median(seconds) for name, seconds in timings.items()}


def _time(work: Callable[[], Any]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began
