"""`perdure pending …`: decisions and results, once, from here or beside a worker."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from tests.support.cli_project import Shop


@pytest.fixture
def waiting(shop: Shop) -> Shop:
    """A session `s1` that waits for an approval and for a result."""
    assert shop.run("run", "two", "go", "-s", "s1").exit_code == 8
    return shop


def test_the_list_shows_what_waits_and_for_what(waiting: Shop) -> None:
    """S4.58, S0.47"""
    table = waiting.run("pending", "list").stdout.splitlines()
    assert table[0].split() == ["ID", "CALL", "SESSION", "WAITING", "EXPIRES", "KIND"]
    assert "  refund(order_id=991, cents=4200)  s1  " in table[1]
    assert table[2].endswith("tool (dep_88)")
    listed = waiting.json("pending", "list", "--kind", "approval", "--session", "s1")
    assert (listed["count"], listed["next"], len(listed["pending"])) == (1, None, 1)


def test_the_list_shows_how_calls_were_decided(shop: Shop) -> None:
    for session, words in (("a", ("approve",)), ("b", ("deny",)), ("c", ("pending", "respond"))):
        shop.run("run", "support", "go", "-s", session)
        more = ("--output", "x") if "respond" in words else ()
        assert shop.run(*words, shop.pending("refund"), *more, "--no-run").exit_code == 0
    rows = shop.run("pending", "list", "--status", "all").stdout.splitlines()[1:]
    decided = {words[-4]: words[-3] for words in (row.split() for row in rows)}
    assert decided == {"a": "approved", "b": "denied", "c": "answered"}


def test_statistics_count_calls_and_say_how_fast_people_decided(shop: Shop) -> None:
    empty = shop.run("pending", "stats").stdout.splitlines()
    assert [row.split()[:2] for row in empty[:2]] == [["Created", "0"], ["Settled", "0"]]
    assert empty[3].split() == ["Decided", "0"]
    for session in ("a", "b"):
        shop.run("run", "support", "go", "-s", session)
    assert shop.run("deny", shop.pending("refund"), "--no-run").exit_code == 0
    rows = {row.split()[0]: row for row in shop.run("pending", "stats").stdout.splitlines()}
    assert rows["Created"].split()[1] == "2"
    assert rows["Decided"].split()[1] == "1;"
    report = shop.json("pending", "stats", "--hours", "3")
    assert (len(report["hours"]), report["total"]["created"]) == (3, 2)
    assert shop.run("pending", "stats", "--hours", "0").exit_code == 2


@pytest.mark.parametrize(
    "options, stdin",
    [
        (("--output", "-"), True),
        (("--output-file", "out.txt"), False),
        (("--output-file", "-"), True),
    ],
)
def test_a_long_result_comes_from_stdin_or_a_file(
    waiting: Shop, options: tuple[str, ...], stdin: bool
) -> None:
    text = "ä line\n" * 40_000  # more than an argument of a process may have
    (waiting.folder / "out.txt").write_text(text, "utf-8")
    call = waiting.pending("deploy")
    words = ("pending", "result", call, *options, "--no-run")
    done = waiting.run(*words, stdin=text.encode() if stdin else None)
    assert done.exit_code == 0, done.output
    assert waiting.json("pending", "show", call)["result"]["output"] == text


def test_json_and_errors_come_from_stdin_too(shop: Shop) -> None:
    for session in ("a", "b"):
        shop.run("run", "two", "go", "-s", session)
    first, second = (
        call["id"] for call in shop.json("pending", "list", "--kind", "tool")["pending"]
    )
    words = ("pending", "result", first, "--output-json", "-", "--no-run")
    assert shop.run(*words, stdin=b'{"url": "x"}').exit_code == 0
    assert shop.json("pending", "show", first)["result"]["output"] == {"url": "x"}
    assert shop.run("pending", "error", second, "-", "--no-run", stdin=b"no disk").exit_code == 0
    assert shop.json("pending", "show", second)["error"] == "no disk"


@pytest.mark.parametrize(
    "options, told",
    [
        ((), "give one of --output, --output-json and --output-file"),
        (("--output", "x", "--output-file", "binary"), "is not UTF-8"),
        (("--output-file", "gone"), "cannot be read: No such file"),
        (("--output", "x", "--output-json", "1"), "give one of"),
        (("--output-json", "[" * 100_000), "nested too deeply"),
    ],
)
def test_an_unclear_result_is_refused_and_the_call_stays_open(
    waiting: Shop, options: tuple[str, ...], told: str
) -> None:
    (waiting.folder / "binary").write_bytes(b"\xff")
    call = waiting.pending("deploy")
    refused = waiting.run("pending", "result", call, *options)
    assert refused.exit_code == 2
    assert told in refused.output
    assert waiting.json("pending", "show", call)["status"] == "waiting"


def test_one_call_is_shown_with_what_to_type(waiting: Shop) -> None:
    """S4.62, S0.48"""
    call = waiting.pending("refund")
    shown = waiting.run("pending", "show", call[:12])
    assert f"perdure approve {call}" in shown.stdout
    assert waiting.json("pending", "show", call)["input"] == {"order_id": 991, "cents": 4200}


def test_a_settled_call_is_shown_with_what_became_of_it(waiting: Shop) -> None:
    refund, deploy = waiting.pending("refund"), waiting.pending("deploy")
    waiting.run("deny", refund, "--by", "ana")
    shown = waiting.run("pending", "show", refund).stdout
    assert shown.startswith("refund(order_id=991, cents=4200): Denied by ana on the command line\n")
    waiting.run("pending", "error", deploy, "no disk", "--by", "ci")
    shown = waiting.run("pending", "show", deploy).stdout
    assert shown.startswith("deploy(branch=x): Failed, told by ci on the command line\n")
    lost = waiting.run("pending", "cancel", deploy)
    assert f"Not waiting: deploy ({deploy}) failed, told by ci" in lost.stderr


def test_every_call_of_the_turn_is_settled_before_the_session_goes_on(waiting: Shop) -> None:
    """S0.27, S0.33"""
    approved = waiting.run("approve", waiting.pending("refund"))
    assert approved.exit_code == 0
    assert "paused and saved" in approved.stdout
    given = waiting.run("pending", "result", "@last", "--output", "deployed", "--wait", "--json")
    assert given.exit_code == 0
    assert json.loads(given.stdout)["output"] == "Both done."


def test_wait_exits_as_run_does(waiting: Shop) -> None:
    assert waiting.run("approve", "@last", "--wait").exit_code == 8


def test_only_recording_drives_nothing(waiting: Shop) -> None:
    recorded = waiting.run("approve", "@last", "--no-run")
    assert recorded.exit_code == 0
    assert "perdure sessions resume s1 --app shop:rt" in recorded.stdout
    assert waiting.effects() == []
    waiting.run("worker", "--once")
    assert waiting.effects() == ["refund 4200"]


def test_json_answers_the_settled_call(waiting: Shop) -> None:
    told = waiting.json("approve", "@last", "--by", "ana", "--note", "ok")
    assert told["status"] == "completed"
    assert told["duplicate"] is False
    decision = told["decision"]
    assert (decision["by"], decision["via"], decision["note"]) == ("ana", "cli", "ok")


def test_json_is_one_object_also_where_the_session_goes_on_here(shop: Shop) -> None:
    shop.run("run", "support", "go", "-s", "s1")
    approved = shop.run("approve", "@last", "--json")
    assert json.loads(approved.stdout)["status"] == "completed"
    assert "All done." in approved.stderr


def test_following_shows_the_answer_that_a_quick_worker_already_had(shop: Shop) -> None:
    shop.run("run", "support", "go", "-s", "s1")
    shop.run("approve", "@last")
    again = shop.run("approve", "@last", "--wait")
    assert again.exit_code == 0
    assert again.stdout.count("All done.") == 1


def test_the_same_decision_again_is_no_error(waiting: Shop) -> None:
    """S0.36"""
    call = waiting.pending("refund")
    waiting.run("approve", call, "--by", "ana")
    again = waiting.run("approve", call, "--by", "ana")
    assert again.exit_code == 0
    assert "nothing changed" in again.stdout
    assert waiting.effects() == ["refund 4200"]


def test_a_contrary_decision_is_told_who_won(waiting: Shop) -> None:
    """S4.29, S0.32"""
    call = waiting.pending("refund")
    waiting.run("approve", call, "--by", "ana")
    lost = waiting.run("deny", call, "--by", "bob", "--json")
    assert lost.exit_code == 5
    assert lost.stdout == ""
    told = json.loads(lost.stderr)
    assert told["code"] == "ALREADY_DECIDED"
    assert told["details"]["winner"]["by"] == "ana"


def test_denied_the_call_does_not_run(waiting: Shop) -> None:
    """S4.26"""
    assert waiting.run("deny", "@last", "--reason", "too much").exit_code == 0
    assert waiting.effects() == []
    said = waiting.run("sessions", "show", "s1").stdout
    assert "too much" in said


def test_errors_and_cancellations_settle_a_deferred_call(shop: Shop) -> None:
    """S0.37, S0.40"""
    for session in ("a", "b"):
        shop.run("run", "two", "go", "-s", session)
    calls = {
        one["sessionID"]: one["id"]
        for one in shop.json("pending", "list", "--kind", "tool")["pending"]
    }
    assert shop.run("pending", "error", calls["a"], "no runner").exit_code == 0
    assert shop.run("pending", "cancel", calls["b"]).exit_code == 0
    assert shop.json("pending", "show", calls["a"])["error"] == "no runner"
    assert shop.json("pending", "show", calls["b"])["status"] == "cancelled"
    assert shop.run("pending", "cancel", calls["b"]).exit_code == 5


def test_a_question_is_answered(shop: Shop) -> None:
    """S4.37"""
    asked = shop.run("run", "asks", "hi", "-s", "s1")
    assert "⏸ asks: Which?" in asked.stdout
    answered = shop.run("pending", "respond", "@last", "--output", "the blue one")
    assert "Thanks." in answered.stdout


def test_beside_a_living_worker_a_decision_is_left_to_it(waiting: Shop) -> None:
    """S4.35"""
    worker = waiting.start("worker", "--app", "shop:rt")
    try:
        assert worker.stderr is not None
        assert "1 session waits" in worker.stderr.readline()
        approved = waiting.start("approve", "@last", "--app", "shop:rt")
        out, _ = approved.communicate(timeout=20)
        assert approved.returncode == 0
        assert "It continues here" not in out
        result = waiting.start(
            "pending", "result", "@last", "--output", "ok", "--wait", "--json", "--app", "shop:rt"
        )
        out, err = result.communicate(timeout=20)
        assert result.returncode == 0, err
        assert json.loads(out)["state"] == "completed"
    finally:
        worker.terminate()
        worker.communicate(timeout=20)
    assert waiting.effects() == ["refund 4200"]


def test_a_decision_without_the_code_waits_for_a_worker_that_has_it(waiting: Shop) -> None:
    """S4.33"""
    done = waiting.run("approve", "@last", "--store", "sqlite:///shop.db", app=None)
    assert done.exit_code == 0
    assert "is not defined here" in done.stdout
    assert waiting.run("sessions", "resume", "s1").exit_code == 8
    assert waiting.effects() == ["refund 4200"]


def test_a_tool_that_is_gone_refuses_approval_and_is_found_by_the_check(shop: Shop) -> None:
    """S4.33"""
    shop.run("run", "support", "Refund", "-s", "s1")
    assert shop.run("agents", "check").exit_code == 0
    gone = "shop:without_tools"
    refused = shop.run("approve", "@last", app=gone)
    assert refused.exit_code == 2
    assert "has no tool 'refund' any more" in refused.stderr
    for words in (("pending", "show", "@last"), ("sessions", "show", "s1")):
        lines = shop.run(*words, app=gone).stdout
        assert "TOOL_MISSING" in lines
        assert "perdure approve" not in lines
        assert "perdure deny" in lines
    assert "TOOL_MISSING" in shop.run("pending", "list", app=gone).stdout
    checked = shop.run("agents", "check", app=gone)
    assert checked.exit_code == 1
    assert "TOOL_MISSING" in checked.stdout
    shop.run("approve", "@last", "--no-run")
    assert shop.run("sessions", "resume", "s1", app=gone).exit_code == 8
    shown = shop.run("sessions", "show", "s1", app=gone)
    assert "(TOOL_MISSING)" in shown.stdout.splitlines()[0]
    stuck = shop.json("agents", "check", app=gone)["findings"]
    assert [one["code"] for one in stuck] == ["TOOL_MISSING"]
    assert shop.run("sessions", "resume", "s1").exit_code == 0


def test_agents_are_listed_with_what_is_special_about_their_tools(shop: Shop) -> None:
    listed = {one["name"]: one["tools"] for one in shop.json("agents", "list")["agents"]}
    flags = [tool["flags"] for tool in listed["two"]]
    assert flags == [["approval"], ["deferred"]]
    assert [tool["flags"] for tool in listed["uploads"]] == [["external"]]
    assert "refund  [approval]" in shop.run("agents", "list").stdout


def test_an_approval_is_remembered_listed_and_revoked(shop: Shop) -> None:
    shop.run("run", "support", "Refund 991", "-s", "order-991")
    done = shop.run("approve", "@last", "--remember-as", "refund:order_id=991", "--by", "ana")
    assert done.exit_code == 0
    shown = shop.run("sessions", "permissions", "order-991")
    assert "refund:order_id=991" in shown.stderr + shown.stdout
    (kept,) = shop.json("sessions", "permissions", "order-991")["permissions"]
    assert (kept["rule"], kept["by"]) == ("refund:order_id=991", "ana")
    assert "refund:order_id=991" in shop.run("sessions", "show", "order-991").output
    number = str(kept["number"])
    left = shop.json("sessions", "permissions", "order-991", "--revoke", number)
    assert left["permissions"] == []
    again = shop.run("sessions", "permissions", "order-991", "--revoke", number)
    assert again.exit_code == 3


def test_a_damaged_session_refuses_decisions_until_doctor_has_repaired_it(waiting: Shop) -> None:
    """S4.22"""
    call = waiting.pending("refund")
    with closing(sqlite3.connect(waiting.folder / "shop.db")) as database, database:
        database.execute("update record set data = x'7b' where type = 'agent_start'")
    assert waiting.run("run", "two", "more", "-s", "s1").exit_code == 7
    for words in (("approve", call), ("deny", call), ("sessions", "resume", "s1")):
        refused = waiting.run(*words)
        assert refused.exit_code == 7, refused.output
        assert "failed to load execution state: event" in refused.stderr
        assert "perdure doctor s1 --fix" in refused.stderr
    shown = waiting.run("sessions", "show", "s1")
    assert shown.stdout.startswith("Session s1 has a damaged log: event")
    assert "perdure doctor s1 --fix" in shown.stdout
    assert "approve" not in shown.stdout
    assert waiting.json("sessions", "show", "s1")["error"]["code"] == "STORE_CORRUPT"
    assert waiting.effects() == []
    assert waiting.run("doctor", "s1", "--fix").exit_code == 0
    assert waiting.run("approve", waiting.pending("refund")).exit_code == 0
    assert waiting.effects() == ["refund 4200"]


def test_an_answer_instead_of_an_approval_says_that_the_tool_was_not_run(waiting: Shop) -> None:
    answered = waiting.run("pending", "respond", "@last", "--output", "not today", "--by", "ana")
    assert "✓ answered refund(" in answered.stdout
    assert " by ana; refund was not run, and the model gets this answer" in answered.stdout
    assert waiting.effects() == []


def test_an_approval_after_a_release_with_a_new_argument_says_what_to_type(shop: Shop) -> None:
    shop.run("run", "support", "Refund", "-s", "s1")
    code, old = Path("shop.py").read_text(), "def refund(order_id: int, cents: int)"
    assert old in code
    Path("shop.py").write_text(code.replace(old, f"{old[:-1]}, currency: str)"))
    refused = shop.run("approve", "@last")
    assert refused.exit_code == 2
    assert "currency: is missing" in refused.stderr
    assert "--set currency=…" in refused.stderr
    assert shop.run("approve", "@last", "--set", "currency=EUR").exit_code == 0
