"""Queues with due sessions, the workers that serve them, and why one is not driven."""

from collections import Counter
from typing import Final

from perdure.core.session import queues
from perdure.core.session.naming import SUSPECT_FROM_TRY, SessionRecord, parse_stream_kind
from perdure.errors import PerdureError
from perdure.store.base import Store
from perdure.store.inspect import Vitals


def due_by_queue(vitals: Vitals) -> Counter[str]:
    """Return the number of due sessions per queue."""
    due: Counter[str] = Counter()
    for kind, count in vitals.due.kinds.items():
        due[parse_stream_kind(kind)[1]] += count
    return due


def workers_by_queue(vitals: Vitals, now: int) -> Counter[str]:
    """Return the number of live workers per queue."""
    alive = (name for name, until, _ in vitals.holders if until > now and queues.is_worker(name))
    return Counter(queue for name in alive for queue in queues.worker_queues(name))


HELD_BACK: Final = "HELD_BACK"
NOT_STUCK: Final = frozenset({"NO_WORKER", HELD_BACK})  # problems that end without a change of code


async def no_worker_problem(store: Store, record: SessionRecord, tries: int = 0) -> PerdureError:
    """Return the problem of a session that is due and has no driver.

    `tries` counts the processes that drove it since it last got a record.
    """
    queue = record.queue
    is_served = await _is_served(store, queue)
    if is_served and tries + 1 >= SUSPECT_FROM_TRY:
        return PerdureError(
            f"the last {tries} processes that drove it stopped before they recorded anything, and "
            "such sessions are driven a few at a time",
            code=HELD_BACK,
            hint="it is driven when others like it have recorded something; the log of the worker "
            "says how many wait",
        )
    if is_served:
        return PerdureError(
            "it is due, and no worker drives it",
            code="NO_WORKER",
            hint=f"the workers that run are busy or do not have agent {record.agent!r}: "
            "start one where it is defined, perdure worker --app MODULE:NAME",
        )
    if queue == queues.DEFAULT:
        return PerdureError(
            "it is due, and no worker drives it",
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
