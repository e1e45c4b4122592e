"""Parked sessions on PostgreSQL in any number: copies of a real one, made by the server."""

import json
import secrets
from collections.abc import Iterator
from typing import Any

import asyncpg
from bench.peers import common
from bench.peers.perdure_peer import create_agent

from perdure import Runtime
from perdure.store.base import ANY_TRIES
from perdure.store.postgres import reads
from perdure.store.postgres.sql import statement

BATCH = 100_000
STEP_S = 120.0
FIRST = 1_000_000_000  # above every sid that a session of a benchmark gets
LATER = 4_000_000_000_000  # no copied session becomes due during the run

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
    INSERT INTO entry (kind, key, sid, version, state, due, data, listing, at)
    SELECT e.kind, e.key || '-' || n, $2::bigint + n, e.version, e.state,
           CASE WHEN n % 2 = 0 THEN $5::bigint END, e.data, e.listing, e.at + n
    FROM generate_series($3::bigint, $4::bigint) n, entry e WHERE e.sid = $1
    """,
)

Plans = dict[str, str]


async def park(url: str, first: int, last: int) -> None:
    """Create the parked sessions with the numbers `first` to `last`."""
    connection = await asyncpg.connect(url, server_settings={"search_path": "perdure"})
    try:
        await connection.execute("SET synchronous_commit = off")
        sid = await _template(url, connection)
        for start in range(first, last + 1, BATCH):
            end = min(start + BATCH - 1, last)
            for copy in COPIES:
                await connection.execute(copy, sid, FIRST, start, end, LATER, timeout=STEP_S)
        await connection.execute("VACUUM ANALYZE", timeout=STEP_S)
        await connection.execute("CHECKPOINT", timeout=STEP_S)
    finally:
        await connection.close()


async def _template(url: str, connection: Any) -> int:
    async with Runtime(url, agents=[create_agent(common.Story(common.CYCLE))]) as rt:
        await rt.session("parked-0", agent="bench").run(common.MESSAGE, key="start")
    find = "SELECT sid FROM stream WHERE id LIKE '%parked-0'"
    return int(await connection.fetchval(find))


# --- plans -------------------------------------------------------------------------------------


def statements() -> dict[str, tuple[str, tuple[Any, ...]]]:
    """Return the statements of a cycle and of the worker's loop, with parameter values."""
    name, now = secrets.token_hex(4), LATER // 2
    return {
        "look for work": (statement("check_for_work"), (name, "session/bench", now)),
        "claim": (statement("claim"), (name, "session/bench", 64, now, ANY_TRIES, 0, 0, False)),
        "claim by name": (
            statement("claim_these"),
            (name, "session/bench", ["a", "b"], now, ANY_TRIES),
        ),
        "load": (
            statement("load_rows"),
            (["a", "b"], ["pending", "pending"], ["a", "b"], [name], now),
        ),
        "entries": (statement("load_entries"), (["pending", "pending"], ["a", "b"])),
        "read": (statement("read"), ("a", 0, 100)),
        "expire": (
            reads._find(("kind", "state", "due_before"), is_first=True),  # noqa: SLF001 - to explain it
            ("pending", "open", now, 100),
        ),
    }


async def plans(url: str) -> Plans:
    """Return the indexes that each statement uses, and the tables that it scans in full."""
    connection = await asyncpg.connect(
        url, server_settings={"search_path": "perdure", "enable_seqscan": "off", "jit": "off"}
    )
    try:
        return {
            name: _format_scans(await connection.fetchval(f"EXPLAIN (FORMAT JSON) {sql}", *values))
            for name, (sql, values) in statements().items()
        }
    finally:
        await connection.close()


def _format_scans(plan: str) -> str:
    return ", ".join(sorted(set(_scans(json.loads(plan)[0]["Plan"]))))


def _scans(node: dict[str, Any]) -> Iterator[str]:
    if "Index Name" in node:
        yield str(node["Index Name"])
    elif node["Node Type"] == "Seq Scan":
        yield f"all of {node['Relation Name']}"
    for part in node.get("Plans", ()):
        yield from _scans(part)
