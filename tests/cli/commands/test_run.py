"""`perdure run`, `sessions resume`, `worker`: what is printed, and how it ends."""

import json
import signal
from pathlib import Path

from tests.support.cli_project import Shop, until
from tests.support.findings import code_of


def test_a_run_that_waits_says_that_it_is_saved_and_what_to_type(shop: Shop) -> None:
    """S4.2, S0.28"""
    ran = shop.run("run", "support", "Refund order 991", "-s", "order-991")
    assert ran.exit_code == 8
    assert "✓ lookup_order(order_id=991)" in ran.stdout
    assert "⏸ refund(order_id=991, cents=4200) needs approval" in ran.stdout
    assert "order-991 is paused and saved. No process needs to run." in ran.stdout
    assert f"perdure approve {shop.pending('refund')} --app shop:rt" in ran.stdout


def test_a_deferred_call_is_shown_with_its_reference_and_deadline(shop: Shop) -> None:
    """S0.24"""
    ran = shop.run("run", "two", "go")
    assert (
        "⏳ deploy(branch=x) waits for its result (external ref dep_88), expires in 24h"
        in ran.stdout
    )


def test_an_external_call_is_shown_as_soon_as_it_waits(shop: Shop) -> None:
    ran = shop.run("run", "uploads", "go", "-s", "s1")
    assert ran.exit_code == 8
    assert "⏳ upload(name=orders.csv) waits for its result, expires in 2h" in ran.stdout
    assert "s1 is paused and saved. No process needs to run." in ran.stdout
    assert f"perdure pending result {shop.pending('upload')}" in ran.stdout
    assert shop.run("doctor").exit_code == 0
    settled = shop.run("pending", "result", shop.pending("upload"), "--output", "a,b")
    assert "✓ recorded the result of upload(name=orders.csv)" in settled.stdout
    assert "Read." in settled.stdout


def test_a_run_that_ends_exits_with_0_and_its_text(shop: Shop) -> None:
    ran = shop.run("run", "plain", "hi")
    assert ran.exit_code == 0
    assert ran.stdout.splitlines()[0] == "Hello there."


def test_quiet_leaves_only_the_answer(shop: Shop) -> None:
    assert shop.run("run", "plain", "hi", "-q").stdout == "Hello there.\n"


def test_with_json_stdout_is_the_session_alone(shop: Shop) -> None:
    ran = shop.run("--json", "run", "support", "Refund", "-s", "s1")
    session = json.loads(ran.stdout)
    assert ran.exit_code == 8
    assert (session["sessionID"], session["state"]) == ("s1", "waiting")
    assert session["status"]["type"] == "waiting_async"
    assert "needs approval" in ran.stderr


def test_the_whole_way_from_a_pause_to_the_end(shop: Shop) -> None:
    """S4.25, S4.27"""
    assert shop.run("run", "support", "Refund", "-s", "s1").exit_code == 8
    approved = shop.run("approve", "@last", "--set", "cents=4000", "--by", "ana")
    assert approved.exit_code == 0
    assert "approved refund(order_id=991, cents=4000) by ana" in approved.stdout
    assert "cents 4200 → 4000" in approved.stdout
    assert "All done." in approved.stdout
    assert shop.effects() == ["refund 4000"]
    assert shop.run("sessions", "resume", "s1").exit_code == 0


def test_a_failed_run_exits_with_1_and_says_how_to_try_again(shop: Shop) -> None:
    ran = shop.run("run", "broke", "hi", "-s", "s1")
    assert ran.exit_code == 1
    assert "Session s1 failed: no more credit" in ran.stdout
    assert "perdure sessions resume s1" in ran.stdout
    assert shop.run("sessions", "resume", "s1").exit_code == 1


def test_the_same_key_sends_a_message_once(shop: Shop) -> None:
    for _ in range(2):
        ran = shop.run("run", "plain", "hi", "-s", "s1", "--key", "k")
        assert (ran.exit_code, ran.stdout.splitlines()[0]) == (0, "Hello there.")
    events = shop.json("sessions", "events", "s1")["events"]
    assert [event["type"] for event in events].count("user") == 1


def test_a_message_to_a_waiting_session_is_said_to_be_kept(shop: Shop) -> None:
    kept = "A later message is queued until then."
    assert kept not in shop.run("run", "support", "Refund", "-s", "s1").stdout
    assert kept in shop.run("run", "support", "Hurry", "-s", "s1").stdout
    assert kept in shop.run("sessions", "show", "s1").stdout
    assert kept not in shop.run("approve", "@last").stdout


def test_an_empty_session_id_is_no_wish_for_a_new_session(shop: Shop) -> None:
    ran = shop.run("run", "plain", "hi", "-s", "")
    assert (ran.exit_code, ran.stderr.splitlines()[0]) == (2, "error: '' cannot be a session id")


