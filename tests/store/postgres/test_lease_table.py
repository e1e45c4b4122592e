"""The table of leases: rows of streams are updated within their pages, also by older programs."""

import time

import pytest
from tests.servers.postgres import PostgresServer

from perdure.errors import Conflict
from perdure.store.base import Release, Write
from perdure.store.postgres.schema import known_steps
from perdure.store.postgres.store import PostgresStore
from perdure.testing.contract.steps import claim, join, make, put, record

OLD = [step for step in known_steps() if step.number <= 3]
CYCLES = 50
UPDATES = "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'stream'"
INDEXES = "SELECT indexname FROM pg_indexes WHERE tablename = 'stream' ORDER BY indexname"
LEASES = """
    SELECT count(*) FROM perdure.stream s FULL JOIN perdure.lease l ON l.sid = s.sid
    WHERE (s.holder IS NOT NULL OR s.due IS NOT NULL) <> (l.sid IS NOT NULL)
       OR l.sid IS NOT NULL AND (l.kind, l.holder, l.due) IS DISTINCT FROM
          (s.kind, s.holder, CASE WHEN s.holder IS NULL THEN s.due END)
"""


async def _cycle(store: PostgresStore, head: int) -> None:
    """A result wakes a session; a worker claims it, writes twice, and parks it."""
    await store.commit([Write("s", [record("result")], wake=store.now())])
    lease = await claim(store, "worker", "s")
    await store.commit([Write("s", [record("turn")], fence=lease, head=head + 1)])
    await store.commit([Write("s", [record("end")], fence=lease, head=head + 2)])
    await store.commit([Write("s", fence=lease, head=head + 3, release=Release())])


async def test_nearly_all_updates_of_a_stream_stay_within_its_page(
    store: PostgresStore, postgres: PostgresServer, postgres_url: str
) -> None:
    """No index knows of its holder and due time, which every result changes."""
    database = postgres_url.rpartition("/")[2]
    await make(store, "s", wake=None)
    await join(store, "worker")
    for number in range(CYCLES):
        await _cycle(store, 1 + 3 * number)
    await store.close()  # which reports the numbers of its connections
    deadline = time.monotonic() + 20
    updates, hot = 0, 0
    while updates < 5 * CYCLES and time.monotonic() < deadline:
        updates, hot = map(int, postgres.psql(UPDATES, database).split("|"))
    assert updates == 5 * CYCLES
    assert hot >= 0.9 * updates


async def test_the_table_follows_every_way_in_which_a_lease_changes(
    store: PostgresStore, postgres: PostgresServer, postgres_url: str
) -> None:
    database = postgres_url.rpartition("/")[2]
    await make(store, "due", "s", "claimed", "erased")
    await make(store, "parked", wake=None)
    await join(store, "worker")
    await join(store, "other")
    now = store.now()
    await store.commit([Write("new", create="session", wake=now, claim="worker")], [])
    assert len(await store.claim("worker", "session", 1)) == 1
    lease = await claim(store, "worker", "s")
    await store.commit([Write("s", fence=lease, head=1, release=Release(now + 9_999_999))])
    await store.commit([Write("parked", wake=now)])
    await store.commit([Write("erased", erase=True)])
    assert postgres.psql(LEASES, database) == "0"
    assert postgres.psql("SELECT count(*) FROM perdure.lease", database) == "5"
    await store.renew("worker", 0)
    assert postgres.psql(LEASES, database) == "0"
    assert (await store.census(())).held == 0
    assert len(await store.claim("other", "session", 9)) == 4


async def test_an_older_program_s_streams_are_found_and_its_indexes_stay_while_it_lives(
    postgres: PostgresServer, postgres_url: str
) -> None:
    """A deploy: the step that drops the indexes waits for `perdure db migrate`, and for it."""
    database = postgres_url.rpartition("/")[2]
    await PostgresStore(postgres_url, steps=OLD).migrate()
    postgres.psql(
        "SET search_path TO perdure;"
        "INSERT INTO holder (name, until, program) VALUES ('old', 1e14, 3);"
        "INSERT INTO stream (sid, id, kind, due)"
        " VALUES (nextval('stream_sid'), 'due', 'session', 1);"
        "INSERT INTO stream (sid, id, kind, holder, epoch)"
        " VALUES (nextval('stream_sid'), 'held', 'session', 'old', 1)",
        database,
    )
    store = PostgresStore(postgres_url)
    await store.open()
    await join(store, "worker")
    assert postgres.psql(LEASES, database) == "0"
    lease = await claim(store, "worker", "due")
    await store.commit([Write("due", [record()], fence=lease, head=0)], [put("k", stream="due")])
    parks = "UPDATE perdure.stream SET holder = NULL, due = 1 WHERE id = 'held'"
    postgres.psql(parks, database)
    assert [x.stream for x in await store.claim("worker", "session", 9)] == ["held"]
    assert "stream_due" in postgres.psql(INDEXES, database).split()

    with pytest.raises(Conflict, match="old is alive and supports schema 3"):
        await PostgresStore(postgres_url).migrate()
    postgres.psql("DELETE FROM perdure.holder WHERE name = 'old'", database)
    assert await PostgresStore(postgres_url).migrate() == ["0005_lease_only"]
    assert postgres.psql(INDEXES, database).split() == ["stream_id_key", "stream_pkey"]
    await store.renew("worker", 0)
    await join(store, "next")
    assert len(await store.claim("next", "session", 9)) == 2
    await store.close()
