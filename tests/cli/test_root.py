"""What goes wrong is one line with a hint and an exit code, never a traceback."""

import json
import sqlite3
from pathlib import Path

import pytest
from tests.support.cli_project import Shop


@pytest.mark.parametrize(
    "words,exit_code,text",
    [
        ("sessions show nope", 3, "there is no session 'nope'"),
        ("sessions resume nope", 3, "there is no session 'nope'"),
        ("pending show p_nope", 3, "Unknown pending ID: p_nope"),
        ("approve p_nope", 3, "Unknown pending ID"),
        ("approve @last", 3, "there is no pending call to approve"),
        ("pending result p_nope --output x", 3, "Unknown pending ID"),
        ("run nobody hi", 3, "there is no agent 'nobody' here"),
        ("run plain", 2, "PROMPT is missing"),
        ("run plain hi --metadata [1]", 2, "is not a JSON object"),
        ("run plain hi --metadata {", 2, "is not valid JSON"),
        ("run plain hi --file nope", 2, "does not exist"),
        ("run plain hi --timeout soon", 2, "'soon' is not a duration"),
        ("approve p_x --set cents", 2, "is not of the form key=value"),
        ("approve p_x --wait --no-run", 2, "cannot be combined"),
        ("pending list --kind colour", 2, "colour"),
        ("sessions list --older 5x", 2, "is not a duration"),
        ("sessions events s1 --after -1", 2, "-1"),
        ("sevre", 2, "No such command 'sevre'"),
        ("config validate", 2, "perdure.yaml"),
    ],
)
def test_a_bad_command_is_told_in_words_and_in_json(
    shop: Shop, words: str, exit_code: int, text: str
) -> None:
    """S0.32"""
    told = shop.run(*words.split())
    assert told.exit_code == exit_code, told.output
    assert told.stdout == ""
    assert text in told.stderr
    assert "Traceback" not in told.stderr
    as_json = shop.run(*words.split(), "--json")
    assert as_json.exit_code == exit_code
    assert as_json.stdout == ""
    error = json.loads(as_json.stderr)
    assert sorted(error) == ["code", "details", "error", "hint"]
    assert text in error["error"]


@pytest.mark.parametrize(
    "app,text",
    [
        ("nope:rt", "there is no module 'nope'"),
        ("shop:nope", "'shop' has no 'nope'"),
        ("shop:number", "is not a Runtime; its type is int"),
        ("shop", "is not of the form MODULE:NAME"),
        ("broken:rt", "cannot be imported: ZeroDivisionError"),
        ("nameless:rt", "a lambda has no name"),
    ],
)
def test_an_app_that_cannot_be_had(shop: Shop, app: str, text: str) -> None:
    Path("broken.py").write_text("1 / 0\n")
    Path("nameless.py").write_text(
        "from perdure import Agent, Runtime\n"
        "from perdure.testing import ScriptedModel\n"
        "rt = Runtime('memory:', agents=[Agent('a', model=ScriptedModel([]), tools=[lambda: 1])])\n"
    )
    told = shop.run("sessions", "list", app=app)
    assert told.exit_code == 2
    assert text in told.stderr
    assert "hint: " in told.stderr
    assert "Traceback" not in told.stderr


@pytest.mark.parametrize("app", ["shop:rt", "shop:number", "shop:agent.rt"])
def test_an_app_that_is_not_a_runtime_is_refused_with_those_that_the_module_has(
    shop: Shop, app: str
) -> None:
    Path("shop.py").write_text(
        "from perdure import Runtime\nagent, number = object(), 5\n"
        "runtime = Runtime('memory:')\nother = Runtime('memory:')\n"
    )
    told = shop.run("sessions", "list", app=app)
    assert told.exit_code == 2
    assert "hint: shop has these: --app shop:other, --app shop:runtime" in told.stderr


def test_nothing_to_work_on_is_one_line_with_a_hint(shop: Shop) -> None:
    told = shop.run("sessions", "list", app=None)
    assert told.exit_code == 2
    assert "there is no perdure.yaml in this directory" in told.stderr
    clash = shop.run("sessions", "list", "--store", "memory:")
    assert "--app cannot be combined with --config or --store" in clash.stderr


def test_a_mistyped_database_is_not_made(shop: Shop) -> None:
    told = shop.run("sessions", "list", "--store", "sqlite:///typo.db", app=None)
    assert told.exit_code == 2
    assert not Path("typo.db").exists()


def test_the_database_beside_is_read_without_configuration(shop: Shop) -> None:
    shop.run("run", "plain", "hi", "-s", "s1")
    Path("shop.db").rename("perdure.db")
    assert shop.json("sessions", "list", app=None)["sessions"][0]["sessionID"] == "s1"


