"""The worker's loop: expire what is overdue, drive what is due, sweep, wait for news."""

import logging
import time
from collections.abc import Collection
from dataclasses import dataclass, field
from itertools import product
from typing import Final, Literal

import anyio

from perdure.core.pending import record as pending
from perdure.core.pending.record import PendingRecord
from perdure.core.session.queues import check_queue
from perdure.errors import ConfigError, NotFound, PerdureError, SchemaNewer, StoreError
from perdure.runtime.records.entries import SessionEntry, readable
from perdure.runtime.records.log import Log
from perdure.runtime.records.retention import Retention
from perdure.runtime.sessions.service import NO_KIND, Service
from perdure.runtime.webhooks.post import Post
from perdure.runtime.worker.sender import DeliverySender
from perdure.store.base import Gone, NoStream

Names = list[str]


async def note_running(service: Service) -> None:
    """Remember what runs now, of agents known here and not by us: we have just begun."""
    async for known in service.sessions(None, "running"):
        is_mine = known.stream in service.host.drives
        if not is_mine and service.agents.find(known.record.agent) is not None:
            service.running_before[known.stream] = known


async def fail_abandoned_runs(service: Service) -> Names:
    """Fail those of them that nobody drives; whose lease has not run out is looked at again."""
    await service.host.claim(NO_KIND, 0)  # by which the store notices who is dead
    failed = []
    for stream, known in tuple(service.running_before.items()):
        log = Log(service.desk.store, stream)
        try:
            await log.catch_up()
            if log.at.holder is not None and log.state.status == "running":
                continue
            del service.running_before[stream]
            if await _is_failed(service, known, log):
                failed.append(known.record.id)
        except (NoStream, Gone, NotFound):
            service.running_before.pop(stream, None)
    return failed


async def _is_failed(service: Service, known: SessionEntry, log: Log) -> bool:
    backs_off = log.state.retry is not None  # it was put off, and not left alone
    if log.state.status != "running" or backs_off:
        return False
    error = PerdureError(
        "it was running when its process stopped, and is not to be gone on with by itself",
        code="INTERRUPTED_RUN",
        hint="recovery.running is fail; to go on: perdure sessions resume",
    )
    entry = await service.desk.store.get("session", known.entry.key)
    return entry is not None and await service.desk.outside.fail(SessionEntry.of(entry), error)


logger = logging.getLogger("perdure")

POLL_S: Final = 1.0  # expiries, timers and missed notices are seen within this time
MOST_DRIVES: Final = 256
MOST_TOLD: Final = 100  # of the calls that wait, in the report of a start


@dataclass(frozen=True, slots=True)
class StartReport:
    """What a worker found when it started; nothing has to be repaired.

    A start must not take longer because much waits, so `waiting` has the first calls only; with
    `more` there are others.
    """

    waiting: list[PendingRecord] = field(default_factory=list)
    expired: list[PendingRecord] = field(default_factory=list)
    more: bool = False
    failed: list[str] = field(default_factory=list)  # sessions that were running; see `recovery`

    def lines(self) -> list[str]:
        """The report, a line each."""
        sessions = {(one.tenant, one.session_id) for one in self.waiting}
        kinds: dict[str, int] = {}
        for one in self.waiting:
            kinds[one.kind] = kinds.get(one.kind, 0) + 1
        what = ", ".join(f"{n} {kind}" for kind, n in sorted(kinds.items())) or "none"
        waits = f"{len(sessions)} sessions wait ({what})"
        if self.more:
            waits = f"at least {len(sessions)} sessions wait ({what} and more)"
        told = [f"{waits}; {len(self.expired)} calls had expired"]
        if self.failed:
            told.append(
                f"{len(self.failed)} runs were under way when their process stopped: failed"
            )
        told += [
            f"{one.session_id}: {one.tool} was being started when its process stopped "
            f"({one.id}, START_INTERRUPTED)"
            for one in self.waiting
            if one.problem
        ]
        return told


Kind = Literal["sessions", "deliveries"]
KINDS: Final[tuple[Kind, ...]] = ("sessions", "deliveries")


@dataclass(frozen=True, slots=True)
class WorkerScope:
    """Which part of the work a worker does; expiry and sweeping are everybody's."""

    agents: frozenset[str] | None = None  # None: all that are known here
    queues: frozenset[str] | None = None  # None: `default`, and those of the agents known here
    only: Kind | None = None  # one kind of work; None: both
    concurrency: int | None = None  # sessions driven at one time; None: MOST_DRIVES

    def check(self, known: Collection[str]) -> None:
        """ConfigError if there would be nothing to do, or for nobody known."""
        unknown = sorted((self.agents or frozenset()) - set(known))
        if unknown:
            raise ConfigError(
                f"a worker cannot drive {', '.join(unknown)}: there is no such agent here",
                code="UNKNOWN_AGENT",
                hint=f"agents here: {', '.join(sorted(known)) or 'none'}",
            )
        if self.queues is not None and not self.queues:
            raise ConfigError("a worker serves at least one queue: queues", code="QUEUE_INVALID")
        for queue in self.queues or ():
            check_queue(queue)
        if self.only not in (None, *KINDS):
            raise ConfigError(f"only can be {' or '.join(KINDS)}, not {self.only!r}")
        if self.concurrency is not None and self.concurrency < 1:
            raise ConfigError("a worker drives at least one session at a time: concurrency")


