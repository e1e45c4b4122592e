"""The Runtime: wires store, agents and engine together; the only place that picks classes."""

import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeVar

import anyio

from perdure.app.stores import around_store, indexed, is_in_memory, open_store, sees_death
from perdure.core.pending.commands import (
    Approve,
    CancelCall,
    Command,
    Deny,
    Respond,
    SubmitError,
    SubmitResult,
)
from perdure.core.session import naming as index
from perdure.core.session.naming import check_tenant
from perdure.core.webhooks.deliveries import Hook
from perdure.errors import ConfigError, Corrupt, Refused
from perdure.runtime.agents.agents import Agent, Agents, ReadyAgent
from perdure.runtime.agents.prices import Prices
from perdure.runtime.engine.host import Host
from perdure.runtime.engine.leases import BLIND_LEASE_MS, LEASE_MS
from perdure.runtime.ids import new_id
from perdure.runtime.inbox.pending import PendingInbox
from perdure.runtime.inbox.sessions import SessionInbox
from perdure.runtime.mcp.pool import ServerPool
from perdure.runtime.mcp.servers import MCPServer
from perdure.runtime.records.cache import SessionCache
from perdure.runtime.records.entries import SessionRef
from perdure.runtime.resources import Resources
from perdure.runtime.sessions.handle import Session
from perdure.runtime.sessions.service import Service
from perdure.runtime.streaming import Bus
from perdure.runtime.telemetry import Telemetry
from perdure.runtime.values import PendingCall, parse_duration
from perdure.runtime.views import Event, Result, event_of
from perdure.runtime.webhooks.outbox import Outbox
from perdure.runtime.worker.worker import Kind, StartReport, Worker, WorkerScope
from perdure.store.base import Clock, Store
from perdure.store.shared.paging import END

R = TypeVar("R")

logger = logging.getLogger("perdure")

LEASE: Final = "PERDURE_LEASE"  # how long a worker may be silent before others take over


