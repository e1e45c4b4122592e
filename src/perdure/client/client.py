"""Client of a server, with the verbs of a Runtime."""

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from types import TracebackType
from typing import Any, Final, Self, TypeVar

import anyio
import httpx2

from perdure.client.calls import RemoteCalls
from perdure.client.connection import HttpConnection, TenantConnection, url_path
from perdure.client.events import StreamPosition, follow
from perdure.client.sandbox_tasks import RemoteSandboxTasks
from perdure.client.session import Json, RemoteSession, new_session_id
from perdure.client.tasks import RemoteTasks
from perdure.views import health
from perdure.views.calls import CallOrID, DecidedCall, PendingCall
from perdure.views.decisions import Decisions
from perdure.views.events import Delta, Event
from perdure.views.literals import PendingSort
from perdure.views.sessions import Result, SessionPage, SessionSummary, SummaryPage
from perdure.views.tasks import BackgroundTask, as_background
from perdure.views.values import Content, metadata_texts

R = TypeVar("R")

PATIENCE_S: Final = 30.0  # enough for a restart of the server


class Client:
    """Client of the server at a URL. Open it with `async with`, or run a function with `run_sync`.

    A request without a response is repeated for `patience` seconds if that is safe: reads,
    messages (each has a key), decisions and results (repeating them changes nothing). `by` is the
    person for whom it acts, if the token may name one.
    """

    def __init__(
        self,
        url: str,
        token: str | None = None,
        *,
        tenant: str | None = None,
        by: str | None = None,
        patience: float = PATIENCE_S,
        transport: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        self._connection = HttpConnection(url, token, patience, transport)
        self._tenant = TenantConnection(self._connection, tenant)
        self._by = by

    def __repr__(self) -> str:
        return f"Client({self._connection.url!r})"

    async def __aenter__(self) -> Self:
        await self._connection.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._connection.__aexit__(kind, error, trace)

    def run_sync(self, main: "Callable[[Client], Awaitable[R]]") -> R:
        """Open, await `main(client)`, close: for programs that are not async."""

        async def run() -> R:
            async with self:
                return await main(self)

        return anyio.run(run)

    def tenant(self, name: str | None) -> "Client":
        """Return a client with the same connection for one tenant; None for the token's own."""
        scoped = object.__new__(Client)
        scoped._connection = self._connection
        scoped._tenant = TenantConnection(self._connection, name)
        scoped._by = self._by
        return scoped

    # --- sessions -----------------------------------------------------------------------------

    def session(
        self,
        id: str | None = None,  # noqa: A002 - the word that users know
        *,
        agent: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        queue: str | None = None,
    ) -> RemoteSession:
        """Return a handle without a request. The first message creates the session.

        `queue` names the queue of a new session; the default is its agent's.
        """
        session_id = new_session_id() if id is None else id
        tenant = self._tenant.tenant
        return RemoteSession(self._connection, tenant, session_id, agent, metadata, queue, self._by)

    async def sessions(
        self,
        *,
        state: str | None = None,
        agent: str | None = None,
        parent: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        search: str | None = None,
    ) -> AsyncIterator[Result]:
        """Iterate over sessions by id, with their current state."""
        filters = {"state": state, "agent": agent, "parent": parent, "q": search}
        params = {**filters, **_metadata_params(metadata)}
        async for page in self._tenant.pages("/sessions", SessionPage, params):
            for session in page.sessions:
                yield self._calls.bound(session)

    async def summaries(
        self,
        *,
        state: str | None = None,
        agent: str | None = None,
        parent: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        search: str | None = None,
    ) -> AsyncIterator[SessionSummary]:
        """Iterate over summaries of sessions, the last changed first.

        They have turns, usage and what each waits for, without output and todos.
        """
        filters = {"state": state, "agent": agent, "parent": parent, "q": search}
        params = {**filters, **_metadata_params(metadata), "sort": "updated"}
        async for page in self._tenant.pages("/sessions", SummaryPage, params):
            for session in page.sessions:
                yield session

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

        A page has 500 sessions at most.
        """
        filters = {"state": state, "agent": agent, "parent": parent, "q": search}
        page = {"limit": limit, "cursor": cursor, "sort": "updated"}
        params = {**filters, **_metadata_params(metadata), **page}
        return await self._tenant.read("GET", "/sessions", SummaryPage, params)

    async def stream(
        self,
        *,
        session: str | None = None,
        after: int | None = None,
        types: Collection[str] = (),
    ) -> AsyncIterator[Event]:
        """Iterate over events of all sessions (or one) as they come, from now or after a `pos`."""
        params = {**self._tenant.scope, **({} if after is None else {"after": after})}
        position = StreamPosition("pos", after)
        async for event in follow(self._connection, "/events", params, Event, position):
            if isinstance(event, Delta) or session not in (None, event.session_id):
                continue
            if not types or event.type in types:
                yield event

    async def statistics(self, hours: int = 24) -> health.Statistics:
        """Return how many calls were created, settled and expired per hour, and how fast."""
        return await self._tenant.read("GET", "/stats", health.Statistics, {"hours": hours})

    async def doctor(self) -> health.Health:
        """Return the checks of the server's store, its workers and queues. Raises NotAllowed."""
        return await self._tenant.read("GET", "/doctor", health.Health)

    # --- tasks --------------------------------------------------------------------------------

    @property
    def tasks(self) -> RemoteTasks:
        """Tasks of every kind: `client.tasks(parent=…)` iterates over them, newest first."""
        return RemoteTasks(self._tenant, self._by)

    @property
    def sandbox_tasks(self) -> RemoteSandboxTasks:
        """Tasks with a workspace: their commands, files, logs and checkpoints."""
        return RemoteSandboxTasks(self._tenant)

    async def spawn(
        self,
        agent: str,
        prompt: Content,
        *,
        parent: str | None = None,
        description: str | None = None,
        key: str | None = None,
    ) -> BackgroundTask:
        """Launch an agent in the background; the same key again returns the same task.

        `parent` is the session that is notified of its end.
        """
        options: Any = {"parent": parent, "description": description, "key": key}
        return await self.tasks.spawn(agent, prompt, **options)

    async def background_task(self, id: str) -> BackgroundTask:  # noqa: A002 - as in all APIs
        """Return the task of a background agent as it stands. Raises NotFound."""
        return as_background(await self.tasks.get(id))

    async def background_tasks(
        self, *, parent: str | None = None, status: str | None = None
    ) -> AsyncIterator[BackgroundTask]:
        """Iterate over the background agents that were not cleared, newest first."""
        async for task in self.tasks(kind="background", parent=parent, status=status):
            yield as_background(task)

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
        """Iterate over open calls; `status` may also be that of settled calls, or "all"."""
        params = {"sessionID": session, "kind": kind, "tool": tool, "status": status, "sort": sort}
        async for call in self._calls.pages(params):
            yield call

    async def pending_call(self, pending_id: str) -> PendingCall:
        """Return one pending call, open or settled. Raises NotFound."""
        return await self._calls.get(pending_id)

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
        """Approve a call: exactly the stored call runs, with `args` merged over its arguments.

        A rule in `remember` that covers every tool needs `all_tools`.
        """
        options: Any = {"note": note, "remember": remember, "all_tools": all_tools}
        return await self._calls.approve(call, by=by, args=args, **options)

    async def deny(
        self,
        call: CallOrID,
        *,
        by: str | None = None,
        reason: str | None = None,
        remember: bool | str = False,
        all_tools: bool = False,
    ) -> DecidedCall:
        """Deny a call: it does not run, and the model gets the reason."""
        options: Any = {"remember": remember, "all_tools": all_tools}
        return await self._calls.deny(call, by=by, reason=reason, **options)

    async def respond(self, call: CallOrID, output: Any, *, by: str | None = None) -> DecidedCall:
        """Answer a question with any JSON, or give an output instead of running a call."""
        return await self._calls.respond(call, output, by=by)

    async def decide(self, decisions: Decisions, *, by: str | None = None) -> list[DecidedCall]:
        """Decide about several calls in one commit: about all of them, or about none.

        Each call, or its id, has `"approve"` or `"deny"`, or the fields of a decision:
        `{"decision": "edit", "args": …}`.
        """
        return await self._calls.decide(decisions, by=by)

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
        return await self._calls.submit_result(call, output, **options)

    async def submit_error(
        self, call: CallOrID, error: str, *, by: str | None = None
    ) -> DecidedCall:
        """Submit the error of a deferred call."""
        return await self._calls.submit_error(call, error, by=by)

    async def cancel_call(self, call: CallOrID, *, by: str | None = None) -> DecidedCall:
        """Cancel one pending call; the model is informed."""
        return await self._calls.cancel_call(call, by=by)

    @property
    def _calls(self) -> RemoteCalls:
        return RemoteCalls(self._tenant, self._by)

    # --- agents and deliveries ----------------------------------------------------------------

    async def agents(self) -> list[health.AgentInfo]:
        """Return the agents of the server."""
        return list((await self._tenant.read("GET", "/agents", health.AgentList)).agents)

    async def deliveries(
        self, *, status: str | None = None, session: str | None = None
    ) -> AsyncIterator[health.Delivery]:
        """Iterate over webhook deliveries."""
        params = {"status": status, "sessionID": session}
        async for page in self._tenant.pages("/deliveries", health.DeliveryPage, params):
            for delivery in page.deliveries:
                yield delivery

    async def delivery(self, delivery_id: str) -> health.DeliveryDetails:
        """Return one delivery with its body and the log of its attempts. Raises NotFound."""
        path = url_path("deliveries", delivery_id)
        return await self._tenant.read("GET", path, health.DeliveryDetails)

    async def redeliver(self, delivery_id: str, *, by: str | None = None) -> health.Delivery:
        """Deliver again, under the same id, as soon as a worker can."""
        path, params = url_path("deliveries", delivery_id, "redeliver"), {"by": by or self._by}
        return await self._tenant.read("POST", path, health.Delivery, params)


def _metadata_params(metadata: Mapping[str, Any] | None) -> Json:
    return {f"metadata.{name}": value for name, value in metadata_texts(metadata).items()}
