"""Client of a server, with the verbs of a Runtime."""

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Literal, Self, TypeVar

import anyio
import httpx2

from perdure.client.connection import HttpConnection, HttpRequest, page_path, url_path
from perdure.client.events import follow
from perdure.client.session import Json, RemoteSession, new_session_id
from perdure.client.tasks import RemoteTask, RemoteTasks

R = TypeVar("R")

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
        self._tenant = tenant

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
        scoped._connection, scoped._tenant = self._connection, name
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
        return RemoteSession(self._connection, self._tenant, session_id, agent, metadata, queue)

    def sessions(
        self,
        *,
        state: str | None = None,
        agent: str | None = None,
        parent: str | None = None,
        metadata: Mapping[str, str] | None = None,
        search: str | None = None,
        sort: Literal["id", "updated"] | None = None,
    ) -> AsyncIterator[Json]:
        """Iterate over sessions with their current state; `updated`: the last changed first.

        Those are summaries: turns, usage and what each waits for, without output and todos.
        """
        params: Json = {"state": state, "agent": agent, "parent": parent, "q": search}
        params["sort"] = sort
        params |= {f"metadata.{name}": value for name, value in (metadata or {}).items()}
        return self._pages("/sessions", "sessions", params)

    def stream(
        self,
        *,
        session: str | None = None,
        after: int | None = None,
        types: Collection[str] = (),
    ) -> AsyncIterator[Json]:
        """Iterate over events of all sessions (or one) as they come, from now or after a `pos`."""
        params = self._scope if after is None else {**self._scope, "after": after}
        events = follow(self._connection, "/events", params, "pos", after)
        return _filter_events(events, session, types)

    async def statistics(self, hours: int = 24) -> Json:
        """Return how many calls were made, settled and expired per hour, and how fast."""
        return await self._request("GET", "/stats", {"hours": hours})

    async def doctor(self) -> Json:
        """Return the checks of the server's store, its workers and queues. Raises NotAllowed."""
        return await self._request("GET", "/doctor")

    # --- tasks --------------------------------------------------------------------------------

    @property
    def tasks(self) -> RemoteTasks:
        """Tasks of every kind: `client.tasks(parent=…)` iterates over them, newest first."""
        return RemoteTasks(self._connection, self._tenant)

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
        return self.task(launched["taskId"])

    # --- pending calls ------------------------------------------------------------------------

    def pending(
        self,
        *,
        session: str | None = None,
        kind: str | None = None,
        tool: str | None = None,
        status: str | None = None,
        sort: Literal["age", "expires", "newest"] | None = None,
    ) -> AsyncIterator[Json]:
        """Iterate over open calls; `status` may also be that of settled calls, or "all"."""
        params = {"sessionID": session, "kind": kind, "tool": tool, "status": status, "sort": sort}
        return self._pages("/pending", "pending", params)

    async def pending_call(self, pending_id: str) -> Json:
        """Return one pending call, open or settled. Raises NotFound."""
        return await self._request("GET", page_path("pending", pending_id))

    async def approve(
        self,
        pending_id: str,
        *,
        by: str | None = None,
        args: Mapping[str, Any] | None = None,
        note: str | None = None,
        remember: bool | str | None = None,
        all_tools: bool | None = None,
    ) -> Json:
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
    ) -> Json:
        """Deny a call: it does not run, and the model gets the reason."""
        fields = {"by": by, "reason": reason, "remember": remember, "allTools": all_tools}
        return await self._decide(pending_id, "deny", **fields)

    async def respond(self, pending_id: str, output: Any, *, by: str | None = None) -> Json:
        """Answer a question with any JSON, or give an output instead of running a call."""
        path = url_path("pending", pending_id, "respond")
        body = {"output": output, **_without_none(by=by)}
        return await self._request("POST", path, body=body, repeatable=True)

    async def decide(
        self, decisions: Sequence[Mapping[str, Any]], *, by: str | None = None
    ) -> list[Json]:
        """Decide about several calls in one commit, about all or none; returns the calls.

        Each is `{"pendingID": …, "decision": "approve" | "edit" | "deny" | "respond"}` with the
        fields of that decision.
        """
        body = {"decisions": list(decisions), **_without_none(by=by)}
        response = await self._request("POST", "/decisions", body=body, repeatable=True)
        return list(response["decisions"])

    async def submit_result(
        self,
        pending_id: str,
        output: Any,
        *,
        title: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        by: str | None = None,
    ) -> Json:
        """Submit the result of a deferred call: text or any other JSON value.

        Returns `{success, sessionID, duplicate}`.
        """
        result = {"output": output, **_without_none(title=title, metadata=metadata)}
        body = _without_none(pendingID=pending_id, result=result, by=by)
        return await self._submit("result", body)

    async def submit_error(self, pending_id: str, error: str, *, by: str | None = None) -> Json:
        """Submit the error of a deferred call; returns `{success, sessionID, duplicate}`."""
        return await self._submit("error", _without_none(pendingID=pending_id, error=error, by=by))

    async def cancel(self, pending_id: str, *, by: str | None = None) -> Json:
        """Cancel one pending call; the model is informed."""
        path = url_path("async-tool", "pending", pending_id)
        return await self._request("DELETE", path, _without_none(by=by))

    async def _decide(self, pending_id: str, verb: str, **fields: Any) -> Json:
        path = url_path("pending", pending_id, verb)
        return await self._request("POST", path, body=_without_none(**fields), repeatable=True)

    async def _submit(self, kind: str, body: Json) -> Json:
        return await self._request("POST", f"/async-tool/{kind}", body=body, repeatable=True)

    # --- agents and deliveries ----------------------------------------------------------------

    async def agents(self) -> list[Json]:
        """Return the agents of the server."""
        return list((await self._request("GET", "/agents"))["agents"])

    def deliveries(
        self, *, status: str | None = None, session: str | None = None
    ) -> AsyncIterator[Json]:
        """Iterate over webhook deliveries."""
        params = {"status": status, "sessionID": session}
        return self._pages("/deliveries", "deliveries", params)

    async def delivery(self, delivery_id: str) -> Json:
        """Return one delivery with its body and the log of its attempts. Raises NotFound."""
        return await self._request("GET", url_path("deliveries", delivery_id))

    async def redeliver(self, delivery_id: str) -> Json:
        """Deliver again, under the same id, as soon as a worker can."""
        return await self._request("POST", url_path("deliveries", delivery_id, "redeliver"))

    @property
    def _scope(self) -> dict[str, Any]:
        return {} if self._tenant is None else {"tenant": self._tenant}

    async def _request(
        self, method: str, path: str, params: Mapping[str, Any] | None = None, **options: Any
    ) -> Json:
        request = HttpRequest(method, path, {**(params or {}), **self._scope}, **options)
        return dict((await self._connection.send(request)).body or {})

    async def _pages(self, path: str, name: str, params: Mapping[str, Any]) -> AsyncIterator[Json]:
        cursor: str | None = None
        while True:
            page = await self._request("GET", path, {**params, "cursor": cursor})
            for item in page[name]:
                yield item
            cursor = page["next"]
            if cursor is None:
                return


async def _filter_events(
    events: AsyncIterator[Json], session: str | None, types: Collection[str]
) -> AsyncIterator[Json]:
    async for event in events:
        if session in (None, event["sessionID"]) and (not types or event["type"] in types):
            yield event


def _without_none(**fields: Any) -> Json:
    return {name: value for name, value in fields.items() if value is not None}
