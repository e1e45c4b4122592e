"""Sessions that wait on PostgreSQL, as many as wanted: one real one, copied by the server."""

import json
import secrets
from collections.abc import Iterator
from typing import Any

import asyncpg
from bench.peers import common
from bench.peers.perdure_peer import agent_of

from perdure import Runtime
from perdure.store.postgres import reads
from perdure.store.postgres.sql import statement

MANY_AT_ONCE = 100_000
STEP_S = 120.0
FIRST = 1_000_000_000  # numbers that no session of a benchmark gets
LATER = 4_000_000_000_000  # nobody is due in this run

COPIES = (
    """
    INSERT INTO stream (sid, id, kind, head, epoch, holder, due, tries, gone)
    SELECT $2::bigint + n, replace(s.id, 'parked-0', 'parked-' || n), s.kind, s.head, s.epoch, NULL,
           CASE WHEN n % 2 = 0 THEN $5::bigint END, 0, false
    FROM stream s, generate_series($3::bigint, $4::bigint) n WHERE s.sid = $1
    """,
    """
    INSERT INTO record (sid, seq, type, at, data)
    SELECT $2::bigint + n, r.seq, r.type, r.at, r.data
    FROM generate_series($3::bigint, $4::bigint) n, record r
    WHERE r.sid = $1 AND $5::bigint > 0 ORDER BY n, r.seq
    """,
    """
    INSERT INTO entry (kind, key, sid, version, state, due, data)
    SELECT e.kind, e.key || '-' || n, $2::bigint + n, e.version, e.state,
           CASE WHEN n % 2 = 0 THEN $5::bigint END, e.data
    FROM generate_series($3::bigint, $4::bigint) n, entry e WHERE e.sid = $1
    """,
)

Plans = dict[str, str]


async def park(url: str, first: int, last: int) -> None:
    """Make parked sessions number `first` to `last`."""
    connection = await asyncpg.connect(url, server_settings={"search_path": "perdure"})
    try:
        await connection.execute("SET synchronous_commit = off")
        sid = await _template(url, connection)
        for start in range(first, last + 1, MANY_AT_ONCE):
            end = min(start + MANY_AT_ONCE - 1, last)
            for copy in COPIES:
                await connection.execute(copy, sid, FIRST, start, end, LATER, timeout=STEP_S)
        await connection.execute("VACUUM ANALYZE", timeout=STEP_S)
        await connection.execute("CHECKPOINT", timeout=STEP_S)
    finally:
        await connection.close()


async def _template(url: str, connection: Any) -> int:
    async with Runtime(url, agents=[agent_of(common.Story(common.CYCLE))]) as rt:
        await rt.session("parked-0", agent="bench").run(common.MESSAGE, key="start")
    find = "SELECT sid FROM stream WHERE id LIKE '%parked-0'"
    return int(await connection.fetchval(find))


# --- plans -------------------------------------------------------------------------------------


def questions() -> dict[str, tuple[str, tuple[Any, ...]]]:
    """The statements of a cycle and of the worker's loop, with values."""
    name, now = secrets.token_hex(4), LATER // 2
    return {
        "look for work": (statement("look_for_work"), (name, "session/bench", now)),
        "claim": (statement("claim"), (name, "session/bench", 64, now)),
        "claim by name": (statement("claim_these"), (name, "session/bench", ["a", "b"], now)),
        "lock": (statement("lock_streams"), (["a", "b"],)),
        "entries": (statement("look_at_entries"), (["pending", "pending"], ["a", "b"])),
        "read": (statement("read"), ("a", 0, 100)),
        "expire": (
            reads._find(("kind", "state", "due_before"), is_first=True),  # noqa: SLF001 - its plan
            ("pending", "open", now, 100),
        ),
    }


async def plans(url: str) -> Plans:
    """The indexes that each statement walks, and the tables that it walks as a whole."""
    connection = await asyncpg.connect(
        url, server_settings={"search_path": "perdure", "enable_seqscan": "off", "jit": "off"}
    )
    try:
        return {
            name: _shape(await connection.fetchval(f"EXPLAIN (FORMAT JSON) {sql}", *values))
            for name, (sql, values) in questions().items()
        }
    finally:
        await connection.close()


def _shape(plan: str) -> str:
    return ", ".join(sorted(set(_walked(json.loads(plan)[0]["Plan"]))))


def _walked(node: dict[str, Any]) -> Iterator[str]:
    if "Index Name" in node:
        yield str(node["Index Name"])
    elif node["Node Type"] == "Seq Scan":
        yield f"all of {node['Relation Name']}"
    for part in node.get("Plans", ()):
        yield from _walked(part)
