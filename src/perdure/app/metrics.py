"""Metrics of the store in the text format of Prometheus, counted seldom."""

import platform
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Final, Literal, get_args

import anyio
import msgspec

from perdure import host
from perdure.core.pending.record import OPEN_STATUSES
from perdure.core.session.queues import is_worker
from perdure.core.webhooks.deliveries import KIND as DELIVERY
from perdure.core.webhooks.deliveries import DeliveryStatus
from perdure.runtime.records.entries import POISONED_STATE, STUCK
from perdure.store.base import Census, Store
from perdure.store.shared.all_pages import all_entries
from perdure.views.literals import CallKind, PendingStatus, RunState

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
FRESH_S: Final = 5.0  # counts that are younger are returned again
WALK_PAUSE_FACTOR: Final = 100  # a walk of one second is not repeated for a hundred seconds
PAGE: Final = 500

SESSION_STATES: Final = (*get_args(RunState), STUCK, POISONED_STATE)
SETTLED_STATUSES: Final = tuple(
    str(status) for status in get_args(PendingStatus) if status not in OPEN_STATUSES
)
COUNTED: Final = ("session", "pending", DELIVERY)

Labels = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric with its samples."""

    name: str
    kind: Literal["gauge", "counter"]
    help: str
    samples: Sequence[tuple[Labels, float]]


def render(metrics: Sequence[Metric]) -> str:
    """Return the metrics in the text format of Prometheus."""
    return "".join(line for metric in metrics for line in _lines(metric))


def _lines(metric: Metric) -> list[str]:
    help_text = metric.help.replace("\\", r"\\").replace("\n", r"\n")
    head = [f"# HELP {metric.name} {help_text}\n", f"# TYPE {metric.name} {metric.kind}\n"]
    return head + [
        f"{metric.name}{_labels(labels)} {value!r}\n" for labels, value in metric.samples
    ]


def _labels(labels: Labels) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escape(value)}"' for name, value in labels.items()) + "}"


def _escape(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


class _CallTime(msgspec.Struct):
    created: int = 0


class _CountedCall(msgspec.Struct):
    """Fields of a pending call that are counted; the decoder skips the others."""

    kind: CallKind
    time: _CallTime


_decoder = msgspec.json.Decoder(_CountedCall)


@dataclass(frozen=True, slots=True)
class OpenCalls:
    """Number of open calls by kind, and when the oldest was created."""

    kinds: Mapping[str, int]
    oldest: int | None


class StoreMetrics:
    """Metrics of one store; frequent scrapes do not make counting expensive.

    Counts from indexes are at most some seconds old. Counts by kind need a walk through all open
    calls, which may take a hundredth of the time.
    """

    def __init__(self, store: Store, clock: Callable[[], float] = host.elapsed) -> None:
        self._store = store
        self._clock = clock
        self._lock = anyio.Lock()
        self._census: Census | None = None
        self._open_calls = OpenCalls({}, None)
        self._census_until = 0.0
        self._open_calls_until = 0.0

    async def text(self) -> str:
        """Return the response to a scrape. Raises StoreError."""
        async with self._lock:
            census = await self._fresh_census()
            if self._clock() >= self._open_calls_until:
                await self._walk()
            return render(store_metrics(census, self._open_calls, self._store.now()))

    async def _fresh_census(self) -> Census:
        if self._census is None or self._clock() >= self._census_until:
            self._census = await self._store.census(COUNTED)
            self._census_until = self._clock() + FRESH_S
        return self._census

    async def _walk(self) -> None:
        start = self._clock()
        self._open_calls = await count_open_calls(self._store)
        end = self._clock()
        self._open_calls_until = end + max(FRESH_S, WALK_PAUSE_FACTOR * (end - start))


async def count_open_calls(store: Store) -> OpenCalls:
    """Count the open calls of a store, page by page. Raises StoreError."""
    kinds: Counter[str] = Counter()
    oldest: int | None = None
    async for entry in all_entries(store, "pending", state="open"):
        try:
            call = _decoder.decode(entry.data)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            continue  # `perdure doctor` reports damaged entries
        kinds[call.kind] += 1
        oldest = call.time.created if oldest is None else min(oldest, call.time.created)
    return OpenCalls(kinds, oldest)


def store_metrics(census: Census, open_calls: OpenCalls, now: int) -> list[Metric]:
    """Return all metrics in their order; a label without entries has the value 0."""
    entries = census.entries
    delivered = {str(status): entries.get((DELIVERY, str(status)), 0) for status in DeliveryStatus}
    wait = 0 if open_calls.oldest is None else max(now - open_calls.oldest, 0) / 1000
    build = {"version": version("perdure"), "python": platform.python_version()}
    return [
        _metric("build_info", "gauge", "Versions of perdure and Python.", 1, build),
        _gauge_by(
            "sessions",
            "Sessions by state; stuck: no worker has the code to continue it; "
            "poisoned: failed, because it stopped too many processes.",
            "state",
            {state: entries.get(("session", state), 0) for state in SESSION_STATES},
        ),
        _gauge_by(
            "pending_calls",
            "Open calls by kind; counted less often if there are many.",
            "kind",
            {kind: open_calls.kinds.get(kind, 0) for kind in get_args(CallKind)},
        ),
        _metric("open_calls", "gauge", "Open calls.", entries.get(("pending", "open"), 0)),
        _metric("oldest_wait_seconds", "gauge", "Age of the oldest open call.", wait),
        _metric(
            "overdue_calls",
            "gauge",
            "Open calls after their deadline that no worker has expired yet.",
            census.overdue.get("pending", 0),
        ),
        _gauge_by(
            "settled_calls",
            "Settled calls in the store, by status.",
            "status",
            {status: entries.get(("pending", status), 0) for status in SETTLED_STATUSES},
        ),
        _gauge_by("deliveries", "Webhook deliveries in the store, by status.", "status", delivered),
        *_worker_metrics(census),
    ]


def _worker_metrics(census: Census) -> list[Metric]:
    return [
        _metric("leases", "gauge", "Sessions and deliveries leased by a worker.", census.held),
        _metric("due", "gauge", "Sessions and deliveries due that no worker leases.", census.due),
        _metric("workers", "gauge", "Workers alive on any machine.", _workers(census)),
        _metric("commits_total", "counter", "Commits of this process.", census.commits),
        _metric("records_total", "counter", "Records appended by all processes.", census.records),
    ]


def _metric(
    name: str,
    kind: Literal["gauge", "counter"],
    help_text: str,
    value: float,
    labels: Labels | None = None,
) -> Metric:
    return Metric(f"perdure_{name}", kind, help_text, [(labels or {}, value)])


def _gauge_by(name: str, help_text: str, label: str, values: Mapping[str, int]) -> Metric:
    samples = [({label: key}, value) for key, value in values.items()]
    return Metric(f"perdure_{name}", "gauge", help_text, samples)


def _workers(census: Census) -> int:
    """Return the number of live workers; a process that only holds locks is not one."""
    return sum(map(is_worker, census.alive))
