"""Handle on one session of a server, with the verbs of a local Session."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any, Final
from uuid import uuid4

import anyio

from perdure.client.calls import RemoteCalls
from perdure.client.connection import (
    HttpConnection,
    HttpResponse,
    TenantConnection,
    page_path,
    url_path,
    without_none,
)
from perdure.client.events import StreamPosition, follow
from perdure.errors import ModelError, NotFound, StoreError
from perdure.views.calls import PendingCall
from perdure.views.decisions import (
    RESULTS_EXAMPLE,
    Decisions,
    Outputs,
    checked_calls,
    not_both,
)
from perdure.views.events import Delta, Event, EventPage
from perdure.views.sessions import (
    DeletedSession,
    MessageList,
    PausedState,
    Permission,
    PermissionList,
    Result,
)
from perdure.views.values import Duration, Message, content_json, parse_duration

Json = dict[str, Any]
Origin = tuple[str | None, str | None]  # key and author of a message
Item = Event | Delta | Result

LONGEST_WAIT_S: Final = 60.0  # the longest `wait` that a server accepts
NO_WORKER_S: Final = 5.0  # a session that no worker claims for this long has no worker
FIRST_POLL_S: Final = 0.1
POLL_S: Final = 1.0
PAGE: Final = 1000
_PARKED_STATES: Final = frozenset({"waiting", "completed", "failed", "cancelled"})


@dataclass(frozen=True, slots=True, repr=False)
class RemoteSession:
    """Handle on a session of a server. The first message creates the session."""

    _connection: HttpConnection
    tenant: str | None
    id: str
    agent: str | None = None
    metadata: Mapping[str, Any] | None = None
    queue: str | None = None
    by: str | None = None  # for whom it acts, unless a verb says so

    def __repr__(self) -> str:
        return f"RemoteSession({self.id!r})"

    # --- messages -----------------------------------------------------------------------------

    async def run(
        self,
        message: Message | None = None,
        *,
        key: str | None = None,
        by: str | None = None,
        results: Outputs | None = None,
        decisions: Decisions | None = None,
        timeout: Duration | None = None,  # noqa: ASYNC109 - bounds the caller's wait, not the run
    ) -> Result:
        """Send a message or settle calls, if there are any, and return the parked session.

        After `timeout` it is returned as it is, and the run continues. Without a message the
        session is resumed, also after its run failed. `by` is the author of the message, if the
        token may name one. `decisions` are recorded in one commit, `results` before them and one
        after the other.
        """
        await self._settle(message, key, by, results, decisions)
        limit = float("inf") if timeout is None else parse_duration(timeout) / 1000
        until = anyio.current_time() + limit
        started = await self._start(message, (key, by), min(LONGEST_WAIT_S, limit))
        return started or await self._wait_until_parked(until)

    async def send(
        self, message: Message, *, key: str | None = None, by: str | None = None
    ) -> Result:
        """Record a message and wake the session; returns the session as it is then."""
        return self._result(await self._send_message(message, (key, by), 0))

    async def resume(self) -> Result:
        """Resume the session, also after its run failed; returns it as it is then."""
        return self._result(await self._post("resume", {}))

    async def stream(
        self,
        message: Message | None = None,
        *,
        key: str | None = None,
        by: str | None = None,
        results: Outputs | None = None,
        decisions: Decisions | None = None,
    ) -> AsyncIterator[Item]:
        """Run, and yield events and deltas as they come, the session last.

        Each event is yielded once, even if the connection breaks. The run continues if the caller
        stops reading.
        """
        try:
            seq = (await self.get()).seq
        except NotFound:
            seq = 0
        await self._settle(message, key, by, results, decisions)
        started = await self._start(message, (key, by), 0)
        items: asyncio.Queue[Item | Exception] = asyncio.Queue()
        # Not in a task group: a generator that is left early may be closed by another asyncio task.
        reader = asyncio.create_task(_forward(self.follow(after=seq, deltas=True), items))
        waiter = asyncio.create_task(_forward(self._last(started), items))
        try:
            async for item in _in_order(items, seq):
                yield item
        finally:
            reader.cancel()
            waiter.cancel()

    async def _settle(
        self,
        message: Message | None,
        key: str | None,
        by: str | None,
        results: Outputs | None,
        decisions: Decisions | None,
    ) -> None:
        """Settle the calls that a run settles first."""
        settles = bool(results or decisions)
        if settles and (message is not None or key is not None):
            raise not_both()
        outputs = checked_calls("results", results or {}, RESULTS_EXAMPLE)
        for call, output in outputs.items():
            await self._calls.submit_result(call, output, by=by)
        if decisions:
            await self._calls.decide(decisions, by=by)

    async def _last(self, started: Result | None) -> AsyncIterator[Item]:
        yield started or await self._wait_until_parked(float("inf"))

    async def _start(self, message: Message | None, origin: Origin, wait_s: float) -> Result | None:
        """Send a message or resume; return the session if it is parked."""
        try:
            if message is not None:
                response = await self._send_message(message, origin, wait_s)
            else:
                body = {"wait": wait_s} if wait_s else {}
                response = await self._post("resume", body, wait_s=wait_s)
        except StoreError as error:
            if message is not None or error.code != "ANSWER_LOST":
                raise
            return None  # the server may have resumed it or not
        session = self._result(response)
        return session if response.status in (200, 201) and _is_parked(session) else None

    async def _send_message(self, message: Message, origin: Origin, wait_s: float) -> HttpResponse:
        """Send a message with a key, so that sending it again records nothing."""
        content = content_json(message)
        key, more = origin[0] or _new_key(), {"by": origin[1] or self.by, "wait": wait_s or None}
        if self.agent is None:
            body = without_none({"content": content, **more})
            return await self._post("messages", body, key=key, wait_s=wait_s)
        new_session: Json = {"agent": self.agent, "sessionID": self.id, "message": content}
        new_session |= {"metadata": self.metadata, "queue": self.queue, **more}
        options: Json = {"body": without_none(new_session), "key": key, "wait_s": wait_s}
        return await self._tenant.send("POST", "/sessions", **options)

    async def _wait_until_parked(self, until: float) -> Result:
        """Return the session once it is parked, has no worker, or the time is over."""
        pause, worker_at = FIRST_POLL_S, anyio.current_time()
        while True:
            session = await self.get()
            now = anyio.current_time()
            if _finding_code(session) != "NO_WORKER":
                worker_at = now
            if _is_parked(session) or now >= until or now - worker_at >= NO_WORKER_S:
                return session
            await anyio.sleep(min(pause, max(until - now, 0)))
            pause = min(pause * 2, POLL_S)

    # --- reading ------------------------------------------------------------------------------

    async def get(self) -> Result:
        """Return the session with its current state. Raises NotFound."""
        return self._result(await self._tenant.send("GET", page_path("sessions", self.id)))

    async def events(self, *, after: int = 0, limit: int | None = None) -> list[Event]:
        """Return the events after a seq, oldest first; all of them unless there is a limit."""
        events: list[Event] = []
        while limit is None or len(events) < limit:
            size = PAGE if limit is None else min(PAGE, limit - len(events))
            params = {"after": after, "limit": size}
            page = await self._tenant.read("GET", self._path("events"), EventPage, params)
            events += page.events
            if page.next is None or not page.events:
                break
            after = page.events[-1].seq
        return events

    async def messages(self) -> MessageList:
        """Return the conversation in parts."""
        return await self._tenant.read("GET", self._path("messages"), MessageList)

    async def state(self) -> PausedState:
        """Return the states of its paused runs, its open calls, and the age of the pause."""
        paused = await self._tenant.read("GET", self._path("state"), PausedState)
        return self._calls.bound(paused)

    async def permissions(self) -> list[Permission]:
        """Return the permissions that approvals with `remember` gave for the rest of it."""
        page = await self._tenant.read("GET", self._path("permissions"), PermissionList)
        return list(page.permissions)

    def follow(self, *, after: int = 0, deltas: bool = False) -> AsyncIterator[Event | Delta]:
        """Iterate over its events after a seq, each once, without end; this does not drive it.

        With `deltas` also over deltas of model responses.
        """
        params = {"after": after, **self._tenant.scope, **({"deltas": 1} if deltas else {})}
        position = StreamPosition("seq", after)
        return follow(self._connection, self._path("events"), params, Event, position)

    async def pending(self) -> AsyncIterator[PendingCall]:
        """Iterate over its open calls, the oldest first."""
        async for call in self._calls.pages({"sessionID": self.id}):
            yield call

    # --- commands -----------------------------------------------------------------------------

    async def cancel(
        self, *, by: str | None = None, reason: str | None = None, keep_children: bool = False
    ) -> Result:
        """Cancel the run: once this returns, no call of it is recorded as started any more.

        Its background agents are cancelled too, unless `keep_children` is set.
        """
        body = without_none({"by": by or self.by, "reason": reason})
        if keep_children:
            body["keepChildren"] = True
        return self._result(await self._post("cancel", body))

    async def compact(
        self,
        *,
        keep: int | None = None,
        instructions: str | None = None,
        by: str | None = None,
    ) -> Result:
        """Let the model summarize the conversation except for the last `keep` turns.

        Returns the session with its summary; its `compaction` is not None if there is no worker
        to do it. Raises Conflict while a run or a call is in progress, ModelError if it failed.
        """
        fields = {
            "keep": keep,
            "instructions": instructions,
            "by": by or self.by,
            "wait": LONGEST_WAIT_S,
        }
        session = self._result(
            await self._post("compact", without_none(fields), wait_s=LONGEST_WAIT_S)
        )
        worker_at = anyio.current_time()
        while _is_compacting(session):
            if _finding_code(session) != "NO_WORKER":
                worker_at = anyio.current_time()
            if anyio.current_time() - worker_at >= NO_WORKER_S:
                break
            await anyio.sleep(POLL_S)
            session = await self.get()
        error = None if session.compaction is None else session.compaction.error
        if error is not None:
            raise ModelError(error.message, code=error.code, hint=error.hint or None)
        return session

    async def set_metadata(self, changes: Mapping[str, Any]) -> Result:
        """Change metadata; None removes a key."""
        path, body = url_path("sessions", self.id), {"metadata": dict(changes)}
        return self._result(await self._tenant.send("PATCH", path, body=body))

    async def revoke(self, number: int, *, by: str | None = None) -> list[Permission]:
        """Revoke a permission: its calls need approval again. Returns the remaining ones."""
        path = self._path("permissions", str(number))
        page = await self._tenant.read("DELETE", path, PermissionList, {"by": by or self.by})
        return list(page.permissions)

    async def fork(self, *, at: int | None = None, id: str | None = None) -> "RemoteSession":  # noqa: A002 - the word that users know
        """Copy the session up to an event into a new session; no effect runs again."""
        body = without_none({"sessionID": id or new_session_id(), "at": at})
        session = self._result(await self._post("fork", body))
        return RemoteSession(self._connection, self.tenant, session.session_id, by=self.by)

    async def delete(self) -> DeletedSession:
        """Delete the session and everything that finds it."""
        return await self._tenant.read("DELETE", url_path("sessions", self.id), DeletedSession)

    # --- requests -----------------------------------------------------------------------------

    @property
    def _tenant(self) -> TenantConnection:
        return TenantConnection(self._connection, self.tenant)

    @property
    def _calls(self) -> RemoteCalls:
        return RemoteCalls(self._tenant, self.by)

    def _result(self, response: HttpResponse) -> Result:
        return self._calls.bound(self._connection.decode(response.content, Result))

    def _path(self, *parts: str) -> str:
        return url_path("sessions", self.id, *parts)

    async def _post(
        self, verb: str, body: Json, *, key: str | None = None, wait_s: float = 0.0
    ) -> HttpResponse:
        options: Json = {"body": body, "key": key, "wait_s": wait_s}
        return await self._tenant.send("POST", self._path(verb), **options)


def new_session_id() -> str:
    """Return a new session id, made by the client so that a repeated request creates one only."""
    return f"s_{uuid4().hex}"


def _new_key() -> str:
    return uuid4().hex


def _finding_code(session: Result) -> str | None:
    return session.findings[0].code if session.findings else None


def _is_compacting(session: Result) -> bool:
    """Return whether the session still waits for a summary."""
    return session.compaction is not None and session.compaction.error is None


def _is_parked(session: Result) -> bool:
    """Return whether no worker will continue the session by itself; after a back-off one will."""
    return session.state in _PARKED_STATES or _finding_code(session) == "AGENT_UNKNOWN"


async def _forward(source: AsyncIterator[Item], items: "asyncio.Queue[Item | Exception]") -> None:
    try:
        async for item in source:
            items.put_nowait(item)
    except Exception as error:  # noqa: BLE001 - raised by the reader of the queue
        items.put_nowait(error)


async def _in_order(items: "asyncio.Queue[Item | Exception]", seq: int) -> AsyncIterator[Item]:
    """Yield events and deltas, and the session after the last of its events."""
    last: Result | None = None
    while last is None or seq < last.seq:
        item = await items.get()
        if isinstance(item, Exception):
            raise item
        if isinstance(item, Result):
            last = item
            continue
        if isinstance(item, Event):
            seq = item.seq
        yield item
    yield last
