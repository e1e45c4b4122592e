"""The client: what a program holds to work with a server as with a Runtime."""

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from types import TracebackType
from typing import Any, Final, Self, TypeVar

import anyio
import httpx2

from perdure.client.events import follow
from perdure.client.session import Json, RemoteSession, new_session_id
from perdure.client.wire import Ask, Wire, page_of, path_of

R = TypeVar("R")

PATIENCE_S: Final = 30.0  # a server that restarts is back by then


class Client:
    """A server at a URL. Open it with `async with`, or run a function with `run_sync`.

    What is not answered is asked again for `patience` seconds, if that can do no harm: reading,
    messages (each has a key), decisions and results (the same again changes nothing).
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
        self._wire = Wire(url, token, patience, transport)
        self._tenant = tenant

    def __repr__(self) -> str:
        return f"Client({self._wire.url!r})"

    async def __aenter__(self) -> Self:
        await self._wire.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._wire.__aexit__(kind, error, trace)

    def run_sync(self, main: "Callable[[Client], Awaitable[R]]") -> R:
        """Open, await `main(client)`, close: the one door for programs that are not async."""

        async def opened() -> R:
            async with self:
                return await main(self)

        return anyio.run(opened)

    def tenant(self, name: str | None) -> "Client":
        """The same connection, seeing one tenant; None is what the token sees."""
        scoped = object.__new__(Client)
        scoped._wire, scoped._tenant = self._wire, name
        return scoped

    # --- sessions -----------------------------------------------------------------------------

    def session(
        self,
        id: str | None = None,  # noqa: A002 - the word users know
        *,
        agent: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        queue: str | None = None,
    ) -> RemoteSession:
        """A handle; nothing is asked. The session is created by its first message.

        `queue` says which workers a new session is for, else its agent does.
        """
        session_id = new_session_id() if id is None else id
        return RemoteSession(self._wire, self._tenant, session_id, agent, metadata, queue)

    def sessions(
        self,
        *,
        state: str | None = None,
        agent: str | None = None,
        parent: str | None = None,
        metadata: Mapping[str, str] | None = None,
        search: str | None = None,
    ) -> AsyncIterator[Json]:
        """The sessions, each as it stands."""
        wanted: Json = {"state": state, "agent": agent, "parent": parent, "q": search}
        wanted |= {f"metadata.{name}": value for name, value in (metadata or {}).items()}
        return self._pages("/sessions", "sessions", wanted)

    def stream(
        self,
        *,
        session: str | None = None,
        after: int | None = None,
        types: Collection[str] = (),
    ) -> AsyncIterator[Json]:
        """Events of all sessions (of one) as they are recorded, from now or after a `pos`."""
        params = self._scope if after is None else {**self._scope, "after": after}
        found = follow(self._wire, "/events", params, "pos", after)
        return _only(found, session, types)

    # --- pending calls ------------------------------------------------------------------------

    def pending(
        self,
        *,
        session: str | None = None,
        kind: str | None = None,
        tool: str | None = None,
        status: str | None = None,
    ) -> AsyncIterator[Json]:
        """Calls that wait; `status` may also be an end state, or "all"."""
        wanted = {"sessionID": session, "kind": kind, "tool": tool, "status": status}
        return self._pages("/pending", "pending", wanted)

    async def pending_call(self, pending_id: str) -> Json:
        """One pending call, settled or not. Raises NotFound."""
        return await self._ask("GET", page_of("pending", pending_id))

    async def approve(
        self,
        pending_id: str,
        *,
        by: str | None = None,
        args: Mapping[str, Any] | None = None,
        note: str | None = None,
        remember: bool | str | None = None,
    ) -> Json:
        """Let exactly the stored call run, with `args` merged over its arguments."""
        said = {"by": by, "args": args, "note": note, "remember": remember}
        return await self._decide(pending_id, "approve", **said)

    async def deny(
        self, pending_id: str, *, by: str | None = None, reason: str | None = None
    ) -> Json:
        """Do not run it; the model is told the reason."""
        return await self._decide(pending_id, "deny", by=by, reason=reason)

    async def respond(self, pending_id: str, output: str, *, by: str | None = None) -> Json:
        """Answer a question, or give an output instead of running a call."""
        return await self._decide(pending_id, "respond", by=by, output=output)

    async def submit_result(
        self,
        pending_id: str,
        output: str,
        *,
        title: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        by: str | None = None,
    ) -> Json:
        """The outcome of a deferred call; answers `{success, sessionID, duplicate}`."""
        result = _given(output=output, title=title, metadata=metadata)
        return await self._submit("result", _given(pendingID=pending_id, result=result, by=by))

    async def submit_error(self, pending_id: str, error: str, *, by: str | None = None) -> Json:
        """A deferred call failed; answers `{success, sessionID, duplicate}`."""
        return await self._submit("error", _given(pendingID=pending_id, error=error, by=by))

    async def cancel(self, pending_id: str, *, by: str | None = None) -> Json:
        """Give one pending call up; the model is told."""
        params = _given(by=by)
        return await self._ask("DELETE", path_of("async-tool", "pending", pending_id), params)

    async def _decide(self, pending_id: str, verb: str, **said: Any) -> Json:
        path = path_of("pending", pending_id, verb)
        return await self._ask("POST", path, body=_given(**said), harmless=True)

    async def _submit(self, what: str, body: Json) -> Json:
        return await self._ask("POST", f"/async-tool/{what}", body=body, harmless=True)

    # --- the rest -----------------------------------------------------------------------------

    async def agents(self) -> list[Json]:
        """The agents that the server knows."""
        return list((await self._ask("GET", "/agents"))["agents"])

    def deliveries(
        self, *, status: str | None = None, session: str | None = None
    ) -> AsyncIterator[Json]:
        """Webhooks that were or are to be delivered."""
        wanted = {"status": status, "sessionID": session}
        return self._pages("/deliveries", "deliveries", wanted)

    async def delivery(self, delivery_id: str) -> Json:
        """One delivery, with its body and the log of its attempts. Raises NotFound."""
        return await self._ask("GET", path_of("deliveries", delivery_id))

    async def redeliver(self, delivery_id: str) -> Json:
        """Send it (again), under the same id, as soon as a worker can."""
        return await self._ask("POST", path_of("deliveries", delivery_id, "redeliver"))

    @property
    def _scope(self) -> dict[str, Any]:
        return {} if self._tenant is None else {"tenant": self._tenant}

    async def _ask(
        self, method: str, path: str, params: Mapping[str, Any] | None = None, **more: Any
    ) -> Json:
        answer = await self._wire.ask(Ask(method, path, {**(params or {}), **self._scope}, **more))
        return dict(answer.body or {})

    async def _pages(self, path: str, name: str, wanted: Mapping[str, Any]) -> AsyncIterator[Json]:
        cursor: str | None = None
        while True:
            page = await self._ask("GET", path, {**wanted, "cursor": cursor})
            for item in page[name]:
                yield item
            cursor = page["next"]
            if cursor is None:
                return


async def _only(
    found: AsyncIterator[Json], session: str | None, types: Collection[str]
) -> AsyncIterator[Json]:
    async for event in found:
        if session in (None, event["sessionID"]) and (not types or event["type"] in types):
            yield event


def _given(**said: Any) -> Json:
    return {name: value for name, value in said.items() if value is not None}
