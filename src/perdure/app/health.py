"""Health of the store behind a Runtime: workers, queues, findings, and statistics of its calls."""

from typing import Any

from perdure.app.access import store_of
from perdure.app.layouts import SessionFiles
from perdure.app.runtime import Runtime
from perdure.app.stores import without_index
from perdure.core.pending.record import PendingRecord
from perdure.core.session.queues import MANY_QUEUES, is_worker, worker_queues
from perdure.runtime.diagnosis.commands import PlainCommands
from perdure.runtime.doctor.call_statistics import call_statistics
from perdure.runtime.doctor.database import Checkup
from perdure.runtime.queues import due_by_queue, workers_by_queue
from perdure.store.base import Store
from perdure.store.files.inspect import FilesInspector, files_folder
from perdure.store.inspect import StoreInspector, Vitals
from perdure.store.postgres.inspect import postgres_inspector
from perdure.store.sqlite.inspect import SqliteInspector, sqlite_path


async def statistics_of(rt: Runtime, hours: int, tenant: str | None) -> dict[str, Any]:
    """Return the statistics of the calls of a tenant, or of all, as JSON."""

    def is_visible(record: PendingRecord) -> bool:
        return tenant in (None, record.tenant)

    return (await call_statistics(store_of(rt), hours, is_visible)).to_json()


def health_of(rt: Runtime) -> dict[str, Any]:
    """Return the checks that read no logs, workers and queues as JSON; waits for the disk.

    Raises StoreError.
    """
    store = store_of(rt)
    inspector, now = _inspector(store), store.now()
    if inspector is None:  # in memory: nothing of it can be damaged, and this process drives it
        return {"ok": True, "findings": 0, "checks": [], "workers": [], "queues": [], "at": now}
    checks = list(Checkup(inspector, now, PlainCommands()).quick_checks())
    findings = sum(check.level != "ok" for check in checks)
    vitals = Vitals(0) if _is_damaged(checks) else inspector.vitals(now)
    return {
        "ok": not findings,
        "findings": findings,
        "checks": [check.to_json() for check in checks],
        "workers": [
            {"name": name, "queues": list(worker_queues(name)), "until": until, "sessions": count}
            for name, until, count in vitals.holders
            if is_worker(name)
        ],
        "queues": _queues_json(vitals, now),
        "at": now,
    }


def _is_damaged(checks: list[Any]) -> bool:
    return any(check.level == "corrupt" for check in checks)


def _queues_json(vitals: Vitals, now: int) -> list[dict[str, Any]]:
    """Return every queue with due sessions or workers; any worker of many queues may serve it."""
    due, served = due_by_queue(vitals), workers_by_queue(vitals, now)
    names = sorted({*due, *served} - {MANY_QUEUES})
    return [
        {"name": name, "due": due[name], "workers": served[name] + served[MANY_QUEUES]}
        for name in names
    ]


def _inspector(store: Store) -> StoreInspector | None:
    """Return the inspector of a store; None for a backend without one."""
    store = without_index(store)
    inspector = postgres_inspector(store)
    if inspector is not None:
        return inspector
    folder, path = files_folder(store), sqlite_path(store)
    if folder is not None:
        return FilesInspector(folder, SessionFiles())
    return None if path is None else SqliteInspector(path)
