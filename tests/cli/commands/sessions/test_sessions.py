"""`perdure sessions …`: finding, listing, showing, exporting, cancelling."""

import json
import shlex
import signal
import time

import pytest
from tests.support.cli_project import Shop

DEADLY = {"DIE": "1", "PERDURE_LEASE": "1s"}


@pytest.fixture
def three(shop: Shop) -> Shop:
    """`order-1` completed, then `order-2` waiting, then `other` failed."""
    shop.run("run", "plain", "first", "-s", "order-1")
    shop.run("run", "support", "second", "-s", "order-2")
    shop.run("run", "broke", "third", "-s", "other")
    return shop


def test_the_table_has_the_newest_first(three: Shop) -> None:
    rows = three.run("sessions", "list").stdout.splitlines()[1:]
    assert [row.split()[0] for row in rows] == ["other", "order-2", "order-1"]
    assert [row.split()[2] for row in rows] == ["failed", "waiting", "completed"]


@pytest.mark.parametrize(
    "options,found",
    [
        (["--state", "waiting"], ["order-2"]),
        (["--agent", "broke"], ["other"]),
        (["--search", "SECOND"], ["order-2"]),
        (["--older", "1h"], []),
    ],
)
def test_lists_can_be_narrowed(three: Shop, options: list[str], found: list[str]) -> None:
    listed = three.json("sessions", "list", *options)
    assert [one["sessionID"] for one in listed["sessions"]] == found
    assert listed["next"] is None
    rows = three.run("sessions", "list", *options).stdout.splitlines()[1:]
    assert [row.split()[0] for row in rows] == found


def test_a_list_has_as_many_of_the_newest_as_its_limit(three: Shop) -> None:
    listed = three.run("sessions", "list", "--limit", "2").stdout.splitlines()
    assert [row.split()[0] for row in listed[1:-1]] == ["other", "order-2"]
    assert listed[-1].startswith("There are more: perdure sessions list --limit 2 --after ")
    found = three.json("sessions", "list", "--limit", "1")
    assert [session["sessionID"] for session in found["sessions"]] == ["other"]
    assert len(three.run("sessions", "list", "--limit", "3").stdout.splitlines()) == 4
    assert three.json("sessions", "list", "--limit", "3")["next"] is None
    assert three.run("sessions", "list", "--limit", "0").exit_code == 2


def test_a_list_continues_with_the_command_that_it_prints(three: Shop) -> None:
    options = ("--search", "or", "--older", "1ms", "--limit", "1")
    printed = three.run("sessions", "list", *options).stdout.splitlines()
    assert printed[1].split()[0] == "order-2"
    command = shlex.split(printed[-1].removeprefix("There are more: perdure "))
    assert command[2:8] == list(options)
    rest = three.run(*command).stdout.splitlines()
    assert [row.split()[0] for row in rest[1:]] == ["order-1"]
    wrong = three.run("sessions", "list", "--after", "nowhere", "--json")
    assert (wrong.exit_code, json.loads(wrong.stderr)["code"]) == (2, "CURSOR_INVALID")


def test_ids_may_be_shortened_while_they_are_unique(three: Shop) -> None:
    assert three.json("sessions", "show", "ot")["sessionID"] == "other"
    assert three.json("sessions", "show", "@last")["sessionID"] == "other"
    unclear = three.run("sessions", "show", "order", "--json")
    assert unclear.exit_code == 2
    told = json.loads(unclear.stderr)
    assert told["code"] == "AMBIGUOUS_ID"
    assert told["details"]["candidates"] == ["order-1", "order-2"]


def test_a_session_is_shown_with_why_it_does_not_move(three: Shop) -> None:
    """S4.62"""
    completed = three.run("sessions", "show", "order-1").stdout.splitlines()
    assert completed[0] == "Session order-1 is completed."
    waits = three.run("sessions", "show", "order-2").stdout
    assert waits.startswith("Session order-2 waits for 1 decision.")
    assert "perdure approve p_" in waits.splitlines()[2]
    assert "assistant  I would refund it." in waits
    failed = three.run("sessions", "show", "other").stdout.splitlines()
    assert failed[0] == "Session other failed: no more credit"
    assert "perdure sessions resume other" in failed[2]


