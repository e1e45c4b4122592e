"""Queues: which workers a session is for, and how a worker's name says which ones it serves."""

import re
from collections.abc import Collection
from typing import Any, Final

from perdure.errors import Refused

DEFAULT: Final = "default"  # where a session is unless somebody says otherwise
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
MANY: Final = "*"  # in the place of more queues than a name can say
_MARK, _AND = "@", "+"  # in no name of a queue
_LONGEST: Final = 400  # characters of a name that may say queues


def check_queue(value: Any) -> str:
    """The name of a queue, if it is one."""
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise Refused(
            f"{str(value)[:80]!a} cannot be the name of a queue",
            code="QUEUE_INVALID",
            hint="use letters, digits, '_', '-' and '.', 64 at most",
        )
    return value


def worker_name(process: str, queues: Collection[str]) -> str:
    """The name under which a process holds sessions; where it says nothing, it serves `default`."""
    plain = process.replace(_MARK, "-")
    served = _AND.join(sorted(queues))
    if served in ("", DEFAULT):
        return plain
    return f"{plain}{_MARK}{served if len(served) <= _LONGEST else MANY}"


def queues_of(worker: str) -> frozenset[str]:
    """The queues that the process of this name serves; with MANY it may be any."""
    _, mark, served = worker.partition(_MARK)
    return frozenset(served.split(_AND)) if mark else frozenset({DEFAULT})


def may_serve(worker: str, queue: str) -> bool:
    """Whether the process of this name serves the queue, as far as its name says."""
    served = queues_of(worker)
    return queue in served or MANY in served
