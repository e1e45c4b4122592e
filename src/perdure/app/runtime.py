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
from typing import Any, Final, Self, TypeVar, overload

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
from perdure.core.session.naming import check_id, check_tenant
from perdure.core.webhooks.deliveries import Hook
from perdure.errors import ConfigError, Refused
from perdure.options import (
    Price,
    RecoveryOptions,
    TaskOptions,
    TelemetryOptions,
    WebhookTarget,
)
from perdure.runtime.agents.agent import Agent
from perdure.runtime.agents.agents import Agents
from perdure.runtime.agents.delegation import check_launch
from perdure.runtime.agents.prices import Prices
from perdure.runtime.agents.ready_agent import ReadyAgent
from perdure.runtime.engine.drives import Drives
from perdure.runtime.engine.heartbeat import BLIND_LEASE_MS, LEASE_MS
from perdure.runtime.ids import new_id
from perdure.runtime.mcp.pool import ServerPool
from perdure.runtime.mcp.servers import MCPServer
from perdure.runtime.sessions.decisions import parse_decisions
from perdure.runtime.sessions.handle import Session
from perdure.runtime.sessions.service import Service
from perdure.runtime.sessions.task import Task
from perdure.runtime.sessions.verbs.caller import Caller
from perdure.runtime.sessions.verbs.sessions import SessionVerbs
from perdure.runtime.tasks.executions.options import check_ro_paths
from perdure.runtime.tasks.locks.process import Work
from perdure.runtime.tasks.service import Tasks, task_options
from perdure.runtime.tasks.session_shell import SessionShell
from perdure.runtime.telemetry import Telemetry
from perdure.runtime.transfer.imports import read_lines
from perdure.runtime.webhooks.callbacks import PublicAddress
from perdure.runtime.worker.worker import Kind, StartReport, Worker, WorkerScope
from perdure.store.base import Clock, Store
from perdure.views.bodies import ApproveBody, DenyBody, RespondBody, ResultIn
from perdure.views.calls import PendingCall
from perdure.views.events import Event
from perdure.views.literals import Role
from perdure.views.sessions import Result
from perdure.views.values import Content, parse_duration

R = TypeVar("R")
T = TypeVar("T")

