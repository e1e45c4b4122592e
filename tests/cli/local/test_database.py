"""`perdure doctor` and `perdure db …`."""

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from tests.store.sqlite.filled import downgrade
from tests.support.cli_project import Shop
from tests.support.findings import advice_of

from perdure.runtime.doctor import database as checkup
from perdure.store.inspect import Sizes
from perdure.store.sqlite import inspect as sqlite_care
from perdure.store.sqlite.inspect import LinkedSqlite, known_schema

DAY = 86_400_000


def edit(*statements: str, values: tuple[Any, ...] = ()) -> None:
    raw = sqlite3.connect("shop.db", isolation_level=None)
    for statement in statements:
        raw.execute(statement, values)
    raw.close()


def found(shop: Shop, *words: str) -> dict[str, dict[str, Any]]:
    """What was found, by code."""
    findings = shop.json("doctor", *words)["findings"]
    return {one["code"]: one for one in findings if one["severity"] != "ok"}


@pytest.fixture
def waits(shop: Shop) -> Shop:
    """`s1` waits for an approval."""
    shop.run("run", "support", "Refund", "-s", "s1")
    return shop


def test_all_is_well_beside_what_waits(waits: Shop) -> None:
    told = waits.run("doctor")
    assert told.exit_code == 0, told.output
    assert told.stdout.splitlines()[-1] == "There are no findings."
    assert waits.json("doctor", "--full")["ok"] is True
    assert waits.run("doctor", "--store", "sqlite:///shop.db", app=None).exit_code == 0


