"""G10: a page of a list costs as much among many entries as among few."""

from pathlib import Path
from typing import Any

import pytest
from tests.proof.parked import Steps, make_agent
from tests.proof.test_parked import park
from tests.support.http_client import MakeClient, client_of
from tests.support.http_shop import TOKENS

from perdure import Runtime, asgi
from perdure.store.sqlite.store import SqliteStore

__all__ = ["client_of"]

FEW, MANY = 2_000, 20_000


async def steps_per_page(database: Path, number: int, client_of: MakeClient) -> dict[str, int]:
    """Steps of SQLite for a page of each list, in a store with so many sessions and calls."""
    await park(database, number)
    steps, taken = Steps(), dict[str, int]()
    store = SqliteStore(database, connect=steps.connect)
    async with Runtime(store, agents=[make_agent()]) as rt, client_of(asgi(rt, auth=TOKENS)) as one:

        async def page(name: str, path: str, **query: Any) -> dict[str, Any]:
            counts: list[int] = []
            told: dict[str, Any] = {}
            for _ in range(3):  # a heartbeat may fall into one of them
                steps.taken()
                answer = await one.get(path, params={"limit": 50, **query})
                counts.append(steps.taken())
                assert answer.status_code == 200, answer.text
                told = answer.json()
            taken[name] = min(counts)
            return told

        first = await page("first calls", "/pending")
        assert first["count"] == number
        second = await page("next calls", "/pending", cursor=first["next"])
        assert len({call["id"] for call in (*first["pending"], *second["pending"])}) == 100
        for sort in ("expires", "newest"):
            listed = await page(f"{sort} calls", "/pending", sort=sort)
            later = await page(f"{sort} more", "/pending", sort=sort, cursor=listed["next"])
            assert len({c["id"] for c in (*listed["pending"], *later["pending"])}) == 100
        assert (await page("for machines", "/pending", waitsFor="machines"))["count"] == 0
        listed = await page("sessions", "/sessions", tenant="")
        assert len((await page("more", "/sessions", cursor=listed["next"]))["sessions"]) == 50
        assert (await page("of a tenant", "/sessions", tenant="zoo"))["sessions"] == []
        pending: list[int] = []
        for _ in range(3):
            steps.taken()
            async for _ in rt.pending():
                break
            pending.append(steps.taken())
        taken["rt.pending"] = min(pending)
    return taken


async def test_a_page_costs_as_much_among_many_entries_as_among_few(
    tmp_path: Path, client_of: MakeClient
) -> None:
    """The first page of calls also counts them: some steps for each, in one scan of an index."""
    few = await steps_per_page(tmp_path / "few.db", FEW, client_of)
    many = await steps_per_page(tmp_path / "many.db", MANY, client_of)
    for name in ("first calls", "expires calls", "newest calls"):
        counted = (many.pop(name) - few.pop(name)) / (MANY - FEW)
        assert counted <= 15, name
    assert many == pytest.approx(few, rel=0.1, abs=100), (few, many)
