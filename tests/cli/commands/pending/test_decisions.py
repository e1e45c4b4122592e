"""Decisions on the command line: several at once, answers, votes, and rules that are remembered."""

from pathlib import Path

import pytest
from tests.support.cli_project import Shop


def test_several_calls_are_approved_in_one_command(shop: Shop) -> None:
    for name in ("a", "b"):
        assert shop.run("run", "support", "go", "-s", name).exit_code == 8
    ids = [call["id"] for call in shop.json("pending", "list")["pending"]]
    approved = shop.run("approve", *ids, "--by", "ana")
    assert approved.exit_code == 0, approved.output
    assert approved.stdout.count("✓ approved refund(order_id=991, cents=4200) by ana") == 2
    assert shop.effects() == ["refund 4200"] * 2
    assert shop.json("sessions", "show", "b")["output"] == "All done."


def test_a_call_that_is_named_twice_is_decided_once(shop: Shop) -> None:
    shop.run("run", "support", "go", "-s", "a")
    call = shop.pending("refund")
    approved = shop.run("approve", call, "@last", call[:8], "--by", "ana")
    assert approved.exit_code == 0, approved.output
    assert approved.stdout.count("✓ approved refund") == 1
    assert shop.effects() == ["refund 4200"]


def test_a_session_continues_although_another_of_its_calls_needs_more_approvals(
    shop: Shop,
) -> None:
    shop.run("run", "mixed", "go", "-s", "s1")
    approved = shop.run("approve", shop.pending("refund"), shop.pending("spend"), "--by", "ana")
    assert "✓ approved spend(cents=7) by ana; 1 more approval needed" in approved.stdout
    assert shop.effects() == ["refund 4200"]


def test_an_approval_with_changes_is_shown_with_them_while_others_are_missing(shop: Shop) -> None:
    shop.run("run", "mixed", "go", "-s", "s1")
    call = shop.pending("spend")
    first = shop.run("approve", call, "--set", "cents=3", "--by", "ana")
    assert "✓ approved spend(cents=3) by ana  (cents 7 → 3); 1 more approval needed" in first.stdout
    shown = shop.run("pending", "show", call).stdout
    assert "spend(cents=7) needs 1 more approval (approved by ana with cents=3)" in shown
    other = shop.run("approve", call, "--by", "ben")
    assert other.exit_code == 5
    assert 'with other arguments: {"cents": 3}' in other.stderr
    assert shop.run("approve", call, "--set", "cents=3", "--by", "ben").exit_code == 0
    listed = shop.run("pending", "list", "--status", "all", "--tool", "spend").stdout
    assert "approved" in listed
    assert "completed" not in listed


def test_an_approver_who_repeats_an_approval_after_a_denial_is_told(shop: Shop) -> None:
    shop.run("run", "votes", "go", "-s", "s1")
    call = shop.pending("payout")
    shop.run("approve", call, "--by", "ana")
    shop.run("deny", call, "--by", "ben", "--no-run")
    again = shop.run("approve", call, "--by", "ana")
    assert again.exit_code == 5
    assert "was denied by ben" in again.stderr


def test_last_is_refused_where_it_could_mean_calls_of_two_sessions(shop: Shop) -> None:
    for name in ("a", "b"):
        shop.run("run", "support", "go", "-s", name)
    refused = shop.run("approve", "@last")
    assert refused.exit_code == 2
    assert "@last is not clear: 2 sessions have open calls: " in refused.stderr
    for call in shop.json("pending", "list")["pending"]:
        assert f"{call['id']} (refund, session {call['sessionID']})" in refused.stderr
    assert shop.effects() == []


def test_last_is_the_newest_call_of_the_only_session(shop: Shop) -> None:
    shop.run("run", "support", "go", "-s", "a")
    assert shop.run("approve", "@last").exit_code == 0
    assert shop.effects() == ["refund 4200"]


def test_help_explains_last(shop: Shop) -> None:
    for words in (("approve",), ("deny",), ("pending",)):
        told = " ".join(shop.run(*words, "--help", app=None).stdout.split())
        assert "@last is the newest open call of the session that this terminal used last" in told


