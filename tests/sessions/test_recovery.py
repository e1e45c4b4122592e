"""From events back to messages, whatever the log holds."""

import json
import logging
from typing import Any

import pytest
from tests.sessions.samples import LINES, assistant, call, event, result, user
from tests.support.paths import DATA

from perdure.sessions import InMemoryStorage, SimpleSessionManager, validate_message_structure

CORPUS = DATA / "corpus"
Manager = SimpleSessionManager


@pytest.fixture
def manager() -> Manager:
    return SimpleSessionManager(InMemoryStorage())


async def recovered(manager: Manager, *events: Any, agent: str | None = None) -> list[Any]:
    for one in events:
        await manager.storage.append_event("s", one)
    messages = await manager.recover_session("s", agent)
    assert validate_message_structure(messages).valid
    return messages


async def test_each_kind_of_event_becomes_its_kind_of_message(manager: Manager) -> None:
    """S2.30, S2.31: a call stands with the text of its turn."""
    lines = [json.loads(line) for line in LINES]
    assert await recovered(manager, *lines) == [
        {"role": "user", "content": "Hello"},
        {
            "role": "assistant",
            "content": [
                {"type": "text", "text": "Hi!"},
                {
                    "type": "tool_use",
                    "id": "call_123",
                    "name": "Read",
                    "input": {"path": "file.txt"},
                },
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "call_123", "content": "file contents"}
            ],
        },
    ]


async def test_an_unknown_session_and_one_without_messages_are_empty(manager: Manager) -> None:
    """S2.26, S2.34"""
    assert await manager.recover_session("nobody") == []
    system = event("assistant", role="assistant", content="Loading", agent="system")
    assert await recovered(manager, event("system", role="system", content="x"), system) == []


async def test_what_was_mended_is_logged_in_one_line(
    manager: Manager, caplog: pytest.LogCaptureFixture
) -> None:
    """S2.35, SX.6"""
    with caplog.at_level(logging.WARNING, "perdure"):
        await recovered(manager, user("x"), call("call_abc123"))
    (line,) = caplog.messages
    assert line == (
        "Session s recovery: Sanitized 1 issue(s): [incomplete_tool_call] "
        "Removed 1 incomplete tool call(s): call_abc123"
    )


async def test_nothing_is_logged_about_what_is_whole(
    manager: Manager, caplog: pytest.LogCaptureFixture
) -> None:
    """S2.35"""
    with caplog.at_level(logging.WARNING, "perdure"):
        await recovered(manager, user("x"), assistant("y"))
    assert not caplog.messages


async def test_what_is_no_event_is_ignored_with_a_warning(
    manager: Manager, caplog: pytest.LogCaptureFixture
) -> None:
    """S2.27, S2.28"""
    odd: list[Any] = [None, 5, "x", [], {}, {"type": "user"}, event("from_the_future", x=1)]
    with caplog.at_level(logging.WARNING, "perdure"):
        assert await recovered(manager, *odd, user("x")) == [{"role": "user", "content": "x"}]
    assert len(caplog.messages) == 6
    assert len(await manager.storage.read_events("s")) == 8


async def test_recovering_changes_nothing_and_can_be_repeated(manager: Manager) -> None:
    """S2.44"""
    first = await recovered(manager, user("x"), call("a"), result("b"), assistant("y"))
    before = await manager.storage.read_events("s")
    assert await manager.recover_session("s") == first
    assert await manager.storage.read_events("s") == before


async def test_delegated_agents_have_conversations_of_their_own(manager: Manager) -> None:
    """S2.29"""
    events = [
        event("agent_start", agent="boss", depth=0, task="go"),
        user("plan"),
        call("c1", "Task", "boss", to="worker"),
        event("delegation", parent="boss", child="worker", task="dig"),
        event("agent_start", agent="worker", depth=1, task="dig"),
        user("dig"),
        call("c2", "Dig", "worker"),
        result("c2", "a hole"),
        assistant("dug", "worker"),
        result("c1", "dug"),
        assistant("done", "boss"),
    ]
    boss = await recovered(manager, *events)
    assert "dig" not in json.dumps(boss)
    assert [m["role"] for m in boss] == ["user", "assistant", "user", "assistant"]
    worker = await manager.recover_session("s", "worker")
    assert worker[0] == {"role": "user", "content": "dig"}
    assert "plan" not in json.dumps(worker)
    assert await manager.recover_agents("s") == ["boss", "worker"]


async def test_of_the_recorded_logs_every_completed_pair_survives(manager: Manager) -> None:
    """S2.32: summed over the agents of all nine."""
    pairs = 0
    for path in sorted(CORPUS.glob("*.jsonl")):
        for line in path.read_text().splitlines():
            await manager.storage.append_event(path.stem, json.loads(line))
        for agent in await manager.recover_agents(path.stem):
            messages = await manager.recover_session(path.stem, agent)
            blocks = [b for m in messages if isinstance(m["content"], list) for b in m["content"]]
            pairs += sum(block["type"] == "tool_result" for block in blocks)
    assert pairs == 74


async def test_a_session_cut_at_any_event_can_be_gone_on_with(manager: Manager) -> None:
    """S2.42"""
    path = CORPUS / "werewolf-001.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for number, line in enumerate(lines):
        await manager.storage.append_event("s", line)
        if number % 5 == 0:
            assert validate_message_structure(await manager.recover_session("s")).valid


# --- looking at messages --------------------------------------------------------------------------

