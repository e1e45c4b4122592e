"""Which queues the living workers serve, and what to say where none does."""

from collections import Counter

from perdure.core.session import queues
from perdure.core.session.naming import SessionRecord, names_of_kind
from perdure.errors import PerdureError
from perdure.store.base import Store
from perdure.store.inspect import Vitals


def due_by_queue(vitals: Vitals) -> Counter[str]:
    """How many sessions could go on in each queue."""
    due: Counter[str] = Counter()
    for kind, count in vitals.due.kinds.items():
        due[names_of_kind(kind)[1]] += count
    return due


def workers_by_queue(vitals: Vitals, now: int) -> Counter[str]:
    """How many living processes serve each queue."""
    alive = (name for name, until, _ in vitals.holders if until > now)
    return Counter(queue for name in alive for queue in queues.queues_of(name))


async def nobody_drives(store: Store, record: SessionRecord) -> PerdureError:
    """Why a session that is due is not driven."""
    queue = record.queue
    if queue == queues.DEFAULT or await _is_served(store, queue):
        return PerdureError(
            "it is due, and nobody drives it",
            code="NO_WORKER",
            hint=f"perdure worker, or: perdure sessions resume {record.id}",
        )
    return PerdureError(
        f"it is due, and no worker serves its queue {queue}",
        code="NO_WORKER",
        hint=f"perdure worker --queue {queue}",
    )


async def _is_served(store: Store, queue: str) -> bool:
    alive = (await store.census(())).alive
    return any(queues.may_serve(name, queue) for name in alive)