def test_the_text_of_an_approval_prompt_is_shown_where_the_pause_is_saved(shop: Shop) -> None:
    app = (
        Path("shop.py")
        .read_text()
        .replace(
            "@tool(requires_approval=True)",
            '@tool(requires_approval=True, approval_prompt="Pay {input}?")',
        )
    )
    Path("shop.py").write_text(app)
    paused = shop.run("run", "support", "go", "-s", "a").stdout
    text = 'needs approval: Pay {"order_id": 991, "cents": 4200}?'
    assert paused.count(text) == 2
    assert text in shop.run("sessions", "show", "a").stdout
    assert text in shop.run("pending", "show", "@last").stdout


def test_if_one_of_several_cannot_be_decided_none_is(shop: Shop) -> None:
    shop.run("run", "two", "go", "-s", "s1")
    refund, deploy = shop.pending("refund"), shop.pending("deploy")
    refused = shop.run("deny", refund, deploy)
    assert refused.exit_code == 5
    assert shop.json("pending", "show", refund)["status"] == "waiting"
    clash = shop.run("approve", refund, deploy, "--set", "cents=1")
    assert clash.exit_code == 2
    assert "give one ID" in clash.output


def test_a_typed_answer_must_fit_the_choices_or_the_schema(shop: Shop) -> None:
    shop.run("run", "chooses", "go", "-s", "s1")
    refused = shop.run("pending", "respond", "@last", "--output", "green")
    assert refused.exit_code == 2
    assert "'green' is not one of the choices: red, blue" in refused.output
    answered = shop.json("pending", "respond", "@last", "--output", "2")
    assert answered["decision"]["output"] == "blue"  # by its number
    refused = shop.run("pending", "respond", "@last", "--output", "many")
    assert "the answer must be integer" in refused.output
    answered = shop.json("pending", "respond", "@last", "--output", "12")
    assert answered["decision"]["output"] == 12


def test_an_answer_can_be_given_as_json(shop: Shop) -> None:
    shop.run("run", "chooses", "go", "-s", "s1")
    assert shop.run("pending", "respond", "@last", "--output-json", "nope").exit_code == 2
    assert shop.run("pending", "respond", "@last").exit_code == 2
    answered = shop.json("pending", "respond", "@last", "--output-json", '"red"')
    assert answered["decision"]["output"] == "red"


def test_the_terminal_lists_choices_and_asks_again_after_a_wrong_answer(shop: Shop) -> None:
    played = shop.run("chat", "chooses", "-s", "c", stdin="go\ngreen\n1\nx\n3\n")
    assert "  1  red\n" in played.output
    assert "'green' is not one of the choices" in played.output
    assert "the answer must be integer" in played.output
    assert shop.json("sessions", "show", "c")["output"] == "Thanks."


def test_two_people_must_approve_and_the_missing_one_is_shown(shop: Shop) -> None:
    shop.run("run", "votes", "go", "-s", "s1")
    call = shop.pending("payout")
    first = shop.run("approve", call, "--by", "ana")
    assert first.exit_code == 0
    assert "approved payout(cents=7) by ana; 1 more approval needed" in first.stdout
    again = shop.run("approve", call, "--by", "ana")
    assert "already approved payout(cents=7) by ana; nothing changed; 1 more" in again.stdout
    assert "1 more approval (approved by ana)" in shop.run("pending", "show", call).stdout
    assert "1 more approval (approved by ana)" in shop.run("sessions", "show", "s1").stdout
    assert shop.run("pending", "respond", call, "--output", "x").exit_code == 2
    shop.run("approve", call, "--by", "ben")
    assert shop.json("sessions", "show", "s1")["output"] == "Paid."


@pytest.mark.parametrize("verb, effect", [("approve", "allow"), ("deny", "deny")])
def test_a_rule_for_every_tool_needs_a_confirmation(shop: Shop, verb: str, effect: str) -> None:
    shop.run("run", "support", "go", "-s", "s1")
    refused = shop.run(verb, "@last", "--remember-as", "*")
    assert refused.exit_code == 2
    assert "--yes" in refused.output
    assert shop.run(verb, "@last", "--remember-as", "*", "--yes").exit_code == 0
    (permission,) = shop.json("sessions", "permissions", "s1")["permissions"]
    assert (permission["rule"], permission["effect"]) == ("*", effect)


def test_a_chat_asks_before_it_remembers_a_rule_for_every_tool(shop: Shop) -> None:
    played = shop.run("chat", "support", "-s", "c", stdin="go\nnever *\nno\nnever *\nyes\n")
    assert played.output.count("covers every tool of the session. Sure?") == 2
    (permission,) = shop.json("sessions", "permissions", "c")["permissions"]
    assert (permission["rule"], permission["effect"]) == ("*", "deny")
