"""`perdure doctor SESSION` and `--fix`, on a database and on a folder of files."""

import json
import re
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.support.cli_project import Shop, until
from tests.support.findings import advice_of

from perdure.cli.local import doctor as doctoring
from perdure.runtime.doctor.rebuild import rebuild_session
from perdure.sandbox.base import Probe
from perdure.tasks.executions.sandboxes import ConfiguredSandbox
from perdure.testing.crash import Crash

FILES = ("--store", "files:./files")
LOG = Path("files/s1/events.jsonl")


def edit(*statements: str, values: tuple[Any, ...] = ()) -> None:
    raw = sqlite3.connect("shop.db", isolation_level=None)
    for statement in statements:
        raw.execute(statement, values)
    raw.close()


@pytest.fixture
def waits(shop: Shop) -> Shop:
    """`s1` waits for an approval."""
    shop.run("run", "support", "Refund", "-s", "s1")
    return shop


@pytest.fixture
def files(waits: Shop) -> Shop:
    """The same session in a folder of files."""
    told = waits.run("sessions", "export", "s1")
    Path("s1.jsonl").write_bytes(told.stdout_bytes)
    assert waits.run("sessions", "import", "s1.jsonl", *FILES, app=None).exit_code == 0
    return waits


def look(shop: Shop, *words: str, app: str | None = "shop:rt") -> tuple[int, dict[str, Any]]:
    """What was found, by code, and how the command ended."""
    told = shop.run("doctor", *words, "--json", app=app)
    answer = json.loads(told.stdout)
    found = {one["code"]: one for one in answer["findings"] if one["severity"] != "ok"}
    return told.exit_code, {**found, "mended": answer.get("mended")}


def test_a_whole_session_is_well(waits: Shop, files: Shop) -> None:
    assert look(waits, "s1") == (0, {"mended": []})
    assert look(files, "s1", *FILES, app=None) == (0, {"mended": []})
    assert files.run("doctor", *FILES, app=None).exit_code == 0
    assert waits.run("doctor", "nobody").exit_code == 3


def test_a_session_with_a_damaged_event_is_made_anew_and_still_waits(waits: Shop) -> None:
    """S2.9, S2.34: the approval that waited before waits after, and the original is kept."""
    edit("UPDATE record SET data = x'7b' WHERE type = 'tool_result'")
    code, found = look(waits, "s1")
    assert code == 7
    assert found["EVENT_UNREADABLE"]["text"].startswith("event 6 cannot be read")
    assert "perdure doctor s1 --fix" in advice_of(found["EVENT_UNREADABLE"])
    call = waits.pending("refund")
    code, found = look(waits, "s1", "--fix")
    (mended,) = found["mended"]
    assert (mended["sessionID"], mended["lost"]) == ("s1", 1)
    original = [json.loads(one) for one in Path(mended["original"]).read_text().splitlines()]
    assert [one["seq"] for one in original] == list(range(1, len(original) + 1))
    assert original[5]["data"] == "{"
    assert waits.pending("refund") == call
    assert waits.run("approve", call).exit_code == 0
    assert waits.effects() == ["refund 4200"]
    assert waits.json("sessions", "show", "s1")["state"] == "completed"


