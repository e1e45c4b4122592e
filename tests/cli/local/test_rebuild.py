"""`perdure doctor --fix`: it says what becomes of each call before it rebuilds a session."""

import json
import os
import pty
import sqlite3
import subprocess
from pathlib import Path

import pytest
from tests.support.cli_project import Shop

GATE = "type = 'pending'"


def lose(where: str, *, entries: bool = False) -> None:
    with sqlite3.connect("shop.db", isolation_level=None) as raw:
        raw.execute(f"DELETE FROM record WHERE {where}")  # noqa: S608
        if entries:
            raw.execute("DELETE FROM entry WHERE kind = 'pending'")
    raw.close()


@pytest.fixture
def waits(shop: Shop) -> Shop:
    """`s1` has looked up its order and waits for the approval of a refund."""
    shop.run("run", "support", "Refund", "-s", "s1")
    return shop


def test_a_gated_call_whose_record_is_lost_waits_as_before(waits: Shop) -> None:
    """G7"""
    call = waits.pending("refund")
    lose(GATE)
    fixed = waits.run("doctor", "s1", "--fix")
    assert f"refund ({call}) waits as before" in fixed.stdout
    assert waits.run("worker", "--once").exit_code == 0
    assert waits.effects() == []
    assert waits.run("approve", call).exit_code == 0
    assert waits.effects() == ["refund 4200"]


def test_a_gated_call_of_which_only_the_request_is_left_is_asked_about_again(waits: Shop) -> None:
    """G7: it may have been denied, or have run."""
    before = waits.pending("refund")
    lose(GATE, entries=True)
    fixed = waits.run("doctor", "s1", "--fix")
    assert "refund (" in fixed.stdout
    assert "may have run: it is not started" in fixed.stdout
    assert waits.run("worker", "--once").exit_code == 0
    assert waits.effects() == []
    after = waits.pending("refund")
    assert after != before
    assert waits.json("pending", "show", after)["reason"] == "interrupted"
    assert waits.run("approve", after).exit_code == 0
    assert waits.effects() == ["refund 4200"]


def test_a_dry_run_says_what_would_become_of_each_call_and_changes_nothing(waits: Shop) -> None:
    lose(GATE)
    before = Path("shop.db").read_bytes()
    told = waits.run("doctor", "s1", "--dry-run")
    assert told.exit_code == 7
    assert "waits as before" in told.stdout
    shown = json.loads(waits.run("doctor", "s1", "--fix", "--dry-run", "--json").stdout)
    (session,) = shown["mended"]
    assert (session["original"], session["calls"][0]["outcome"]) == (None, "waits")
    assert Path("shop.db").read_bytes() == before
    assert waits.run("doctor", "s1").exit_code == 7


def at_terminal(shop: Shop, answer: str, *words: str) -> str:
    """Run a command at a terminal, type an answer, and return what it printed."""
    master, terminal = pty.openpty()
    process = subprocess.Popen(
        shop.command(*words, "--app", "shop:rt"),
        stdin=terminal,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    os.close(terminal)
    os.write(master, f"{answer}\n".encode())
    output, _ = process.communicate(timeout=60)
    os.close(master)
    return output.decode()


def test_at_a_terminal_the_fix_asks_before_it_changes_anything(waits: Shop) -> None:
    lose(GATE)
    output = at_terminal(waits, "n", "doctor", "s1", "--fix")
    assert output.index("waits as before") < output.index("Rebuild s1? [y/N]")
    assert waits.run("doctor", "s1").exit_code == 7
    assert "rebuilt s1" in at_terminal(waits, "y", "doctor", "s1", "--fix")
    assert waits.run("doctor", "s1").exit_code == 0


@pytest.mark.parametrize("way_out", ["fix", "import"])
def test_a_run_that_may_have_lost_a_call_is_failed_and_not_repeated(
    waits: Shop, way_out: str
) -> None:
    """G3: everything after the first message is lost."""
    lose("seq > 2", entries=True)
    if way_out == "fix":
        fixed = waits.run("doctor", "s1", "--fix")
    else:
        exported = waits.run("sessions", "export", "s1", "--secrets")
        assert exported.exit_code == 7
        waits.run("sessions", "delete", "s1", "--yes")
        Path("s1.jsonl").write_text(exported.stdout)
        fixed = waits.run("sessions", "import", "s1.jsonl")
    assert "its run fails with EVENTS_LOST" in fixed.stdout
    assert waits.run("worker", "--once").exit_code == 0
    shown = waits.json("sessions", "show", "s1")
    assert (shown["state"], shown["error"]["code"]) == ("failed", "EVENTS_LOST")
    assert waits.effects() == []


def test_a_message_key_is_kept_with_the_session(waits: Shop) -> None:
    """G3: a program that starts again does not send a lost message once more."""
    waits.run("run", "support", "Refund", "-s", "s2", "--key", "start")
    lose("seq = 1 AND sid = (SELECT max(sid) FROM stream WHERE kind = 'session:support')")
    assert waits.run("doctor", "s2", "--fix").exit_code == 0
    waits.run("run", "support", "Refund", "-s", "s2", "--key", "start")
    users = [e for e in waits.json("sessions", "events", "s2")["events"] if e["type"] == "user"]
    assert [event["data"]["by"] for event in users] == ["perdure:recovery"]
