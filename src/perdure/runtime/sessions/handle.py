"""The handle of one session: what a program holds to talk to it."""

from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from typing import Any, Final, Generic, Literal, Self

import anyio
from typing_extensions import TypeVar

from perdure.core.log import events
from perdure.core.session import queues
from perdure.core.session.naming import check_id
from perdure.core.session.permissions import Allowed
from perdure.core.webhooks.deliveries import Hook
from perdure.runtime.agents.agents import ReadyAgent
from perdure.runtime.engine.host import Drive
from perdure.runtime.inbox.sessions import NewMessage, Receipt
from perdure.runtime.models.base import Delta
from perdure.runtime.records.content import check_text, stored_content
from perdure.runtime.records.entries import SessionEntry, SessionRef, erased_as_not_found
from perdure.runtime.records.log import Log
from perdure.runtime.sessions.service import Service
from perdure.runtime.sessions.summary import ask_for_summary, summary_error
from perdure.runtime.streaming import DeltaChunk, DeltaReader
from perdure.runtime.transfer.create import fork
from perdure.runtime.values import Content, Duration, parse_duration
from perdure.runtime.views import Event, Result

_ROOM: Final = 10_000  # pieces that may be waiting for a slow reader; more are dropped

Recorded = Literal["recorded"]


class LiveRun:
    """What one reader sees of a session while it is followed."""

    def __init__(self, service: Service, session_id: str, after: int) -> None:
        self._service = service
        self._seen = after
        self._hearing = DeltaReader(session_id)
        send, receive = anyio.create_memory_object_stream[DeltaChunk | Recorded](_ROOM)
        self._send, self._receive = send, receive

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._send.close()
        self._receive.close()

    def piece(self, piece: DeltaChunk) -> None:
        """A piece came; it may be lost, the event of its turn has everything."""
        with suppress(anyio.WouldBlock, anyio.ClosedResourceError, anyio.BrokenResourceError):
            self._send.send_nowait(piece)

    def recorded(self, _: int = 0) -> None:
        """Something was recorded: a hint, since the log itself is read."""
        with suppress(anyio.WouldBlock, anyio.ClosedResourceError, anyio.BrokenResourceError):
            self._send.send_nowait("recorded")

    async def items(self, known: SessionEntry) -> AsyncIterator[Event | Delta]:
        """Follow the session until it rests. Raises what stopped the drive.

        The host follows, not the reader: a generator may be left anywhere and ended by another
        task, which a task group or cancel scope of its own would not survive.
        """
        failure: list[Exception] = []
        leaving = anyio.CancelScope()

        async def follow() -> None:
            try:
                with leaving:
                    await self._service.follow(known)
            except Exception as error:  # noqa: BLE001 - it is the reader's, not the host's
                failure.append(error)
            finally:
                self._send.close()

        try:
            with self._service.host.watch.listening(known.stream, self.recorded):
                await self._service.host.also(follow)
                async for item in self._receive:
                    async for shown in self._shown(item, known):
                        yield shown
        finally:
            leaving.cancel()
        async for event in self._new(known):
            yield event
        for error in failure:
            raise error

    async def _shown(
        self, item: DeltaChunk | Recorded, known: SessionEntry
    ) -> AsyncIterator[Event | Delta]:
        if isinstance(item, DeltaChunk):
            for delta in self._hearing.take(item):
                yield delta
            return
        async for event in self._new(known):
            yield event

    async def _new(self, known: SessionEntry) -> AsyncIterator[Event]:
        for event in await self._service.events(known, self._seen):
            self._seen = event.seq
            if event.type == "assistant":
                self._hearing.answered(int(event.data.get("turn", 0)))
            yield event


T_co = TypeVar("T_co", covariant=True, default=Any)


