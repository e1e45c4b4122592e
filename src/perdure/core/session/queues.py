"""Queues: names of queues, and the names of workers, which list the queues they serve."""

from collections.abc import Collection
from typing import Any, Final

from perdure.core.text import NAME, NAME_HINT
from perdure.errors import Refused

DEFAULT: Final = "default"  # the queue of a session unless its caller names another
MANY_QUEUES: Final = "*"  # stands for more queues than fit into a worker's name
_MARK, _SEPARATOR = "@", "+"  # characters that queue names cannot contain
_LOCKS: Final = "-"  # in place of queues; no queue has this name
_MAX_LENGTH: Final = 400  # characters of the queues in a worker's name


def check_queue(value: Any) -> str:
    """Return a valid queue name. Raises Refused."""
    if not isinstance(value, str) or not NAME.fullmatch(value):
        raise Refused(
            f"{str(value)[:80]!a} cannot be the name of a queue",
            code="QUEUE_INVALID",
            hint=NAME_HINT,
        )
    return value


def worker_name(process: str, queues: Collection[str]) -> str:
    """Return the holder name of a process with its queues; without any it serves `default`."""
    plain = process.replace(_MARK, "-")
    served = _SEPARATOR.join(sorted(queues))
    if served in ("", DEFAULT):
        return plain
    return f"{plain}{_MARK}{served if len(served) <= _MAX_LENGTH else MANY_QUEUES}"


def lock_holder_name(process: str) -> str:
    """Return the holder name of a process that holds locks and drives nothing."""
    return f"{process.replace(_MARK, '-')}{_MARK}{_LOCKS}"


def is_worker(holder: str) -> bool:
    """Return False for the holder name of a process that only holds locks."""
    return not holder.endswith(_MARK + _LOCKS)


def worker_queues(worker: str) -> frozenset[str]:
    """Return the queues that a worker's name lists; with MANY_QUEUES it may serve any."""
    _, mark, served = worker.partition(_MARK)
    return frozenset(served.split(_SEPARATOR)) if mark else frozenset({DEFAULT})


def may_serve(worker: str, queue: str) -> bool:
    """Return True if the worker serves the queue, as far as its name tells."""
    served = worker_queues(worker)
    return queue in served or MANY_QUEUES in served