def test_prompt_files_and_metadata_reach_the_session(shop: Shop) -> None:
    Path("note.txt").write_text("a note")
    meta = '{"team": "red"}'
    words = ("run", "plain", "-", "-s", "s1", "--file", "note.txt", "--metadata", meta)
    assert shop.run(*words, stdin="from stdin").exit_code == 0
    assert shop.json("sessions", "show", "s1")["metadata"] == {"team": "red"}
    said = shop.json("sessions", "events", "s1")["events"][1]["data"]["content"]
    assert said[0] == {"type": "text", "text": "from stdin"}
    assert said[1]["name"] == "note.txt"


def test_detached_the_message_waits_for_a_worker(shop: Shop) -> None:
    ran = shop.run("run", "plain", "hi", "-s", "s1", "--detach")
    assert ran.exit_code == 0
    assert "perdure worker --app shop:rt" in ran.stdout
    shown = shop.run("sessions", "show", "s1")
    assert shown.stdout.splitlines()[0] == "Session s1 is due, and no worker drives it (NO_WORKER)."
    assert shop.run("worker", "--once").exit_code == 0
    assert shop.json("sessions", "show", "s1")["state"] == "completed"


def test_a_store_alone_records_and_says_what_to_start(shop: Shop) -> None:
    ran = shop.run("run", "plain", "hi", "-s", "s1", "--store", "sqlite:///shop.db", app=None)
    assert ran.exit_code == 8
    assert "perdure worker --config FILE (or --app MODULE:NAME)" in ran.stdout
    assert shop.run("sessions", "resume", "s1").exit_code == 0


def test_after_its_timeout_a_run_goes_on_later(shop: Shop) -> None:
    ran = shop.run("run", "slow", "hi", "-s", "s1", "--timeout", "0.2s")
    assert ran.exit_code == 6
    assert "perdure sessions resume s1" in ran.stdout
    assert shop.run("sessions", "resume", "s1").exit_code == 0


def test_ctrl_c_leaves_a_session_that_can_be_resumed(shop: Shop) -> None:
    running = shop.start("run", "slow", "hi", "-s", "s1", "--app", "shop:rt")
    until(shop.folder / "slow.began")
    running.send_signal(signal.SIGINT)
    out, _ = running.communicate(timeout=20)
    assert running.returncode == 130
    assert "The progress of session s1 is saved." in out
    assert shop.run("sessions", "resume", "s1").exit_code == 0


def test_sigterm_stops_a_worker_when_what_runs_has_ended(shop: Shop) -> None:
    shop.run("run", "slow", "hi", "-s", "s1", "--detach")
    worker = shop.start("worker", "--app", "shop:rt")
    until(shop.folder / "slow.began")
    worker.send_signal(signal.SIGTERM)
    _, err = worker.communicate(timeout=20)
    assert worker.returncode == 0
    assert "0 sessions wait" in err
    session = shop.json("sessions", "show", "s1")
    assert (session["driver"], code_of(session)) == (None, "NO_WORKER")
    assert shop.run("worker", "--once").exit_code == 0
    assert shop.json("sessions", "show", "s1")["output"] == "Awake."


def test_help_loads_nothing_heavy(shop: Shop) -> None:
    code = (
        "import sys; from click.testing import CliRunner; from perdure.cli.root import cli\n"
        "assert CliRunner().invoke(cli, ['run', '--help']).exit_code == 0\n"
        "heavy = {'pydantic', 'sqlite3', 'msgspec', 'anyio', 'yaml', 'rich'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    import subprocess
    import sys

    subprocess.run([sys.executable, "-c", code], check=True, timeout=30)


def test_thinking_is_shown_where_the_agent_says_so(shop: Shop) -> None:
    """S4.33: show_thinking is a setting of the agent."""
    turns = '[{"thinking": "I wonder.", "text": "Hello."}]'
    (shop.folder / "turns.json").write_text(turns)
    for flag, shown in (("true", True), ("false", False)):
        text = f"agents: {{a: {{llm: 'scripted:turns.json', show_thinking: {flag}}}}}"
        (shop.folder / "perdure.yaml").write_text(text)
        assert ("I wonder." in shop.run("run", "a", "Go", app=None).output) is shown


def test_an_answer_that_was_cut_off_is_told(shop: Shop) -> None:
    said = shop.run("run", "cut", "Go", "-s", "s")
    assert said.exit_code == 0
    assert "  The last model response was cut off at the token limit (max_tokens)." in said.stdout
    assert "perdure run cut Continue. -s s" in said.stdout
    assert shop.json("sessions", "show", "s")["stopReason"] == "max_tokens"
