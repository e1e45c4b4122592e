"""Session handles: what a program uses to send, run and read one session."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any, Final, Generic, Literal

from msgspec import Struct
from typing_extensions import TypeVar

from perdure.core.log import events
from perdure.core.pending.commands import Command
from perdure.core.roles import Permit
from perdure.core.session.naming import check_id
from perdure.core.webhooks.deliveries import Hook
from perdure.errors import NotFound
from perdure.runtime.agents.ready_agent import ReadyAgent
from perdure.runtime.inbox.commits import unsaved
from perdure.runtime.inbox.sessions import NewMessage, Receipt
from perdure.runtime.records.content import check_text
from perdure.runtime.records.entries import SessionEntry
from perdure.runtime.sessions.service import Service
from perdure.runtime.sessions.summary import summary_error
from perdure.runtime.sessions.verbs.sessions import SessionVerbs
from perdure.runtime.streaming import DeltaChunk, DeltaReader
from perdure.store.base import Unavailable, Unknown
from perdure.views.bodies import CancelBody, CompactBody, ForkBody
from perdure.views.calls import PendingCall
from perdure.views.decisions import Decisions, Outputs, not_both
from perdure.views.events import Delta, Event
from perdure.views.sessions import DeletedSession, MessageList, PausedState, Permission, Result
from perdure.views.values import Content, Duration, parse_duration

if TYPE_CHECKING:
    from perdure.runtime.engine.driver import Driver

_BUFFER_SIZE: Final = 10_000  # deltas kept for a slow reader; more are dropped

_READ_EVERY_S: Final = 1.0  # a log that is followed, without a notification

Recorded = Literal["recorded"]


class LiveRun:
    """The events and deltas that one reader gets while a session is followed."""

    def __init__(self, service: Service, session_id: str, after: int) -> None:
        self._service = service
        self._last_seq = after
        self._deltas = DeltaReader(session_id)
        self._queue: asyncio.Queue[DeltaChunk | Recorded | None] = asyncio.Queue()  # None: the end

    def add_delta(self, chunk: DeltaChunk) -> None:
        """Pass a delta to the reader; a lost one is harmless, the event of its turn has it."""
        if self._queue.qsize() < _BUFFER_SIZE:
            self._queue.put_nowait(chunk)

    def notify_recorded(self, _: int = 0) -> None:
        """Tell the reader that the log has new events: a hint, since the log itself is read."""
        if self._queue.qsize() < _BUFFER_SIZE:
            self._queue.put_nowait("recorded")

    async def items(self, entry: SessionEntry) -> AsyncIterator[Event | Delta]:
        """Follow the session until it parks. Raises the error that stopped the drive.

        A background task of the runtime follows, not the reader: a generator may be abandoned
        anywhere and closed by another task, which its own task group or cancel scope would not
        survive.
        """
        failure: list[Exception] = []

        async def follow() -> None:
            try:
                await self._service.runs.follow(entry)
            except Exception as error:  # noqa: BLE001 - edge of a task: raised in the reader
                failure.append(error)

        following = self._service.feed.run_in_background(follow)
        following.add_done_callback(lambda _: self._queue.put_nowait(None))
        try:
            with self._service.feed.on_change(entry.stream, self.notify_recorded):
                while (item := await self._queue.get()) is not None:
                    async for event_or_delta in self._read(item, entry):
                        yield event_or_delta
        finally:
            following.cancel()
        async for event in self._new_events(entry):
            yield event
        for error in failure:
            raise error

    async def endless(self, entry: SessionEntry) -> AsyncIterator[Event | Delta]:
        """Yield events and deltas as they come, without end."""
        with self._service.feed.on_change(entry.stream, self.notify_recorded):
            self.notify_recorded()
            while True:
                async for event_or_delta in self._read(await self._next(), entry):
                    yield event_or_delta

    async def _next(self) -> DeltaChunk | Recorded:
        with suppress(TimeoutError):  # a notification may be lost
            async with asyncio.timeout(_READ_EVERY_S):
                return await self._queue.get() or "recorded"
        return "recorded"

    async def _read(
        self, item: DeltaChunk | Recorded, entry: SessionEntry
    ) -> AsyncIterator[Event | Delta]:
        if isinstance(item, DeltaChunk):
            for delta in self._deltas.read(item):
                yield delta
            return
        async for event in self._new_events(entry):
            yield event

    async def _new_events(self, entry: SessionEntry) -> AsyncIterator[Event]:
        for event in await self._service.events(entry, self._last_seq):
            self._last_seq = event.seq
            if event.type == "assistant":
                self._deltas.mark_recorded(int(event.data.get("turn", 0)))
            yield event


class _Start(Struct, frozen=True):
    """Beginning of a run: a message, calls to settle, or neither."""

    message: Content | None = None
    key: str | None = None
    by: str | None = None
    commands: Mapping[str, Command] = {}  # by pending id

    def __post_init__(self) -> None:
        if self.commands and (self.message is not None or self.key is not None):
            raise not_both()


T_co = TypeVar("T_co", covariant=True, default=Any)


class Session(Generic[T_co]):
    """A conversation with one agent: a handle. The session is created by its first message."""

    def __init__(
        self,
        verbs: SessionVerbs,
        session_id: str,
        *,
        agent: ReadyAgent | str | None = None,
        metadata: Mapping[str, Any] | None = None,
        notify: Hook | None = None,
        queue: str | None = None,
    ) -> None:
        self.id = session_id
        self._verbs = verbs
        self._service = verbs.service
        self._ref = verbs.service.new_ref(
            verbs.caller.home_tenant,
            session_id,
            agent,
            metadata=metadata,
            notify=notify,
            queue=queue,
        )

    def __repr__(self) -> str:
        return f"Session({self.id!r})"

    @property
    def _reader(self) -> SessionVerbs:
        """The verbs of a caller that may read. Raises NotAllowed."""
        self._verbs.caller.require(Permit.READ)
        return self._verbs

    async def run(
        self,
        message: Content | None = None,
        *,
        key: str | None = None,
        by: str | None = None,
        results: Outputs | None = None,
        decisions: Decisions | None = None,
        timeout: Duration | None = None,  # noqa: ASYNC109 - limits the waiting, not the run
    ) -> Result[T_co]:
        """Send a message or settle calls, if there are any, and follow the session until it parks.

        It is driven here if it is free; otherwise its driver is followed. A paused run is not an
        error: see `result.state`. After `timeout` the state is `running`, and nothing is
        interrupted. Without a message, a failed session gets a new run from its recorded events.

        `results` maps deferred calls or their ids to their outputs; `decisions` maps calls to
        `"approve"` or `"deny"`, or to objects with the fields of a decision: `{"decision":
        "edit", "args": …}`. All are recorded in one commit, or none. `by` is the author of the
        message, of the results and of the decisions. Raises Conflict, with the winner, for a call
        that is already settled with a different outcome.
        """
        start = self._start(message, key, by, self._verbs.calls.commands(results, decisions, by))
        try:
            drive = await self._run_within(timeout, start)
        except asyncio.CancelledError as error:
            # After Ctrl-C, Python prints where it came from: our frames would say nothing.
            raise error.with_traceback(None) from None
        parked = None if drive is None or drive.is_outdated else drive.parked_session
        if parked is None:
            return await self.get()
        return self._verbs.view(await self._service.result(parked.entry, parked))

    def _start(
        self,
        message: Content | None,
        key: str | None,
        by: str | None,
        commands: Mapping[str, Command] | None = None,
    ) -> _Start:
        """Return the beginning of a run by the caller. Raises NotAllowed, Refused."""
        if not commands:
            self._verbs.caller.require(Permit.OPERATE)
        return _Start(message, key, self._verbs.caller.actor(by), commands or {})

    async def _run_within(self, limit: Duration | None, start: _Start) -> "Driver | None":
        if limit is None:
            return await self._run(start)
        entry = await self._begin(start)
        with suppress(TimeoutError):
            async with asyncio.timeout(parse_duration(limit) / 1000):
                return await self._service.runs.follow(entry)
        return None

    async def _run(self, start: _Start) -> "Driver | None":
        drive = await self._run_once(start)
        while drive is not None and drive.is_outdated:  # another run of this process continued it
            drive = await self._service.runs.follow(await self._service.get(self._ref))
        return drive

    async def _run_once(self, start: _Start) -> "Driver | None":
        if start.message is not None:
            return await self._send_and_follow(start)
        entry = self._service.inbox.cached_entry(self._ref)
        if start.commands:
            return await self._settle_and_follow(entry, start)
        if entry is not None and entry.record.state == "waiting":
            # A cached entry may be stale; but if the session can be driven here, that is enough.
            drive = await self._service.runs.drive(entry)
            if drive is not None and not drive.agent.sub_agents:
                return await self._service.runs.follow(entry) if drive.is_backing_off else drive
        return await self._service.runs.follow(await self._begin(start))

    async def _send_and_follow(self, start: _Start) -> "Driver | None":
        try:
            sent = await self._service.send_and_drive(self._ref, await self._new_message(start))
            entry = await self._started_entry(sent.receipt)
        except (Unavailable, Unknown) as error:
            raise unsaved(error) from error
        return sent.drive if _has_parked(sent.drive) else await self._service.runs.follow(entry)

    async def _settle_and_follow(
        self, cached: SessionEntry | None, start: _Start
    ) -> "Driver | None":
        try:
            entry = cached or await self._service.get(self._ref)
            await self._service.runs.expire(entry)
            try:
                settling = await self._service.calls.settle_and_drive(entry, start.commands)
            except NotFound:
                current = await self._service.get(self._ref)
                if current.stream == entry.stream:
                    raise
                # The cached entry was stale: another process has created the session again.
                settling = await self._service.calls.settle_and_drive(current, start.commands)
        except (Unavailable, Unknown) as error:
            raise unsaved(error) from error
        if _has_parked(settling.drive):
            return settling.drive
        if settling.is_repeated:  # as a run without them
            return await self._service.runs.follow(await self._begin(_Start()))
        return await self._service.runs.follow(await self._service.get(self._ref))

    async def _begin(self, start: _Start) -> SessionEntry:
        try:
            return await self._record_start(start)
        except (Unavailable, Unknown) as error:
            raise unsaved(error) from error

    async def _record_start(self, start: _Start) -> SessionEntry:
        if start.message is not None:
            return await self._started_entry(await self._send(start))
        entry = await self._service.get(self._ref)
        if start.commands:
            outcomes = await self._service.calls.settle_all(start.commands, stream=entry.stream)
            if not all(outcome.duplicate for outcome in outcomes):
                return entry
        return await self._service.runs.restart_or_wake(entry)

    async def _started_entry(self, receipt: Receipt) -> SessionEntry:
        """Return the entry of a session that a message woke; one that was sent before wakes it."""
        if receipt.seq is not None:
            return receipt.entry
        entry = await self._service.get(self._ref)
        await self._service.runs.wake(entry)
        return entry

    async def _send(self, start: _Start) -> Receipt:
        return await self._service.send(self._ref, await self._new_message(start))

    async def _new_message(self, start: _Start) -> NewMessage:
        if start.key is not None:
            check_id(start.key, "key")
        if start.by is not None:
            check_id(start.by, "name")
        content = await self._service.store_content(start.message or "")
        return NewMessage(content, start.key, start.by, via=self._verbs.caller.via)

    async def send(self, message: Content, *, key: str | None = None, by: str | None = None) -> int:
        """Record a message, wake the session and return the event's seq; a worker drives it."""
        receipt = await self._send(self._start(message, key, by))
        if receipt.seq is not None:
            return receipt.seq
        log = await self._service.log(receipt.entry)
        return next(
            item.seq
            for item in log.events
            if isinstance(item.event, events.User) and item.event.key == key
        )

    async def resume(self) -> Result[T_co]:
        """Ask for the session to be driven again; a failed one gets a new run.

        A model request that backs off is repeated at once. Nothing is driven here: `run` does.
        """
        await self._verbs.resume(self.id)
        return await self.get()

    async def stream(
        self,
        message: Content | None = None,
        *,
        key: str | None = None,
        by: str | None = None,
        results: Outputs | None = None,
        decisions: Decisions | None = None,
    ) -> AsyncIterator[Event | Delta | Result[T_co]]:
        """Yield events and deltas of a `run` as they come, then its Result.

        A reader that stops early interrupts nothing.
        """
        start = self._start(message, key, by, self._verbs.calls.commands(results, decisions, by))
        before = await self._service.find(self._ref)
        after = 0
        if before is not None:
            after = await self._service.head(before)
        live = LiveRun(self._service, self.id, after)
        with self._service.feed.on_deltas(self._ref.tenant, self.id, live.add_delta):
            entry = await self._begin(start)
            async for item in live.items(entry):
                yield item
        yield await self.get()

    async def get(self) -> Result[T_co]:
        """Return the session as it stands. Raises NotFound."""
        self._verbs.caller.require(Permit.READ)
        entry = await self._service.get(self._ref)
        return self._verbs.view(await self._service.result(entry))

    async def events(self, *, after: int = 0, limit: int | None = None) -> list[Event]:
        """Return events after a seq, oldest first. Raises NotFound."""
        return list((await self._reader.logs.events(self.id, after, limit)).events)

    async def follow(self, *, after: int = 0, deltas: bool = False) -> AsyncIterator[Event | Delta]:
        """Yield its events after a seq, each once, without end; this does not drive it.

        With `deltas` also deltas of model responses.
        """
        self._verbs.caller.require(Permit.READ)
        entry = await self._service.get(self._ref)
        live = LiveRun(self._service, self.id, after)
        with ExitStack() as stack:
            if deltas:
                names = (self._ref.tenant, self.id)
                stack.enter_context(self._service.feed.on_deltas(*names, live.add_delta))
            async for item in live.endless(entry):
                yield item

    async def messages(self) -> MessageList:
        """Return the conversation in parts, each call with its status. Raises NotFound."""
        pages = [page async for page in self._reader.logs.messages(self.id)]
        return MessageList(session_id=self.id, messages=[part for page in pages for part in page])

    async def state(self) -> PausedState:
        """Return the states of its paused runs, its open calls, and the age of the pause."""
        return await self._reader.paused(self.id)

    async def pending(self) -> AsyncIterator[PendingCall]:
        """Yield its open calls, the oldest first. Raises NotFound."""
        for call in await self._reader.calls.of_session(self.id):
            yield call

    async def set_metadata(self, changes: Mapping[str, Any]) -> Result[T_co]:
        """Change metadata; None removes a key."""
        await self._verbs.set_metadata(self.id, changes)
        return await self.get()

    async def permissions(self) -> list[Permission]:
        """Return the permissions that approvals with `remember` gave for the rest of it."""
        return list((await self._reader.permissions(self.id)).permissions)

    async def revoke(self, number: int, *, by: str | None = None) -> list[Permission]:
        """Take back a permission: its calls require approval again. Returns the others."""
        return list((await self._verbs.revoke(self.id, number, by)).permissions)

    async def cancel(
        self, *, by: str | None = None, reason: str | None = None, keep_children: bool = False
    ) -> Result[T_co]:
        """End the run: once this returns, no call of it is recorded as started any more.

        One that was recorded before may still run in a process that was slow to read of the end.
        Its background agents are cancelled too, unless `keep_children` is set.
        """
        for name, text in (("by", by), ("reason", reason)):
            if text is not None:
                check_text(name, text)
        body = CancelBody(by=by, reason=reason, keep_children=keep_children)
        await self._verbs.cancel(self.id, body)
        return await self.get()

    async def compact(
        self,
        *,
        keep: int | None = None,
        instructions: str | None = None,
        by: str | None = None,
    ) -> Result[T_co]:
        """Have the model summarize the conversation, except for the last `keep` turns.

        The request is recorded and followed until the summary is recorded too, wherever the
        session is driven. `instructions` are added to the agent's own. Raises Conflict while a run
        or a call is open, ModelError if the model gives no summary.
        """
        await self._verbs.compact(self.id, CompactBody(keep=keep, instructions=instructions, by=by))
        await self._service.runs.follow(await self._service.get(self._ref))
        entry = await self._service.get(self._ref)
        error = summary_error((await self._service.snapshot(entry)).log_state)
        if error is not None:
            raise error
        return self._verbs.view(await self._service.result(entry))

    async def fork(
        self,
        *,
        at: int | None = None,
        id: str | None = None,  # noqa: A002 - as in Runtime.session
    ) -> "Session[T_co]":
        """Return a copy up to event `at`, or the last point before it with every call settled.

        Effects are copied as results and never repeated; nothing of the copy runs before its
        first message, or a `run()`. Raises Refused AT_INVALID, Conflict SESSION_EXISTS.
        """
        copy = await self._verbs.fork(self.id, ForkBody(at=at, session_id=id))
        return Session(self._verbs, copy.session_id)

    async def export(self, *, secrets: bool = False) -> AsyncIterator[str]:
        """Yield the session as lines of JSON, which `Runtime.import_sessions` reads.

        Without `secrets` it is for reading only: an import refuses an export whose secret
        arguments were left out. Raises NotFound, and Corrupt after all that can be read.
        """
        self._verbs.caller.require(Permit.OPERATE if secrets else Permit.READ)
        entry = await self._service.get(self._ref)
        async for line in self._service.transfers.export(entry, secrets=secrets):
            yield line.decode()

    async def delete(self) -> DeletedSession:
        """Delete the session and everything that finds it; its run is cancelled first."""
        return await self._verbs.delete(self.id)


def _has_parked(drive: "Driver | None") -> bool:
    """Return whether a drive has parked its session, and does not only back off."""
    return drive is not None and drive.is_parked and not drive.is_backing_off
