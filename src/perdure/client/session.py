"""One session of a server: a handle with the verbs of the runtime's own."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import uuid4

import anyio

from perdure.client.events import follow
from perdure.client.wire import Answer, Ask, Wire, page_of, path_of
from perdure.errors import ModelError, NotFound, StoreError

Json = dict[str, Any]
Content = str | Sequence[Mapping[str, Any]]  # text, or parts as in the JSON shape of content

LONGEST_WAIT_S: Final = 60.0  # that a server waits with its answer
NOBODY_S: Final = 5.0  # a session that nobody takes for so long has no worker
FIRST_LOOK_S: Final = 0.1
LOOK_S: Final = 1.0
PAGE: Final = 1000
_ENDS: Final = frozenset({"waiting", "completed", "failed", "cancelled"})


@dataclass(frozen=True, slots=True, repr=False)
class RemoteSession:
    """A conversation with one agent, kept by a server. It is created by its first message."""

    wire: Wire
    tenant: str | None
    id: str
    agent: str | None = None
    metadata: Mapping[str, Any] | None = None
    queue: str | None = None

    def __repr__(self) -> str:
        return f"RemoteSession({self.id!r})"

    # --- talking ------------------------------------------------------------------------------

    async def run(
        self,
        message: Content | None = None,
        *,
        key: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - what the caller waits, not what runs
    ) -> Json:
        """Send a message, if there is one, and answer the session once it rests.

        After `timeout` seconds it is answered as it is, and nothing is interrupted. Without a
        message the session is resumed, also after it failed.
        """
        limit = float("inf") if timeout is None else timeout
        until = anyio.current_time() + limit
        begun = await self._begin(message, key, min(LONGEST_WAIT_S, limit))
        if begun.status == 200 and _rests(begun.body):
            return _object(begun.body)
        return await self._rested(until)

    async def send(self, message: Content, *, key: str | None = None) -> Json:
        """Record a message and wake the session; answers it as it stands then."""
        return _object((await self._send(message, key or _new_key(), 0)).body)

    async def resume(self) -> Json:
        """Let it go on, also after it failed; answers it as it stands then."""
        return _object((await self._post("resume", {})).body)

    async def stream(
        self, message: Content | None = None, *, key: str | None = None
    ) -> AsyncIterator[Json]:
        """`run`, seen as it happens: its events, deltas (`type` is "delta"), the session last.

        Events are seen once, whatever happens to the connection. Leaving early loses nothing.
        """
        try:
            seen = int((await self.get())["seq"])
        except NotFound:
            seen = 0
        begun = await self._begin(message, key, 0)
        items: asyncio.Queue[Json | Exception] = asyncio.Queue()
        # Not in a task group: who leaves a generator early may leave it to another task to close.
        reading = asyncio.create_task(_into(items, self.follow(after=seen, deltas=True)))
        resting = asyncio.create_task(_into(items, self._last(begun)))
        try:
            async for item in _in_order(items, seen):
                yield item
        finally:
            reading.cancel()
            resting.cancel()

    async def _last(self, begun: Answer) -> AsyncIterator[Json]:
        is_over = begun.status == 200 and _rests(begun.body)
        yield _object(begun.body) if is_over else await self._rested(float("inf"))

    async def _begin(self, message: Content | None, key: str | None, wait_s: float) -> Answer:
        if message is not None:
            return await self._send(message, key or _new_key(), wait_s)
        try:
            return await self._post("resume", {"wait": wait_s} if wait_s else {}, wait_s=wait_s)
        except StoreError as error:
            if error.code != "ANSWER_LOST":
                raise
            return Answer(202, await self.get())  # it was asked for; how far it is, is seen

    async def _send(self, message: Content, key: str, wait_s: float) -> Answer:
        """A message always has a key, so that sending it again sends nothing."""
        if self.agent is not None:
            made: Json = {"agent": self.agent, "sessionID": self.id, "message": message}
            if self.metadata is not None:
                made["metadata"] = self.metadata
            if self.queue is not None:
                made["queue"] = self.queue
            begun = await self._ask("POST", "/sessions", body=made, key=key)
            if not wait_s:
                return begun
        body = {"content": message, **({"wait": wait_s} if wait_s else {})}
        return await self._post("messages", body, key=key, wait_s=wait_s)

    async def _rested(self, until: float) -> Json:
        """The session once nothing moves it by itself any more, or when the time is over."""
        pause, taken_at = FIRST_LOOK_S, anyio.current_time()
        while True:
            session = await self.get()
            now = anyio.current_time()
            if _code(session) != "NO_WORKER":
                taken_at = now
            if _rests(session) or now >= until or now - taken_at >= NOBODY_S:
                return session
            await anyio.sleep(min(pause, max(until - now, 0)))
            pause = min(pause * 2, LOOK_S)

    # --- looking ------------------------------------------------------------------------------

    async def get(self) -> Json:
        """The session as it stands. Raises NotFound."""
        return _object((await self._ask("GET", page_of("sessions", self.id))).body)

    async def events(self, *, after: int = 0, limit: int | None = None) -> list[Json]:
        """Its events after a seq, oldest first; all of them unless there is a limit."""
        found: list[Json] = []
        while limit is None or len(found) < limit:
            size = PAGE if limit is None else min(PAGE, limit - len(found))
            params = {"after": after, "limit": size}
            page = (await self._ask("GET", self._path("events"), params)).body
            found += page["events"]
            if page["next"] is None or not page["events"]:
                break
            after = page["events"][-1]["seq"]
        return found

    async def messages(self) -> Json:
        """The conversation in parts."""
        return _object((await self._ask("GET", self._path("messages"))).body)

    async def state(self) -> Json:
        """The states of the runs that are paused in it, its open calls, and for how long."""
        return _object((await self._ask("GET", self._path("state"))).body)

    async def permissions(self) -> list[Json]:
        """What was allowed for the rest of it when a call was approved with `remember`."""
        return list((await self._ask("GET", self._path("permissions"))).body["permissions"])

    def follow(self, *, after: int = 0, deltas: bool = False) -> AsyncIterator[Json]:
        """Its events after a seq and those to come, each once, for ever; watching drives nothing.

        With `deltas` also what is being said, as `{"type": "delta", "data": …}`, as it comes.
        """
        params = {"after": after, **self._scope, **({"deltas": 1} if deltas else {})}
        return follow(self.wire, self._path("events"), params, "seq", after)

    # --- moving -------------------------------------------------------------------------------

    async def cancel(self, *, by: str | None = None, reason: str | None = None) -> Json:
        """End the run: once this answers, nothing of it is begun any more."""
        said = {"by": by, "reason": reason}
        body = {name: text for name, text in said.items() if text is not None}
        return _object((await self._post("cancel", body)).body)

    async def compact(
        self,
        *,
        keep: int | None = None,
        instructions: str | None = None,
        by: str | None = None,
    ) -> Json:
        """Let the model summarise what was said so far, all but the last `keep` turns.

        Answers the session once that is done; its `compaction` is not None if nobody is there to
        do it. Raises Conflict while a run or a call is under way, ModelError if it failed.
        """
        said = {"keep": keep, "instructions": instructions, "by": by, "wait": LONGEST_WAIT_S}
        body = {name: value for name, value in said.items() if value is not None}
        asked = await self._post("compact", body, wait_s=LONGEST_WAIT_S)
        session = _object(asked.body)
        taken_at = anyio.current_time()
        while _is_awaited(session):
            if _code(session) != "NO_WORKER":
                taken_at = anyio.current_time()
            if anyio.current_time() - taken_at >= NOBODY_S:
                break
            await anyio.sleep(LOOK_S)
            session = await self.get()
        error = (session["compaction"] or {}).get("error")
        if error is not None:
            raise ModelError(error["error"], code=error["code"], hint=error["hint"] or None)
        return session

    async def set_metadata(self, changes: Mapping[str, Any]) -> Json:
        """Change metadata; None removes a key."""
        path = path_of("sessions", self.id)
        return _object((await self._ask("PATCH", path, body={"metadata": dict(changes)})).body)

    async def revoke(self, number: int, *, by: str | None = None) -> list[Json]:
        """Ask again about what that number allows; answers what is still allowed."""
        path, who = self._path("permissions", str(number)), {} if by is None else {"by": by}
        return list((await self._ask("DELETE", path, who)).body["permissions"])

    async def fork(self, *, at: int | None = None, id: str | None = None) -> "RemoteSession":  # noqa: A002 - the word users know
        """A session of its own with what this one had settled at an event; no effect re-runs."""
        body: Json = {"sessionID": id or new_session_id()}
        if at is not None:
            body["at"] = at
        made = (await self._post("fork", body)).body
        return RemoteSession(self.wire, self.tenant, made["sessionID"])

    async def delete(self) -> None:
        """Delete the session and everything that finds it."""
        await self._ask("DELETE", path_of("sessions", self.id))

    # --- asking -------------------------------------------------------------------------------

    @property
    def _scope(self) -> dict[str, str]:
        return {} if self.tenant is None else {"tenant": self.tenant}

    def _path(self, *more: str) -> str:
        return path_of("sessions", self.id, *more)

    async def _post(
        self, verb: str, body: Json, *, key: str | None = None, wait_s: float = 0.0
    ) -> Answer:
        return await self._ask("POST", self._path(verb), body=body, key=key, wait_s=wait_s)

    async def _ask(
        self, method: str, path: str, params: Mapping[str, Any] | None = None, **more: Any
    ) -> Answer:
        return await self.wire.ask(Ask(method, path, {**(params or {}), **self._scope}, **more))


def new_session_id() -> str:
    """An id for a session, made here: a request that is sent again makes no second one."""
    return f"s_{uuid4().hex}"


def _new_key() -> str:
    return uuid4().hex


def _object(body: Any) -> Json:
    return dict(body)


def _code(session: Mapping[str, Any]) -> str | None:
    problem = session.get("problem")
    return None if problem is None else str(problem.get("code"))


def _is_awaited(session: Mapping[str, Any]) -> bool:
    """Whether a summary is still to come."""
    compaction = session["compaction"]
    return compaction is not None and compaction["error"] is None


def _rests(session: Mapping[str, Any]) -> bool:
    """Whether nothing will move it by itself; what backs off will be moved."""
    return session["state"] in _ENDS or _code(session) == "AGENT_UNKNOWN"


async def _into(items: "asyncio.Queue[Json | Exception]", source: AsyncIterator[Json]) -> None:
    try:
        async for item in source:
            items.put_nowait(item)
    except Exception as error:  # noqa: BLE001 - it is for who reads the items
        items.put_nowait(error)


async def _in_order(items: "asyncio.Queue[Json | Exception]", seen: int) -> AsyncIterator[Json]:
    """Events and deltas, and the session after the last event that it has."""
    last: Json | None = None
    while last is None or seen < last["seq"]:
        item = await items.get()
        if isinstance(item, Exception):
            raise item
        if "sessionID" in item and "state" in item:
            last = item
            continue
        seen = item.get("seq", seen)
        yield item
    yield last