CALLS = {
    "role": "assistant",
    "content": [
        {"type": "text", "text": "x"},
        {"type": "tool_use", "id": "a", "name": "Read", "input": {"p": 1}},
        {"type": "tool_use", "id": "b", "name": "Write", "input": {}},
    ],
}
CHAT = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"id": "a", "function": {"name": "Read", "arguments": "{oops"}}],
}
TEXT = {"role": "assistant", "content": "done"}
ANSWERED = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a"}]}


@pytest.mark.parametrize(
    "messages, incomplete, complete",
    [
        ([], False, False),
        ([CALLS], True, False),
        ([CHAT], True, False),
        ([CALLS, ANSWERED], False, False),
        ([TEXT], False, True),
        ([{"role": "user", "content": "x"}], False, False),
        ([None], False, False),
        ([{"role": "assistant", "content": ""}], False, False),
    ],
)
def test_whether_a_conversation_waits_or_is_complete(
    manager: Manager, messages: list[Any], incomplete: bool, complete: bool
) -> None:
    """S2.36, S2.38"""
    assert manager.has_incomplete_tool_call(messages) is incomplete
    assert manager.is_conversation_complete(messages) is complete


def test_the_last_call_is_the_first_that_is_not_answered(manager: Manager) -> None:
    """S2.36"""
    assert manager.get_last_tool_call([CALLS]) == {"id": "a", "name": "Read", "input": {"p": 1}}
    assert manager.get_last_tool_call([CHAT]) == {"id": "a", "name": "Read", "input": {}}
    assert manager.get_last_tool_call([CALLS, ANSWERED]) is None
    assert manager.get_last_tool_call([]) is None


def test_a_result_can_be_added_by_hand(manager: Manager) -> None:
    """S2.37"""
    made = manager.create_tool_result_message("a", {"ü": [1]})
    assert made == {
        "role": "user",
        "content": [{"type": "tool_result", "tool_use_id": "a", "content": '{"ü":[1]}'}],
    }
    text = manager.create_tool_result_message("a", "plain")
    assert text["content"][0]["content"] == "plain"


# --- todos ----------------------------------------------------------------------------------------

TODO = {"content": "Dig", "status": "pending"}


@pytest.mark.parametrize("name", ["TodoWrite", "todowrite", "todo_write", "TODOWRITE"])
async def test_the_last_list_that_was_written_counts(manager: Manager, name: str) -> None:
    """S2.39: whether or not the call has a result."""
    first = call("a", name, todos=[{"content": "Old", "status": "completed"}])
    last = call("b", name, todos=[TODO])
    await recovered(manager, user("x"), first, result("a"), last)
    (todo,) = await manager.recover_todos("s")
    assert todo == {**TODO, "id": "1", "priority": "medium", "activeForm": "Dig"}


async def test_a_malformed_list_is_passed_over(manager: Manager) -> None:
    """S2.39"""
    bad = [
        call("b", "TodoWrite", todos="x"),
        call("c", "TodoWrite"),
        call("d", "TodoWrite", todos=[5]),
    ]
    await recovered(manager, user("x"), call("a", "TodoWrite", todos=[TODO]), *bad)
    assert [todo["content"] for todo in await manager.recover_todos("s")] == ["Dig"]


async def test_a_list_that_was_cleared_stays_cleared(manager: Manager) -> None:
    """S2.39"""
    full, empty = call("a", "TodoWrite", todos=[TODO]), call("b", "TodoWrite", todos=[])
    await recovered(manager, user("x"), full, result("a"), empty, result("b"))
    assert await manager.recover_todos("s") == []


async def test_without_a_list_there_are_none(manager: Manager) -> None:
    """S2.39, S2.64: what is shown to people is not what is recovered."""
    await recovered(manager, user("x"), event("todo_update", todos=[TODO]), call("a"), result("a"))
    assert await manager.recover_todos("s") == []


@pytest.mark.parametrize(
    "told, content",
    [
        ({"content": "file contents"}, "file contents"),
        ({"content": "no", "isError": True}, "no"),
        ({"content": "", "error": "not found"}, '{"content":"","error":"not found"}'),
        (
            {"content": "partial", "exitCode": 1, "stderr": "segfault"},
            '{"content":"partial","exitCode":1,"stderr":"segfault"}',
        ),
        ([], "[]"),
        (None, ""),
    ],
)
async def test_all_data_of_a_result_reaches_the_model(
    told: Any, content: str, caplog: pytest.LogCaptureFixture
) -> None:
    """S2.30 S2.35"""
    storage = InMemoryStorage()
    for stored in (user("Read"), call("c1"), result("c1", told)):
        await storage.append_event("s", stored)
    messages = await SimpleSessionManager(storage).recover_session("s")
    assert messages[-1]["content"][0]["content"] == content
    assert not caplog.messages  # nothing had to be repaired


async def test_a_recovered_response_has_no_keys_that_a_provider_refuses(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """S2.30: they are there for `render`, if asked for."""
    storage = InMemoryStorage()
    origin = {"provider": "anthropic", "model": "claude-x"}
    answer = event("assistant", role="assistant", content="hi", agent="a", **origin)
    for stored in (user("Hello"), answer):
        await storage.append_event("s", stored)
    manager = SimpleSessionManager(storage)
    assert (await manager.recover_session("s"))[1] == {"role": "assistant", "content": "hi"}
    assert caplog.text == ""
    with_origin = await manager.recover_session("s", origins=True)
    assert with_origin[1] == {"role": "assistant", "content": "hi", **origin}
