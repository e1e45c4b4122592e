"""Handle on one session of a server, with the verbs of a local Session."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import uuid4

import anyio

from perdure.client.connection import HttpConnection, HttpRequest, HttpResponse, page_path, url_path
from perdure.client.events import follow
from perdure.errors import ModelError, NotFound, StoreError

Json = dict[str, Any]
Content = str | Sequence[Mapping[str, Any]]  # text, or parts as in the JSON shape of content
Origin = tuple[str | None, str | None]  # key and author of a message

LONGEST_WAIT_S: Final = 60.0  # the longest `wait` that a server accepts
NO_WORKER_S: Final = 5.0  # a session that no worker claims for this long has no worker
FIRST_POLL_S: Final = 0.1
POLL_S: Final = 1.0
PAGE: Final = 1000
_PARKED_STATES: Final = frozenset({"waiting", "completed", "failed", "cancelled"})


@dataclass(frozen=True, slots=True, repr=False)
class RemoteSession:
    """Handle on a session of a server. The first message creates the session."""

    connection: HttpConnection
    tenant: str | None
    id: str
    agent: str | None = None
    metadata: Mapping[str, Any] | None = None
    queue: str | None = None

    def __repr__(self) -> str:
        return f"RemoteSession({self.id!r})"

    # --- messages -----------------------------------------------------------------------------

    async def run(
        self,
        message: Content | None = None,
        *,
        key: str | None = None,
        by: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - bounds the caller's wait, not the run
    ) -> Json:
        """Send a message, if there is one, and return the session once it is parked.

        After `timeout` seconds it is returned as it is, and the run continues. Without a message
        the session is resumed, also after its run failed. `by` is the author of the message, if the
        token may name one.
        """
        limit = float("inf") if timeout is None else timeout
        until = anyio.current_time() + limit
        response = await self._start(message, (key, by), min(LONGEST_WAIT_S, limit))
        if response.status in (200, 201) and _is_parked(response.body):
            return _object(response.body)
        return await self._wait_until_parked(until)

    async def send(
        self, message: Content, *, key: str | None = None, by: str | None = None
    ) -> Json:
        """Record a message and wake the session; returns the session as it is then."""
        return _object((await self._send_message(message, (key, by), 0)).body)

    async def resume(self) -> Json:
        """Resume the session, also after its run failed; returns it as it is then."""
        return _object((await self._post("resume", {})).body)

    async def stream(
        self, message: Content | None = None, *, key: str | None = None, by: str | None = None
    ) -> AsyncIterator[Json]:
        """Run, and yield events and deltas (`type` is "delta") as they come, the session last.

        Each event is yielded once, even if the connection breaks. The run continues if the caller
        stops reading.
        """
        try:
            seq = int((await self.get())["seq"])
        except NotFound:
            seq = 0
        response = await self._start(message, (key, by), 0)
        items: asyncio.Queue[Json | Exception] = asyncio.Queue()
        # Not in a task group: a generator that is left early may be closed by another asyncio task.
        reader = asyncio.create_task(_forward(self.follow(after=seq, deltas=True), items))
        waiter = asyncio.create_task(_forward(self._last(response), items))
        try:
            async for item in _in_order(items, seq):
                yield item
        finally:
            reader.cancel()
            waiter.cancel()

    async def _last(self, response: HttpResponse) -> AsyncIterator[Json]:
        if response.status == 200 and _is_parked(response.body):
            yield _object(response.body)
        else:
            yield await self._wait_until_parked(float("inf"))

    async def _start(self, message: Content | None, origin: Origin, wait_s: float) -> HttpResponse:
        if message is not None:
            return await self._send_message(message, origin, wait_s)
        try:
            return await self._post("resume", {"wait": wait_s} if wait_s else {}, wait_s=wait_s)
        except StoreError as error:
            if error.code != "ANSWER_LOST":
                raise
            return HttpResponse(202, await self.get())  # the server may have resumed it or not

    async def _send_message(self, message: Content, origin: Origin, wait_s: float) -> HttpResponse:
        """Send a message with a key, so that sending it again records nothing."""
        key, by = origin[0] or _new_key(), {} if origin[1] is None else {"by": origin[1]}
        if self.agent is not None:
            new_session: Json = {"agent": self.agent, "sessionID": self.id, "message": message}
            new_session |= by
            if self.metadata is not None:
                new_session["metadata"] = self.metadata
            if self.queue is not None:
                new_session["queue"] = self.queue
            if wait_s:
                new_session["wait"] = wait_s
            return await self._request(
                "POST", "/sessions", body=new_session, key=key, wait_s=wait_s
            )
        body = {"content": message, **by, **({"wait": wait_s} if wait_s else {})}
        return await self._post("messages", body, key=key, wait_s=wait_s)

    async def _wait_until_parked(self, until: float) -> Json:
        """Return the session once it is parked, has no worker, or the time is over."""
        pause, worker_at = FIRST_POLL_S, anyio.current_time()
        while True:
            session = await self.get()
            now = anyio.current_time()
            if _problem_code(session) != "NO_WORKER":
                worker_at = now
            if _is_parked(session) or now >= until or now - worker_at >= NO_WORKER_S:
                return session
            await anyio.sleep(min(pause, max(until - now, 0)))
            pause = min(pause * 2, POLL_S)

    # --- reading ------------------------------------------------------------------------------

    async def get(self) -> Json:
        """Return the session with its current state. Raises NotFound."""
        return _object((await self._request("GET", page_path("sessions", self.id))).body)

    async def events(self, *, after: int = 0, limit: int | None = None) -> list[Json]:
        """Return the events after a seq, oldest first; all of them unless there is a limit."""
        events: list[Json] = []
        while limit is None or len(events) < limit:
            size = PAGE if limit is None else min(PAGE, limit - len(events))
            params = {"after": after, "limit": size}
            page = (await self._request("GET", self._path("events"), params)).body
            events += page["events"]
            if page["next"] is None or not page["events"]:
                break
            after = page["events"][-1]["seq"]
        return events

    async def messages(self) -> Json:
        """Return the conversation in parts."""
        return _object((await self._request("GET", self._path("messages"))).body)

    async def state(self) -> Json:
        """Return the states of its paused runs, its open calls, and the age of the pause."""
        return _object((await self._request("GET", self._path("state"))).body)

    async def permissions(self) -> list[Json]:
        """Return the permissions that approvals with `remember` gave for the rest of it."""
        return list((await self._request("GET", self._path("permissions"))).body["permissions"])

    def follow(self, *, after: int = 0, deltas: bool = False) -> AsyncIterator[Json]:
        """Iterate over its events after a seq, each once, without end; this does not drive it.

        With `deltas` also over deltas of model responses, as `{"type": "delta", "data": …}`.
        """
        params = {"after": after, **self._scope, **({"deltas": 1} if deltas else {})}
        return follow(self.connection, self._path("events"), params, "seq", after)

    # --- commands -----------------------------------------------------------------------------

    async def cancel(self, *, by: str | None = None, reason: str | None = None) -> Json:
        """Cancel the run: once this returns, nothing of it starts any more."""
        fields = {"by": by, "reason": reason}
        body = {name: text for name, text in fields.items() if text is not None}
        return _object((await self._post("cancel", body)).body)

    async def compact(
        self,
        *,
        keep: int | None = None,
        instructions: str | None = None,
        by: str | None = None,
    ) -> Json:
        """Let the model summarize the conversation except for the last `keep` turns.

        Returns the session with its summary; its `compaction` is not None if there is no worker
        to do it. Raises Conflict while a run or a call is in progress, ModelError if it failed.
        """
        fields = {"keep": keep, "instructions": instructions, "by": by, "wait": LONGEST_WAIT_S}
        body = {name: value for name, value in fields.items() if value is not None}
        session = _object((await self._post("compact", body, wait_s=LONGEST_WAIT_S)).body)
        worker_at = anyio.current_time()
        while _is_compacting(session):
            if _problem_code(session) != "NO_WORKER":
                worker_at = anyio.current_time()
            if anyio.current_time() - worker_at >= NO_WORKER_S:
                break
            await anyio.sleep(POLL_S)
            session = await self.get()
        error = (session["compaction"] or {}).get("error")
        if error is not None:
            raise ModelError(error["error"], code=error["code"], hint=error["hint"] or None)
        return session

    async def set_metadata(self, changes: Mapping[str, Any]) -> Json:
        """Change metadata; None removes a key."""
        path = url_path("sessions", self.id)
        return _object((await self._request("PATCH", path, body={"metadata": dict(changes)})).body)

    async def revoke(self, number: int, *, by: str | None = None) -> list[Json]:
        """Revoke a permission: its calls need approval again. Returns the remaining ones."""
        path, params = self._path("permissions", str(number)), {} if by is None else {"by": by}
        return list((await self._request("DELETE", path, params)).body["permissions"])

    async def fork(self, *, at: int | None = None, id: str | None = None) -> "RemoteSession":  # noqa: A002 - the word that users know
        """Copy the session up to an event into a new session; no effect runs again."""
        body: Json = {"sessionID": id or new_session_id()}
        if at is not None:
            body["at"] = at
        session = (await self._post("fork", body)).body
        return RemoteSession(self.connection, self.tenant, session["sessionID"])

    async def delete(self) -> None:
        """Delete the session and everything that finds it."""
        await self._request("DELETE", url_path("sessions", self.id))

    # --- requests -----------------------------------------------------------------------------

    @property
    def _scope(self) -> dict[str, str]:
        return {} if self.tenant is None else {"tenant": self.tenant}

    def _path(self, *parts: str) -> str:
        return url_path("sessions", self.id, *parts)

    async def _post(
        self, verb: str, body: Json, *, key: str | None = None, wait_s: float = 0.0
    ) -> HttpResponse:
        return await self._request("POST", self._path(verb), body=body, key=key, wait_s=wait_s)

    async def _request(
        self, method: str, path: str, params: Mapping[str, Any] | None = None, **options: Any
    ) -> HttpResponse:
        request = HttpRequest(method, path, {**(params or {}), **self._scope}, **options)
        return await self.connection.send(request)


def new_session_id() -> str:
    """Return a new session id, made by the client so that a repeated request creates one only."""
    return f"s_{uuid4().hex}"


def _new_key() -> str:
    return uuid4().hex


def _object(body: Any) -> Json:
    return dict(body)


def _problem_code(session: Mapping[str, Any]) -> str | None:
    problem = session.get("problem")
    return None if problem is None else str(problem.get("code"))


def _is_compacting(session: Mapping[str, Any]) -> bool:
    """Return whether the session still waits for a summary."""
    compaction = session["compaction"]
    return compaction is not None and compaction["error"] is None


def _is_parked(session: Mapping[str, Any]) -> bool:
    """Return whether no worker will continue the session by itself; after a back-off one will."""
    return session["state"] in _PARKED_STATES or _problem_code(session) == "AGENT_UNKNOWN"


async def _forward(source: AsyncIterator[Json], items: "asyncio.Queue[Json | Exception]") -> None:
    try:
        async for item in source:
            items.put_nowait(item)
    except Exception as error:  # noqa: BLE001 - raised by the reader of the queue
        items.put_nowait(error)


async def _in_order(items: "asyncio.Queue[Json | Exception]", seq: int) -> AsyncIterator[Json]:
    """Yield events and deltas, and the session after the last of its events."""
    last: Json | None = None
    while last is None or seq < last["seq"]:
        item = await items.get()
        if isinstance(item, Exception):
            raise item
        if "sessionID" in item and "state" in item:
            last = item
            continue
        seq = item.get("seq", seq)
        yield item
    yield last
