"""Every kind of damage, in every state of a session, with every way out.

An oracle outside counts effects and decisions: no effect happens twice, no gated call runs without
a decision, no session is stuck, and no damage is silent. `make test` runs a part of the table, and
`make soak` all of it.
"""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from tests.damage.cases import WAYS, Case, Databases, SqliteFiles, Way, cases, run, run_cases
from tests.damage.exports import EXPORT_DAMAGES, run_exports
from tests.damage.scenes import SCENES, Ledger, Scene, judge, settle
from tests.support.damage import (
    DUE,
    POSTGRES_CASES,
    SQLITE_CASES,
    SQLITE_DAMAGES,
    STALE,
    Damage,
)

EVERY_SQLITE = 7  # in make test: one in so many, in the order of the table
EVERY_POSTGRES = 36  # as many as there are scenes and ways: each kind once

ALL = pytest.mark.parametrize("scene, way", [(scene, way) for scene in SCENES for way in WAYS])


def part(chosen: list[Case], every: int, scene: Scene, way: Way) -> list[Case]:
    """Return another part of the cases for each scene and way, so that all kinds occur."""
    return chosen[(SCENES.index(scene) * len(WAYS) + WAYS.index(way)) % every :: every]


@ALL
def test_nothing_is_paid_twice_or_without_a_decision_after_damage_to_a_sqlite_file(
    files: SqliteFiles, tmp_path: Path, scene: Scene, way: Way
) -> None:
    """G3, G7, G9"""
    chosen = part(cases(SQLITE_CASES, scene, way), EVERY_SQLITE, scene, way)
    number, faults = run_cases(files, chosen, tmp_path)
    assert number
    assert not faults, "\n".join(faults)


@ALL
def test_nothing_is_paid_twice_or_without_a_decision_after_damage_to_rows_of_postgres(
    databases: Databases, tmp_path: Path, scene: Scene, way: Way
) -> None:
    """G3, G7, G9"""
    chosen = part(cases(POSTGRES_CASES, scene, way), EVERY_POSTGRES, scene, way)
    number, faults = run_cases(databases, chosen, tmp_path)
    assert number
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize("scene", SCENES, ids=str)
def test_a_damaged_export_is_refused_or_does_no_harm(
    files: SqliteFiles, tmp_path: Path, scene: Scene
) -> None:
    """G3, G7"""
    assert len(EXPORT_DAMAGES) >= 16
    faults = run_exports(files, scene, tmp_path)
    assert not faults, "\n".join(faults)


@pytest.mark.soak
@ALL
def test_all_kinds_of_damage_to_a_sqlite_file(
    files: SqliteFiles, tmp_path: Path, scene: Scene, way: Way
) -> None:
    """G3, G7, G9"""
    assert len(SQLITE_CASES) >= 39
    _, faults = run_cases(files, cases(SQLITE_CASES, scene, way), tmp_path)
    assert not faults, "\n".join(faults)


@pytest.mark.soak
@ALL
def test_all_kinds_of_damage_to_rows_of_postgres(
    databases: Databases, tmp_path: Path, scene: Scene, way: Way
) -> None:
    """G3, G7, G9"""
    _, faults = run_cases(databases, cases(POSTGRES_CASES, scene, way), tmp_path)
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize("store", ["files", "databases"])
@pytest.mark.parametrize("damage", [*DUE, *STALE], ids=lambda damage: damage.name)
def test_a_row_that_keeps_a_running_session_from_every_driver_is_reported_and_repaired(
    request: pytest.FixtureRequest, tmp_path: Path, store: str, damage: Damage
) -> None:
    """G9: it would run for ever, and nobody would know"""
    scene = next(scene for scene in SCENES if scene.name == "running")
    number, faults = run_cases(
        request.getfixturevalue(store), [Case(scene, damage, "fix")], tmp_path
    )
    assert (number, faults) == (1, [])


def test_the_oracle_finds_an_effect_twice_and_one_without_a_decision() -> None:
    ledger = Ledger()
    ledger.effects["v", "pay"] = 1
    assert judge(ledger) == []
    ledger.effects["v", "pay"] = 2
    ledger.effects["v", "refund"] = 1
    assert judge(ledger) == ["('v', 'pay') ran 2 times", "('v', 'refund') ran without a decision"]


def test_an_export_of_all_sessions_has_each_background_agent_once(
    files: SqliteFiles, tmp_path: Path
) -> None:
    """S1.34: also if a session is named together with the one that launched it"""
    path, template = files.template(next(scene for scene in SCENES if scene.is_child))
    url = f"sqlite:///{path}"
    for words in (["--all"], ["v", template.session]):
        exported = run("sessions", "export", *words, "--secrets", "--store", url).stdout
        assert exported.count('"sessionID":"' + template.session + '","tenant":"","agent"') == 1
        file = tmp_path / f"{len(words)}.jsonl"
        file.write_text(exported)
        new = f"sqlite:///{tmp_path / f'{len(words)}.db'}"
        assert run("sessions", "import", str(file), "--store", new).exit_code == 0


def test_a_background_agent_that_ends_beside_a_damaged_parent_continues_after_the_fix(
    files: SqliteFiles,
) -> None:
    """G9: its own records are sound, so it is tried again; `sessions resume` does it at once"""
    scene = next(scene for scene in SCENES if scene.is_child)
    damage = next(kind for kind in SQLITE_DAMAGES if kind.name == "stream lost")
    _, template = files.template(scene)
    child, ledger = template.session, template.ledger.copy()
    copied = files.copy(Case(replace(scene, is_child=False), damage, "fix"))
    assert copied
    url, _ = copied
    asyncio.run(settle(url, ledger))
    run("doctor", "v", "--fix", "--yes", "--store", url)
    assert "NOT_DUE" not in run("doctor", "--store", url).output
    run("sessions", "resume", child, "--store", url)
    assert asyncio.run(settle(url, ledger)) == []


def test_a_background_agent_that_is_not_listed_is_reported_and_does_not_make_its_driver_spin(
    files: SqliteFiles,
) -> None:
    """G9: a driver would try its commit again and again, without a pause"""
    scene = next(scene for scene in SCENES if scene.is_child)
    _, template = files.template(scene)
    ledger = template.ledger.copy()
    lost = Damage("", "entries", frozenset(), ("DELETE FROM entry WHERE kind = 'child:status'",))
    copied = files.copy(Case(scene, lost, "fix"))
    assert copied
    url, _ = copied

    async def settle_in_time() -> list[str]:
        async with asyncio.timeout(60):
            return await settle(url, ledger)

    asyncio.run(settle_in_time())
    assert "ENTRY_MISSING" in run("doctor", "--store", url).output
    run("doctor", "--fix", "--yes", "--store", url)
    assert run("doctor", "--store", url).exit_code != 7
    run("sessions", "resume", template.session, "--store", url)
    assert asyncio.run(settle_in_time()) == []
