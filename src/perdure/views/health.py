"""Views for operators: findings, workers and queues of a store, and statistics of its calls."""

from collections import Counter
from datetime import datetime
from typing import Any, Literal

from perdure.views.base import View, Word, instant
from perdure.views.calls import PendingCall
from perdure.views.findings import Finding


class WorkerInfo(View, frozen=True, kw_only=True):
    """A worker whose heartbeat is alive, and the number of sessions that it drives."""

    name: str
    queues: tuple[str, ...]
    until_ms: int
    sessions: int

    @property
    def until(self) -> datetime:
        """The instant at which its heartbeat ends unless it is renewed."""
        return instant(self.until_ms)


class QueueInfo(View, frozen=True, kw_only=True):
    """A queue with its due sessions, and the number of workers that claim from it."""

    name: str
    due: int
    workers: int


class Health(View, frozen=True, kw_only=True):
    """The findings about a store, worst first, its workers and its queues.

    It is ok if nothing needs an operator; what is as it should be is listed, too.
    """

    ok: bool
    findings: tuple[Finding, ...] = ()
    workers: tuple[WorkerInfo, ...] = ()
    queues: tuple[QueueInfo, ...] = ()
    at_ms: int

    @property
    def at(self) -> datetime:
        """The instant at which the store was examined."""
        return instant(self.at_ms)


class CallCounts(View, frozen=True, kw_only=True):
    """Calls of some time, and the median and 90th percentile of how long people took, in ms."""

    created: int
    settled: int
    expired: int
    decided: int
    p50: int | None = None
    p90: int | None = None


class HourCounts(CallCounts, frozen=True, kw_only=True):
    """The same for the hour that begins at an instant."""

    at_ms: int

    @property
    def at(self) -> datetime:
        """The instant at which the hour begins."""
        return instant(self.at_ms)


class Statistics(View, frozen=True, kw_only=True):
    """Calls per hour, oldest first; not complete if there are more than can be read at once."""

    since_ms: int
    until_ms: int
    complete: bool
    total: CallCounts
    hours: tuple[HourCounts, ...]

    @property
    def since(self) -> datetime:
        """The beginning of the first hour."""
        return instant(self.since_ms)

    @property
    def until(self) -> datetime:
        """The instant at which the calls were counted."""
        return instant(self.until_ms)


class Liveness(View, frozen=True, kw_only=True):
    """A process that is alive."""

    status: str = "alive"


class Readiness(View, frozen=True, kw_only=True):
    """A server that is ready; `store_id` tells servers of different stores apart."""

    status: str = "ready"
    store: str = "ok"
    worker: str = "ok"
    store_id: str


class ToolInfo(View, frozen=True, kw_only=True):
    """A tool of an agent, with the JSON schema of its arguments."""

    name: str
    description: str
    parameters: dict[str, Any]


class AgentInfo(View, frozen=True, kw_only=True):
    """An agent of a server, with its tools."""

    name: str
    description: str
    tools: tuple[ToolInfo, ...]


class AgentList(View, frozen=True, kw_only=True):
    """The agents of a server."""

    agents: tuple[AgentInfo, ...]


class Delivery(View, frozen=True, kw_only=True):
    """A webhook delivery; its target without the path, which may hold a secret."""

    id: str
    type: str
    occasion: str
    target: str
    tenant: str = ""
    session_id: str
    pending_id: str | None = None
    status: Word[Literal["waiting", "delivered", "dead", "withdrawn"]]
    attempts: int = 0
    last_status: int | None = None
    last_error: str | None = None
    created_at_ms: int
    begun_at_ms: int
    next_at_ms: int | None = None
    settled_at_ms: int | None = None

    @property
    def created_at(self) -> datetime:
        """The instant when it was created."""
        return instant(self.created_at_ms)

    @property
    def begun_at(self) -> datetime:
        """The instant from which it is retried for a limited time."""
        return instant(self.begun_at_ms)

    @property
    def next_at(self) -> datetime | None:
        """The instant of the next attempt; None once it is settled."""
        return None if self.next_at_ms is None else instant(self.next_at_ms)

    @property
    def settled_at(self) -> datetime | None:
        """The instant when it was delivered or given up; None before."""
        return None if self.settled_at_ms is None else instant(self.settled_at_ms)


class DeliveryDetails(Delivery, frozen=True, kw_only=True):
    """A webhook delivery with its body, and the log of its attempts."""

    body: Any
    log: tuple[dict[str, Any], ...]


class DeliveryPage(View, frozen=True, kw_only=True):
    """Page of a list of webhook deliveries."""

    deliveries: tuple[Delivery, ...]
    next: str | None = None


class RecoveryReport(View, frozen=True, kw_only=True):
    """Report of a worker's start: what waits and what has expired; nothing is repaired.

    A start must not take longer because many calls are pending, so `waiting` has only the first
    ones; `more` says that there are others.
    """

    waiting: tuple[PendingCall, ...] = ()
    expired: tuple[PendingCall, ...] = ()
    more: bool = False
    interrupted: tuple[str, ...] = ()  # ids of calls whose start was interrupted
    failed: tuple[str, ...] = ()  # session ids; see `recovery.running`

    def lines(self) -> list[str]:
        """Return the lines of the report."""
        sessions = len({(call.tenant, call.session_id) for call in self.waiting})
        counts = Counter(call.kind for call in self.waiting)
        kinds = ", ".join(f"{n} {kind}" for kind, n in sorted(counts.items())) or "none"
        waits = "1 session waits" if sessions == 1 else f"{sessions} sessions wait"
        waits = f"at least {waits} ({kinds} and more)" if self.more else f"{waits} ({kinds})"
        expired = "1 call" if len(self.expired) == 1 else f"{len(self.expired)} calls"
        lines = [f"{waits}; {expired} had expired"]
        if self.failed:
            runs = "1 run" if len(self.failed) == 1 else f"{len(self.failed)} runs"
            lines.append(f"{runs} failed: the process stopped while running")
        lines += [
            f"{call.session_id}: {call.tool} was being started when its process stopped "
            f"({call.id}, START_INTERRUPTED)"
            for call in self.waiting
            if call.id in self.interrupted
        ]
        return lines
