"""Client of a server, with the verbs of a Runtime."""

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Literal, Self, TypeVar

import anyio
import httpx2

from perdure.client.connection import (
    HttpConnection,
    TenantConnection,
    page_path,
    url_path,
    without_none,
)
from perdure.client.events import StreamPosition, follow
from perdure.client.session import Json, RemoteSession, new_session_id
from perdure.client.tasks import RemoteTask, RemoteTasks
from perdure.views import health
from perdure.views.calls import PendingCall, PendingPage
from perdure.views.events import Delta, Event
from perdure.views.sessions import (
    DecidedCall,
    DecidedCalls,
    Result,
    SessionPage,
    SessionSummary,
    SubmittedResult,
    SummaryPage,
)

R = TypeVar("R")
P = TypeVar("P", SessionPage, SummaryPage, PendingPage, health.DeliveryPage)

PATIENCE_S: Final = 30.0  # enough for a restart of the server


class Client:
    """Client of the server at a URL. Open it with `async with`, or run a function with `run_sync`.

    A request without a response is repeated for `patience` seconds if that is safe: reads,
    messages (each has a key), decisions and results (repeating them changes nothing).
    """

    def __init__(
        self,
        url: str,
        token: str | None = None,
        *,
        tenant: str | None = None,
        patience: float = PATIENCE_S,
        transport: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        self._connection = HttpConnection(url, token, patience, transport)
        self._tenant = TenantConnection(self._connection, tenant)

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
        return RemoteSession(self._connection, tenant, session_id, agent, metadata, queue)

    async def sessions(
        self,
        *,
        state: str | None = None,
        agent: str | None = None,
        parent: str | None = None,
        metadata: Mapping[str, str] | None = None,
        search: str | None = None,
    ) -> AsyncIterator[Result]:
        """Iterate over sessions by id, with their current state."""
        filters = {"state": state, "agent": agent, "parent": parent, "q": search}
        params = {**filters, **_metadata_params(metadata)}
        async for page in self._pages("/sessions", SessionPage, params):
            for session in page.sessions:
                yield session

    async def summaries(
        self,
        *,
        state: str | None = None,
        agent: str | None = None,
        parent: str | None = None,
        metadata: Mapping[str, str] | None = None,
        search: str | None = None,
    ) -> AsyncIterator[SessionSummary]:
        """Iterate over summaries of sessions, the last changed first.

        They have turns, usage and what each waits for, without output and todos.
        """
        filters = {"state": state, "agent": agent, "parent": parent, "q": search}
        params = {**filters, **_metadata_params(metadata), "sort": "updated"}
        async for page in self._pages("/sessions", SummaryPage, params):
            for session in page.sessions:
                yield session

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
        """Return how many calls were made, settled and expired per hour, and how fast."""
        return await self._tenant.read("GET", "/stats", health.Statistics, {"hours": hours})

    async def doctor(self) -> health.Health:
        """Return the checks of the server's store, its workers and queues. Raises NotAllowed."""
        return await self._tenant.read("GET", "/doctor", health.Health)

    # --- tasks --------------------------------------------------------------------------------

    @property
    def tasks(self) -> RemoteTasks:
        """Tasks of every kind: `client.tasks(parent=…)` iterates over them, newest first."""
        return RemoteTasks(self._connection, self._tenant.tenant)

    def task(self, id: str) -> RemoteTask:  # noqa: A002 - the word that users know
        """Return the handle of a background agent, without a request."""
        return RemoteTask(self.tasks, id)

    async def spawn(
        self,
        agent: str,
        prompt: Any,
        *,
        parent: str | None = None,
        description: str | None = None,
        key: str | None = None,
    ) -> RemoteTask:
        """Launch an agent in the background; the same key again returns the same task.

        `parent` is the session that is notified of its end.
        """
        launched = await self.tasks.spawn(
            agent, prompt, parent=parent, description=description, key=key
        )
        return self.task(launched.id)

    # --- pending calls ------------------------------------------------------------------------

    async def pending(
        self,
        *,
        session: str | None = None,
        kind: str | None = None,
        tool: str | None = None,
        status: str | None = None,
        sort: Literal["age", "expires", "newest"] | None = None,
    ) -> AsyncIterator[PendingCall]:
        """Iterate over open calls; `status` may also be that of settled calls, or "all"."""
        params = {"sessionID": session, "kind": kind, "tool": tool, "status": status, "sort": sort}
        async for page in self._pages("/pending", PendingPage, params):
            for call in page.pending:
                yield call

    async def pending_call(self, pending_id: str) -> PendingCall:
        """Return one pending call, open or settled. Raises NotFound."""
        return await self._tenant.read("GET", page_path("pending", pending_id), PendingCall)

    async def approve(
        self,
        pending_id: str,
        *,
        by: str | None = None,
        args: Mapping[str, Any] | None = None,
        note: str | None = None,
        remember: bool | str | None = None,
        all_tools: bool | None = None,
    ) -> DecidedCall:
        """Approve a call: exactly the stored call runs, with `args` merged over its arguments.

        A rule in `remember` that covers every tool needs `all_tools`.
        """
        fields = {"by": by, "args": args, "note": note, "remember": remember}
        return await self._decide(pending_id, "approve", **fields, allTools=all_tools)

    async def deny(
        self,
        pending_id: str,
        *,
        by: str | None = None,
        reason: str | None = None,
        remember: bool | str | None = None,
        all_tools: bool | None = None,
    ) -> DecidedCall:
        """Deny a call: it does not run, and the model gets the reason."""
        fields = {"by": by, "reason": reason, "remember": remember, "allTools": all_tools}
        return await self._decide(pending_id, "deny", **fields)

    async def respond(self, pending_id: str, output: Any, *, by: str | None = None) -> DecidedCall:
        """Answer a question with any JSON, or give an output instead of running a call."""
        path = url_path("pending", pending_id, "respond")
        body = {"output": output, **without_none({"by": by})}
        return await self._tenant.read("POST", path, DecidedCall, body=body, repeatable=True)

    async def decide(
        self, decisions: Sequence[Mapping[str, Any]], *, by: str | None = None
    ) -> list[DecidedCall]:
        """Decide about several calls in one commit, about all or none; returns the calls.

        Each is `{"pendingID": …, "decision": "approve" | "edit" | "deny" | "respond"}` with the
        fields of that decision.
        """
        body = without_none({"decisions": list(decisions), "by": by})
        options: Json = {"body": body, "repeatable": True}
        decided = await self._tenant.read("POST", "/decisions", DecidedCalls, **options)
        return list(decided.decisions)

    async def submit_result(
        self,
        pending_id: str,
        output: Any,
        *,
        title: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        by: str | None = None,
    ) -> SubmittedResult:
        """Submit the result of a deferred call: text or any other JSON value."""
        result = {"output": output, **without_none({"title": title, "metadata": metadata})}
        body = without_none({"pendingID": pending_id, "result": result, "by": by})
        return await self._submit("result", body)

    async def submit_error(
        self, pending_id: str, error: str, *, by: str | None = None
    ) -> SubmittedResult:
        """Submit the error of a deferred call."""
        body = without_none({"pendingID": pending_id, "error": error, "by": by})
        return await self._submit("error", body)

    async def cancel(self, pending_id: str, *, by: str | None = None) -> DecidedCall:
        """Cancel one pending call; the model is informed."""
        path = url_path("async-tool", "pending", pending_id)
        return await self._tenant.read("DELETE", path, DecidedCall, {"by": by})

    async def _decide(self, pending_id: str, verb: str, **fields: Any) -> DecidedCall:
        path, body = url_path("pending", pending_id, verb), without_none(fields)
        return await self._tenant.read("POST", path, DecidedCall, body=body, repeatable=True)

    async def _submit(self, kind: str, body: Json) -> SubmittedResult:
        options: Json = {"body": body, "repeatable": True}
        return await self._tenant.read("POST", f"/async-tool/{kind}", SubmittedResult, **options)

    # --- agents and deliveries ----------------------------------------------------------------

    async def agents(self) -> list[health.AgentInfo]:
        """Return the agents of the server."""
        return list((await self._tenant.read("GET", "/agents", health.AgentList)).agents)

    async def deliveries(
        self, *, status: str | None = None, session: str | None = None
    ) -> AsyncIterator[health.DeliveryInfo]:
        """Iterate over webhook deliveries."""
        params = {"status": status, "sessionID": session}
        async for page in self._pages("/deliveries", health.DeliveryPage, params):
            for delivery in page.deliveries:
                yield delivery

    async def delivery(self, delivery_id: str) -> health.DeliveryDetails:
        """Return one delivery with its body and the log of its attempts. Raises NotFound."""
        path = url_path("deliveries", delivery_id)
        return await self._tenant.read("GET", path, health.DeliveryDetails)

    async def redeliver(self, delivery_id: str) -> health.DeliveryInfo:
        """Deliver again, under the same id, as soon as a worker can."""
        path = url_path("deliveries", delivery_id, "redeliver")
        return await self._tenant.read("POST", path, health.DeliveryInfo)

    async def _pages(self, path: str, kind: type[P], params: Mapping[str, Any]) -> AsyncIterator[P]:
        cursor: str | None = None
        while True:
            page = await self._tenant.read("GET", path, kind, {**params, "cursor": cursor})
            yield page
            cursor = page.next
            if cursor is None:
                return


def _metadata_params(metadata: Mapping[str, str] | None) -> Json:
    return {f"metadata.{name}": value for name, value in (metadata or {}).items()}
