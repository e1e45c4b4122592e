"""`--server`: the same commands through a server, with the same words and exit codes."""

import json
import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from tests.servers.ports import free_port
from tests.support.server import Server
from tests.support.server_project import CI, OPS, effects, make_project

from perdure.cli.root import cli

SESSIONS = ("sessions list", "sessions show s1", "sessions events s1", "sessions show @last")
PAUSES = ("sessions state s1", "sessions permissions s1", "sessions state nobody")
PENDING = ("pending list", "pending show {refund}", "pending list --kind tool --session s1")
WRONG = (
    "sessions show nobody",
    "pending show p_nobody",
    "approve p_nobody",
    "pending result {refund} --output x",
    "run robot hello",
)


# Each is typed about a session of its own that waits, once with a server and once on the store.
CHANGES = (
    "approve {refund} --set cents=5 --note fine --no-run",
    "approve {refund} --remember --no-run",
    "approve {refund} {deploy} --no-run",
    "deny {refund} --reason late --no-run",
    "pending respond {refund} --output kept --no-run",
    "pending respond {refund} --output-json [1] --no-run",
    "pending result {deploy} --output done --title T --no-run",
    "pending error {deploy} broken --no-run",
    "pending cancel {deploy} --no-run",
    "pending error {refund} broken",
    "approve {refund} --set nothing=1",
    "approve {refund} --wait --no-run",
    "sessions cancel {s} --reason enough",
    "sessions compact {s}",
    "sessions fork {s} --as f-{s}",
    "sessions permissions {s} --revoke 1",
    "sessions delete {s} --yes",
    "sessions delete {s}",
    "tasks clear {s}",
)
# Typed one after the other about one task.
TASKS = (
    "tasks create Work --id {t} --owner ana --metadata {{}}",
    "tasks create Work --id {t}",
    "tasks create Work --id {t} --exist-ok",
    "tasks attach {t} ann",
    "tasks detach {t} ben",
    "tasks start {t} ann",
    "tasks put {t} perdure.yaml notes/plan.txt",
    "tasks files {t}",
    "tasks get {t} notes/plan.txt",
    "tasks get {t} nothing.txt",
    "tasks logs {t}",
    "tasks decisions {t}",
    "tasks checkpoint {t} -m first",
    "tasks checkpoints {t}",
    "tasks diff {t} nothing",
    "tasks executions {t}",
    "tasks output {t}",
    "tasks resume {t} hello",
    "tasks show {t}",
    "tasks list --owner ana --limit 1",
    "tasks complete {t} --message done",
    "tasks fail {t} late",
    "tasks cancel {t}",
    "tasks delete {t}",
    "tasks delete {t} --yes",
    "tasks show {t}",
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("project")
    make_project(folder, "sqlite")
    with Server(folder) as one:
        yield one


@pytest.fixture
def here(server: Server, monkeypatch: pytest.MonkeyPatch) -> "Here":
    monkeypatch.chdir(server.folder)
    monkeypatch.setenv("PERDURE_TOKEN", OPS)
    return Here(server)


class Here:
    """Types commands in the project's folder, through the server or on its store."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.through = ["--server", server.url]

    def remote(self, command: str, *more: str) -> Result:
        return CliRunner().invoke(cli, [*shlex.split(command), *more, *self.through])

    def local(self, command: str, *more: str) -> Result:
        return CliRunner().invoke(cli, [*shlex.split(command), *more])

    def json(self, command: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.remote(command, "--json").stdout)
        return found

    def waiting(self, session: str) -> dict[str, str]:
        """A session that waits: the ids of its calls by tool."""
        told = self.remote(f"run shop 'Refund 991' -s {session}")
        assert told.exit_code == 8, told.output
        listed = self.json(f"pending list --session {session}")["pending"]
        return {call["tool"]: call["id"] for call in listed}

    def changed(self, typed: Result) -> list[str]:
        """What a command printed, without what differs between two sessions or tasks."""
        return [self._nameless(text) for text in (typed.stdout, *typed.stderr.splitlines()[-2:])]

    def _nameless(self, text: str) -> str:
        text = self.same(text)
        for pattern, name in (
            (r"\b((?:f-)?[st]\d+)[xy]\b", r"\1"),
            (r"(Start one:).*", r"\1"),  # the workers of a server are elsewhere
            (r"over HTTP|on the command line", "VIA"),
            (r'"(via|nextAt)": [^,}]*', r'"\1": 0'),
            (r"\b(p|call|e|task|w)_\w+", r"\1_ID"),
            (r"\b(checkpoint|cp)[-_]\w[\w-]*", "CHECKPOINT"),
            (r"\d{4}-\d\d-\d\d[T ][\d:.]+Z?", "DATE"),
            (r"\b\d{13}\b", "MS"),
        ):
            text = re.sub(pattern, name, text)
        return text

    def same(self, text: str) -> str:
        """The text without what differs: how old things are, and where commands go."""
        text = text.replace(f" {shlex.join(self.through)}", "").replace(self.server.url, "URL")
        text = re.sub(r'"(callback|webhook)URL": [^,}]*', '"URL": 0', text)
        text = re.sub(r"\n  callbackURL .*", "", text)
        text = re.sub(r'"age": \d+', '"age": 0', text)
        return re.sub(r"\b[\d.]+(s|m|h|m\d+s|h\d+m)\b", "AGE", text)


@pytest.fixture
def s1(here: Here) -> dict[str, str]:
    """A session that the tests of this module only look at."""
    if here.remote("sessions show s1").exit_code == 3:
        here.waiting("s1")
    listed = here.json("pending list --session s1")["pending"]
    return {call["tool"]: call["id"] for call in listed}


@pytest.mark.parametrize("as_json", ["--json", "-v"])
@pytest.mark.parametrize("command", [*SESSIONS, *PAUSES, *PENDING, *WRONG])
def test_it_prints_the_same_and_exits_the_same(
    here: Here, s1: dict[str, str], command: str, as_json: str
) -> None:
    typed = command.format(**s1)
    there, at_home = here.remote(typed, as_json), here.local(typed, as_json)
    assert there.exit_code == at_home.exit_code
    assert here.same(there.stdout) == here.same(at_home.stdout)
    told = [
        here.same(one.stderr.rpartition("Traceback")[0] or one.stderr) for one in (there, at_home)
    ]
    assert told[0].splitlines()[-2:] == told[1].splitlines()[-2:]


@pytest.mark.parametrize("flags", [("--json",), ()], ids=["json", "text"])
@pytest.mark.parametrize("command", CHANGES)
def test_a_change_prints_the_same_and_exits_the_same(
    here: Here, monkeypatch: pytest.MonkeyPatch, command: str, flags: tuple[str, ...]
) -> None:
    monkeypatch.setenv("LOGNAME", "ops")  # the name of the token
    name = f"s{CHANGES.index(command)}{len(flags)}"
    outcomes = []
    for type_, session in ((here.remote, f"{name}x"), (here.local, f"{name}y")):
        calls = here.waiting(session)
        typed = type_(command.format(s=session, **calls), *flags)
        outcomes.append((typed.exit_code, *here.changed(typed)))
    assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize("flags", [("--json",), ()], ids=["json", "text"])
def test_commands_of_a_task_print_the_same_and_exit_the_same(
    here: Here, monkeypatch: pytest.MonkeyPatch, flags: tuple[str, ...]
) -> None:
    monkeypatch.setenv("LOGNAME", "ops")
    name = f"t{len(flags)}"
    for command in TASKS:
        there = here.remote(command.format(t=f"{name}x"), *flags)
        at_home = here.local(command.format(t=f"{name}y"), *flags)
        assert there.exit_code == at_home.exit_code, command
        assert here.changed(there) == here.changed(at_home), command


def test_a_list_continues_through_the_server_and_on_the_store_with_the_same_cursor(
    here: Here,
) -> None:
    for session in ("page-1", "page-2", "page-3"):
        here.waiting(session)
    after, following, found = "", "", []
    for number in range(3):
        command = f"sessions list --search page- --limit 1 {after}"
        there, at_home = here.remote(command), here.local(command)
        assert here.same(there.stdout) == here.same(at_home.stdout)
        assert ("There are more: perdure sessions list" in there.stdout) is (number < 2)
        page = here.json(command)
        of_store = json.loads(here.local(command, "--json").stdout)
        assert of_store["next"] == page["next"]
        found += [session["sessionID"] for session in page["sessions"]]
        assert [session["sessionID"] for session in of_store["sessions"]] == found[-1:]
        following = page["next"]
        after = f"--after {following}"
    assert found == ["page-3", "page-2", "page-1"]
    assert following is None


def test_a_session_goes_from_run_to_its_end(here: Here) -> None:
    calls = here.waiting("whole")
    approved = here.remote(f"approve {calls['refund']} --set cents=100 --note fine")
    assert approved.exit_code == 0, approved.output
    assert "approved refund(order_id=991, cents=100) by ops  (cents 4200 → 100)" in approved.stdout
    given = here.remote(f"pending result {calls['deploy']} --output deployed --wait")
    assert given.exit_code == 0, given.output
    assert "All done." in given.stdout
    assert "refund 991 100" in effects(here.server.folder)
    again = here.remote(f"approve {calls['refund']} --set cents=100 --no-run")
    assert "nothing changed" in again.stdout
    lost = here.remote(f"deny {calls['refund']}")
    assert lost.exit_code == 5
    assert "was approved with changes by ops" in lost.stderr


def test_what_was_allowed_is_revoked_through_the_server(here: Here) -> None:
    """S4.66"""
    calls = here.waiting("allowed")
    rule = "refund:order_id=991"
    assert here.remote(f"approve {calls['refund']} --remember-as {rule} --no-run").exit_code == 0
    assert rule in here.remote("sessions permissions allowed").stdout
    (kept,) = here.json("sessions permissions allowed")["permissions"]
    assert (kept["rule"], kept["by"]) == (rule, "ops")
    revoke = f"sessions permissions allowed --revoke {kept['number']}"
    assert here.json(revoke)["permissions"] == []
    assert here.remote(revoke).exit_code == 3


def test_the_run_is_shown_as_it_happens(here: Here) -> None:
    shown = here.remote("run shop 'Refund 991' -s seen")
    assert shown.exit_code == 8
    assert "I refund and deploy." in shown.stdout
    assert "⏸ refund(order_id=991, cents=4200) needs approval" in shown.stdout
    assert "perdure approve p_" in shown.stdout
    assert f"--server {here.server.url}" in shown.stdout
    assert here.remote("sessions resume seen --timeout 5s").exit_code == 8


def test_a_message_is_only_recorded_where_that_is_wanted(here: Here) -> None:
    told = here.remote("run shop Hello -s later --detach")
    assert told.exit_code == 0
    assert "Recorded the message for session later" in told.stdout


def test_a_session_is_cancelled_forked_and_deleted(here: Here) -> None:
    here.waiting("old")
    assert here.remote("sessions cancel old --reason enough").exit_code == 0
    assert here.remote("sessions compact old --keep 0").exit_code == 0
    forked = here.remote("sessions fork old --as copy")
    assert forked.stdout.startswith("✓ forked old at event ")
    assert here.remote("sessions delete copy --yes").exit_code == 0
    assert here.remote("sessions show copy").exit_code == 3


def test_who_is_not_known_or_may_not_exits_with_4(
    here: Here, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """G11"""
    monkeypatch.setenv("PERDURE_TOKEN", "wrong")
    told = here.remote("pending list")
    assert told.exit_code == 4
    assert "error: the token of this request is wrong" in told.stderr
    assert "PERDURE_TOKEN is not a token of this server" in told.stderr
    monkeypatch.delenv("PERDURE_TOKEN")
    nobody = here.remote("pending list")
    assert "error: this request needs a token" in nobody.stderr
    assert "set PERDURE_TOKEN" in nobody.stderr
    file = tmp_path / "token"
    file.write_text(f"{CI}\n")
    refused = here.remote("sessions list", "--token-file", str(file))
    assert refused.exit_code == 4
    assert "may not read" in refused.stderr
    assert CI not in refused.output
    missing = here.remote("pending list", "--token-file", str(tmp_path / "none"))
    assert (missing.exit_code, "cannot be read" in missing.stderr) == (2, True)


def test_a_server_that_is_down_is_told_in_one_line(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perdure.cli.backend.server.PATIENCE_S", 0.01)
    url = f"http://127.0.0.1:{free_port()}"
    told = CliRunner().invoke(cli, ["pending", "list", "--server", url])
    assert told.exit_code == 1
    assert told.stderr.splitlines()[0].startswith(f"error: no server answers at {url}")
    assert "perdure serve" in told.stderr.splitlines()[1]


@pytest.mark.parametrize(
    "words,code",
    [("sessions list --store sqlite:///x.db", "OPTIONS_CLASH"), ("doctor", "NOT_ON_A_SERVER")],
)
def test_what_makes_no_sense_with_a_server_is_refused(here: Here, words: str, code: str) -> None:
    told = here.remote(words, "--json")
    assert (told.exit_code, json.loads(told.stderr)["code"]) == (2, code)


def test_the_token_is_never_an_argument(here: Here) -> None:
    """SX.7: everybody on the machine can read those."""
    shown = CliRunner().invoke(cli, ["pending", "list", "--help"]).stdout
    assert "--token-file" in shown
    assert re.search(r"--token\b(?!-file)", shown) is None
    assert os.environ["PERDURE_TOKEN"] not in here.remote("sessions show s1").output


def test_where_no_worker_drives_it_the_run_says_what_to_start(
    here: Here, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """G9"""
    monkeypatch.setattr("perdure.client.session.NO_WORKER_S", 0.3)
    make_project(tmp_path, "sqlite")
    with Server(tmp_path, "--no-worker") as idle:
        words = ["run", "shop", "Hello", "-s", "alone", "--server", idle.url]
        told = CliRunner().invoke(cli, words)
    assert told.exit_code == 8, told.output
    assert "Session alone is due, and no worker drives it (NO_WORKER)." in told.stdout
    assert "start a worker   perdure worker" in told.stdout
