"""Views for operators: findings, workers and queues of a store, and statistics of its calls."""

from collections import Counter
from typing import Any, Literal

from msgspec import field

from perdure.views.base import View, Word
from perdure.views.calls import PendingCall
from perdure.views.findings import Finding


class WorkerInfo(View, frozen=True, kw_only=True):
    """A worker whose heartbeat is alive, and the number of sessions that it drives."""

    name: str
    queues: tuple[str, ...]
    until: int
    sessions: int


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


class CallCounts(View, frozen=True, kw_only=True):
    """Calls of some time, and the median and 90th percentile of how long people took, in ms."""

    created: int = field(name="made")
    settled: int
    expired: int
    decided: int
    p50: int | None = None
    p90: int | None = None


class HourCounts(CallCounts, frozen=True, kw_only=True):
    """The same for the hour that begins at an instant."""

    at_ms: int


class Statistics(View, frozen=True, kw_only=True):
    """Calls per hour, oldest first; not complete if there are more than can be read at once."""

    since_ms: int
    until_ms: int
    complete: bool
    total: CallCounts
    hours: tuple[HourCounts, ...]


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


class DeliveryInfo(View, frozen=True, kw_only=True):
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


class DeliveryDetails(DeliveryInfo, frozen=True, kw_only=True):
    """A webhook delivery with its body, and the log of its attempts."""

    body: Any
    log: tuple[dict[str, Any], ...]


class DeliveryPage(View, frozen=True, kw_only=True):
    """Page of a list of webhook deliveries."""

    deliveries: tuple[DeliveryInfo, ...]
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
