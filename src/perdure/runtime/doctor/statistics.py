"""A database in numbers."""

from typing import Any

from perdure.core.pending import record as pending
from perdure.core.pending.record import PendingRecord
from perdure.errors import Corrupt
from perdure.runtime.queues import due_by_queue, workers_by_queue
from perdure.store.inspect import Look, Table, Vitals


def statistics(look: Look, now: int) -> dict[str, Any]:
    """Sessions and calls by state, the oldest wait, and what it all takes on the disk."""
    vitals, sizes = look.vitals(now), look.sizes()
    waiting = _open_calls(look)
    kinds: dict[str, int] = {}
    for one in waiting:
        kinds[one.kind] = kinds.get(one.kind, 0) + 1
    oldest = min(waiting, key=lambda one: one.time.created, default=None)
    states = {state: count for (kind, state), count in vitals.counts.items() if kind == "session"}
    settled = sum(n for (kind, state), n in vitals.counts.items() if _is_settled(kind, state))
    return {
        "file": look.where,
        "schema": vitals.schema,
        "sessions": dict(sorted(states.items())),
        "due": vitals.due.count,
        "lagMs": max((now - since for _, _, since in vitals.due.streams), default=0),
        "workers": sum(until > now for _, until, _ in vitals.holders),
        "queues": _queues(vitals, now),
        "pending": dict(sorted(kinds.items())),
        "settledCalls": settled,
        "oldestWait": None if oldest is None else _wait(oldest),
        "records": sizes.records,
        "fileBytes": sizes.file,
        "walBytes": sizes.wal,
        "pages": sizes.pages,
        "freePages": sizes.free_pages,
        "pageBytes": sizes.page_size,
        "diskFreeBytes": sizes.disk_free,
        "tables": [_table(one) for one in sizes.tables],
    }


def _queues(vitals: Vitals, now: int) -> dict[str, dict[str, int]]:
    """What is due in each queue, and how many workers serve it."""
    due, workers = due_by_queue(vitals), workers_by_queue(vitals, now)
    return {name: {"due": due[name], "workers": workers[name]} for name in sorted({*due, *workers})}


def _table(table: Table) -> dict[str, Any]:
    return {
        "name": table.name,
        "bytes": table.bytes,
        "indexBytes": table.index_bytes,
        "rows": table.rows,
        "deadRows": table.dead_rows,
        "vacuumedAt": table.vacuumed_at,
    }


def _is_settled(kind: str, state: str) -> bool:
    return kind == "pending" and state != "open"


def _wait(record: PendingRecord) -> dict[str, Any]:
    return {
        "pendingID": record.id,
        "kind": record.kind,
        "tool": record.tool,
        "sessionID": record.session_id,
        "since": record.time.created,
    }


def _open_calls(look: Look) -> list[PendingRecord]:
    found: list[PendingRecord] = []

    def take(_: str, data: Any) -> None:
        try:
            found.append(pending.decode(data))
        except (Corrupt, TypeError):
            return  # `doctor` tells of it

    look.entries(take, "pending", "open")
    return found
