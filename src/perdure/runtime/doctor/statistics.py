"""Statistics of a database."""

from typing import Any

from perdure.core.pending import record as pending
from perdure.core.pending.record import PendingRecord
from perdure.core.session.queues import is_worker
from perdure.errors import Corrupt
from perdure.runtime.queues import due_by_queue, workers_by_queue
from perdure.store.base import Entry
from perdure.store.inspect import StoreInspector, Table, Vitals


def statistics(inspector: StoreInspector, now: int) -> dict[str, Any]:
    """Return sessions and calls by state, the oldest open call, and the sizes on disk."""
    vitals, sizes = inspector.vitals(now), inspector.sizes()
    calls = _open_calls(inspector)
    kinds: dict[str, int] = {}
    for call in calls:
        kinds[call.kind] = kinds.get(call.kind, 0) + 1
    oldest = min(calls, key=lambda call: call.time.created, default=None)
    states = {state: count for (kind, state), count in vitals.counts.items() if kind == "session"}
    settled = sum(n for (kind, state), n in vitals.counts.items() if _is_settled(kind, state))
    return {
        "file": inspector.where,
        "schema": vitals.schema,
        "sessions": dict(sorted(states.items())),
        "due": vitals.due.count,
        "lagMs": max((now - since for _, _, since in vitals.due.streams), default=0),
        "workers": sum(until > now and is_worker(name) for name, until, _ in vitals.holders),
        "queues": _queues(vitals, now),
        "pending": dict(sorted(kinds.items())),
        "settledCalls": settled,
        "oldestWait": None if oldest is None else _call_json(oldest),
        "records": sizes.records,
        "fileBytes": sizes.file,
        "walBytes": sizes.wal,
        "pages": sizes.pages,
        "freePages": sizes.free_pages,
        "pageBytes": sizes.page_size,
        "diskFreeBytes": sizes.disk_free,
        "tables": [_table_json(table) for table in sizes.tables],
    }


def _queues(vitals: Vitals, now: int) -> dict[str, dict[str, int]]:
    """Return the number of due sessions and of workers, by queue."""
    due, workers = due_by_queue(vitals), workers_by_queue(vitals, now)
    return {name: {"due": due[name], "workers": workers[name]} for name in sorted({*due, *workers})}


def _table_json(table: Table) -> dict[str, Any]:
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


def _call_json(record: PendingRecord) -> dict[str, Any]:
    return {
        "pendingID": record.id,
        "kind": record.kind,
        "tool": record.tool,
        "sessionID": record.session_id,
        "since": record.time.created,
    }


def _open_calls(inspector: StoreInspector) -> list[PendingRecord]:
    records: list[PendingRecord] = []

    def add(entry: Entry) -> None:
        try:
            records.append(pending.decode(entry.data))
        except Corrupt:
            return  # `doctor` reports it

    inspector.entries(add, "pending", "open")
    return records