def test_a_worker_that_died_is_not_shown_as_the_driver_for_ever(shop: Shop) -> None:
    """S0.81"""
    died = shop.start("run", "dies", "hi", "-s", "s1", "--app", "shop:rt", **DEADLY)
    died.communicate(timeout=20)
    assert died.returncode == 9
    end = time.monotonic() + 10
    while "(NO_WORKER)" not in (shown := shop.run("sessions", "show", "s1").stdout):
        assert time.monotonic() < end, shown
    assert shop.run("worker", "--once").exit_code == 0
    shown = shop.run("sessions", "show", "s1").stdout
    assert "(START_INTERRUPTED)" in shown.splitlines()[0]
    assert "perdure pending result p_" in shown
    assert "START_INTERRUPTED" in shop.run("pending", "list").stdout


def test_following_prints_what_comes_a_json_line_each(three: Shop) -> None:
    follower = three.start(
        "sessions", "events", "order-2", "--follow", "--json", "--app", "shop:rt"
    )
    try:
        assert follower.stdout is not None
        assert json.loads(follower.stdout.readline())["type"] == "user"
        three.run("approve", "@last")
        types = []
        while "agent_complete" not in types:
            types.append(json.loads(follower.stdout.readline())["type"])
        assert "decision" in types
        follower.send_signal(signal.SIGINT)
        follower.communicate(timeout=20)
        assert follower.returncode == 130
    finally:
        follower.kill()


def test_an_unknown_agent_is_said(shop: Shop) -> None:
    shop.run("run", "plain", "hi", "-s", "s1", "--detach")
    shown = shop.run("sessions", "show", "s1", app="shop:strangers")
    assert "agent 'plain' is not known here (AGENT_UNKNOWN)" in shown.stdout.splitlines()[0]


def test_events_and_export_give_the_log(three: Shop) -> None:
    events = three.json("sessions", "events", "order-1")["events"]
    exported = three.run("sessions", "export", "order-1").stdout.splitlines()[1:-1]
    names = ("seq", "type", "timestamp", "data")
    assert [json.loads(one) for one in exported] == [
        {name: event[name] for name in names} for event in events
    ]
    assert {*names, "pos", "sessionID", "tenant"} == set(events[0])
    after = three.run("sessions", "events", "order-1", "--after", "2").stdout
    assert after.splitlines()[0].split()[0] == "3"


def test_a_cancelled_session_begins_nothing(three: Shop) -> None:
    """S4.38"""
    call = three.pending("refund")
    assert three.run("sessions", "cancel", "order-2", "--reason", "no need").exit_code == 0
    assert three.run("approve", call).exit_code == 5
    assert three.effects() == []
    assert "already" in three.run("sessions", "cancel", "order-2").stdout


def test_tenants_see_only_their_own(shop: Shop) -> None:
    shop.run("run", "plain", "hi", "-s", "s1", "--tenant", "acme")
    assert shop.run("sessions", "show", "s1", "--tenant", "other").exit_code == 3
    assert shop.json("sessions", "show", "s1", "--tenant", "acme")["tenant"] == "acme"
    assert shop.json("sessions", "show", "s1")["tenant"] == "acme"
    shop.run("run", "plain", "hi", "-s", "s1")
    assert shop.json("sessions", "show", "s1")["tenant"] == ""
    shop.run("run", "plain", "hi", "-s", "s2", "--tenant", "acme")
    shop.run("run", "plain", "hi", "-s", "s2", "--tenant", "bold")
    unclear = shop.run("sessions", "show", "s2")
    assert unclear.exit_code == 2
    assert "--tenant" in unclear.stderr


def test_a_fork_has_no_open_call_and_goes_on_by_itself(three: Shop) -> None:
    made = three.json("sessions", "fork", "order-2", "--as", "copy")
    assert (made["sessionID"], made["state"], made["pending"]) == ("copy", "pending", [])
    shown = three.run("sessions", "show", "copy").stdout
    assert shown.startswith("Session copy was forked or imported, and has not been continued yet.")
    went_on = three.run("sessions", "resume", "copy")
    assert went_on.exit_code == 8
    assert three.json("sessions", "show", "order-2")["pending"][0]["sessionID"] == "order-2"
    assert len(three.json("pending", "list", "--tool", "refund")["pending"]) == 2
    assert three.effects() == []


