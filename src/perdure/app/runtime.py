"""The Runtime: the entry point of the Python API."""

import asyncio
import logging
import os
from collections.abc import (
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar, overload

import anyio

from perdure.app.assembly import assemble_resources, check_deps, check_mode
from perdure.app.options import (
    RuntimeOptions,
    allowed_addresses,
    check_flag,
    complete_address,
    recovery_fields,
    webhook_targets,
)
from perdure.app.stores import (
    around_store,
    default_tasks_root,
    has_liveness_locks,
    indexed,
    open_store,
    private_paths,
)
from perdure.core.roles import Permit, Principal
from perdure.core.session.naming import check_id, check_tenant
from perdure.core.webhooks.deliveries import Hook
from perdure.errors import ConfigError, Refused
from perdure.ids import new_id
from perdure.options import (
    Price,
    RecoveryOptions,
    TaskOptions,
    TelemetryOptions,
    WebhookTarget,
)
from perdure.runtime.agents.agent import Agent
from perdure.runtime.agents.agents import Agents
from perdure.runtime.agents.prices import Prices
from perdure.runtime.agents.ready_agent import ReadyAgent
from perdure.runtime.engine.drives import Drives
from perdure.runtime.engine.heartbeat import BLIND_LEASE_MS, LEASE_MS
from perdure.runtime.mcp.pool import ServerPool
from perdure.runtime.mcp.servers import MCPServer
from perdure.runtime.sessions.handle import Session
from perdure.runtime.sessions.listing import SessionFilter
from perdure.runtime.sessions.pending_pages import PendingFilter
from perdure.runtime.sessions.service import Service
from perdure.runtime.sessions.verbs.caller import Caller
from perdure.runtime.sessions.verbs.sessions import SessionVerbs
from perdure.runtime.telemetry import Telemetry
from perdure.runtime.webhooks.callbacks import PublicAddress
from perdure.store.base import Clock, Store
from perdure.tasks.executions.options import check_ro_paths
from perdure.tasks.first_use import TaskAccess, TasksAtFirstUse
from perdure.tasks.settings import task_options
from perdure.views.calls import CallOrID, DecidedCall, PendingCall
from perdure.views.decisions import Decisions, decision_items
from perdure.views.events import Event
from perdure.views.health import (
    AgentInfo,
    Delivery,
    DeliveryDetails,
    Health,
    RecoveryReport,
    Statistics,
)
from perdure.views.literals import PendingSort, WorkKind
from perdure.views.sessions import Result, SessionSummary, SummaryPage
from perdure.views.tasks import BackgroundTask, as_background
from perdure.views.values import Content, metadata_texts, parse_duration

if TYPE_CHECKING:  # tasks and the worker are imported when they are used
    from perdure.runtime.sessions.task_verbs import AnyTaskVerbs
    from perdure.runtime.worker.worker import Worker
    from perdure.tasks.locks.process import Work
    from perdure.tasks.service import Tasks
    from perdure.tasks.session_shell import SessionShell
    from perdure.tasks.verbs import TaskVerbs

R = TypeVar("R")
T = TypeVar("T")

logger = logging.getLogger("perdure")

PAGE: Final = 100  # sessions that a list of summaries reads at a time
LEASE: Final = "PERDURE_LEASE"  # how long a worker may be silent before another takes over


class Runtime:
    """Agents on a store. Open it with `async with`; it drives by itself only with `worker=True`."""

    def __init__(  # noqa: PLR0913 - keyword options
        self,
        store: str | Store = "sqlite:///perdure.db",
        *,
        agents: Sequence[Agent[Any]] = (),
        deps: Any = None,
        worker: bool = False,
        public_url: str | None = None,
        webhook_secret: str | None = None,
        webhooks: Sequence[WebhookTarget] | None = None,
        webhook_allow: Sequence[str] = (),
        clock: Clock | None = None,
        index: str | None = None,
        mcp_servers: Sequence[MCPServer] = (),
        telemetry: TelemetryOptions | None = None,
        prices: Mapping[str, Price] | None = None,
        recovery: RecoveryOptions | None = None,
        tasks: TaskOptions | None = None,
    ) -> None:
        options = RuntimeOptions(
            deps=deps,
            worker=check_flag(worker, "worker"),
            address=PublicAddress(public_url, webhook_secret),
            targets=webhook_targets(webhooks),
            address_filter=allowed_addresses(webhook_allow),
            telemetry=Telemetry.from_options(telemetry or {}),
            prices=Prices(prices),
            tasks=task_options(tasks),
            **recovery_fields(recovery or {}),
        )
        self._create(store, agents, mcp_servers, options, clock=clock, index=index)

    def _create(
        self,
        store: str | Store,
        agents: Sequence[Agent[Any]],
        mcp_servers: Sequence[MCPServer],
        options: RuntimeOptions,
        *,
        clock: Clock | None = None,
        index: str | None = None,
    ) -> None:
        primary = open_store(store, clock)
        lease_ms = LEASE_MS if has_liveness_locks(primary) else BLIND_LEASE_MS
        if os.environ.get(LEASE):
            lease_ms = parse_duration(os.environ[LEASE])
        self._caller = Caller(drives=True)
        self._stack: AsyncExitStack | None = None
        self._opened: list[Runtime] = []  # which of the runtimes on this store is open
        address = complete_address(options.address)
        tasks = options.tasks
        if tasks.root is None:
            tasks = replace(tasks, root=default_tasks_root(store))
        check_ro_paths(tasks.executions, private_paths(store, tasks.root))
        self._assemble(
            around_store.get()(indexed(primary, index)),
            Agents(agents, ServerPool(mcp_servers)),
            replace(options, lease_ms=lease_ms, address=address, tasks=tasks),
        )
        for agent in agents:
            check_mode(agent, store)

    def _assemble(self, store: Store, agents: Agents, options: RuntimeOptions) -> None:
        resources = assemble_resources(store, options, self._session_shell, self.tenant)
        drives = Drives(resources, agents, options.lease_ms)
        self._options = options
        self._resources = resources
        self._service = Service(
            resources,
            agents,
            drives,
            TasksAtFirstUse(lambda: self._built_tasks(drives), options.tasks.root),
            resumes_running=options.resumes_running,
            keep_settled_ms=options.keep_settled_ms,
        )

    def _built_tasks(self, drives: Drives) -> "Tasks":
        from perdure.tasks.service import Tasks

        options = self._options
        store = self._resources.store
        return Tasks(store, options.tasks, options.lease_ms, self._run_beside, drives)

    def _session_shell(self) -> "SessionShell":
        from perdure.tasks.session_shell import SessionShell

        return SessionShell(self._service.tasks)

    def _run_beside(self, work: "Work") -> None:
        self._service.drives.background.run_beside(work)

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
        """Return the runtime that a YAML file describes; arguments override the file."""
        from perdure import config
        from perdure.app.configured import agents_from, located, mcp_servers_from, options_from

        loaded = config.load(Path(path))
        runtime = cls.__new__(cls)
        configured_agents = agents_from(loaded)
        options = replace(
            options_from(loaded),
            deps=loaded.build_deps() if deps is None else deps,
            worker=worker,
        )
        try:
            runtime._create(  # noqa: SLF001 - a second constructor
                loaded.store_url if store is None else store,
                [*configured_agents, *agents],
                mcp_servers_from(loaded),
                options,
                index=loaded.store.index if store is None else None,
            )
        except ConfigError as error:
            raise located(error, loaded) from error
        return runtime

    # --- open and close -----------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        """Open the store and the deps. Another task may close the runtime."""
        await self._open(worker=self._options.worker)
        return self

    async def _open(self, *, worker: bool) -> None:
        if self._opened:
            raise Refused(
                "the runtime is open already",
                code="ALREADY_OPEN",
                hint="use it where it is open, or create another Runtime for the same store",
            )
        stack = AsyncExitStack()
        resources = self._resources
        try:
            await resources.store.open()
            stack.push_async_callback(resources.store.close)
            await resources.deps.enter(stack)
            for agent in self._service.agents.all():
                check_deps(agent, resources.deps.value)
            await resources.outbox.load_targets()
            stack.push_async_callback(self._service.agents.servers.close)
            stack.push_async_callback(self._service.agents.close)
            self._service.drives.open()
            stack.push_async_callback(self._service.drives.close)
            stack.push_async_callback(self._service.tasks_at_first_use.close)
            await self._service.tasks_at_first_use.open()
            if worker:
                self._service.drives.background.run_beside(self._worker().run)
        except BaseException:
            await stack.aclose()
            raise
        self._stack = stack
        self._opened.append(self)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Let running calls finish for a moment, release the leases, close the store.

        If the body was cancelled, as Ctrl-C does, async tools are cancelled and not waited for.
        """
        stack, self._stack = self._stack, None
        if stack is not None:
            self._opened.clear()
            if isinstance(error, asyncio.CancelledError | KeyboardInterrupt):
                self._service.drives.interrupt()
            with anyio.CancelScope(shield=True):
                await stack.aclose()

    def run_sync(self, main: "Callable[[Runtime], Awaitable[R]]") -> R:
        """Open, await `main(runtime)` and close, in a program that is not async."""

        async def open_and_run() -> R:
            async with self:
                return await main(self)

        return anyio.run(open_and_run)

    def _with_options(self, options: RuntimeOptions) -> "Runtime":
        derived = object.__new__(Runtime)
        derived.__dict__ = dict(self.__dict__)
        derived._stack = None
        derived._assemble(self._resources.store, self._service.agents, options)
        return derived

    def tenant(self, name: str) -> "Runtime":
        """Return this runtime scoped to one tenant; sessions of others are NotFound there."""
        return self._for(self._caller.in_tenant(check_tenant(name)))

    def acting_as(self, principal: Principal, *, via: str = "python") -> "Runtime":
        """Return this runtime as one person or program uses it, who is recorded as the actor.

        It sees and does what the role allows, as with a token of a server. `via` is the channel
        that is recorded, and `by=` may name others only with `on_behalf`.
        """
        role = principal.role if principal.on_behalf else None
        via = check_id(via, "via")
        caller = Caller(principal, self._caller.tenant, via, drives=True, trusted_role=role)
        own = principal.tenant
        return self._for(caller if own is None else caller.in_tenant(own))

    def _for(self, caller: Caller) -> "Runtime":
        scoped = object.__new__(Runtime)
        scoped.__dict__ = {**self.__dict__, "_caller": caller}
        return scoped

    def _task_access(self) -> TaskAccess:
        return TaskAccess(lambda: self._service.tasks, self._caller.tenant, self._stack is not None)

    @property
    def _verbs(self) -> SessionVerbs:
        return SessionVerbs(self._service, self._caller)

    # --- sessions -----------------------------------------------------------------------------

    @overload
    def session(
        self,
        id: str | None = None,
        *,
        agent: Agent[T],
        metadata: Mapping[str, Any] | None = None,
        queue: str | None = None,
        notify_url: str | None = None,
        notify_secret: str | None = None,
    ) -> Session[T]: ...

    @overload
    def session(
        self,
        id: str | None = None,
        *,
        agent: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        queue: str | None = None,
        notify_url: str | None = None,
        notify_secret: str | None = None,
    ) -> Session[Any]: ...

    def session(
        self,
        id: str | None = None,  # noqa: A002 - the field's name in all APIs
        *,
        agent: Agent[Any] | str | None = None,
        metadata: Mapping[str, Any] | None = None,
        queue: str | None = None,
        notify_url: str | None = None,
        notify_secret: str | None = None,
    ) -> Session[Any]:
        """Return a handle; nothing is read or written. The first message creates the session.

        `queue` names the workers of a new session; the default is its agent's queue.
        `notify_url` receives, from the next message on, its pending calls and its end.
        """
        resolved = self._service.agents.add(agent) if isinstance(agent, Agent) else agent
        if self._stack is not None and isinstance(resolved, ReadyAgent):
            check_deps(resolved, self._resources.deps.value)
        session_id = new_id("s") if id is None else id
        return Session(
            self._verbs,
            session_id,
            agent=resolved,
            metadata=metadata,
            notify=None if notify_url is None else Hook(notify_url, notify_secret),
            queue=queue,
        )

    async def import_sessions(
        self, lines: str | bytes | Iterable[str | bytes] | AsyncIterable[str | bytes]
    ) -> list[str]:
        """Create the sessions of an export and return their ids.

        `lines` is the text or its lines: those of `Session.export`, an open file, `perdure
        sessions export`. All of them are checked before anything is written. Raises Refused,
        which names the line, or Conflict if a session exists: an import never changes one.
        """
        self._caller.require(Permit.ADMIN)
        from perdure.runtime.transfer.imports import read_lines

        transfers = self._service.transfers
        report = await transfers.import_lines(await read_lines(lines), self._caller.tenant)
        return [session.session_id for session in report.sessions]

    async def sessions(
        self,
        *,
        state: str | None = None,
        agent: str | None = None,
        parent: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        search: str | None = None,
    ) -> AsyncIterator[Result[Any]]:
        """Yield the sessions as they stand; `search` looks in ids and first messages."""
        async for result in self._verbs.all(
            SessionFilter(None, state, agent, parent, metadata_texts(metadata), search)
        ):
            yield result

    async def summaries(
        self,
        *,
        state: str | None = None,
        agent: str | None = None,
        parent: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        search: str | None = None,
    ) -> AsyncIterator[SessionSummary]:
        """Yield summaries of sessions, the last changed first; no log is read.

        They have turns, usage and what each waits for, without output and todos.
        """
        chosen = SessionFilter(None, state, agent, parent, metadata_texts(metadata), search)
        after: str | None = None
        while True:
            summaries, after = await self._verbs.recent(chosen, after, PAGE)
            for summary in summaries:
                yield summary
            if after is None:
                return

    async def summary_page(  # noqa: PLR0913 - keyword options
        self,
        *,
        state: str | None = None,
        agent: str | None = None,
        parent: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        search: str | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> SummaryPage:
        """Return a page of `summaries`, at the beginning or after the `next` of another one.

        It does not count all sessions, as the page of a server does.
        """
        chosen = SessionFilter(None, state, agent, parent, metadata_texts(metadata), search)
        return await self._verbs.recent_page(chosen, cursor, limit)

    async def stream(
        self,
        *,
        session: str | None = None,
        after: int | None = None,
        types: Collection[str] = (),
    ) -> AsyncIterator[Event]:
        """Yield events as they are recorded, from now or after an `Event.pos`; drives nothing."""
        self._caller.require(Permit.READ)
        feed = self._service.feed
        async for event in feed.follow(
            self._caller.tenant, session_id=session, after=after, types=types
        ):
            yield event

    # --- pending calls ------------------------------------------------------------------------

    async def statistics(self, hours: int = 24) -> Statistics:
        """Return how many calls were created, settled and expired per hour, and how fast."""
        return await self._verbs.calls.statistics(hours)

    async def doctor(self) -> Health:
        """Return the checks of the store that read no logs, its workers and queues."""
        from perdure.app.health import health_of

        self._caller.require_all_tenants()
        return await health_of(self._resources.store, self._service.agents)

    async def agents(self) -> list[AgentInfo]:
        """Return the agents with their tools."""
        return list(self._verbs.agents())

    # --- pending calls ------------------------------------------------------------------------

    async def pending(
        self,
        *,
        session: str | None = None,
        kind: str | None = None,
        tool: str | None = None,
        status: str | None = None,
        sort: PendingSort = "age",
    ) -> AsyncIterator[PendingCall]:
        """Yield open pending calls; `status` may also be an end status, or "all"."""
        chosen = PendingFilter(status, kind=kind, tool=tool, session_id=session)
        async for call in self._verbs.calls.all(chosen, sort):
            yield call

    async def pending_call(self, pending_id: str) -> PendingCall:
        """Return one pending call, open or settled. Raises NotFound."""
        return await self._verbs.calls.get(pending_id)

    async def approve(
        self,
        call: CallOrID,
        *,
        by: str | None = None,
        args: Mapping[str, Any] | None = None,
        note: str | None = None,
        remember: bool | str = False,
        all_tools: bool = False,
    ) -> DecidedCall:
        """Approve exactly the stored call, with `args` merged over its arguments.

        With `remember` the same call needs no approval again in its session; a rule such as
        `"shell:cmd=ls*"` covers more calls, and one for every tool needs `all_tools`. See
        `Session.permissions`.
        """
        options: Any = {"note": note, "remember": remember, "all_tools": all_tools}
        return await self._verbs.calls.approve(call, by=by, args=args, **options)

    async def deny(
        self,
        call: CallOrID,
        *,
        by: str | None = None,
        reason: str | None = None,
        remember: bool | str = False,
        all_tools: bool = False,
    ) -> DecidedCall:
        """Deny a call; the model gets the reason. With `remember`, such calls stay denied."""
        options: Any = {"remember": remember, "all_tools": all_tools}
        return await self._verbs.calls.deny(call, by=by, reason=reason, **options)

    async def respond(self, call: CallOrID, output: Any, *, by: str | None = None) -> DecidedCall:
        """Answer a question with a JSON value, or give an output instead of running a call.

        Raises Refused ANSWER_INVALID if it does not fit the question's choices or schema.
        """
        return await self._verbs.calls.respond(call, output, by=by)

    async def decide(self, decisions: Decisions, *, by: str | None = None) -> list[DecidedCall]:
        """Decide about several calls in one commit: about all of them, or about none.

        Each call, or its id, has `"approve"` or `"deny"`, or the fields of a decision:
        `{"decision": "edit", "args": …}`.
        """
        return list(await self._verbs.calls.decide(decision_items(decisions), by))

    async def submit_result(
        self,
        call: CallOrID,
        output: Any,
        *,
        title: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        by: str | None = None,
    ) -> DecidedCall:
        """Submit the result of a deferred call: text or any other JSON value."""
        options: Any = {"title": title, "metadata": metadata, "by": by}
        return await self._verbs.calls.submit_result(call, output, **options)

    async def submit_error(
        self, call: CallOrID, error: str, *, by: str | None = None
    ) -> DecidedCall:
        """Submit the error of a deferred call."""
        return await self._verbs.calls.submit_error(call, error, by=by)

    async def cancel_call(self, call: CallOrID, *, by: str | None = None) -> DecidedCall:
        """Cancel one pending call; the model gets an error."""
        return await self._verbs.calls.cancel_call(call, by=by)

    # --- tasks and deliveries -----------------------------------------------------------------

    @property
    def tasks(self) -> "AnyTaskVerbs":
        """Tasks of every kind: `rt.tasks(parent=…)` yields them, newest first."""
        from perdure.runtime.sessions.task_verbs import AnyTaskVerbs

        return AnyTaskVerbs(self._service, self._caller)

    @property
    def sandbox_tasks(self) -> "TaskVerbs":
        """Tasks with a workspace: their commands, files, logs and checkpoints; for operators."""
        from perdure.tasks.verbs import TaskVerbs

        self._caller.require(Permit.OPERATE)
        return TaskVerbs(self._service.tasks, self._caller.tenant)

    async def spawn(
        self,
        agent: Agent[Any] | str,
        prompt: Content,
        *,
        parent: str | None = None,
        description: str | None = None,
        key: str | None = None,
    ) -> BackgroundTask:
        """Launch an agent in the background and return its task; nothing is driven here.

        `parent` is the session that is notified of its end. The same key again, within its
        parent, returns the task that exists.
        """
        name = self._service.agents.add(agent).name if isinstance(agent, Agent) else agent
        options: Any = {"parent": parent, "description": description, "key": key}
        return await self.tasks.spawn(name, prompt, **options)

    async def background_task(self, id: str) -> BackgroundTask:  # noqa: A002 - as in all APIs
        """Return the task of a background agent as it stands. Raises NotFound."""
        return as_background(await self.tasks.get(id))

    async def background_tasks(
        self, *, parent: str | None = None, status: str | None = None
    ) -> AsyncIterator[BackgroundTask]:
        """Yield the background agents that were not cleared, newest first."""
        async for task in self.tasks(kind="background", parent=parent, status=status):
            yield as_background(task)

    async def deliveries(
        self, *, status: str | None = None, session: str | None = None
    ) -> AsyncIterator[Delivery]:
        """Yield the webhook deliveries in the store, oldest first."""
        self._caller.require(Permit.READ)
        deliveries = self._service.deliveries
        for delivery in await deliveries.ordered(self._caller.tenant, status, session):
            yield await deliveries.view(delivery)

    async def delivery(self, delivery_id: str) -> DeliveryDetails:
        """Return one delivery with its body and the log of its attempts. Raises NotFound."""
        self._caller.require(Permit.READ)
        return await self._service.deliveries.details(delivery_id, self._caller.tenant)

    async def redeliver(self, delivery_id: str, *, by: str | None = None) -> Delivery:
        """Deliver again, under the same id, as soon as a worker can."""
        self._caller.require(Permit.ADMIN)
        deliveries, tenant = self._service.deliveries, self._caller.tenant
        actor = self._caller.actor(by)
        return await deliveries.view(
            await deliveries.redeliver(delivery_id, by=actor, tenant=tenant)
        )

    # --- working ------------------------------------------------------------------------------

    async def work(
        self,
        *,
        once: bool = False,
        agents: Collection[str] | None = None,
        queues: Collection[str] | None = None,
        only: WorkKind | None = None,
        concurrency: int | None = None,
    ) -> None:
        """Drive whatever is due, until cancelled; with `once` until nothing is due.

        A worker can be limited: to sessions of these agents or queues, to sessions or deliveries,
        to a number of sessions at a time. Without `queues` it serves `default` and the queues of
        the agents that are known here.
        """
        agent_names = None if agents is None else frozenset(agents)
        queue_names = None if queues is None else frozenset(queues)
        await self._worker(agent_names, queue_names, only, concurrency).run(once=once)

    async def recover(self) -> RecoveryReport:
        """Return the report of a worker's start: the calls that wait or have expired."""
        return await self._worker().recover()

    def _worker(
        self,
        agents: frozenset[str] | None = None,
        queues: frozenset[str] | None = None,
        only: WorkKind | None = None,
        concurrency: int | None = None,
    ) -> "Worker":
        from perdure.runtime.worker.worker import Worker, WorkerScope

        scope = WorkerScope(agents, queues, only, concurrency)
        return Worker(self._service, self._resources, scope)
