"""One view of health: every damage is reported by doctor and has a way out that works."""

import json
import logging
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.servers.postgres import PostgresServer
from tests.support.damage import POSTGRES_DAMAGES, SQLITE_DAMAGES, STALE, Damage
from tests.support.damage_shop import SESSIONS, DamageShop
from tests.support.findings import advice_of

CORRUPT = 7
PAID = ["pay 1"] * len(SESSIONS)
HARMLESS = [damage for damage in SQLITE_DAMAGES if damage.way_out == "none"]
FIXED = [damage for damage in SQLITE_DAMAGES if damage.way_out == "fix"]
COPIED = [damage for damage in SQLITE_DAMAGES if damage.way_out == "copy"]

DamagedShop = Callable[[Damage], DamageShop]


@pytest.fixture(autouse=True)
def _plain_logging() -> Iterator[None]:
    """Restore what the commands change in this process."""
    root, ours, path = logging.getLogger(), logging.getLogger("perdure"), list(sys.path)
    before = (list(root.handlers), root.level, ours.level)
    yield
    root.handlers[:] = before[0]
    root.setLevel(before[1])
    ours.setLevel(before[2])
    sys.path[:] = path
    sys.modules.pop("clerk", None)


@pytest.fixture(scope="module")
def sqlite_shop(tmp_path_factory: pytest.TempPathFactory) -> DamageShop:
    return _create(tmp_path_factory.mktemp("sqlite"), "sqlite:///shop.db")


@pytest.fixture(scope="module")
def postgres_shop(tmp_path_factory: pytest.TempPathFactory, postgres: PostgresServer) -> DamageShop:
    return _create(tmp_path_factory.mktemp("postgres"), postgres.new_database())


def _create(folder: Path, url: str) -> DamageShop:
    before = Path.cwd()
    os.chdir(folder)
    try:
        return DamageShop.create(folder, url)
    finally:
        os.chdir(before)


