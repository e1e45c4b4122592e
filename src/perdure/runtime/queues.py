"""Queues with due sessions, the workers that serve them, and why one is not driven."""

from collections import Counter
from typing import Final

from perdure.core.session import queues
from perdure.core.session.naming import SessionRecord, parse_stream_kind
from perdure.errors import PerdureError
from perdure.store.base import SUSPECT_TRIES, Slice, Store
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


def is_suspect(position: Slice) -> bool:
    """Return whether the last two processes that drove a session stopped, and none drives it."""
    is_free = position.holder is None and position.due is not None
    return is_free and position.tries >= SUSPECT_TRIES


async def held_back_problem(
    store: Store, position: Slice, queue: str, since: int
) -> PerdureError | None:
    """Return the problem of a suspect that workers do not drive yet; None if it has none.

    `since` is the instant of its last record. Its details have it, or until when it is put off.
    """
    due, text = position.due, "processes that drove it stopped before they recorded anything"
    if due is None or not is_suspect(position):
        return None
    if due > store.now():
        return PerdureError(
            f"the last {position.tries} {text}, and the pause grows with each",
            code=HELD_BACK,
            hint="a worker tries again after the pause",
            details={"until": due},
        )
    if not await _is_served(store, queue):
        return None
    return PerdureError(
        f"the last {position.tries} {text}, and such sessions are driven a few at a time",
        code=HELD_BACK,
        hint="it is driven when others like it have recorded something; the log of the worker says "
        "how many wait",
        details={"since": since},
    )


async def no_worker_problem(store: Store, record: SessionRecord) -> PerdureError:
    """Return the problem of a session that is due and has no driver."""
    queue = record.queue
    is_served = await _is_served(store, queue)
    if is_served:
        return PerdureError(
            "it is due, and no worker drives it",
            code="NO_WORKER",
            hint=f"the workers that run are busy, or do not have agent {record.agent!r}",
        )
    text = "drives it" if queue == queues.DEFAULT else f"serves its queue {queue}"
    return PerdureError(f"it is due, and no worker {text}", code="NO_WORKER")


async def _is_served(store: Store, queue: str) -> bool:
    alive = (await store.census(())).alive
    return any(queues.may_serve(name, queue) for name in alive)
