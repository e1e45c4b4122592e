"""`perdure doctor` and `perdure db …` on PostgreSQL."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.servers.fixtures import StartPostgres
from tests.servers.pgbouncer import Pgbouncer
from tests.servers.postgres import PostgresServer
from tests.support.cli_project import Shop
from tests.support.findings import advice_of

from perdure.cli.root import cli
from perdure.store.postgres.inspect import known_indexes, known_schema


@pytest.fixture
def waits(shop: Shop, postgres_url: str) -> Shop:
    """`s1` waits for an approval, and was moved to PostgreSQL."""
    shop.run("run", "support", "Refund", "-s", "s1")
    shop.json("db", "copy", "sqlite:///shop.db", postgres_url, app=None)
    return shop


def found(url: str, *words: str) -> dict[str, dict[str, Any]]:
    """What was found, by code."""
    told = CliRunner().invoke(cli, ["doctor", *words, "--json", "--store", url])
    findings = json.loads(told.stdout)["findings"]
    assert (told.exit_code == 0) == all(one["severity"] == "ok" for one in findings)
    return {one["code"]: one for one in findings if one["severity"] != "ok"}


def test_a_session_comes_and_goes_with_all_it_waits_for(waits: Shop, postgres_url: str) -> None:
    there = waits.json("db", "copy", postgres_url, "sqlite:///back.db", app=None)
    again = waits.json("db", "copy", "sqlite:///shop.db", "sqlite:///back.db", app=None)
    assert there == again
    shown = [
        waits.json("sessions", "show", "s1", "--store", url, app=None)
        for url in ("sqlite:///shop.db", postgres_url, "sqlite:///back.db")
    ]
    for name in ("state", "pending", "seq", "createdAt"):
        assert shown[0][name] == shown[1][name] == shown[2][name]


def test_a_copy_to_postgresql_that_was_killed_goes_on(tmp_path: Path, postgres_url: str) -> None:
    import anyio
    from tests.cli.local.test_database_copy import STREAMS, fill

    anyio.run(fill, tmp_path / "here.db")
    command = [
        *(sys.executable, "-m", "perdure.cli", "db", "copy"),
        *("sqlite:///here.db", postgres_url),
    ]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == f"500 of {STREAMS:,} streams\n"
        first.kill()
    second = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120
    )
    assert second.returncode == 0, second.stderr
    assert f"✓ {STREAMS:,} streams" in second.stdout


def test_all_is_well_beside_what_waits(waits: Shop, postgres_url: str) -> None:
    assert found(postgres_url) == {}
    assert found(postgres_url, "s1") == {}
    told = waits.run("doctor", "--store", postgres_url, app=None)
    password = postgres_url.split(":")[2].partition("@")[0]
    assert "PostgreSQL" in told.stdout
    assert password not in told.output


def test_it_can_be_asked_through_a_pooler(
    waits: Shop, postgres_url: str, pgbouncer: Pgbouncer
) -> None:
    assert found(f"{pgbouncer.through(postgres_url)}?listen=off&advisory=off") == {}


@pytest.mark.parametrize("words", [["s1", "--fix"], ["--fix"]])
def test_a_damaged_session_is_made_anew_and_still_waits(
    waits: Shop,
    postgres: PostgresServer,
    postgres_url: str,
    words: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """S2.9, S2.34: the approval that waited before waits after, and the original is kept."""
    code = (waits.folder / "shop.py").read_text()
    (waits.folder / "shop.py").write_text(code.replace("sqlite:///shop.db", postgres_url))
    call, database = waits.pending("refund"), postgres_url.rpartition("/")[2]
    postgres.psql(
        "UPDATE perdure.record SET data = '{' WHERE type = 'tool_result'; "
        "DELETE FROM perdure.record WHERE seq = 2; "
        "DELETE FROM perdure.entry WHERE kind = 'pending'",
        database,
    )
    wrong = found(postgres_url, "s1")
    assert {"EVENT_UNREADABLE", "EVENTS_MISSING", "ENTRY_MISSING"} <= wrong.keys()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    told = waits.run("doctor", *words)
    assert "✓ rebuilt s1: " in told.stdout
    folder = tmp_path / "perdure" / "damaged"
    original = next(folder.glob("*.damaged-1.jsonl")).read_text().splitlines()
    assert not list(Path.cwd().glob("*.damaged-1.jsonl"))
    assert [json.loads(one)["seq"] for one in original][:2] == [1, 3]
    assert not {"EVENT_UNREADABLE", "EVENTS_MISSING", "ENTRY_MISSING"} & found(postgres_url).keys()
    assert waits.pending("refund") == call
    assert waits.run("approve", call).exit_code == 0
    assert waits.effects() == ["refund 4200"]
    assert waits.json("sessions", "show", "s1")["state"] == "completed"


def test_a_session_that_somebody_drives_is_not_mended(
    waits: Shop, postgres: PostgresServer, postgres_url: str
) -> None:
    database = postgres_url.rpartition("/")[2]
    postgres.psql(
        "UPDATE perdure.record SET data = '{' WHERE type = 'tool_result'; "
        "INSERT INTO perdure.holder (name, until, program) VALUES ('busy', 1e14, 2); "
        "UPDATE perdure.stream SET holder = 'busy'",
        database,
    )
    told = waits.run("doctor", "s1", "--fix", "--store", postgres_url, app=None)
    assert (told.exit_code, "driven by busy" in told.stderr) == (5, True)
    assert "EVENT_UNREADABLE" in found(postgres_url, "s1")


def test_a_missing_index_is_named_with_what_makes_it(
    waits: Shop, postgres: PostgresServer, postgres_url: str
) -> None:
    database = postgres_url.rpartition("/")[2]
    assert {"lease_due", "entry_due", "entry_state", "record_pos"} <= known_indexes().keys()
    assert "stream_due" not in known_indexes(), "a later step drops it"
    postgres.psql("DROP INDEX perdure.entry_due", database)
    missing = found(postgres_url)["INDEX_MISSING"]
    assert "the index entry_due is missing" in missing["text"]
    for statement in advice_of(missing).split("; "):
        postgres.psql(
            f"SET search_path TO perdure; {statement.replace(' CONCURRENTLY', '')}", database
        )
    assert found(postgres_url) == {}


def test_a_transaction_that_keeps_a_vacuum_from_its_work_is_named(
    waits: Shop, postgres: PostgresServer, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import anyio
    import asyncpg

    monkeypatch.setattr("perdure.store.postgres.inspect._LONG_MS", 0)

    async def beside() -> dict[str, Any]:
        connection = await asyncpg.connect(postgres_url)
        await connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1")
        blocked = await anyio.to_thread.run_sync(found, postgres_url)
        await connection.close()
        return blocked

    blocked = anyio.run(beside)["VACUUM_BLOCKED"]
    assert blocked["text"].startswith("the transaction ")
    assert "pg_terminate_backend" in advice_of(blocked)


def test_settings_that_lose_data_are_findings(shop: Shop, start_postgres: StartPostgres) -> None:
    server = start_postgres("fsync=off", "full_page_writes=off", "autovacuum=off")
    url = server.new_database()
    server.psql(f"ALTER DATABASE {url.rpartition('/')[2]} SET synchronous_commit = off")
    assert shop.run("db", "migrate", "--store", url, app=None).exit_code == 0
    assert found(url).keys() == {"FSYNC", "FULL_PAGE_WRITES", "SYNCHRONOUS_COMMIT", "AUTOVACUUM"}


def test_a_database_is_migrated_and_counted(shop: Shop, postgres_url: str) -> None:
    on = ("--store", postgres_url)
    told = shop.run("db", "stats", *on, "--json", app=None)
    assert (told.exit_code, json.loads(told.stderr)["code"]) == (1, "STORE_NOT_FOUND")
    assert shop.json("db", "migrate", *on, app=None) == {"from": 0, "to": known_schema()}
    newest = {"from": known_schema(), "to": known_schema()}
    assert shop.json("db", "migrate", *on, app=None) == newest
    stats = shop.json("db", "stats", *on, app=None)
    assert {one["name"] for one in stats["tables"]} >= {"stream", "record", "entry", "holder"}
    assert (stats["lagMs"], stats["sessions"]) == (0, {})
    told = shop.run("db", "stats", *on, app=None)
    assert "record: " in told.stdout
    assert shop.run("db", "backup", "x.db", *on, app=None).exit_code == 2