def test_a_newer_database_and_one_that_is_none(shop: Shop) -> None:
    shop.run("run", "plain", "hi", "-s", "s1")
    Path("bad.db").write_text("this is no database" * 100)
    bad = shop.run("sessions", "list", "--store", "sqlite:///bad.db", app=None)
    assert bad.exit_code == 7
    assert "is not a SQLite database" in bad.stderr
    with sqlite3.connect("shop.db") as raw:
        raw.execute("PRAGMA user_version = 999")
    raw.close()
    newer = shop.run("sessions", "list", "--json")
    assert newer.exit_code == 1
    assert json.loads(newer.stderr)["code"] == "SCHEMA_NEWER"


def test_wrong_arguments_are_refused_and_the_call_stays_open(shop: Shop) -> None:
    """S4.25"""
    shop.run("run", "support", "Refund", "-s", "s1")
    refused = shop.run("approve", "@last", "--set", "cents=many")
    assert refused.exit_code == 2
    assert "cents" in refused.stderr
    assert f"hint: perdure approve {shop.pending('refund')} --app shop:rt --set cents=…" in (
        refused.stderr
    )
    unknown = shop.run("approve", "@last", "--set", "centz=5")
    assert "centz: is not a known argument; did you mean 'cents'?" in unknown.stderr
    assert "hint: leave out centz; the call has order_id, cents" in unknown.stderr
    wrong_kind = shop.run("pending", "result", shop.pending("refund"), "--output", "x")
    assert wrong_kind.exit_code == 5
    assert "cannot take 'result'" in wrong_kind.stderr
    assert shop.json("pending", "list")["count"] == 1


def test_a_prompt_on_stdin_that_is_no_text(shop: Shop) -> None:
    told = shop.run("run", "plain", "-", "-s", "s1", stdin=b"caf\xe9 \xff")
    assert told.exit_code == 2
    assert "stdin is not UTF-8 (byte 3); send the data with --file" in told.stderr


def test_a_hint_that_is_a_command_works_on_the_same_thing(shop: Shop) -> None:
    shop.run("run", "support", "Refund", "-s", "s1")
    call = shop.pending("refund")
    show = f"perdure pending show {call} --app shop:rt"
    for words, hint in (
        (["sessions", "show", "zzz"], "perdure sessions list --app shop:rt"),
        (
            ["pending", "show", "zzz", "--tenant", "t 1"],
            "pending list --app shop:rt --tenant 't 1'",
        ),
        (["pending", "result", call, "--output", "x"], show),
        (["run", "nobody", "x"], "hint: agents here: "),
    ):
        told = shop.run(*words)
        assert hint in told.stderr
        assert hint.removeprefix("hint: ") in json.loads(shop.run(*words, "--json").stderr)["hint"]


def test_control_characters_never_reach_the_terminal(shop: Shop) -> None:
    ran = shop.run("run", "evil", "\x1b]0;title\x07", "-s", "s1")
    shown = shop.run("sessions", "show", "s1")
    listed = shop.run("sessions", "list")
    pending = shop.run("pending", "show", "@last")
    events = shop.run("sessions", "events", "s1")
    for told in (ran, shown, listed, pending, events):
        assert not {"\x1b", "\x07"} & set(told.output), told.output
    assert "\\x1b[2Jgone" in ran.stdout
    bad = shop.run("sessions", "show", "a\x1bb")
    assert (bad.exit_code, "\x1b" in bad.stderr) == (2, False)


def test_an_unforeseen_error_is_one_line_unless_asked_for_more(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("surprise")

    monkeypatch.setattr("perdure.app.Runtime.summary_page", broken)
    told = shop.run("sessions", "list")
    assert told.exit_code == 1
    hint = "hint: run the command again with -v to see the traceback"
    assert told.stderr == f"error: RuntimeError: surprise\n{hint}\n"
    assert "Traceback" in shop.run("sessions", "list", "-v").stderr


def test_configurations_are_validated_with_everything_they_name(shop: Shop) -> None:
    """S4.41"""
    Path("turns.json").write_text('[{"text": "hi"}]')
    text = (
        "llms: {s: {provider: scripted, script: turns.json}}\nagents: {a: {llm: s, tools: [%s]}}\n"
    )
    Path("perdure.yaml").write_text(text % "shop:refund")
    assert "agent a" in shop.run("config", "validate", app=None).stdout
    assert shop.json("config", "validate", app=None)["valid"] is True
    assert shop.run("run", "a", "hello", app=None).exit_code == 0
    Path("perdure.yaml").write_text(text % "shop:nothing")
    wrong = shop.run("config", "validate", app=None)
    assert wrong.exit_code == 2
    assert "perdure.yaml" in wrong.stderr
    assert json.loads(shop.run("config", "schema", app=None).stdout)["title"] == "perdure.yaml"