class Worker:
    """Drives every due session of the agents that are known here, or its share of them."""

    def __init__(self, service: Service, share: WorkerScope | None = None) -> None:
        self._service = service
        self._share = share or WorkerScope()
        self._share.check(service.agents.names())
        self._retention = Retention(service.desk.store, service.keep_settled_ms)
        self._courier = DeliverySender(
            service.desk.outbox, service.host, Post(service.desk.outbox.screen)
        )
        self._rounds = 0
        # By agent and queue, in which round there last was something to do.
        self._served: dict[tuple[str, str], int] = {}

    async def recover(self) -> StartReport:
        """Look at what waits; overdue calls are expired. Twice, or by two at once, is as once."""
        expired = await self._service.desk.settling.expire_due()
        page = await self._service.desk.store.find("pending", state="open", limit=MOST_TOLD)
        waiting = list(readable(page.entries, lambda entry: pending.decode(entry.data)))
        failed: list[str] = []
        if not self._service.resumes_running:
            await note_running(self._service)
            failed = await fail_abandoned_runs(self._service)
        report = StartReport(waiting, expired, more=page.next is not None, failed=failed)
        for line in report.lines():
            logger.info("%s", line)
        return report

    async def run(self, *, once: bool = False) -> None:
        """Work until cancelled, or with `once` until nothing is due and nothing runs."""
        await self._service.host.start()
        self._service.worked_at = time.monotonic()
        try:
            await self._work(once=once)
        finally:
            self._service.host.serve(self, frozenset())

    async def _work(self, *, once: bool) -> None:
        looked = False
        while True:
            try:
                if not looked:
                    await self._service.desk.outbox.publish()
                    await self._service.wake_stuck()
                    if not once:
                        await self._service.host.also(self._list_tools)
                    looked = True
                begun = await self._round()
                self._service.worked_at = time.monotonic()
            except Exception as error:
                if once or isinstance(error, SchemaNewer):  # which no waiting changes
                    raise
                if isinstance(error, StoreError):
                    logger.warning("the store is not available: %s", error.message)
                else:
                    logger.exception("a round of the worker went wrong")
                await anyio.sleep(1)
                continue
            if once and not begun and not self._is_busy:
                await self._retention.round()
                return
            await self._pause()

    async def _list_tools(self) -> None:
        """Ask the MCP servers for their tools at once, and say which cannot be reached."""
        for agent in self._service.agents.all():
            problem = (await self._service.agents.listed(agent)).problem
            if problem is not None:
                logger.warning("agent %s waits: %s", agent.name, problem.message)

    @property
    def _is_busy(self) -> bool:
        return bool(self._service.host.drives or self._courier.under_way)

    async def _round(self) -> int:
        await self._service.desk.settling.expire_due()
        if self._service.running_before:
            for session_id in await fail_abandoned_runs(self._service):
                logger.info("%s was running when its process stopped: failed", session_id)
        await self._retention.step()
        self._service.host.serve(self, self._queues)
        begun = await self._courier.begin() if self._share.only != "sessions" else 0
        if self._share.only != "deliveries":
            begun += await self._drive()
        return begun

    @property
    def _queues(self) -> frozenset[str]:
        if self._share.only == "deliveries":
            return frozenset()
        mine = self._share.queues
        return self._service.agents.queues() if mine is None else mine

    async def _drive(self) -> int:
        """Begin what is due; an agent or queue that is never done takes not every place."""
        host, mine = self._service.host, self._share.agents
        names = [one for one in self._service.agents.names() if mine is None or one in mine]
        kinds = product(names, sorted(self._queues))
        most = self._share.concurrency or MOST_DRIVES
        begun = 0
        self._rounds += 1
        for each in sorted(kinds, key=lambda one: self._served.get(one, 0)):
            free = most - len(host.drives)
            if free <= 0:
                break
            name, queue = each
            taken = len(await host.start_due(name, free, queue=queue))
            if taken:
                self._served[each] = self._rounds
            begun += taken
        return begun

    async def _pause(self) -> None:
        """Until something changes, a drive ends, or a moment has passed."""
        ended = self._service.host.drive_ended()
        async with anyio.create_task_group() as tasks:

            async def drive_ended() -> None:
                await ended.wait()
                tasks.cancel_scope.cancel()

            tasks.start_soon(drive_ended)
            await self._service.desk.store.changed(POLL_S)
            tasks.cancel_scope.cancel()