def test_a_session_is_mended_whole_or_not_at_all(
    waits: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G1: killed after any commit of `--fix`, the session is there, and still waits."""
    edit("UPDATE record SET data = x'7b' WHERE type = 'tool_result'")
    call = waits.pending("refund")
    crash = Crash(1)
    with monkeypatch.context() as patch:
        patch.setattr(
            doctoring, "rebuild_session", lambda store, *a: rebuild_session(crash.wrap(store), *a)
        )
        assert "killed after commit 1" in waits.run("doctor", "s1", "--fix").stderr
    assert waits.pending("refund") == call
    assert look(waits, "s1")[0] != 7
    assert waits.run("approve", call).exit_code == 0
    assert waits.effects() == ["refund 4200"]


def test_lost_events_and_entries_are_made_good(waits: Shop) -> None:
    call = waits.pending("refund")
    edit("DELETE FROM record WHERE seq = 2", "DELETE FROM entry WHERE kind = 'pending'")
    code, found = look(waits, "s1")
    assert code == 7
    assert found["EVENTS_MISSING"]["text"].startswith("missing events: 2\n")
    assert found["ENTRY_MISSING"]["text"].startswith(f"refund ({call}) waits and cannot be settled")
    told = waits.run("doctor", "--fix")
    assert "✓ rebuilt s1: " in told.stdout
    assert look(waits, "s1")[0] != 7
    assert waits.run("approve", call).exit_code == 0


def test_an_entry_that_nobody_waits_for_is_dropped(waits: Shop) -> None:
    """S0.67"""
    edit(
        "INSERT INTO entry SELECT kind, 'p_orphan', sid, 1, state, due, "
        "CAST(replace(CAST(data AS TEXT), key, 'p_orphan') AS BLOB), NULL, listing, at FROM entry "
        "WHERE kind = 'pending'"
    )
    assert "p_orphan" in look(waits, "s1")[1]["ORPHANED_ENTRY"]["text"]
    assert look(waits, "s1", "--fix")[0] == 0
    assert waits.run("pending", "show", "p_orphan").exit_code == 3


def test_a_stale_lease_is_freed(waits: Shop) -> None:
    edit("INSERT INTO holder VALUES ('gone', 1000)", "UPDATE stream SET holder = 'gone'")
    code, found = look(waits, "s1")
    assert (code, "gone still holds it" in found["STALE_LEASE"]["text"]) == (1, True)
    assert look(waits, "s1", "--fix")[0] == 0


def test_a_session_that_somebody_drives_is_not_touched(waits: Shop) -> None:
    edit("INSERT INTO holder SELECT 'alive', 1e15", "UPDATE stream SET holder = 'alive'")
    edit("UPDATE record SET data = x'7b' WHERE seq = 3")
    told = waits.run("doctor", "s1", "--fix", "--json")
    assert (told.exit_code, json.loads(told.stderr)["code"]) == (5, "BEING_RESUMED")


def test_a_session_of_a_killed_worker_says_for_how_long_to_wait(waits: Shop) -> None:
    """G9: on PostgreSQL only its lease tells a command that the worker has ended"""
    in_20_s = "(SELECT max(at) + 20000 FROM record)"
    edit(f"INSERT INTO holder SELECT 'w', {in_20_s}", "UPDATE stream SET holder = 'w'")
    edit("UPDATE record SET data = x'7b' WHERE seq = 3")
    hint = json.loads(waits.run("doctor", "s1", "--fix", "--json").stderr)["hint"]
    assert re.fullmatch(r"stop the workers first; after a worker was killed, wait \d+ s", hint)


def test_an_intent_without_an_outcome_is_shown(shop: Shop) -> None:
    """G3: it may or may not have happened."""
    died = shop.start("run", "slow", "hi", "-s", "s1", "--app", "shop:rt")
    until(shop.folder / "slow.began")
    died.kill()
    died.communicate(timeout=20)
    edit("UPDATE holder SET until = 1")
    code, found = look(shop, "s1")
    assert code == 1
    assert "slow (" in found["OPEN_INTENT"]["text"]
    assert "perdure sessions resume s1" in advice_of(found["OPEN_INTENT"])


# --- files ----------------------------------------------------------------------------------------


def with_wrong_checksum(lines: list[bytes]) -> list[bytes]:
    return [lines[0], lines[1].replace(b"agent_start", b"agent_stort"), *lines[2:]]


def without_two_lines(lines: list[bytes]) -> list[bytes]:
    return lines[:2] + lines[4:]


def with_torn_tail(lines: list[bytes]) -> list[bytes]:
    return [*lines, b'{"type":"user","timest']


@pytest.mark.parametrize("damage", [with_wrong_checksum, without_two_lines, with_torn_tail])
def test_a_log_that_differs_from_the_database_is_named_and_written_again(
    files: Shop, damage: Callable[[list[bytes]], list[bytes]]
) -> None:
    """S0.75, S2.9, S2.10"""
    whole = LOG.read_bytes()
    LOG.write_bytes(b"".join(damage(whole.splitlines(keepends=True))))
    assert look(files, "s1", *FILES, app=None)[0] == 0
    code, found = look(files, *FILES, app=None)
    assert code == 1
    assert found["FILES_DIFFER"]["text"].startswith(
        "files that differ from the database: s1/events.jsonl"
    )
    assert "the next start writes them again" in found["FILES_DIFFER"]["text"]
    assert files.run("sessions", "list", *FILES, app=None).exit_code == 0
    assert LOG.read_bytes() == whole
    assert files.run("doctor", *FILES, app=None).exit_code == 0


def test_lines_of_others_are_no_finding(files: Shop) -> None:
    with LOG.open("a") as log:
        log.write('{"type":"todo_update","timestamp":1,"data":{"todos":[]}}\n')
    told = files.run("doctor", *FILES, app=None)
    assert (told.exit_code, "files: as the database says" in told.stdout) == (0, True)


def test_a_missing_database_is_told_with_the_commands_that_restore_the_sessions(
    files: Shop,
) -> None:
    Path("files/.perdure/store.db").unlink()
    for words in (["doctor"], ["sessions", "list"]):
        told = files.run(*words, "--json", *FILES, app=None)
        assert (told.exit_code, json.loads(told.stderr)["code"]) == (7, "FILES_WITHOUT_DATABASE")
    Path("files").rename("files.lost")
    restore = ["sessions", "import", "files.lost/s1/events.jsonl", "--agent", "shop"]
    assert files.run(*restore, *FILES, app=None).exit_code == 0
    shown = json.loads(files.run("sessions", "show", "s1", *FILES, "--json", app=None).stdout)
    assert shown["pending"] == []
    assert b"refund" in LOG.read_bytes()
    assert b'"interrupted":true' in LOG.read_bytes()


def test_stats_count_files_too(files: Shop) -> None:
    numbers = json.loads(files.run("db", "stats", *FILES, "--json", app=None).stdout)
    assert numbers["sessions"] == {"waiting": 1}
    assert numbers["records"] == len(LOG.read_text().splitlines())
    shutil.rmtree("files")
    for words in (["doctor"], ["sessions", "list"]):
        assert files.run(*words, *FILES, app=None).exit_code == 2
    assert not Path("files").exists()


def test_commands_that_cannot_run_here_are_not_shown_as_fine(
    waits: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def probe(_: ConfiguredSandbox) -> Probe:
        return Probe("bwrap", ok=False, reason="bwrap is not installed", remedy="install it")

    monkeypatch.setattr(ConfiguredSandbox, "probe", probe)
    assert waits.run("tasks", "create", "build").exit_code == 0
    told = waits.run("doctor")
    assert "- commands in tasks cannot run: bwrap is not installed" in told.stdout
    assert (told.exit_code, "There are no findings." in told.stdout) == (0, True)