def test_a_fork_can_be_run_at_once(three: Shop) -> None:
    said = three.run("sessions", "fork", "order-2", "--as", "a", "--run", "Tell me more")
    assert "forked order-2 at event" in said.stdout
    assert said.exit_code == 8
    assert three.run("sessions", "fork", "order-1", "--at", "1", "--run").exit_code == 0
    taken = three.run("sessions", "fork", "order-2", "--as", "a")
    assert taken.exit_code == 5
    assert three.run("sessions", "fork", "none").exit_code == 3


def test_a_session_is_deleted_only_on_purpose(three: Shop) -> None:
    asked = three.run("sessions", "delete", "order-2")
    assert asked.exit_code == 2
    assert "--yes" in asked.stderr
    call = three.pending("refund")
    assert three.json("sessions", "delete", "order-2", "--yes")["deleted"] is True
    assert three.run("sessions", "show", "order-2").exit_code == 3
    assert three.run("approve", call).exit_code == 3


def test_the_state_of_a_paused_run_is_shown(shop: Shop) -> None:
    """S4.62"""
    shop.run("run", "support", "Refund 991", "-s", "order-991")
    told = shop.run("sessions", "state", "order-991").output
    for text in ("needs approval", "paused for", "2 turns", "Query    Refund 991"):
        assert text in told
    said = shop.json("sessions", "state", "order-991")
    (state,) = said["pending_executions"].values()
    assert state["pending_tool_call"]["name"] == "refund"
    assert state["execution_state"]["reasoning_state"]["iteration"] == 2
    assert said["age"] >= 0
    assert len(said["pending"]) == 1
    shop.run("approve", "@last")
    assert shop.json("sessions", "state", "order-991")["pending_executions"] == {}


def test_a_session_is_summarised_by_hand(shop: Shop) -> None:
    for _ in range(3):
        assert shop.run("run", "plain", "Hello?", "-s", "talk").exit_code == 0
    said = shop.run("sessions", "compact", "talk", "--keep", "1", "--instructions", "Briefly.")
    assert said.exit_code == 0
    assert "✓ talk continues from a summary of the events up to " in said.stdout
    events = shop.json("sessions", "events", "talk")["events"]
    (asked,) = [one["data"] for one in events if one["type"] == "compaction_requested"]
    assert (asked["keep"], asked["instructions"]) == (1, "Briefly.")
    assert shop.json("sessions", "compact", "talk", "--keep", "0")["compaction"] is None
    again = shop.run("sessions", "compact", "talk")
    assert (again.exit_code, "nothing to summarize" in again.stderr) == (5, True)


def test_a_summary_without_the_agent_is_left_to_a_worker(shop: Shop) -> None:
    for _ in range(3):
        assert shop.run("run", "plain", "Hello?", "-s", "talk").exit_code == 0
    alone = ("--store", "sqlite:///shop.db")
    said = shop.run("sessions", "compact", "talk", *alone, app=None)
    assert said.exit_code == 0
    assert "A worker will summarize it." in said.stdout
    shown = shop.run("sessions", "show", "talk", *alone, app=None).stdout
    assert "A summary was requested, but no worker has taken the session (NO_WORKER)" in shown
    assert shop.run("worker", "--once").exit_code == 0
    events = shop.json("sessions", "events", "talk")["events"]
    assert [one["type"] for one in events if one["type"].startswith("compact")] == [
        "compaction_requested",
        "compacted",
    ]


def test_the_list_shows_the_state_of_sessions_whose_log_it_does_not_read(shop: Shop) -> None:
    assert shop.run("run", "support", "go", "-s", "s1").exit_code == 8
    row = next(line for line in shop.run("sessions", "list").stdout.splitlines() if "s1" in line)
    assert "waiting" in row
    assert "failed" not in row
