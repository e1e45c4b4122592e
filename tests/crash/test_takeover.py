"""A worker that is dead is replaced at once where that can be seen, else after its lease."""

from pathlib import Path

import anyio
import pytest
from anyio import to_thread
from tests.crash.agents import Place
from tests.crash.harness import Child, StartChild, successor

from perdure.runtime.engine.heartbeat import LEASE_MS

TURNS = "hold look"


async def begun(start: StartChild, place: Place, lease: str) -> Child:
    """A process that holds a session, inside its first tool."""
    child = start("drive")
    job = {"turns": TURNS, "lease": lease, "blocking": False, "settle_s": 0.0}
    child.tell({"folder": str(place.folder), **job})
    assert "holding" in await to_thread.run_sync(child.says)
    return child


async def test_the_sessions_of_a_dead_worker_are_taken_over_before_its_lease_is_over(
    place: Place, start: StartChild
) -> None:
    """SX.4: a lease of ten minutes, and a death that the other can see."""
    child = await begun(start, place, "600s")
    child.process.kill()
    async with successor(place, TURNS) as (rt, session):
        with anyio.fail_after(20):
            await rt.work(once=True)
            result = await session.run()
        assert result.output == "all done"
        told = [e.data for e in await session.events() if e.type == "tool_result"]
        assert [one.get("interrupted", False) for one in told] == [True, False]
    assert [line["tool"] for line in place.effects()] == ["hold", "look"]


async def test_without_anything_but_plain_sql_they_are_taken_over_after_a_short_lease(
    tmp_path: Path, postgres_url: str, start: StartChild, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SX.4: nobody says how long the lease is; it is 2 s where only its end tells of a death."""
    monkeypatch.delenv("PERDURE_LEASE", raising=False)
    monkeypatch.setenv("PERDURE_SCRIPT_LOG", str(tmp_path / "requests"))
    (tmp_path / "url").write_text(f"{postgres_url}?listen=off&advisory=off")
    place = Place(tmp_path)
    child = await begun(start, place, "")
    child.process.kill()
    async with successor(place, TURNS) as (_, session):
        with anyio.fail_after(LEASE_MS / 1000 - 2):  # no lease of the usual length is over by then
            assert (await session.run()).output == "all done"