logger = logging.getLogger("perdure")

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
        self._tenant: str | None = None
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
        shell = SessionShell(lambda: self._service.tasks)
        resources = assemble_resources(store, options, shell)
        drives = Drives(resources, agents, options.lease_ms)
        self._options = options
        self._resources = resources
        self._service = Service(
            resources,
            agents,
            drives,
            Tasks(store, options.tasks, options.lease_ms, self._run_beside, drives),
            resumes_running=options.resumes_running,
            keep_settled_ms=options.keep_settled_ms,
        )

    def _run_beside(self, work: Work) -> None:
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
            stack.push_async_callback(self._service.tasks.close)
            await self._service.tasks.open()
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
        scoped = object.__new__(Runtime)
        scoped.__dict__ = dict(self.__dict__)
        scoped._tenant = check_tenant(name)
        return scoped

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
            self._service,
            self._tenant or "",
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
        report = await self._service.import_lines(await read_lines(lines), self._tenant)
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
        async for entry in self._service.sessions(self._tenant, damaged=True):
            record = entry.record
            if (agent is not None and record.agent != agent) or (
                parent is not None and record.parent != parent
            ):
                continue
            if any(record.metadata.get(k) != v for k, v in (metadata or {}).items()):
                continue
            if search and search.lower() not in f"{record.id} {record.title}".lower():
                continue
            result = await self._service.listed_result(entry)
            if state is None or result.state == state:
                yield result

    async def stream(
        self,
        *,
        session: str | None = None,
        after: int | None = None,
        types: Collection[str] = (),
    ) -> AsyncIterator[Event]:
        """Yield events as they are recorded, from now or after an `Event.pos`; drives nothing."""
        feed = self._service.feed
        async for event in feed.follow(self._tenant, session_id=session, after=after, types=types):
            yield event

    # --- pending calls ------------------------------------------------------------------------

    async def pending(
        self,
        *,
        session: str | None = None,
        kind: str | None = None,
        tool: str | None = None,
        status: str | None = None,
    ) -> AsyncIterator[PendingCall]:
        """Yield open pending calls; `status` may also be an end status, or "all"."""
        async for call in self._verbs().calls.all(status, session):
            if kind in (None, call.kind) and tool in (None, call.tool):
                yield call

    def _verbs(self, role: Role | None = None) -> SessionVerbs:
        """Return the verbs of this program, which says who acts, and under which role."""
        return SessionVerbs(self._service, Caller(tenant=self._tenant, trusted_role=role))

    async def approve(  # noqa: PLR0913 - keyword options of a decision
        self,
        pending_id: str,
        *,
        by: str,
        args: Mapping[str, Any] | None = None,
        note: str | None = None,
        remember: bool | str = False,
        all_tools: bool = False,
        role: Role | None = None,
    ) -> PendingCall:
        """Approve exactly the stored call, with `args` merged over its arguments.

        With `remember` the same call needs no approval again in its session; a rule such as
        `"shell:cmd=ls*"` covers more calls, and one for every tool needs `all_tools`. See
        `Session.permissions`. `role` is the role of the approver, for tools with `approvers`.
        """
        body = ApproveBody(args=args, note=note, remember=remember, all_tools=all_tools, by=by)
        return (await self._verbs(role).calls.approve(pending_id, body)).call

    async def deny(
        self,
        pending_id: str,
        *,
        by: str,
        reason: str | None = None,
        remember: bool | str = False,
        all_tools: bool = False,
        role: Role | None = None,
    ) -> PendingCall:
        """Deny a call; the model gets the reason. With `remember`, such calls stay denied."""
        body = DenyBody(reason=reason, remember=remember, all_tools=all_tools, by=by)
        return (await self._verbs(role).calls.deny(pending_id, body)).call

    async def respond(
        self, pending_id: str, output: Any, *, by: str, role: Role | None = None
    ) -> PendingCall:
        """Answer a question with a JSON value, or give an output instead of running a call.

        Raises Refused ANSWER_INVALID if it does not fit the question's choices or schema.
        """
        body = RespondBody(output=output, by=by)
        return (await self._verbs(role).calls.respond(pending_id, body)).call

    async def decide(
        self, decisions: Sequence[Mapping[str, Any]], *, by: str, role: Role | None = None
    ) -> list[PendingCall]:
        """Decide about several calls in one commit: about all of them, or about none.

        Each is `{"pendingID": …, "decision": "approve" | "edit" | "deny" | "respond"}` with the
        fields of that decision: `args`, `note`, `reason`, `output`, `remember`, `allTools`.
        """
        outcomes = await self._verbs(role).calls.decide(parse_decisions(decisions), by)
        return [settled.call for settled in outcomes]

    async def submit_result(
        self,
        pending_id: str,
        output: Any,
        *,
        title: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        by: str | None = None,
    ) -> PendingCall:
        """Submit the result of a deferred call: text or any other JSON value."""
        result = ResultIn(output=output, title=title, metadata=metadata)
        return (await self._verbs().calls.submit_result(pending_id, result, by)).call

    async def submit_error(
        self, pending_id: str, error: str, *, by: str | None = None
    ) -> PendingCall:
        """Submit the error of a deferred call."""
        return (await self._verbs().calls.submit_error(pending_id, error, by)).call

    async def cancel(self, pending_id: str, *, by: str | None = None) -> PendingCall:
        """Cancel one pending call; the model gets an error."""
        return (await self._verbs().calls.cancel(pending_id, by)).call

    # --- background agents --------------------------------------------------------------------

    async def spawn(
        self,
        agent: Agent[Any] | str,
        prompt: Content,
        *,
        parent: str | None = None,
        description: str | None = None,
        key: str | None = None,
    ) -> Task:
        """Launch an agent in the background and return its task; nothing is driven here.

        `parent` is the session that is notified of its end. The same key again, within its
        parent, returns the task that exists.
        """
        name = self._service.agents.add(agent).name if isinstance(agent, Agent) else agent
        check_launch({"agent": name, "prompt": prompt})
        content = await self._service.store_content(prompt)
        record, _ = await self._service.background.launch(
            self._tenant or "",
            str(name),
            content,
            parent=parent,
            description=description,
            key=None if key is None else check_id(key, "key"),
        )
        return Task.of(self._service, record)

    def task(self, id: str) -> Task:  # noqa: A002 - the field's name in all APIs
        """Return the handle of a background task; nothing is read."""
        return Task(self._service, self._tenant or "", id)

    async def tasks(
        self, *, parent: str | None = None, status: str | None = None
    ) -> AsyncIterator[Task]:
        """Yield the background tasks that were not cleared."""
        records = self._service.background.tasks(self._tenant, parent=parent, status=status)
        async for record in records:
            yield Task.of(self._service, record)

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
        """Drive whatever is due, until cancelled; with `once` until nothing is due.

        A worker can be limited: to sessions of these agents or queues, to sessions or deliveries,
        to a number of sessions at a time. Without `queues` it serves `default` and the queues of
        the agents that are known here.
        """
        agent_names = None if agents is None else frozenset(agents)
        queue_names = None if queues is None else frozenset(queues)
        scope = WorkerScope(agent_names, queue_names, only, concurrency)
        await self._worker(scope).run(once=once)

    async def recover(self) -> StartReport:
        """Return the report of a worker's start: the calls that wait or have expired."""
        return await self._worker().recover()

    def _worker(self, scope: WorkerScope | None = None) -> Worker:
        return Worker(self._service, self._resources, scope)
