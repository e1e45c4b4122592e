"""Other backends answer the operations of a simulated fleet as the memory store does."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
from anyio import run
from tests.simulation.replay import HeldClock, replay, tape_of

from perdure.store.base import Store
from perdure.store.files.store import files_store
from perdure.store.postgres.store import PostgresStore
from perdure.store.sqlite.store import SqliteStore
from perdure.testing.simulation.simulate import quiet_logs

SEEDS: Final = int(os.environ.get("REPLAYED_SEEDS", "50"))
PARTS: Final = 5
MakeStore = Callable[[Path, HeldClock, Any], Store]


def sqlite(folder: Path, clock: HeldClock, _: Any) -> Store:
    return SqliteStore(folder / "replay.db", clock=clock)


def files(folder: Path, clock: HeldClock, _: Any) -> Store:
    return files_store(folder / "replay", clock=clock)


def postgres(_: Path, clock: HeldClock, request: Any) -> Store:
    new_schema = request.getfixturevalue("new_postgres_schema")
    return PostgresStore(new_schema(), clock=clock)


@pytest.mark.soak
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("backend", [files, postgres])
def test_a_slower_backend_gives_the_same_answers_for_all_seeds(
    backend: MakeStore, part: int, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    check_answers(backend, range(PARTS + part, SEEDS, PARTS), tmp_path, request)


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("backend", [sqlite, files, postgres])
def test_a_backend_gives_the_same_answers(
    backend: MakeStore, part: int, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    # Of the slower backends one seed here, and the others in `make soak`.
    seeds = range(part, SEEDS if backend is sqlite else PARTS, PARTS)
    check_answers(backend, seeds, tmp_path, request)


def check_answers(
    backend: MakeStore, seeds: range, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Replay seeds on a backend, each in a folder of its own."""
    with quiet_logs():
        tapes = {seed: tape_of(seed) for seed in seeds}
    for seed, tape in tapes.items():
        folder = tmp_path / str(seed)
        folder.mkdir()

        async def main(tape: Any = tape, folder: Path = folder) -> list[str]:
            clock = HeldClock()
            clock.at = tape[0].now
            store = backend(folder, clock, request)
            await store.open()
            try:
                return await replay(tape, store, clock)
            finally:
                await store.close()

        differences = run(main)
        assert not differences, f"seed {seed}: {len(differences)} differences\n{differences[0]}"
