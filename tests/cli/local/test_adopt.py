"""`perdure sessions import` of what other programs wrote, and going on with it."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.support.cli_project import Shop
from tests.support.paths import DATA

FILES = ("--store", "files:./sessions")


def put(name: str) -> str:
    shutil.copy(DATA / "foreign" / name, name)
    return name


def test_a_session_that_was_bricked_elsewhere_is_taken_over_and_goes_on(shop: Shop) -> None:
    """S2.42, S2.43, S2.35: see what was wrong, then say something to it."""
    told = shop.run("sessions", "import", put("claude-code.jsonl"), "--agent", "plain", "--as", "x")
    assert told.exit_code == 0, told.output
    lines = told.stdout.splitlines()
    assert lines[0] == "✓ imported x: 16 events (format: claude-code)"
    assert lines[1] == "  line 19 cannot be read and was left out"
    assert lines[4].startswith(
        "  repaired: [incomplete_tool_call] Closed 1 incomplete tool call(s)"
    )
    assert lines[-1].startswith("  continue   perdure run plain '…' -s x")
    again = shop.json("run", "plain", "what now?", "-s", "x")
    assert (again["state"], again["sessionID"]) == ("completed", "x")


@pytest.mark.parametrize(
    "name, session",
    [
        ("codex.jsonl", "0199c0de-0000-7000-8000-00000000c0de"),
        ("opencode.json", "ses_42"),
        ("openai-messages.json", "openai-messages"),
        ("anthropic-request.json", "anthropic-request"),
        ("responses-input.json", "responses-input"),
    ],
)
def test_each_format_goes_on(shop: Shop, name: str, session: str) -> None:
    """S2.40: under the name that it had, or that of its file; S4.10, S4.11: with its files."""
    found = shop.json("sessions", "import", put(name), "--agent", "plain")
    (made,) = found["imported"]
    assert (made["sessionID"], made["agent"]) == (session, "plain")
    assert shop.json("run", "plain", "go on", "-s", session)["state"] == "completed"


def test_a_log_of_events_says_whose_it_is_and_who_else_is_in_it(shop: Shop) -> None:
    """S2.29: what others said in it does not enter the conversation."""
    Path("werewolf").mkdir()
    shutil.copy(DATA / "corpus" / "werewolf-001.jsonl", "werewolf/events.jsonl")
    made = _imported(shop, "werewolf/events.jsonl", *FILES)
    assert (made["sessionID"], made["agent"], made["format"]) == (
        "werewolf",
        "game-master",
        "session-log",
    )
    assert made["others"] == ["werewolf", "seer"]
    seer = _imported(shop, "werewolf/events.jsonl", *FILES, "--agent", "seer", "--as", "seer")
    assert seer["agent"] == "seer"
    log = Path("sessions/seer/events.jsonl").read_text()
    assert '"agent":"werewolf"' not in log


def _imported(shop: Shop, *words: str) -> Any:
    told = shop.run("sessions", "import", *words, "--json", app=None)
    assert told.exit_code == 0, told.output
    return json.loads(told.stdout)["imported"][0]


def test_the_folders_in_which_opencode_keeps_a_session_are_put_together(shop: Shop) -> None:
    whole = json.loads((DATA / "foreign" / "opencode.json").read_text())
    info = Path("storage/session/global/ses_42.json")
    info.parent.mkdir(parents=True)
    info.write_text(json.dumps(whole["info"]))
    for message in whole["messages"]:
        name = message["info"]["id"]
        place = Path("storage/message/ses_42")
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{name}.json").write_text(json.dumps(message["info"]))
        Path(f"storage/part/{name}").mkdir(parents=True)
        for number, part in enumerate(message["parts"]):
            Path(f"storage/part/{name}/prt_{number:03}.json").write_text(json.dumps(part))
    made = _imported(shop, str(info), *FILES, "--agent", "a")
    again = _imported(
        shop, str(DATA / "foreign" / "opencode.json"), *FILES, "--agent", "a", "--as", "b"
    )
    assert made["format"] == again["format"] == "opencode"
    assert made["events"] == again["events"]


def test_whose_session_it_will_be_must_be_known(shop: Shop) -> None:
    told = shop.run("sessions", "import", put("codex.jsonl"), "--json")
    assert told.exit_code == 2
    error = json.loads(told.stderr)
    assert error["code"] == "AGENT_NEEDED"
    assert "support" in error["hint"]


def test_a_session_that_is_there_is_not_changed(shop: Shop) -> None:
    """S2.12"""
    words = ("sessions", "import", put("codex.jsonl"), "--agent", "plain", "--as", "x", "--json")
    assert shop.run(*words).exit_code == 0
    told = shop.run(*words)
    assert (told.exit_code, json.loads(told.stderr)["code"]) == (5, "SESSION_EXISTS")