class Runtime:
    """Agents on a store. Open it with `async with`; nothing runs by itself unless `worker=True`."""

    def __init__(  # noqa: PLR0913 - what a runtime is made of, each named
        self,
        store: str | Store = "sqlite:///perdure.db",
        *,
        agents: Sequence[Agent[Any]] = (),
        deps: Any = None,
        worker: bool = False,
        public_url: str | None = None,
        webhook_secret: str | None = None,
        clock: Clock | None = None,
        index: str | None = None,
        mcp_servers: Sequence[MCPServer] = (),
        telemetry: Mapping[str, bool] | None = None,
        prices: Mapping[str, Mapping[str, float]] | None = None,
    ) -> None:
        primary = open_store(store, clock)
        opened = around_store.get()(indexed(primary, index))
        lease_ms = LEASE_MS if sees_death(primary) else BLIND_LEASE_MS
        if os.environ.get(LEASE):
            lease_ms = parse_duration(os.environ[LEASE])
        outbox = Outbox(opened, public_url=public_url, webhook_secret=webhook_secret)
        near = SessionCache()
        desk = Resources(
            opened,
            SessionInbox(opened, outbox, near),
            PendingInbox(opened, outbox, near),
            Bus(opened),
            outbox,
            None,
            public_url,
            webhook_secret,
            near=near,
            telemetry=Telemetry.of(telemetry or {}),
            prices=Prices(prices),
        )
        known = Agents(agents, ServerPool(mcp_servers))
        for agent in agents:
            _check_mode(agent, store)
        self._service = Service(desk, known, Host(desk, known, lease_ms))
        self._deps = deps
        self._with_worker = worker
        self._tenant: str | None = None
        self._stack: AsyncExitStack | None = None
        self._main: Any = None

    @classmethod
    def from_config(
        cls,
        path: str | os.PathLike[str] = "perdure.yaml",
        *,
        store: str | Store | None = None,
        agents: Sequence[Agent[Any]] = (),
        deps: Any = None,
        worker: bool = False,
    ) -> "Runtime":
        """The runtime that a YAML file describes; what is given here counts more."""
        from perdure import config
        from perdure.app.configured import agents_from, mcp_servers_from, tell

        loaded = config.load(Path(path))
        runtime = cls(
            loaded.store_url if store is None else store,
            agents=[*agents_from(loaded), *agents],
            deps=loaded.build_deps() if deps is None else deps,
            worker=worker,
            public_url=loaded.public_url,
            webhook_secret=loaded.webhook_secret,
            index=loaded.store.index if store is None else None,
            mcp_servers=mcp_servers_from(loaded),
            telemetry=loaded.telemetry,
            prices=loaded.prices,
        )
        runtime._service.resumes_running = loaded.resumes_running
        runtime._service.keep_settled_ms = parse_duration(loaded.settled_calls)
        tell(runtime._service.desk.outbox, loaded.server)
        runtime._service.desk.former_secrets = loaded.server.former_secrets
        return runtime

    # --- open and close -----------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        """Open the store and, if there are, the deps. May be left in another task."""
        if self._stack is not None:
            raise Refused("the runtime is open already", code="ALREADY_OPEN")
        stack = AsyncExitStack()
        desk = self._service.desk
        try:
            await desk.store.open()
            stack.push_async_callback(desk.store.close)
            desk.deps = await _entered(stack, self._deps)
            for agent in self._service.agents.all():
                _check_deps(agent, desk.deps)
            await desk.outbox.learn()
            stack.push_async_callback(self._service.agents.lines.close)
            stack.push_async_callback(self._service.agents.close)
            self._service.host.open()
            stack.push_async_callback(self._service.host.close)
            if self._with_worker:
                await self._service.host.also(Worker(self._service).run)
        except BaseException:
            await stack.aclose()
            raise
        self._stack = stack
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Let current calls finish for a moment, give the leases back, close the store."""
        stack, self._stack = self._stack, None
        if stack is not None:
            with anyio.CancelScope(shield=True):
                await stack.aclose()

    def run_sync(self, main: "Callable[[Runtime], Awaitable[R]]") -> R:
        """Open, await `main(runtime)`, close: the one door for programs that are not async."""

        async def opened() -> R:
            async with self:
                return await main(self)

        return anyio.run(opened)

    def tenant(self, name: str) -> "Runtime":
        """The same runtime, seeing one tenant; everything else is NotFound there."""
        scoped = object.__new__(Runtime)
        scoped.__dict__ = dict(self.__dict__)
        scoped._tenant = check_tenant(name)
        return scoped

    # --- sessions -----------------------------------------------------------------------------

    def session(
        self,
        id: str | None = None,  # noqa: A002 - the word users know
        *,
        agent: Agent[Any] | str | None = None,
        metadata: Mapping[str, Any] | None = None,
        queue: str | None = None,
        notify_url: str | None = None,
        notify_secret: str | None = None,
    ) -> Session[Any]:
        """A handle; nothing is read or written. The session is created by its first message.

        `queue` says which workers a new session is for, else its agent does.
        `notify_url` is told, from the next message on, of its pending calls and of its end.
        """
        known = agent if not isinstance(agent, Agent) else self._service.agents.add(agent)
        if self._stack is not None and isinstance(known, ReadyAgent):
            _check_deps(known, self._service.desk.deps)
        session_id = new_id("s") if id is None else id
        return Session(
            self._service,
            self._tenant or "",
            session_id,
            agent=known,
            metadata=metadata,
            notify=None if notify_url is None else Hook(notify_url, notify_secret),
            queue=queue,
        )

    async def sessions(
        self,
        *,
        state: str | None = None,
        agent: str | None = None,
        parent: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        search: str | None = None,
    ) -> AsyncIterator[Result[Any]]:
        """The sessions, each as it stands; `search` looks in ids and first messages."""
        async for known in self._service.sessions(self._tenant):
            record = known.record
            if (agent is not None and record.agent != agent) or (
                parent is not None and record.parent != parent
            ):
                continue
            if any(record.metadata.get(k) != v for k, v in (metadata or {}).items()):
                continue
            if search and search.lower() not in f"{record.id} {record.title}".lower():
                continue
            result = await self._service.listed(known)
            if state is None or result.state == state:
                yield result

    async def stream(
        self,
        *,
        session: str | None = None,
        after: int | None = None,
        types: Collection[str] = (),
    ) -> AsyncIterator[Event]:
        """Watch events as they are recorded, from now or after an `Event.pos`; never drives."""
        store = self._service.desk.store
        cursor = END if after is None else str(after)
        while True:
            feed = await store.tail(cursor)
            for record in feed.records:
                names = index.names_in(record.stream)
                if names is None or (self._tenant is not None and names[0] != self._tenant):
                    continue
                if session is not None and names != (self._tenant or "", session):
                    continue
                if not types or record.type in types:
                    try:
                        event = event_of(names, record)
                    except Corrupt as error:  # of one session; the others go on
                        logger.warning("%s", error.message)
                        continue
                    yield event
            if feed.cursor == cursor:
                await store.changed(1.0)
            cursor = feed.cursor

    # --- pending calls ------------------------------------------------------------------------

    async def pending(
        self,
        *,
        session: str | None = None,
        kind: str | None = None,
        tool: str | None = None,
        status: str | None = None,
    ) -> AsyncIterator[PendingCall]:
        """Calls that wait; `status` may also be an end state, or "all"."""
        stream: str | None = None
        if session is not None:
            address = SessionRef(self._tenant or "", session)
            stream = (await self._service.desk.outside.known(address)).stream
        async for record in self._service.pending(self._tenant, status=status, stream=stream):
            if kind in (None, record.kind) and tool in (None, record.tool):
                yield self._service.desk.pending_call(record)

    async def approve(
        self,
        pending_id: str,
        *,
        by: str,
        args: Mapping[str, Any] | None = None,
        note: str | None = None,
        remember: bool | str = False,
    ) -> PendingCall:
        """Let exactly the stored call run, with `args` merged over its arguments.

        With `remember` this call is not asked about again in its session: exactly this one, or
        what a rule says, such as `"shell:cmd=ls*"`. `Session.permissions` lists and revokes.
        """
        return await self._settle(pending_id, Approve(by, "python", args, note, remember))

    async def deny(self, pending_id: str, *, by: str, reason: str | None = None) -> PendingCall:
        """Do not run it; the model is told the reason."""
        return await self._settle(pending_id, Deny(by, "python", reason))

    async def respond(self, pending_id: str, output: str, *, by: str) -> PendingCall:
        """Answer a question, or give an output instead of running a call."""
        return await self._settle(pending_id, Respond(by, "python", output))

    async def submit_result(
        self,
        pending_id: str,
        output: str,
        *,
        title: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        by: str | None = None,
    ) -> PendingCall:
        """The outcome of a deferred call."""
        return await self._settle(pending_id, SubmitResult(output, title, metadata, by))

    async def submit_error(
        self, pending_id: str, error: str, *, by: str | None = None
    ) -> PendingCall:
        """A deferred call failed."""
        return await self._settle(pending_id, SubmitError(error, by))

    async def cancel(self, pending_id: str, *, by: str | None = None) -> PendingCall:
        """Give one pending call up; the model is told."""
        return await self._settle(pending_id, CancelCall(by))

    async def _settle(self, pending_id: str, command: Command) -> PendingCall:
        outcome = await self._service.settle(pending_id, command, self._tenant)
        return self._service.desk.pending_call(outcome.record)

    # --- working ------------------------------------------------------------------------------

    async def work(
        self,
        *,
        once: bool = False,
        agents: Collection[str] | None = None,
        queues: Collection[str] | None = None,
        only: Kind | None = None,
        concurrency: int | None = None,
    ) -> None:
        """Drive whatever is due, for ever; with `once` until nothing is.

        A worker can do a part of it: sessions of these agents or in these queues only, only
        sessions or only deliveries, so many sessions at one time. Without `queues` it serves
        `default` and those of the agents that are known here.
        """
        mine = None if agents is None else frozenset(agents)
        served = None if queues is None else frozenset(queues)
        share = WorkerScope(mine, served, only, concurrency)
        await Worker(self._service, share).run(once=once)

    async def recover(self) -> StartReport:
        """What waits and what had expired: the report of a worker's start."""
        return await Worker(self._service).recover()


