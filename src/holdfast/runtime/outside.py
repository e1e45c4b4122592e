"""What callers write who hold no lease: messages, decisions, results, expiries, cancellations.

Each is one conditional commit that also wakes the session; none reads its log.
"""

import hashlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import msgspec
from msgspec.structs import replace

from holdfast.core import decide, events, index, pending
from holdfast.core.commands import CancelCall, Command, Expire
from holdfast.core.decide import Settlement
from holdfast.core.index import KeyRecord, SessionRecord
from holdfast.core.pending import PendingRecord, PendingStatus, Verb, moved
from holdfast.errors import Conflict, Corrupt, NotFound, Refused
from holdfast.runtime.ids import new_id
from holdfast.runtime.log import as_record
from holdfast.store.base import (
    Entry,
    Gone,
    HeadMoved,
    NoStream,
    Put,
    Store,
    VersionMoved,
    Write,
)

logger = logging.getLogger("holdfast")

WhileWaiting = Literal["queue", "reject", "cancel_calls"]
STUCK: Final = "stuck"  # the state of the entry of a session that the code at hand could not move
Inspect = Callable[[PendingRecord], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Address:
    """Which session is meant, and by which names its agent may stand there."""

    tenant: str
    session_id: str
    agents: Sequence[str] = ()  # the first is the one that a new session gets
    while_waiting: WhileWaiting = "queue"
    metadata: Mapping[str, Any] | None = None

    @property
    def key(self) -> str:
        return index.session_key(self.tenant, self.session_id)


@dataclass(frozen=True, slots=True)
class Said:
    """A message to record."""

    content: events.Content
    key: str | None = None
    by: str | None = None


@dataclass(frozen=True, slots=True)
class Sent:
    """Where a message stands; the seq is not looked up for one that was sent before."""

    known: "Known"
    seq: int | None = None


@dataclass(frozen=True, slots=True)
class Known:
    """A session's entry and what it says."""

    entry: Entry
    record: SessionRecord

    @classmethod
    def of(cls, entry: Entry) -> "Known":
        """What an entry says."""
        return cls(entry, index.decode(entry.data))

    @classmethod
    def put_as(cls, put: Put) -> "Known":
        """What was just put, as the store has it now."""
        data = put.data if isinstance(put.data, bytes) else b""
        version = put.expect + 1
        return cls.of(Entry(put.kind, put.key, put.stream, version, put.state, put.due, data))

    @property
    def stream(self) -> str:
        return self.entry.stream

    def put(self, **changes: Any) -> Put:
        """The entry with these changes, if nobody changes it meanwhile."""
        record = replace(self.record, **changes)
        return session_put(record, self.entry.version, self.stream)


def session_put(record: SessionRecord, expect: int, stream: str) -> Put:
    """The write of a session's entry."""
    key = index.session_key(record.tenant, record.id)
    state = STUCK if record.problem is not None else record.state
    return Put("session", key, expect, stream, state, None, index.encode(record))


def pending_put(record: PendingRecord, expect: int, stream: str) -> Put:
    """The write of a pending call's entry."""
    state = "open" if record.is_open else str(record.status)
    return Put("pending", record.id, expect, stream, state, record.due, pending.encode(record))


class Outside:
    """The door for everybody who does not drive."""

    def __init__(self, store: Store) -> None:
        self._store = store

    # --- sessions -----------------------------------------------------------------------------

    async def find(self, address: Address) -> Known | None:
        """The session, or None. Raises Conflict if it belongs to another agent."""
        entry = await self._store.get("session", address.key)
        if entry is None:
            return None
        record = index.decode(entry.data)
        if address.agents and record.agent not in address.agents:
            raise Conflict(
                f"session {address.session_id!r} belongs to agent {record.agent!r}, "
                f"not to {address.agents[0]!r}",
                code="SESSION_OF_OTHER_AGENT",
                hint="use another session id, or that agent",
            )
        return Known(entry, record)

    async def known(self, address: Address) -> Known:
        """The session. Raises NotFound."""
        found = await self.find(address)
        if found is None:
            raise session_not_found(address.session_id)
        return found

    async def send(self, address: Address, said: Said) -> Sent:
        """Record a message and wake the session; the same key and content again changes nothing.

        Raises Conflict KEY_REUSED, SESSION_WAITING.
        """
        while True:
            found = await self.find(address)
            if found is not None and said.key is not None:
                sent = await self._store.get("key", _key(found.stream, said.key))
                if sent is not None:
                    _check_same(sent, said)
                    return Sent(found)
            try:
                if found is None:
                    return await self._create(address, said)
                return await self._append(found, address.while_waiting, said)
            except (HeadMoved, VersionMoved, Gone):
                continue  # somebody was faster: look again

    async def _create(self, address: Address, said: Said) -> Sent:
        if not address.agents:
            raise Refused(
                f"session {address.session_id!r} is new, and no agent was named for it",
                code="AGENT_NEEDED",
                hint="pass agent=",
            )
        agent, now, task = address.agents[0], self._store.now(), new_id("task")
        metadata = {k: v for k, v in (address.metadata or {}).items() if v is not None}
        _check_json(metadata, "metadata")
        facts: list[events.Event] = [events.Metadata(changes=metadata)] if metadata else []
        facts.append(_user(said, task))
        record = SessionRecord(
            id=address.session_id,
            tenant=address.tenant,
            agent=agent,
            task_id=task,
            created_at=now,
            updated_at=now,
            metadata=metadata,
            title=title_of(said.content),
        )
        generation = 1
        while True:
            stream = index.stream_of(address.tenant, address.session_id, generation)
            put = session_put(record, 0, stream)
            records = [as_record(fact, now) for fact in facts]
            kind = index.stream_kind(agent)
            try:
                heads = await self._store.commit(
                    [Write(stream, records, create=kind, head=0, wake=now)],
                    [put, *key_put(said, stream)],
                )
            except Gone:
                generation += 1  # deleted and made anew: a stream's name is not used again
                continue
            return Sent(Known.put_as(put), heads[stream])

    async def _append(self, found: Known, mode: WhileWaiting, said: Said) -> Sent:
        now = self._store.now()
        task = new_id("task") if found.record.is_over else found.record.task_id or new_id("task")
        state = "pending" if found.record.is_over else found.record.state
        facts: list[events.Event] = []
        put = found.put(updated_at=now, task_id=task, state=state)
        puts = [put]
        head: int | None = None
        if mode != "queue":
            head = (await self._store.read(found.stream, limit=0)).head
            facts, closed = await self._open_calls_for(found, mode)
            puts += closed
        facts.append(_user(said, task))
        records = [as_record(fact, now) for fact in facts]
        heads = await self._store.commit(
            [Write(found.stream, records, head=head, wake=now)],
            [*puts, *key_put(said, found.stream)],
        )
        return Sent(Known.put_as(put), heads[found.stream])

    async def _open_calls_for(
        self, found: Known, mode: WhileWaiting
    ) -> tuple[list[events.Event], list[Put]]:
        open_calls = [entry async for entry in self.open_calls(found.stream)]
        if open_calls and mode == "reject":
            raise Conflict(
                f"session {found.record.id!r} waits for {len(open_calls)} calls and takes no "
                "message until they are settled",
                code="SESSION_WAITING",
                hint="settle or cancel them: holdfast pending list",
            )
        return self._cancelled(open_calls, CancelCall())

    async def open_calls(self, stream: str) -> AsyncIterator[Entry]:
        """The open pending calls of one session."""
        after: str | None = None
        while True:
            page = await self._store.find("pending", stream=stream, state="open", after=after)
            for entry in page.entries:
                yield entry
            if page.next is None:
                return
            after = page.next

    def _cancelled(
        self, open_calls: Sequence[Entry], command: CancelCall
    ) -> tuple[list[events.Event], list[Put]]:
        facts: list[events.Event] = []
        puts: list[Put] = []
        entries = {entry.key: entry for entry in open_calls}
        records = [pending.decode(entry.data) for entry in open_calls]
        for outcome in decide.give_up_all(records, command, self._store.now()):
            entry = entries[outcome.record.id]
            facts += outcome.facts
            puts.append(pending_put(outcome.record, entry.version, entry.stream))
        return facts, puts

    async def cancel(self, address: Address, by: str | None, reason: str | None) -> None:
        """End the run: once this answers, no effect of it is intended any more.

        A run that is over stays as it is.
        """
        while True:
            found = await self.known(address)
            if found.record.is_over:
                return
            head = (await self._store.read(found.stream, limit=0)).head
            open_calls = [entry async for entry in self.open_calls(found.stream)]
            facts, puts = self._cancelled(open_calls, CancelCall(by=by))
            facts.append(events.Cancelled(by=by, reason=reason, task_id=found.record.task_id))
            now = self._store.now()
            puts.append(found.put(state="cancelled", updated_at=now, problem=None))
            records = [as_record(fact, now) for fact in facts]
            try:
                await self._store.commit([Write(found.stream, records, head=head, wake=now)], puts)
            except (HeadMoved, VersionMoved):
                continue
            except Gone as error:
                raise session_not_found(address.session_id) from error
            return

    async def start_again(self, found: Known) -> None:
        """A failed run is followed by a new one from the recorded prefix; of n callers one wins."""
        now, task = self._store.now(), new_id("task")
        fact = events.AgentStart(run=task, agent=found.record.agent)
        put = found.put(state="pending", task_id=task, updated_at=now, problem=None)
        try:
            await self._store.commit([Write(found.stream, [as_record(fact, now)], wake=now)], [put])
        except VersionMoved:
            return  # somebody else did it

    async def wake(self, stream: str) -> None:
        """Let somebody look at a session that should move."""
        await self._store.commit([Write(stream, wake=self._store.now())])

    async def set_metadata(self, address: Address, changes: Mapping[str, Any]) -> None:
        """Change metadata; None removes a key."""
        _check_json(changes, "metadata")
        while True:
            found = await self.known(address)
            now = self._store.now()
            merged = {**found.record.metadata, **changes}
            kept = {k: v for k, v in merged.items() if v is not None}
            fact = events.Metadata(changes=dict(changes))
            try:
                await self._store.commit(
                    [Write(found.stream, [as_record(fact, now)])],
                    [found.put(metadata=kept, updated_at=now)],
                )
            except VersionMoved:
                continue
            return

    async def erase(self, address: Address) -> None:
        """Delete a session with everything that finds it."""
        found = await self.known(address)
        try:
            await self._store.commit([Write(found.stream, erase=True)])
        except Gone as error:
            raise session_not_found(address.session_id) from error

    # --- pending calls ------------------------------------------------------------------------

    async def pending(self, pending_id: str, tenant: str | None = None) -> PendingRecord:
        """One pending call. Raises NotFound."""
        return pending.decode((await self._pending_entry(pending_id, tenant)).data)

    async def _pending_entry(self, pending_id: str, tenant: str | None) -> Entry:
        index.check_id(pending_id, "pending id")
        entry = await self._store.get("pending", pending_id)
        if entry is None or (tenant is not None and pending.decode(entry.data).tenant != tenant):
            raise NotFound(
                f"Unknown pending ID: {pending_id}",
                code="PENDING_NOT_FOUND",
                hint="holdfast pending list",
            )
        return entry

    async def settle(
        self,
        pending_id: str,
        command: Command,
        *,
        tenant: str | None = None,
        inspect: Inspect | None = None,
    ) -> Settlement:
        """Give a pending call its outcome: of any number of callers exactly one wins.

        `inspect` sees the open record first and raises to refuse, which consumes nothing.
        Raises NotFound, or Conflict with the winner.
        """
        while True:
            entry = await self._pending_entry(pending_id, tenant)
            record, now = pending.decode(entry.data), self._store.now()
            outcome = decide.settle(record, command, now)
            if outcome.duplicate:
                return outcome
            if inspect is not None and not outcome.record.is_open and not outcome.expired:
                await inspect(record)
            if not await self._settled(entry, outcome, now):
                continue
            if outcome.expired:
                raise decide.already_settled(outcome.record)
            if not outcome.record.is_open or isinstance(command, Expire):
                return outcome
            # it was overdue and is kept open: now the command itself, as a late one

    async def _settled(self, entry: Entry, outcome: Settlement, now: int) -> bool:
        facts = list(outcome.facts)
        puts = [pending_put(outcome.record, entry.version, entry.stream)]
        if any(isinstance(fact, events.Cancelled) for fact in facts):
            puts += await self._run_cancelled(outcome.record, entry.stream, now)
        if any(isinstance(fact, events.ToolResult) for fact in facts):
            closed, twin = await self._twin_closed(outcome.record, now)
            facts, puts = facts + closed, puts + twin
        records = [as_record(fact, now) for fact in facts]
        wake = now if records else None
        try:
            await self._store.commit([Write(entry.stream, records, wake=wake)], puts)
        except VersionMoved:
            return False
        except (NoStream, Gone) as error:
            raise NotFound(f"Unknown pending ID: {entry.key}", code="PENDING_NOT_FOUND") from error
        return True

    async def _twin_closed(
        self, record: PendingRecord, now: int
    ) -> tuple[list[events.Event], list[Put]]:
        """The other id of a call that waits under two, closed in the same commit."""
        entry = None if record.twin is None else await self._store.get("pending", record.twin)
        if entry is None or entry.state != "open":
            return [], []
        closed = decide.close_twin(pending.decode(entry.data), now)
        return list(closed.facts), [pending_put(closed.record, entry.version, entry.stream)]

    async def _run_cancelled(self, record: PendingRecord, stream: str, now: int) -> list[Put]:
        """The session's entry, where an expiry ends the run that it stands for."""
        found = await self.find(Address(record.tenant, record.session_id))
        if found is None or found.stream != stream or found.record.is_over:
            return []
        if found.record.task_id != record.task_id:
            return []
        return [found.put(state="cancelled", updated_at=now, problem=None)]

    async def update(
        self,
        pending_id: str,
        change: Callable[[PendingRecord], PendingRecord],
        fact: Callable[[PendingRecord], events.Event] | None = None,
    ) -> None:
        """News of an open call; without a fact it never disturbs the driver."""
        while True:
            entry = await self._pending_entry(pending_id, None)
            record, now = pending.decode(entry.data), self._store.now()
            if not record.is_open:
                return
            records = [] if fact is None else [as_record(fact(record), now)]
            try:
                await self._store.commit(
                    [Write(entry.stream, records)],
                    [pending_put(change(record), entry.version, entry.stream)],
                )
            except VersionMoved:
                continue
            return

    async def mark_started(self, pending_id: str) -> None:
        """The work outside has begun; again changes nothing."""
        if (await self.pending(pending_id)).status is PendingStatus.PROCESSING:
            return
        now = self._store.now()

        def begin(record: PendingRecord) -> PendingRecord:
            return moved(record, Verb.START, now)

        def fact(record: PendingRecord) -> events.Event:
            return events.Progress(
                pending_id=record.id,
                call_id=record.call_id,
                started=True,
                task_id=record.task_id,
            )

        await self.update(pending_id, begin, fact)

    async def expire_due(self) -> list[PendingRecord]:
        """Settle what is overdue; one bad call never stops the others."""
        now, after = self._store.now(), None
        expired: list[PendingRecord] = []
        while True:
            page = await self._store.find("pending", due_before=now, after=after, limit=500)
            expired += [gone for entry in page.entries if (gone := await self._expired(entry.key))]
            if page.next is None:
                return expired
            after = page.next

    async def _expired(self, pending_id: str) -> PendingRecord | None:
        try:
            outcome = await self.settle(pending_id, Expire())
        except (NotFound, Conflict):
            return None  # settled or deleted meanwhile
        except Corrupt as error:
            logger.warning("%s cannot expire: %s", pending_id, error.message)
            return None
        return None if outcome.duplicate or outcome.record.is_open else outcome.record


def session_not_found(session_id: str) -> NotFound:
    """The refusal that names a session which is not there."""
    return NotFound(
        f"there is no session {session_id!r}",
        code="SESSION_NOT_FOUND",
        hint="holdfast sessions list",
    )


def _user(said: Said, task: str) -> events.User:
    return events.User(role="user", content=said.content, task_id=task, key=said.key, by=said.by)


def title_of(content: events.Content) -> str:
    """The beginning of a message, for lists."""
    if not isinstance(content, str):
        content = " ".join(part.get("text", "") for part in content)
    return " ".join(content.split())[:80]


def _key(stream: str, key: str) -> str:
    return f"{stream}|{key}"


def key_put(said: Said, stream: str) -> list[Put]:
    """The write that remembers a message by its key, if it has one."""
    if said.key is None:
        return []
    data = index.encode_key(KeyRecord(_digest(said.content)))
    return [Put("key", _key(stream, said.key), 0, stream, "sent", None, data)]


def _check_same(sent: Entry, said: Said) -> None:
    if index.decode_key(sent.data).digest != _digest(said.content):
        raise Conflict(
            f"another message was sent under the key {said.key!r}",
            code="KEY_REUSED",
            hint="use a new key for a new message",
        )


def _digest(content: events.Content) -> str:
    return hashlib.sha256(msgspec.json.encode(content, order="deterministic")).hexdigest()[:32]


def _check_json(value: Any, what: str) -> None:
    try:
        msgspec.json.encode(value)
    except (TypeError, ValueError, msgspec.MsgspecError) as error:
        raise Refused(f"{what} is not JSON: {error}", code="METADATA_INVALID") from error
