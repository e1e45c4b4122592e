"""A process that dies right after a commit that claimed: another one takes over."""

import sys
from pathlib import Path

import anyio
import pytest
from tests.support.paths import ROOT

from perdure.app.stores import open_store
from perdure.store.base import Lease, Store, Write


@pytest.fixture(params=["sqlite", "files", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """URL of an empty store."""
    if request.param == "postgres":
        made: str = request.getfixturevalue("new_postgres_schema")()
        return made
    return f"sqlite:///{tmp_path}/perdure.db" if request.param == "sqlite" else f"files:{tmp_path}"


async def _claimed(store: Store) -> Lease:
    while True:
        for lease in await store.claim("successor", "session", 1):
            return lease
        await store.changed(0.1)


async def test_what_a_commit_claimed_is_driven_by_another_process_after_kill_9(url: str) -> None:
    """G1, SX.4: record and lease are there, and the lease of an hour ends with its process."""
    program = [sys.executable, "-m", "tests.crash.claim_program", url, "victim"]
    done = await anyio.run_process(program, cwd=ROOT, check=False)
    assert done.returncode == -9, done.stderr.decode()
    store = open_store(url)
    await store.open()
    try:
        await store.renew("successor", 60_000, join=True)
        with anyio.fail_after(20):
            lease = await _claimed(store)
        assert (lease.stream, lease.epoch, lease.head, lease.tries) == ("s", 3, 1, 2)
        assert await store.commit([Write("s", fence=lease, head=1)]) == {"s": 1}
    finally:
        await store.close()
