"""What a scrape is told: numbers of the store, counted seldom, written as Prometheus reads them."""

import platform
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Final, Literal, get_args

import anyio
import msgspec

from perdure.core.log.events import CallKind
from perdure.core.pending.record import OPEN, PendingStatus
from perdure.core.session.state import RunState
from perdure.core.webhooks.deliveries import KIND as DELIVERY
from perdure.core.webhooks.deliveries import Status as DeliveryStatus
from perdure.runtime.records.entries import STUCK
from perdure.store.base import Census, Store

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
FRESH_S: Final = 5.0  # counts that are no older are told again
REST: Final = 100  # a walk of one second is not repeated for a hundred
PAGE: Final = 500

SESSION_STATES: Final = (*get_args(RunState), STUCK)
ENDS: Final = tuple(str(status) for status in PendingStatus if status not in OPEN)
COUNTED: Final = ("session", "pending", DELIVERY)

Labels = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Metric:
    """One name with its samples."""

    name: str
    kind: Literal["gauge", "counter"]
    help: str
    samples: Sequence[tuple[Labels, float]]


def render(metrics: Sequence[Metric]) -> str:
    """The metrics in the text format of Prometheus."""
    return "".join(line for metric in metrics for line in _lines(metric))


def _lines(metric: Metric) -> list[str]:
    told = metric.help.replace("\\", r"\\").replace("\n", r"\n")
    head = [f"# HELP {metric.name} {told}\n", f"# TYPE {metric.name} {metric.kind}\n"]
    return head + [f"{metric.name}{_labels(one)} {value!r}\n" for one, value in metric.samples]


def _labels(labels: Labels) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items()) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


class _Since(msgspec.Struct):
    created: int = 0


class _Call(msgspec.Struct):
    """Of a pending call only what is counted; the rest is skipped unread."""

    kind: CallKind
    time: _Since


_call = msgspec.json.Decoder(_Call)


@dataclass(frozen=True, slots=True)
class Waits:
    """The open calls by kind, and since when the oldest waits."""

    kinds: Mapping[str, int]
    oldest: int | None


class Numbers:
    """The numbers of one store; however often they are asked for, counting costs little.

    What indexes can count is at most some seconds old. What only the calls themselves say is
    found by a walk through the open ones, which may take a hundredth of the time.
    """

    def __init__(self, store: Store, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._clock = clock
        self._turn = anyio.Lock()
        self._census: Census | None = None
        self._waits = Waits({}, None)
        self._census_until = 0.0
        self._waits_until = 0.0

    async def text(self) -> str:
        """What a scrape is answered. Raises StoreError."""
        async with self._turn:
            census = await self._counted()
            if self._clock() >= self._waits_until:
                await self._walk()
            return render(metrics_of(census, self._waits, self._store.now()))

    async def _counted(self) -> Census:
        if self._census is None or self._clock() >= self._census_until:
            self._census = await self._store.census(COUNTED)
            self._census_until = self._clock() + FRESH_S
        return self._census

    async def _walk(self) -> None:
        begun = self._clock()
        self._waits = await walk(self._store)
        ended = self._clock()
        self._waits_until = ended + max(FRESH_S, REST * (ended - begun))


async def walk(store: Store) -> Waits:
    """Look at every open call, a page at a time."""
    kinds: Counter[str] = Counter()
    oldest: int | None = None
    after: str | None = None
    while True:
        page = await store.find("pending", state="open", after=after, limit=PAGE)
        for entry in page.entries:
            try:
                call = _call.decode(entry.data)
            except (msgspec.MsgspecError, UnicodeDecodeError):
                continue  # `doctor` tells of it
            kinds[call.kind] += 1
            oldest = call.time.created if oldest is None else min(oldest, call.time.created)
        if page.next is None:
            return Waits(kinds, oldest)
        after = page.next


def metrics_of(census: Census, waits: Waits, now: int) -> list[Metric]:
    """Everything that is told, in its order; what there is none of is told as 0."""
    entries = census.entries
    delivered = {str(one): entries.get((DELIVERY, str(one)), 0) for one in DeliveryStatus}
    wait = 0 if waits.oldest is None else max(now - waits.oldest, 0) / 1000
    build = {"version": version("perdure"), "python": platform.python_version()}
    return [
        _one("build_info", "gauge", "Which perdure this is.", 1, build),
        _by(
            "sessions",
            "Sessions by state; stuck: the code at hand cannot move it.",
            "state",
            {state: entries.get(("session", state), 0) for state in SESSION_STATES},
        ),
        _by(
            "pending_calls",
            "Calls that wait, by kind; counted seldom where many wait.",
            "kind",
            {kind: waits.kinds.get(kind, 0) for kind in get_args(CallKind)},
        ),
        _one("open_calls", "gauge", "Calls that wait.", entries.get(("pending", "open"), 0)),
        _one("oldest_wait_seconds", "gauge", "How long the oldest of them waits.", wait),
        _one(
            "overdue_calls",
            "gauge",
            "Calls whose time is over and that nobody has expired yet.",
            census.overdue.get("pending", 0),
        ),
        _by(
            "settled_calls",
            "Settled calls that are kept, by how they ended.",
            "status",
            {status: entries.get(("pending", status), 0) for status in ENDS},
        ),
        _by("deliveries", "Webhook deliveries that are kept, by status.", "status", delivered),
        *_driving(census),
    ]


def _driving(census: Census) -> list[Metric]:
    return [
        _one("leases", "gauge", "Sessions and deliveries that a worker holds.", census.held),
        _one("due", "gauge", "Sessions and deliveries that nobody has taken yet.", census.due),
        _one("workers", "gauge", "Workers that are alive, on any machine.", len(census.alive)),
        _one("commits_total", "counter", "Commits of this process.", census.commits),
        _one("records_total", "counter", "Records ever appended, by all.", census.records),
    ]


def _one(
    name: str,
    kind: Literal["gauge", "counter"],
    told: str,
    value: float,
    labels: Labels | None = None,
) -> Metric:
    return Metric(f"perdure_{name}", kind, told, [(labels or {}, value)])


def _by(name: str, told: str, label: str, values: Mapping[str, int]) -> Metric:
    samples = [({label: key}, value) for key, value in values.items()]
    return Metric(f"perdure_{name}", "gauge", told, samples)
