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


@pytest.mark.parametrize(
    "reply, effect",
    [
        ("edit cents=4000", "refund 4000"),
        ('edit {"cents": 3900}', "refund 3900"),
        ("EDIT cents=1 order_id=2", "refund 1"),
    ],
)
def test_an_approver_edits_the_arguments_at_the_prompt(shop: Shop, reply: str, effect: str) -> None:
    shop.run("chat", "support", "-s", "c", stdin=f"Refund 991\n{reply}\n")
    assert shop.effects() == [effect]
    (call,) = shop.json("pending", "list", "--status", "all")["pending"]
    assert call["decision"]["args"]


@pytest.mark.parametrize(
    "reply", ["no because it is late", "deny: it is late", "No, it is late", "n: it is late"]
)
def test_the_model_gets_the_reason_of_a_denial_at_the_prompt(shop: Shop, reply: str) -> None:
    shop.run("chat", "support", "-s", "c", stdin=f"Refund 991\n{reply}\n")
    assert shop.effects() == []
    (call,) = shop.json("pending", "list", "--status", "all")["pending"]
    assert (call["decision"]["kind"], call["decision"]["reason"]) == ("deny", "it is late")


@pytest.mark.parametrize("reply, output", [('{"ok": true}', {"ok": True}), ("by hand", "by hand")])
def test_an_approver_responds_at_the_prompt(shop: Shop, reply: str, output: object) -> None:
    shop.run("chat", "support", "-s", "c", stdin=f"Refund 991\nrespond {reply}\n")
    assert shop.effects() == []
    (call,) = shop.json("pending", "list", "--status", "all")["pending"]
    assert call["decision"]["output"] == output


@pytest.mark.parametrize(
    "reply, told",
    [
        ("edit dollars=1", "dollars"),
        ("edit cents=much", "cents"),
        ("edit cents", "'cents' is not of the form KEY=VALUE"),
        ("edit {cents}", "is not valid JSON"),
        ("edit", "type one of yes, no, edit, respond, always, never, later; help explains them"),
        ("help", "no, no because REASON   do not run it; the model gets the reason"),
        ("show", '{"order_id": 991, "cents": 4200}'),
    ],
)
def test_a_reply_that_decides_nothing_is_answered_and_asked_again(
    shop: Shop, reply: str, told: str
) -> None:
    played = shop.run("chat", "support", "-s", "c", stdin=f"Refund 991\n{reply}\nlater\n")
    assert told in played.output
    assert played.output.count("approve? [") == 2
    assert shop.effects() == []


def test_a_prompt_offers_only_the_decisions_that_the_call_allows(shop: Shop) -> None:
    played = shop.run("chat", "votes", "-s", "c", stdin="go\nedit cents=1\nlater\n")
    assert "approve? [yes/no/never/later]" in played.output
    assert played.output.count("approve? [") == 2  # an edit is refused, and asked again
    assert shop.json("sessions", "show", "c")["state"] == "waiting"


def test_later_leaves_one_call_and_the_others_are_asked_about(shop: Shop) -> None:
    played = shop.run("chat", "mixed", "-s", "c", stdin="go\nlater\nno\n").output
    assert shop.effects() == []
    calls = shop.json("pending", "list", "--status", "all")["pending"]
    decided = {call["tool"]: call["decision"] and call["decision"]["kind"] for call in calls}
    assert decided == {"refund": None, "spend": "deny"}
    paused = played.partition("Session c waits for 1 decision.")[2]
    assert "refund(" in paused
    assert "spend(" not in paused


def test_what_was_approved_runs_although_another_call_is_left_for_later(shop: Shop) -> None:
    played = shop.run("chat", "mixed", "-s", "c", stdin="go\nyes\nlater\n").output
    assert shop.effects() == ["refund 4200"]
    assert "Session c waits for 1 decision." in played
    assert played.count("⏸ Run spend") == 1  # it is not asked about again


def test_one_approval_of_several_is_shown_with_what_is_missing(shop: Shop) -> None:
    played = shop.run("chat", "votes", "-s", "c", "--by", "ana", stdin="go\nyes\n").output
    assert "recorded; 1 more approval needed" in played
    assert "payout(cents=7) needs 1 more approval (approved by ana)" in played


def test_a_tool_that_asks_offers_nothing_to_remember_and_runs_again(shop: Shop) -> None:
    played = shop.run("chat", "sends", "-s", "c", stdin="go\na2\nyes\n").output
    assert "approve? [yes/no/edit/respond/later]" in played
    assert "send(cents=7) runs again from its beginning, with the answer" in played
    assert "send(cents=7) runs again from its beginning, with the approval" in played
    assert "attempt" not in played
    assert "Sent." in played


def test_a_chat_begins_with_its_session_and_explains_its_commands(shop: Shop) -> None:
    played = shop.run("chat", "plain", "-s", "c", stdin="/help\n/hepl\n/exit\nhi\n")
    assert played.output.startswith("Session c with plain. /help lists the commands")
    assert "/exit   leave" in played.output
    assert "/hepl is not a command" in played.output
    assert shop.run("sessions", "show", "c").exit_code == 3  # nothing was sent


@pytest.mark.parametrize("word", ["exit", "quit", "/quit", "/exit", "EXIT"])
def test_words_that_leave_a_chat(shop: Shop, word: str) -> None:
    assert "Hello" not in shop.run("chat", "plain", "-s", "c", stdin=f"{word}\nhi\n").output


def test_a_question_can_be_declined(shop: Shop) -> None:
    shop.run("chat", "asks", "-s", "c", stdin="Hi\n/deny not now\n")
    (call,) = shop.json("pending", "list", "--status", "all")["pending"]
    assert (call["decision"]["kind"], call["decision"]["reason"]) == ("deny", "not now")


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