async def _entered(stack: AsyncExitStack, deps: Any) -> Any:
    if not callable(deps):
        return deps
    made = deps()
    if not isinstance(made, AbstractAsyncContextManager):
        raise ConfigError(
            f"deps {deps!r} is called when the runtime opens, and gave no async context manager",
            code="DEPS_INVALID",
            hint="pass the value itself, or a function with @asynccontextmanager",
        )
    return await stack.enter_async_context(made)


def _check_mode(agent: Agent[Any], store: str | Store) -> None:
    if agent.hitl == "async" and is_in_memory(store):
        raise ConfigError(
            f"agent {agent.name!r}: async HITL requires a durable session_store "
            "('memory:' is memory)",
            hint="use sqlite:///perdure.db, or leave hitl out",
        )


def _check_deps(agent: ReadyAgent, deps: Any) -> None:
    for tool in agent.tools.values():
        wanted = tool.deps_type
        if isinstance(wanted, type) and not _fits(deps, wanted):
            raise ConfigError(
                f"tool {tool.name!r} needs deps of type {wanted.__name__}, "
                f"and Runtime(deps=) is {type(deps).__name__}",
                code="DEPS_INVALID",
            )


def _fits(deps: Any, wanted: type) -> bool:
    try:
        return wanted is Any or isinstance(deps, wanted)
    except TypeError:  # a protocol that cannot be checked
        return True
