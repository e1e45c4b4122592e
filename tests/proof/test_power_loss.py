"""G1: whatever a commit answered survives a power loss, at whichever operation that comes."""

import os
import random
import shutil
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest
from tests.proof.power import WAL_LIMIT, Cut, Finding, Life, examine

from perdure.store.sqlite import writer as sqlite_writer

COMMITS = 60
RATE = 0.02  # of some 500 operations in each life; more often before a sync


@pytest.fixture(autouse=True)
def often_checkpointed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_writer, "WAL_LIMIT_BYTES", WAL_LIMIT)


@pytest.fixture
def seed() -> int:
    """Another one each time, unless given; printed when a test fails."""
    chosen = int(os.environ.get("POWER_SEED", random.SystemRandom().randrange(1_000_000)))
    print(f"POWER_SEED={chosen}")  # noqa: T201
    return chosen


async def power_losses(
    folder: Path, seed: int, wanted: int, settings: Mapping[str, object]
) -> AsyncIterator[tuple[str, Cut, Finding]]:
    """So many power losses with what was found after each; every second life follows on one."""
    luck = random.Random(seed)  # noqa: S311 - chance, not a secret
    seen, number = 0, 0
    before: Life | None = None
    left: tuple[Cut, Finding] | None = None
    while seen < wanted:
        number += 1
        life = Life(folder / f"life-{number}", f"{seed}-{number}", settings, before)
        if left is None:
            await life.run(COMMITS, RATE)
        else:
            await life.run(COMMITS, RATE, left[0].image, left[1].present)
        findings = []
        for cut in life.cuts:
            place = folder / f"life-{number}-cut-{cut.operation}"
            findings.append((cut, await examine(place, cut, life.records)))
            yield f"seed {seed}, {place.name} of {life.operations}", *findings[-1]
            if findings[-1][1].is_good:
                shutil.rmtree(place)
        seen += len(findings)
        shutil.rmtree(folder / f"life-{number}")
        good = [one for one in findings if one[1].is_good]
        before, left = (life, luck.choice(good)) if good and left is None else (None, None)


async def check_durable(folder: Path, seed: int, wanted: int) -> None:
    present = 0
    async for where, cut, finding in power_losses(folder, seed, wanted, {}):
        assert finding.is_good, f"{where}: {finding.lost} lost, {finding.wrong}"
        present += len(cut.owed)
    assert present > 10 * wanted, "it was cut before much was acknowledged"


async def test_no_power_loss_takes_an_acknowledged_commit_or_half_of_one(
    tmp_path: Path, seed: int
) -> None:
    await check_durable(tmp_path, seed, 200)


@pytest.mark.soak
async def test_no_power_loss_of_thousands_does(tmp_path: Path, seed: int) -> None:
    await check_durable(tmp_path, seed, 5000)


async def test_with_less_syncing_the_same_disk_loses_acknowledged_commits(
    tmp_path: Path, seed: int
) -> None:
    """So that it is seen that this disk can lose something: WAL with NORMAL never damages."""
    lost = 0
    async for where, _, finding in power_losses(tmp_path, seed, 30, {"synchronous": "NORMAL"}):
        assert not finding.wrong, f"{where}: {finding.wrong}"
        lost += bool(finding.lost)
    assert lost >= 3


async def test_without_syncing_the_same_disk_damages_the_file(tmp_path: Path, seed: int) -> None:
    damaged = 0
    async for _, _, finding in power_losses(tmp_path, seed, 30, {"synchronous": "OFF"}):
        damaged += bool(finding.wrong)
    assert damaged >= 3