def test_the_linked_sqlite_and_its_bug_are_named(
    waits: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    def tell(version: str, number: tuple[int, ...]) -> tuple[str, int]:
        monkeypatch.setattr(
            checkup, "linked_sqlite", lambda: LinkedSqlite(version, number, has_json=True)
        )
        told = waits.run("doctor")
        return told.stdout.splitlines()[0], told.exit_code

    text, code = tell("3.40.1", (3, 40, 1))
    assert code == 0
    assert "WAL-reset bug (before 3.51.3" in text
    assert "one at a time, under the lock file, and is not affected" in text
    assert tell("3.53.4", (3, 53, 4)) == ("✓ SQLite 3.53.4, without the WAL-reset bug", 0)
    text, code = tell("3.34.0", (3, 34, 0))
    assert (text[:13], code) == ("✗ SQLITE_OLD:", 1)


@pytest.mark.parametrize(
    "kind,code", [("nfs4", "NETWORK_FILE_SYSTEM"), ("virtiofs", "SHARED_FOLDER")]
)
def test_a_file_system_that_cannot_do_it_is_a_finding(
    waits: Shop, monkeypatch: pytest.MonkeyPatch, kind: str, code: str
) -> None:
    place = "network" if kind == "nfs4" else "doubtful"
    monkeypatch.setattr(checkup, "rate_path", lambda path: (kind, place))
    assert kind in found(waits)[code]["text"]


def test_a_disk_that_is_nearly_full_is_a_finding(
    waits: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    little = Sizes(10 * 2**20, 0, 1, 4096, 0, 1, 5 * 2**20)
    monkeypatch.setattr(sqlite_care, "_sizes", lambda connection, path: little)
    assert found(waits)["SPACE"]["text"].startswith("disk: only 5 MiB free")


def test_instants_in_the_future_are_a_finding(waits: Shop) -> None:
    edit(f"UPDATE record SET at = at + {DAY}, crc = NULL WHERE seq = 2")  # noqa: S608
    told = found(waits)["CLOCK"]
    assert "in the future" in told["text"]
    assert "in the future: this" in told["text"]
    assert ("23h" in told["text"]) or ("24h" in told["text"]) or ("1d" in told["text"])


def test_a_lease_from_before_the_clock_was_set_back_is_a_finding(waits: Shop) -> None:
    edit("INSERT INTO holder SELECT 'w', max(at) + 86400000 FROM record")
    assert "a lease ends more than an hour from now" in found(waits)["CLOCK"]["text"]


def test_a_worker_that_is_gone_is_a_finding(waits: Shop) -> None:
    edit("INSERT INTO holder VALUES ('gone', 1000)", "UPDATE stream SET holder = 'gone'")
    told = found(waits)["STALE_LEASE"]
    assert "worker gone" in told["text"]
    assert "still holds 1 session" in told["text"]
    assert advice_of(told) == "the next worker takes over; perdure worker"
    assert "    start a worker   perdure worker --app shop:rt" in waits.run("doctor").stdout
    assert waits.run("doctor").exit_code == 1


def test_a_session_that_is_due_and_left_alone_is_a_finding(shop: Shop) -> None:
    shop.run("run", "plain", "hi", "-s", "s1", "--detach")
    assert shop.run("doctor").exit_code == 0  # a worker may be about to take it
    edit("UPDATE stream SET due = due - 60000")
    told = found(shop)["NO_WORKER"]
    assert (told["subject"], told["missing"]) == ("s1", "a worker with agent plain")
    assert "perdure sessions resume s1 --app shop:rt" in shop.run("doctor").stdout
    alone = shop.run("doctor", "--store", "sqlite:///shop.db", app=None).stdout
    assert "session s1 of agent plain has been due for" in alone
    assert "perdure worker --config FILE (or --app MODULE:NAME)" in alone
    assert "sessions resume" not in alone
    assert shop.run("worker", "--once").exit_code == 0
    assert shop.run("doctor").exit_code == 0


def test_many_sessions_that_are_due_are_counted(shop: Shop) -> None:
    for number in range(12):
        shop.run("run", "plain", "hi", "-s", f"s{number}", "--detach")
    edit("UPDATE stream SET due = due - 60000")
    due = [one for one in shop.json("doctor")["findings"] if one["code"] == "NO_WORKER"]
    assert len(due) == 11
    assert due[-1]["text"] == "12 sessions in all"


def test_an_overdue_call_is_a_finding(shop: Shop) -> None:
    """S0.65"""
    shop.run("run", "two", "Go", "-s", "s1")
    call = shop.pending("deploy")
    edit(
        "UPDATE entry SET data = CAST(json_set(CAST(data AS TEXT), '$.timeout', 5) AS BLOB), "
        "crc = NULL "
        "WHERE kind = 'pending' AND due IS NOT NULL"
    )
    told = found(shop)["OVERDUE"]
    assert told["subject"] == call
    assert "perdure worker" in advice_of(told)


def test_a_stuck_session_is_a_finding(waits: Shop) -> None:
    waits.run("approve", "@last", "--no-run", "--store", "sqlite:///shop.db", app=None)
    waits.run("worker", "--once", app="shop:without_tools")
    told = found(waits)["TOOL_MISSING"]
    assert told["subject"] == "s1"
    assert [step["command"] for step in told["steps"]] == [
        "perdure sessions resume s1",
        "perdure sessions cancel s1",
    ]


def test_a_start_that_was_cut_off_is_a_finding(shop: Shop) -> None:
    """S0.81"""
    died = shop.start("run", "dies", "hi", "-s", "s1", "--app", "shop:rt", DIE="1")
    died.communicate(timeout=20)
    shop.run("worker", "--once")
    told = found(shop)["START_INTERRUPTED"]
    call = shop.pending("dies")
    assert "look at the external system" in advice_of(told)
    assert f"perdure pending result {call} --output" in advice_of(told)
    assert f"perdure pending cancel {call} --app shop:rt" in shop.run("doctor").stdout


@pytest.mark.parametrize("damage", [b"{", b'{"role":5}', 7])
def test_an_event_that_cannot_be_read_is_named_by_its_seq(waits: Shop, damage: Any) -> None:
    edit("UPDATE record SET data = ? WHERE seq = 1", values=(damage,))
    told = found(waits)["EVENT_UNREADABLE"]
    assert (told["subject"], "event 1 cannot be read" in told["text"]) == ("s1", True)
    assert "perdure sessions export s1" in advice_of(told)
    assert waits.run("doctor").exit_code == 7


def test_lost_events_and_entries_that_cannot_be_read_are_named(waits: Shop) -> None:
    edit("DELETE FROM record WHERE seq = 2", "UPDATE entry SET data = x'7b' WHERE kind = 'pending'")
    told = found(waits)
    assert told["EVENTS_MISSING"]["text"].startswith("session s1: missing events: 2\n")
    assert "the pending entry p_" in told["ENTRY_UNREADABLE"]["text"]
    for check in ("EVENTS_MISSING", "ENTRY_UNREADABLE"):
        assert "perdure doctor s1 --fix" in advice_of(told[check])
        assert "backup" not in advice_of(told[check])
    assert waits.run("doctor").exit_code == 7


def test_a_damaged_file_is_7(waits: Shop) -> None:
    data = bytearray(Path("shop.db").read_bytes())
    data[3 * 4096 :] = b"\x55" * (len(data) - 3 * 4096)
    Path("shop.db").write_bytes(data)
    told = waits.run("doctor")
    assert told.exit_code == 7, told.output
    assert "DATABASE_DAMAGED" in told.stdout
    Path("shop.db").write_text("this is no database" * 100)
    assert waits.run("doctor").exit_code == 7


def test_a_newer_database_is_told(waits: Shop) -> None:
    edit("PRAGMA user_version = 999")
    told = found(waits)["SCHEMA_NEWER"]
    assert "pip install -U perdure" in advice_of(told)
    assert waits.run("doctor").exit_code == 1


def test_an_older_database_is_looked_at_and_not_changed(waits: Shop) -> None:
    downgrade(Path("shop.db"))
    told = waits.run("doctor")
    assert told.exit_code == 0
    assert f"schema 1; the next command that writes upgrades it to {known_schema()}" in told.stdout
    assert waits.json("db", "stats")["schema"] == 1
    moved = waits.run("db", "migrate")
    assert moved.stdout == f"✓ migrated from schema 1 to {known_schema()}\n"
    assert waits.json("db", "migrate") == {"from": known_schema(), "to": known_schema()}
    assert waits.run("db", "migrate").stdout == f"✓ schema {known_schema()} is up to date\n"


@pytest.mark.parametrize("words", [["doctor"], ["db", "stats"], ["db", "backup", "b.db"]])
def test_what_is_no_sqlite_file_or_not_there_is_refused(shop: Shop, words: list[str]) -> None:
    none = shop.run(*words)
    assert none.exit_code == 2
    assert "there is no database" in none.stderr
    assert not Path("shop.db").exists()
    memory = shop.run(*words, "--store", "memory:", app=None)
    assert memory.exit_code == 2
    assert "needs a SQLite database" in memory.stderr


def test_stats_count(shop: Shop) -> None:
    shop.run("run", "plain", "hi", "-s", "s0")
    shop.run("run", "two", "Go", "-s", "s1")
    shop.run("run", "asks", "Go", "-s", "s2")
    shop.run("pending", "cancel", shop.pending("deploy"))
    shop.run("run", "plain", "hi", "-s", "s3", "--detach")
    numbers = shop.json("db", "stats")
    assert numbers["sessions"] == {"completed": 1, "pending": 1, "waiting": 2}
    assert numbers["pending"] == {"approval": 1, "question": 1}
    assert (numbers["settledCalls"], numbers["due"], numbers["workers"]) == (1, 1, 0)
    assert numbers["oldestWait"]["tool"] == "refund"
    assert numbers["records"] > 10
    assert numbers["pages"] * numbers["pageBytes"] == numbers["fileBytes"]
    sizes = {one["name"]: one["bytes"] + one["indexBytes"] for one in numbers["tables"]}
    assert sizes.keys() == {"entry", "holder", "record", "stream"}
    assert sizes["entry"] > sizes["holder"] > 0
    assert sum(sizes.values()) <= numbers["fileBytes"]
    shown = shop.run("db", "stats").stdout
    assert "Sessions  1 completed, 1 pending, 2 waiting; 1 due" in shown
    assert "refund of s1" in shown


def test_stats_have_the_size_of_the_content_where_sqlite_cannot_tell_of_pages(
    waits: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_care, "_TABLES", "SELECT * FROM no_dbstat")
    tables = {one["name"]: one for one in waits.json("db", "stats")["tables"]}
    assert tables["record"]["bytes"] > tables["record"]["rows"] > 0
    shown = waits.run("db", "stats").stdout
    assert "Pages" in shown
    assert "record: " in shown


def test_a_backup_opens_and_holds_everything(waits: Shop) -> None:
    told = waits.json("db", "backup", "copy.db")
    assert told["bytes"] == Path("copy.db").stat().st_size
    copy = ("--store", "sqlite:///copy.db")
    assert waits.run("doctor", *copy, app=None).exit_code == 0
    shown = json.loads(waits.run("sessions", "show", "s1", "--json", *copy, app=None).stdout)
    assert shown["pending"][0]["tool"] == "refund"
    again = waits.run("db", "backup", "copy.db")
    assert again.exit_code == 2
    assert "copy.db exists" in again.stderr
