"""Talking with an agent: decisions in between, and nothing lost by leaving."""

import os
import signal
import subprocess

import pytest
from tests.support.cli_project import Shop


def test_a_chat_asks_for_what_waits_and_goes_on(shop: Shop) -> None:
    told = shop.run("chat", "support", "-s", "c", stdin="Refund 991\nyes\n").output
    assert shop.effects() == ["refund 4200"]
    assert "All done." in told
    assert "continue   perdure chat support -s c --app shop:rt" in told


@pytest.mark.parametrize(
    "words", ["do not approve", "disapprove", "approve?", "yes please", "always a b", "", "nope"]
)
def test_only_exact_words_decide(shop: Shop, words: str) -> None:
    """S4.23"""
    told = shop.run("chat", "support", "-s", "c", stdin=f"Refund 991\n{words}\nlater\n")
    assert told.exit_code == 0
    assert shop.effects() == []
    assert shop.json("sessions", "show", "c")["state"] == "waiting"


def test_a_chat_remembers_what_is_always_allowed(shop: Shop) -> None:
    shop.run("chat", "support", "-s", "c", stdin="Refund 991\nalways refund\n")
    assert shop.effects() == ["refund 4200"]
    (kept,) = shop.json("sessions", "permissions", "c")["permissions"]
    assert kept["rule"] == "refund"


def test_a_question_takes_any_answer(shop: Shop) -> None:
    told = shop.run("chat", "asks", "-s", "c", stdin="Hi\n\nthe red one\n").output
    assert "Thanks." in told
    (answer,) = [
        e for e in shop.json("sessions", "events", "c")["events"] if e["type"] == "tool_result"
    ]
    assert answer["data"]["result"] == "the red one"


def test_an_agent_that_is_not_there_is_told(shop: Shop) -> None:
    assert shop.run("chat", "nobody", stdin="").exit_code == 3


def test_a_chat_goes_on_after_ctrl_c(shop: Shop) -> None:
    process = subprocess.Popen(
        shop.command("chat", "support", "-s", "c", "--app", "shop:rt"),
        cwd=shop.folder,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(b"Refund 991\n")
    process.stdin.flush()
    seen = b""
    while b"approve?" not in seen:
        more = os.read(process.stdout.fileno(), 4096)
        assert more, process.stderr and process.stderr.read().decode()
        seen += more
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert b"Session c is saved." in out
    assert b"Traceback" not in err
    assert "All done." in shop.run("chat", "support", "-s", "c", stdin="yes\n").output
    assert shop.effects() == ["refund 4200"]