@pytest.fixture
def damaged_sqlite(
    sqlite_shop: DamageShop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> DamagedShop:
    monkeypatch.chdir(tmp_path)

    def damaged(damage: Damage) -> DamageShop:
        shop = sqlite_shop.copied(tmp_path)
        damage.to_sqlite(tmp_path / "shop.db")
        return shop

    return damaged


@pytest.fixture
def damaged_postgres(
    postgres_shop: DamageShop,
    postgres: PostgresServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> DamagedShop:
    monkeypatch.chdir(tmp_path)

    def damaged(damage: Damage) -> DamageShop:
        template = postgres_shop.url.rpartition("/")[2]
        name = f"damaged_{tmp_path.name}".lower()[:60]
        postgres.psql(f"CREATE DATABASE {name} TEMPLATE {template}")

        async def execute(statement: str) -> None:
            postgres.psql(f"SET search_path TO perdure; {statement}", name)

        anyio.run(damage.to_postgres, execute)
        return postgres_shop.copied(tmp_path, postgres.url(name))

    return damaged


def _damage_of(findings: list[dict[str, Any]], session: str) -> list[tuple[str, str]]:
    """Return code and text of the damage of a session or of the store, as its own checkup says."""
    return sorted(
        (item["code"], item["text"].removeprefix(f"session {session}: "))
        for item in findings
        if item["severity"] == "error"
        if item["subject"] in (session, "store")
    )


def _check_reported(shop: DamageShop, damage: Damage, codes: frozenset[str]) -> None:
    """Doctor reports the same damage for the store and for the session, and harms nobody."""
    (store_exit, store), (session_exit, session) = shop.findings(), shop.findings("v")
    is_stray = damage.group == "strays"
    assert store_exit == CORRUPT
    assert session_exit == CORRUPT or (is_stray and not codes)
    assert ("ORPHANED_ROWS" in {item["code"] for item in store}) == is_stray
    assert _damage_of(store, "v") == _damage_of(session, "v")
    assert {item["code"] for item in session} >= codes
    assert all(advice_of(item) for item in store + session)


def _check_fixed(shop: DamageShop, damage: Damage) -> None:
    """The commands of doctor end the damage, and none of them starts a call."""
    assert shop.fix() > 0
    for words in ((), ("v",)):
        exit_code, findings = shop.findings(*words)
        assert exit_code != CORRUPT, findings
    states = shop.states()
    assert sorted(states) == sorted(SESSIONS)
    assert "STORE_CORRUPT" not in states.values()
    assert states["u"] == "waiting"
    assert shop.effects() == PAID
    if damage.keeps_log:
        assert set(states.values()) == {"waiting"}
        for session in SESSIONS:
            call = shop.pending(session)
            assert call is not None
            assert shop.run("approve", call).exit_code == 0
        assert set(shop.states().values()) == {"completed"}
        assert shop.effects() == [*PAID, *["refund 2"] * len(SESSIONS)]


@pytest.mark.parametrize("damage", FIXED, ids=str)
def test_damaged_rows_of_sqlite_are_reported_and_fixed_by_the_commands_of_doctor(
    damaged_sqlite: DamagedShop, damage: Damage
) -> None:
    """G3, S4.22: nothing that ran runs again."""
    shop = damaged_sqlite(damage)
    _check_reported(shop, damage, damage.codes)
    _check_fixed(shop, damage)


@pytest.mark.parametrize("damage", POSTGRES_DAMAGES, ids=str)
def test_damaged_rows_of_postgresql_are_reported_and_fixed_by_the_commands_of_doctor(
    damaged_postgres: DamagedShop, damage: Damage
) -> None:
    """G3, S4.22: nothing that ran runs again."""
    shop = damaged_postgres(damage)
    codes = damage.codes if damage.postgres_codes is None else damage.postgres_codes
    _check_reported(shop, damage, codes)
    _check_fixed(shop, damage)


def test_rows_that_belong_to_no_session_are_kept_in_a_file(
    damaged_sqlite: DamagedShop, tmp_path: Path
) -> None:
    """G9: a dry run says so and moves nothing."""
    name = "event at a stream that does not exist"
    shop = damaged_sqlite(next(damage for damage in FIXED if damage.name == name))
    text = "1 row of stream number 1002 cannot belong to any session"
    assert text in shop.run("doctor", "--fix", "--dry-run").output
    assert not list(tmp_path.glob("*.jsonl"))
    assert f"{text}\n✓ moved them to " in shop.run("doctor", "--fix", "--yes").output
    (moved,) = tmp_path.glob("shop.db.lost*.jsonl")
    (row,) = [json.loads(line) for line in moved.read_text().splitlines()]
    assert (row["table"], row["sid"], row["type"]) == ("record", 1002, "tool_result")
    assert json.loads(row["data"])["result"] == "done"


@pytest.mark.parametrize("damage", HARMLESS, ids=str)
def test_damage_that_loses_nothing_is_no_finding(
    damaged_sqlite: DamagedShop, damage: Damage
) -> None:
    shop = damaged_sqlite(damage)
    assert shop.findings() == shop.findings("v") == (0, [])
    call = shop.pending("v")
    assert call is not None
    assert shop.run("approve", call).exit_code == 0
    assert shop.effects() == [*PAID, "refund 2"]


@pytest.mark.parametrize("damage", COPIED, ids=str)
def test_a_damaged_file_is_reported_and_replaced_by_a_backup_or_by_what_can_be_read(
    sqlite_shop: DamageShop, damaged_sqlite: DamagedShop, damage: Damage
) -> None:
    """S4.22: nothing is written to such a file, and nothing that ran runs again."""
    shop = damaged_sqlite(damage)
    _check_reported(shop, damage, damage.codes)
    for item in shop.findings()[1]:
        assert "--fix" not in advice_of(item)
        assert "restore a backup" in advice_of(item)
        assert "perdure sessions export --all" in advice_of(item)
    content = (shop.folder / "shop.db").read_bytes()
    assert shop.run("doctor", "v", "--fix").exit_code == CORRUPT
    assert (shop.folder / "shop.db").read_bytes() == content
    export = shop.run("sessions", "export", "--all", "--secrets")
    assert export.exit_code == CORRUPT
    if export.stdout_bytes:
        Path("all.jsonl").write_bytes(export.stdout_bytes)
        imported = shop.run(
            "sessions", "import", "all.jsonl", "--store", "sqlite:///new.db", app=False
        )
        assert imported.exit_code == 0, imported.output
        assert shop.run("doctor", "--store", "sqlite:///new.db", app=False).exit_code != CORRUPT
    for path in shop.folder.glob("shop.db*"):
        path.unlink()
    restored = sqlite_shop.copied(shop.folder)
    assert restored.findings() == restored.findings("v") == (0, [])
    assert restored.effects() == PAID


# A session of a holder that does not exist continues: any worker ends such a lease. So does one
# with an old epoch that waits: none of its calls runs.
STREAM_DAMAGES = [
    damage
    for damage in FIXED
    if damage.group == "stream"
    and damage.name != "holder that does not exist"
    and damage not in STALE
]


@pytest.mark.parametrize("damage", STREAM_DAMAGES, ids=str)
def test_a_decision_about_a_session_with_a_damaged_row_is_refused_and_not_consumed(
    sqlite_shop: DamageShop, damaged_sqlite: DamagedShop, damage: Damage
) -> None:
    """S4.22: it was accepted, and the session hung for ever."""
    shop = damaged_sqlite(damage)
    other, call = shop.pending("u"), _call_of(sqlite_shop, shop, "v")
    assert other is not None
    refused = shop.run("approve", call, "--json")
    assert refused.exit_code in (3, CORRUPT)
    assert "Traceback" not in refused.output
    assert "TypeError" not in refused.output
    assert shop.run("approve", other).exit_code == 0
    assert shop.effects() == [*PAID, "refund 2"]


def _call_of(sound: DamageShop, shop: DamageShop, session: str) -> str:
    """Return the id of an open call, from the store before its damage."""
    os.chdir(sound.folder)
    try:
        call = sound.pending(session)
    finally:
        os.chdir(shop.folder)
    assert call is not None
    return call


def test_a_session_of_which_only_events_are_left_gets_a_name(damaged_sqlite: DamagedShop) -> None:
    """Its name was only in its row and entries; what it did is in its events."""
    lost = Damage(
        "row and entries lost",
        "stream",
        frozenset(),
        ("DELETE FROM entry {of_v}", "DELETE FROM stream WHERE id = '{v_id}'"),
    )
    shop = damaged_sqlite(lost)
    exit_code, findings = shop.findings()
    (missing,) = [item for item in findings if item["code"] == "STREAM_MISSING"]
    name = missing["subject"]
    assert (exit_code, name) == (CORRUPT, "lost-2")
    assert "its name is lost, so it is called lost-2, of agent clerk" in missing["text"]
    assert _damage_of(findings, name) == _damage_of(shop.findings(name)[1], name)
    assert shop.fix() == 1
    assert shop.findings() == (0, [])
    assert shop.states() == {"u": "waiting", "lost-2": "waiting", "w": "waiting"}
    call = shop.pending(name)
    assert call is not None
    assert shop.run("approve", call).exit_code == 0
    assert shop.effects() == [*PAID, "refund 2"]


@pytest.mark.parametrize("store", ["sqlite", "postgres"])
def test_a_session_whose_holder_does_not_exist_continues(
    request: pytest.FixtureRequest, store: str
) -> None:
    """Its lease ended never, since nothing said when."""
    (damage,) = [damage for damage in FIXED if damage.name == "holder that does not exist"]
    damaged: DamagedShop = request.getfixturevalue(f"damaged_{store}")
    shop = damaged(damage)
    call = shop.pending("v")
    assert call is not None
    assert shop.run("approve", call).exit_code == 0
    assert shop.states()["v"] == "completed"
    assert shop.effects() == [*PAID, "refund 2"]


def test_doctor_fixes_all_sessions_of_a_store_at_once(damaged_sqlite: DamagedShop) -> None:
    (damage,) = [damage for damage in FIXED if damage.name == "all entries deleted"]
    shop = damaged_sqlite(damage)
    assert shop.run("doctor", "--fix").exit_code == 0
    assert shop.findings() == (0, [])
    assert shop.states() == dict.fromkeys(SESSIONS, "waiting")
