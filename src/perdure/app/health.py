"""Health of the store behind a Runtime: workers, queues and findings."""

from collections.abc import Mapping

from perdure import host
from perdure.app.stores import without_index
from perdure.core.session.queues import MANY_QUEUES, is_worker, worker_queues
from perdure.findings.severities import is_damage, is_fine
from perdure.runtime.agents.agents import Agents
from perdure.runtime.agents.ready_agent import ReadyAgent
from perdure.runtime.doctor.agents import current_agents, store_findings
from perdure.runtime.doctor.database import Checkup
from perdure.runtime.queues import due_by_queue, workers_by_queue
from perdure.store.base import Store
from perdure.store.inspect import StoreInspector, Vitals
from perdure.store.postgres.inspect import postgres_inspector
from perdure.store.sqlite.inspect import SqliteInspector, sqlite_path
from perdure.views.health import Health, QueueInfo, WorkerInfo


async def health_of(store: Store, agents: Agents) -> Health:
    """Return the findings that need no log of a session at rest, workers and queues.

    Raises StoreError.
    """
    return await host.run_in_thread(_health, store, await current_agents(agents))


def _health(store: Store, agents: Mapping[str, ReadyAgent]) -> Health:
    inspector, now = _inspector(store), store.now()
    if inspector is None:  # in memory: nothing of it can be damaged, and this process drives it
        return Health(ok=True, at_ms=now)
    findings = store_findings(
        Checkup(inspector, now, agents=agents).quick_checks(), inspector, agents
    )
    vitals = Vitals(0) if any(map(is_damage, findings)) else inspector.vitals(now)
    workers = [
        WorkerInfo(name=name, queues=tuple(worker_queues(name)), until_ms=until, sessions=count)
        for name, until, count in vitals.holders
        if is_worker(name)
    ]
    return Health(
        ok=is_fine(findings),
        findings=findings,
        workers=tuple(workers),
        queues=_queues(vitals, now),
        at_ms=now,
    )


def _queues(vitals: Vitals, now: int) -> tuple[QueueInfo, ...]:
    """Return every queue with due sessions or workers; any worker of many queues may serve it."""
    due, served = due_by_queue(vitals), workers_by_queue(vitals, now)
    names = sorted({*due, *served} - {MANY_QUEUES})
    many = served[MANY_QUEUES]
    return tuple(
        [QueueInfo(name=name, due=due[name], workers=served[name] + many) for name in names]
    )


def _inspector(store: Store) -> StoreInspector | None:
    """Return the inspector of a store; None for a backend without one."""
    store = without_index(store)
    inspector = postgres_inspector(store)
    if inspector is not None:
        return inspector
    path = sqlite_path(store)
    return None if path is None else SqliteInspector(path)
