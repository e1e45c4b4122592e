"""Worker: a loop that expires calls, settles commands, drives sessions, delivers and sweeps."""

import asyncio
import logging
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from itertools import product
from typing import Final, get_args

from perdure import host
from perdure.core.pending import record as pending
from perdure.core.session.queues import check_queue
from perdure.errors import ConfigError, NotFound, PerdureError, SchemaNewer, StoreError
from perdure.runtime.records.entries import SessionEntry, decode_readable
from perdure.runtime.records.log import Log, read_log
from perdure.runtime.records.retention import Retention
from perdure.runtime.resources import Resources
from perdure.runtime.sessions.service import Service
from perdure.runtime.webhooks.post import Post
from perdure.runtime.worker.clock import RecordedAhead
from perdure.runtime.worker.sender import DeliverySender
from perdure.store.base import Gone, NoStream
from perdure.views.health import RecoveryReport
from perdure.views.literals import WorkKind

logger = logging.getLogger("perdure")

POLL_S: Final = 1.0  # expiries, timers and lost signals are noticed within this time
MAX_DRIVES: Final = 256
MAX_REPORTED: Final = 100  # pending calls in the report of a start


@dataclass(frozen=True, slots=True)
class WorkerScope:
    """Part of the work that a worker does; every worker expires calls and sweeps."""

    agents: frozenset[str] | None = None  # None: all that are known here
    queues: frozenset[str] | None = None  # None: `default`, and those of the agents here
    only: WorkKind | None = None  # one kind of work; None: both
    concurrency: int | None = None  # sessions driven at one time; None: MAX_DRIVES

    def check(self, names: Collection[str]) -> None:
        """Raise ConfigError if an agent is unknown, or nothing would be done."""
        unknown = sorted((self.agents or frozenset()) - set(names))
        if unknown:
            raise ConfigError(
                f"a worker cannot drive {', '.join(unknown)}: there is no such agent here",
                code="UNKNOWN_AGENT",
                hint=f"agents here: {', '.join(sorted(names)) or 'none'}",
            )
        if self.queues is not None and not self.queues:
            raise ConfigError("a worker serves at least one queue: queues", code="QUEUE_INVALID")
        for queue in self.queues or ():
            check_queue(queue)
        if self.only not in (None, *get_args(WorkKind)):
            raise ConfigError(f"only can be {' or '.join(get_args(WorkKind))}, not {self.only!r}")
        if self.concurrency is not None and self.concurrency < 1:
            raise ConfigError("a worker drives at least one session at a time: concurrency")


async def note_running(service: Service) -> None:
    """Remember the sessions that run at our start, of agents that are known here."""
    async for entry in service.sessions(None, "running"):
        is_mine = entry.stream in service.drives.running
        if not is_mine and service.agents.find(entry.record.agent) is not None:
            service.running_before[entry.stream] = entry


async def fail_abandoned_runs(service: Service, resources: Resources) -> list[str]:
    """Fail those of them without a driver; return their ids. Others are checked again later."""
    await service.runs.reap()
    failed = []
    for stream, entry in tuple(service.running_before.items()):
        try:
            log = await read_log(resources.store, entry)
            if log.slice.holder is not None and log.state.status == "running":
                continue
            del service.running_before[stream]
            if await _fail_run(resources, entry, log):
                failed.append(entry.record.id)
        except (NoStream, Gone, NotFound):  # deleted meanwhile
            service.running_before.pop(stream, None)
    return failed


async def _fail_run(resources: Resources, entry: SessionEntry, log: Log) -> bool:
    is_backing_off = log.state.retry is not None  # parked by its driver, not interrupted
    if log.state.status != "running" or is_backing_off:
        return False
    error = PerdureError(
        "it was running when its process stopped, and recovery.running is fail",
        code="INTERRUPTED_RUN",
        hint="to continue it: perdure sessions resume",
    )
    current = await resources.store.get("session", entry.index_entry.key)
    if current is None:
        return False
    return await resources.session_inbox.fail(SessionEntry.decode(current), error)