class Session(Generic[T_co]):
    """A conversation with one agent: a handle. The session is created by its first message."""

    def __init__(  # noqa: PLR0913 - what a session begins with, each named
        self,
        service: Service,
        tenant: str,
        session_id: str,
        *,
        agent: ReadyAgent | str | None,
        metadata: Mapping[str, Any] | None,
        notify: Hook | None = None,
        queue: str | None = None,
    ) -> None:
        self.id = check_id(session_id)
        self._service = service
        ready = service.agents.find(agent) if isinstance(agent, str) else agent
        names = [agent] if isinstance(agent, str) else []
        mode = "queue" if ready is None else ready.agent.while_waiting
        if ready is not None:
            names = [ready.name, *ready.agent.aliases]
        own = queues.DEFAULT if ready is None else ready.agent.queue
        chosen = own if queue is None else queues.check_queue(queue)
        self._address = SessionRef(tenant, self.id, tuple(names), mode, metadata, notify, chosen)

    def __repr__(self) -> str:
        return f"Session({self.id!r})"

    async def run(
        self,
        message: Content | None = None,
        *,
        key: str | None = None,
        timeout: Duration | None = None,  # noqa: ASYNC109 - what the caller waits, not what runs
    ) -> Result[T_co]:
        """Send a message, if there is one, and follow the session until it rests.

        It is driven here if it is free, else whoever drives it is followed. Waiting is a value:
        `result.state`. After `timeout` the result says `running`, and nothing is interrupted.
        Without a message a failed session gets a new run from what is recorded.
        """
        if timeout is None:
            drive = await self._run(message, key)
        else:
            known, drive = await self._begin(message, key), None
            with anyio.move_on_after(parse_duration(timeout) / 1000):
                drive = await self._service.follow(known)
        if drive is None or drive.driver is None:
            return await self.get()
        rested = drive.driver.rested
        return await self._service.result(rested.known, rested)

    async def _run(self, message: Content | None, key: str | None) -> Drive | None:
        known = self._service.desk.outside.remembered(self._address) if message is None else None
        if known is not None and known.record.state == "waiting":
            # What is remembered may be old. But if it can be driven from here, that is all we want.
            drive = await self._service.drive(known)
            if drive is not None:
                return await self._service.follow(known) if drive.backs_off else drive
        return await self._service.follow(await self._begin(message, key))

    async def _begin(self, message: Content | None, key: str | None) -> SessionEntry:
        outside = self._service.desk.outside
        sent = None if message is None else await self._send(message, key)
        if sent is not None and sent.seq is not None:
            return sent.known
        known = await outside.known(self._address)
        if sent is None:
            return await self._service.go_on(known)
        await self._service.wake(known)
        return known

    async def _send(self, message: Content, key: str | None) -> Receipt:
        if key is not None:
            check_id(key, "key")
        content = await stored_content(self._service.desk.store, message)
        return await self.tell(NewMessage(content, key))

    async def tell(self, said: NewMessage) -> Receipt:
        """Record what was made ready to be, as `send` does."""
        address = self._address
        if not address.agents:
            address = await self._service.at_home(address)
        return await self._service.desk.outside.send(address, said)

    async def send(self, message: Content, *, key: str | None = None) -> int:
        """Record a message and wake the session; answers the event's seq. Somebody must drive."""
        sent = await self._send(message, key)
        if sent.seq is not None:
            return sent.seq
        log = Log(self._service.desk.store, sent.known.stream)
        return next(
            one.seq
            for one in await log.catch_up()
            if isinstance(one.event, events.User) and one.event.key == key
        )

    async def resume(self) -> Result[T_co]:
        """Let it go on, as a person may want: a failed run again from what is recorded.

        A model that is asked again later is asked at once. Nothing is driven here: `run` does.
        """
        await self._service.resume(await self._service.desk.outside.known(self._address))
        return await self.get()

    async def stream(
        self, message: Content | None = None, *, key: str | None = None
    ) -> AsyncIterator[Event | Delta | Result[T_co]]:
        """`run`, seen as it happens; the Result comes last. Leaving early loses nothing."""
        before = await self._service.desk.outside.find(self._address)
        after = 0
        if before is not None:
            with erased_as_not_found(self.id):
                after = (await self._service.desk.store.read(before.stream, limit=0)).head
        bus = self._service.desk.bus
        with (
            LiveRun(self._service, self.id, after) as seen,
            bus.listening(self._address.tenant, self.id, seen.piece),
        ):
            known = await self._begin(message, key)
            async for item in seen.items(known):
                yield item
        yield await self.get()

    async def get(self) -> Result[T_co]:
        """The session as it stands. Raises NotFound."""
        known = await self._service.desk.outside.known(self._address)
        return await self._service.result(known)

    async def events(self, *, after: int = 0, limit: int = 1000) -> list[Event]:
        """Its events after a seq, oldest first."""
        known = await self._service.desk.outside.known(self._address)
        return await self._service.events(known, after, limit)

    async def set_metadata(self, changes: Mapping[str, Any]) -> None:
        """Change metadata; None removes a key."""
        await self._service.desk.outside.set_metadata(self._address, changes)

    async def permissions(self) -> tuple[Allowed, ...]:
        """What people allowed for the rest of this session when they approved a call."""
        known = await self._service.desk.outside.known(self._address)
        return (await self._service.sight(known)).folded.allowed

    async def revoke_permission(self, number: int, *, by: str) -> None:
        """Ask again about what a permission of that number allowed. Raises NotFound."""
        known = await self._service.desk.outside.known(self._address)
        await self._service.revoke(known, number, by, "python")

    async def cancel(self, *, by: str | None = None, reason: str | None = None) -> Result[T_co]:
        """End the run: once this answers, nothing of it is begun any more."""
        for name, text in (("by", by), ("reason", reason)):
            if text is not None:
                check_text(name, text)
        await self._service.desk.outside.cancel(self._address, by, reason)
        return await self.get()

    async def compact(
        self,
        *,
        keep: int | None = None,
        instructions: str | None = None,
        by: str | None = None,
    ) -> Result[T_co]:
        """Let the model summarise what was said so far, all but the last `keep` turns.

        The request is recorded; it is followed until the summary is, here or wherever the session
        is driven. `instructions` are for the model, besides the agent's own. Raises Conflict while
        a run or a call is under way, ModelError if there is no summary to be had.
        """
        known = await self._service.desk.outside.known(self._address)
        wanted = events.CompactionRequested(keep=keep, instructions=instructions, by=by)
        await ask_for_summary(self._service, known, wanted)
        await self._service.follow(known)
        known = await self._service.desk.outside.known(self._address)
        error = summary_error((await self._service.sight(known)).folded)
        if error is not None:
            raise error
        return await self._service.result(known)

    async def fork(
        self,
        *,
        at: int | None = None,
        id: str | None = None,  # noqa: A002 - the word users know
    ) -> "Session[T_co]":
        """A copy up to event `at`, or to the last point before it where every call was settled.

        What was done is copied as results and never done again; nothing of the copy runs before
        its first message, or a `run()`. Raises Refused AT_INVALID, Conflict SESSION_EXISTS.
        """
        known = await self._service.desk.outside.known(self._address)
        made = await fork(self._service.desk.store, known, at=at, session_id=id)
        agent = made.record.agent
        return Session(self._service, made.record.tenant, made.record.id, agent=agent, metadata={})

    async def delete(self) -> None:
        """Delete the session and everything that finds it."""
        await self._service.desk.outside.erase(self._address)
