"""Recorded logs, with delegated agents in between: what was completed survives whatever happens."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.support.paths import DATA

from perdure.core.conversation.repair import repair
from perdure.core.transfer.event_log import conversations

CORPUS = DATA / "corpus"
LOGS = sorted(CORPUS.glob("*.jsonl"))
Line = str
Pair = tuple[str, str, str]  # agent, id, tool

DAMAGES: dict[str, Callable[[Line], list[Any]]] = {
    "gone": lambda _: [],
    "torn": lambda line: [line[: len(line) // 2]],
    "null": lambda _: [None],
    "no type": lambda line: [{**json.loads(line), "type": None}],
    "no data": lambda line: [{**json.loads(line), "data": "?"}],
}


def lines_of(path: Path) -> list[Line]:
    return path.read_text("utf-8").splitlines()


def events_of(lines: list[Line]) -> list[Any]:
    return [json.loads(line) for line in lines]


def completed(lines: list[Line]) -> set[Pair]:
    """Read from the raw lines: calls whose result stands somewhere after them."""
    called: dict[str, Pair] = {}
    done: set[Pair] = set()
    for line in lines:
        event = json.loads(line)
        data = event["data"]
        if event["type"] == "tool_call":
            called[data["id"]] = (data["agent"], data["id"], data["tool"])
        elif event["type"] == "tool_result" and data["toolCallId"] in called:
            done.add(called[data["toolCallId"]])
    return done


def survivors(events: list[Any]) -> set[Pair]:
    """The pairs in the repaired conversations of all agents."""
    found: set[Pair] = set()
    for agent, messages in conversations(events).by_agent.items():
        calls: dict[str, str] = {}
        for message in repair(messages).messages:
            blocks = message["content"] if isinstance(message["content"], list) else []
            for block in blocks:
                if block["type"] == "tool_use":
                    calls[block["id"]] = block["name"]
                elif block["type"] == "tool_result":
                    found.add((agent, block["tool_use_id"], calls[block["tool_use_id"]]))
    return found


def test_all_completed_pairs_of_all_logs_survive() -> None:
    """S2.32"""
    assert sum(len(completed(lines_of(path))) for path in LOGS) == 74
    assert sum(len(survivors(events_of(lines_of(path)))) for path in LOGS) == 74


@pytest.mark.parametrize("path", LOGS, ids=lambda path: path.stem)
def test_a_whole_log_needs_no_repair(path: Path) -> None:
    """S2.29 S2.31"""
    told = conversations(events_of(lines_of(path)))
    assert not told.warnings
    for messages in told.by_agent.values():
        repaired = repair(messages)
        assert repaired.messages == messages
        assert repaired.issues == ()


@pytest.mark.parametrize("path", LOGS, ids=lambda path: path.stem)
def test_the_pairs_before_a_cut_survive_it(path: Path) -> None:
    """S2.32 S2.42"""
    lines = lines_of(path)
    for cut in range(len(lines) + 1):
        assert survivors(events_of(lines[:cut])) == completed(lines[:cut])


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("path", LOGS, ids=lambda path: path.stem)
def test_a_damaged_line_costs_no_pair_but_its_own(path: Path, damage: str) -> None:
    """S2.28 S2.32 S2.34"""
    lines = lines_of(path)
    events = events_of(lines)
    for place, line in enumerate(lines):
        damaged = [*events[:place], *DAMAGES[damage](line), *events[place + 1 :]]
        assert survivors(damaged) == completed([*lines[:place], *lines[place + 1 :]])


@pytest.mark.parametrize("path", LOGS, ids=lambda path: path.stem)
def test_no_agent_hears_what_was_said_to_or_by_another(path: Path) -> None:
    """S2.26 S2.29"""
    events = events_of(lines_of(path))
    tasks = {e["data"]["task"]: e["data"]["child"] for e in events if e["type"] == "delegation"}
    for agent, messages in conversations(events).by_agent.items():
        said = {
            event["data"]["content"]
            for event in events
            if event["type"] == "assistant" and event["data"]["agent"] == agent
        }
        for message in messages:
            content = message["content"]
            if message["role"] == "user" and isinstance(content, str):
                assert tasks.get(content, conversations(events).top) == agent
            if message["role"] == "assistant":
                assert set(_texts(content)) <= said


def _texts(content: Any) -> list[str]:
    if isinstance(content, str):
        return [content]
    return [block["text"] for block in content if block["type"] == "text"]