class Worker:
    """Does due work for the agents that are known here, or the part that its scope names."""

    def __init__(
        self, service: Service, resources: Resources, scope: WorkerScope | None = None
    ) -> None:
        self._service = service
        self._resources = resources
        self._drives = service.drives
        self._scope = scope or WorkerScope()
        self._scope.check(service.agents.names())
        self._retention = Retention(resources.store, service.keep_settled_ms)
        self._sender = DeliverySender(
            resources.outbox, self._drives, Post(resources.outbox.address_filter)
        )
        self._recorded_ahead = RecordedAhead(service, resources.store)
        self._rounds = 0
        # By agent and queue, the last round with something to do.
        self._served: dict[tuple[str, str], int] = {}

    async def recover(self) -> RecoveryReport:
        """Expire overdue calls and report what waits. It may be repeated, also concurrently."""
        expired = await self._resources.pending_inbox.expire_due()
        page = await self._resources.store.find("pending", state="open", limit=MAX_REPORTED)
        records = decode_readable(page.entries, lambda entry: pending.decode(entry.data))
        waiting = [await self._service.calls.reset_if_stale(record) for record in records]
        failed: list[str] = []
        if not self._service.resumes_running:
            await note_running(self._service)
            failed = await fail_abandoned_runs(self._service, self._resources)
        report = RecoveryReport(
            waiting=tuple(map(self._resources.pending_call, waiting)),
            expired=tuple(map(self._resources.pending_call, expired)),
            more=page.next is not None,
            interrupted=tuple(call.id for call in waiting if call.problem),
            failed=tuple(failed),
        )
        for line in report.lines():
            logger.info("%s", line)
        return report

    async def run(self, *, once: bool = False) -> None:
        """Work until cancelled, or with `once` until nothing is due and nothing runs."""
        self._warn_of_missing_secret()
        self._drives.background.start()
        self._service.worked_at = host.elapsed()
        try:
            await self._work(once=once)
        finally:
            self._drives.serve(self, frozenset())

    def _warn_of_missing_secret(self) -> None:
        """Log deferred tools whose callbacks nobody can sign, though the server has an address."""
        address = self._resources.address
        if address.url is None or address.webhook_secret is not None:
            return
        agents = self._service.agents.all()
        names = [name for agent in agents for name, tool in agent.tools.items() if tool.deferred]
        if names:
            logger.warning(
                "%s: there is no webhook_secret, so nobody can sign results for callback_url; "
                "pass Runtime(webhook_secret=…), or set server.webhook_secret in YAML",
                ", ".join(sorted(set(names))),
            )

    async def _work(self, *, once: bool) -> None:
        is_prepared = False
        while True:
            was_busy = self._is_busy  # then a drive may have ended since, and made another due
            try:
                if not is_prepared:
                    await self._resources.outbox.publish_targets()
                    await self._service.wake_stuck()
                    if once:
                        await self._service.calls.reset_stale()
                    else:
                        self._drives.background.run_beside(self._reset_stale)
                        self._drives.background.run_beside(self._list_tools)
                    is_prepared = True
                started = await self._round()
                self._service.worked_at = host.elapsed()
            except Exception as error:
                if once or isinstance(error, SchemaNewer):  # waiting does not change it
                    raise
                if isinstance(error, StoreError):
                    logger.warning("the store is not available: %s", error.message)
                else:
                    logger.exception("a round of the worker failed")
                await asyncio.sleep(1)
                continue
            if once and not (started or was_busy or self._is_busy):
                await self._retention.run_round()
                return
            await self._pause()

    async def _reset_stale(self) -> None:
        """Reset calls that a stopped process was starting, as soon as the store is available."""
        while True:
            try:
                return await self._service.calls.reset_stale()
            except StoreError as error:
                logger.warning("started calls cannot be read: %s", error.message)
            await asyncio.sleep(1)

    async def _list_tools(self) -> None:
        """List the tools of the MCP servers early, and log which cannot be reached."""
        for agent in self._service.agents.all():
            problem = (await self._service.agents.refresh_tools(agent)).problem
            if problem is not None:
                logger.warning("agent %s waits: %s", agent.name, problem.message)

    @property
    def _is_busy(self) -> bool:
        return bool(self._drives.running or self._sender.active)

    async def _round(self) -> int:
        if count := await self._recorded_ahead.wake():
            sessions = "1 session was" if count == 1 else f"{count} sessions were"
            logger.warning("%s recorded while the clock was ahead: due now", sessions)
        await self._resources.pending_inbox.expire_due()
        if self._service.running_before:
            for session_id in await fail_abandoned_runs(self._service, self._resources):
                logger.info("%s was running when its process stopped: failed", session_id)
        await self._retention.run_step()
        if freed := await self._service.tasks.lock_sweep.run_step():
            logger.info("%d locks of expired holders or dead processes are free", freed)
        self._drives.serve(self, self._queues)
        started = await self._service.tasks.executions.settle_due()
        if self._scope.only != "sessions":
            started += await self._sender.start_due()
        if self._scope.only != "deliveries":
            started += await self._start_due_drives()
        return started

    @property
    def _queues(self) -> frozenset[str]:
        if self._scope.only == "deliveries":
            return frozenset()
        mine = self._scope.queues
        return self._service.agents.queues() if mine is None else mine

    async def _start_due_drives(self) -> int:
        """Start due drives; agents and queues that were served last come last."""
        mine = self._scope.agents
        names = [name for name in self._service.agents.names() if mine is None or name in mine]
        pairs = product(names, sorted(self._queues))
        limit = self._scope.concurrency or MAX_DRIVES
        total = 0
        self._rounds += 1
        for pair in sorted(pairs, key=lambda pair: self._served.get(pair, 0)):
            free = limit - self._drives.busy_count
            if free <= 0:
                break
            name, queue = pair
            started = len(await self._drives.start_due(name, free, queue=queue))
            if started:
                self._served[pair] = self._rounds
            total += started
        await self._drives.log_held()
        return total

    async def _pause(self) -> None:
        """Wait until something changes, a drive ends, or a moment has passed."""
        ended = self._drives.drive_ended()
        with suppress(TimeoutError):
            async with asyncio.timeout(None) as pause:
                watcher = asyncio.create_task(_end_pause(pause, ended))
                try:
                    # In this task, because the store remembers per task what was read.
                    await self._resources.store.changed(POLL_S)
                finally:
                    watcher.cancel()


async def _end_pause(pause: asyncio.Timeout, ended: asyncio.Event) -> None:
    await ended.wait()
    pause.reschedule(0)  # now
