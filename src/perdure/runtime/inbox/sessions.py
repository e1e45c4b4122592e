"""What callers write about a session who hold no lease: messages, cancellations, metadata.

Each is one conditional commit that also wakes the session; none reads its log.
"""

import hashlib
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from perdure.core.log import events
from perdure.core.log.redaction import MASK
from perdure.core.pending import record as pending
from perdure.core.pending import settlement as decide
from perdure.core.pending.commands import CancelCall
from perdure.core.session import naming as index
from perdure.core.session.naming import KeyRecord, SessionRecord
from perdure.errors import Conflict, PerdureError, Refused
from perdure.runtime.ids import new_id
from perdure.runtime.records.cache import CachedSession, SessionCache
from perdure.runtime.records.entries import (
    SessionEntry,
    SessionRef,
    WhileWaiting,
    erased_as_not_found,
    open_calls,
    pending_put,
    session_not_found,
)
from perdure.runtime.records.log import Log, as_record
from perdure.runtime.webhooks.outbox import Outbox
from perdure.store.base import Entry, Gone, HeadMoved, Put, Store, VersionMoved, Write

logger = logging.getLogger("perdure")


class NewMessage(Struct, frozen=True):
    """A message to record."""

    content: events.Content
    key: str | None = None
    by: str | None = None
    redact: bool = False  # it holds arguments that are not shown

    @property
    def title(self) -> str:
        """Its beginning, for lists."""
        return MASK if self.redact else title_of(self.content)


class Receipt(Struct, frozen=True):
    """Where a message stands; the seq is not looked up for one that was sent before."""

    known: "SessionEntry"
    seq: int | None = None
    is_new: bool = False  # the session is: this made it


class SessionInbox:
    """The door for everybody who does not drive."""

    def __init__(
        self, store: Store, outbox: Outbox | None = None, near: SessionCache | None = None
    ) -> None:
        self._store = store
        self._outbox = outbox or Outbox(store)
        self._near = near or SessionCache()

    async def find(self, address: SessionRef) -> SessionEntry | None:
        """The session, or None. Raises Conflict if it belongs to another agent."""
        entry = await self._store.get("session", address.key)
        return None if entry is None else _checked(address, SessionEntry.of(entry))

    def remembered(self, address: SessionRef) -> SessionEntry | None:
        """The session as it was when it last moved here, if that is not long ago: a guess."""
        stream = index.stream_of(address.tenant, address.session_id)
        rested = self._near.resting(stream)
        # Whose it is now, if not that agent's, is not for a guess to say.
        return None if rested is None or not _is_of(address, rested.known) else rested.known

    async def known(self, address: SessionRef) -> SessionEntry:
        """The session. Raises NotFound."""
        found = await self.find(address)
        if found is None:
            raise session_not_found(address.session_id)
        return found

    async def send(self, address: SessionRef, said: NewMessage) -> Receipt:
        """Record a message and wake the session; the same key and content again changes nothing.

        Raises Conflict KEY_REUSED, SESSION_WAITING.
        """
        guess = self.remembered(address)
        while True:
            found = guess or await self.find(address)
            if guess is None and found is not None and said.key is not None:
                sent = await self._store.get("key", _key(found.stream, said.key))
                if sent is not None:
                    _check_same(sent, said)
                    return Receipt(found)
            try:
                if found is None:
                    return await self._create(address, said)
                return await self._append(found, address, said)
            except (HeadMoved, VersionMoved, Gone):
                guess = None  # somebody was faster, or it was sent before: look again

    async def create(self, address: SessionRef) -> Receipt:
        """The session, made if there is none, with its metadata and without a message."""
        while True:
            found = await self.find(address)
            if found is not None:
                return Receipt(found)
            with suppress(HeadMoved, VersionMoved):
                return await self._create(address, None)

    async def _create(self, address: SessionRef, said: NewMessage | None) -> Receipt:
        if not address.agents:
            raise Refused(
                f"session {address.session_id!r} is new, and no agent was named for it",
                code="AGENT_NEEDED",
                hint="pass agent=",
            )
        now = self._store.now()
        record = _new_record(address, said, now)
        facts: list[events.Event] = []
        if record.metadata or said is None:
            facts.append(events.Metadata(changes=record.metadata))
        if said is not None:
            facts.append(_user(said, record.task_id))
        records = [as_record(fact, now) for fact in facts]
        wake = None if said is None else now
        generation = 1
        while True:
            stream = index.stream_of(address.tenant, address.session_id, generation)
            told = await self._told(address, stream)
            known = SessionEntry.new(replace(record, hooks=tuple(told)), stream)
            keys = [] if said is None else key_put(said, stream)
            kind = index.stream_kind(record.agent, record.queue)
            write = Write(stream, records, create=kind, head=0, wake=wake)
            try:
                heads = await self._store.commit([write], [known.as_put, *keys, *told.values()])
            except Gone:
                generation += 1  # deleted and made anew: a stream's name is not used again
                continue
            log = Log(self._store, stream)
            log.append(facts, records)
            self._near.keep(CachedSession(log, known))
            return Receipt(known, heads[stream], is_new=True)

    async def _told(self, address: SessionRef, stream: str) -> dict[str, Put]:
        """Who is to be told from now on, by name, with the entry of each. Raises Refused."""
        if address.notify is None:
            return {}
        return dict([await self._outbox.hook(stream, address.notify)])

    async def _append(self, found: SessionEntry, address: SessionRef, said: NewMessage) -> Receipt:
        now, mode, hooks = self._store.now(), address.while_waiting, found.record.hooks
        told = await self._told(address, found.stream)
        told = {name: put for name, put in told.items() if name not in hooks}
        task = new_id("task") if found.record.is_over else found.record.task_id or new_id("task")
        state = "pending" if found.record.is_over else found.record.state
        facts: list[events.Event] = []
        title = found.record.title or said.title
        known = found.changed(
            updated_at=now, task_id=task, state=state, title=title, hooks=(*hooks, *told)
        )
        puts = [known.as_put, *told.values()]
        closed: list[Put] = []
        head: int | None = None
        if mode != "queue":
            head = (await self._store.read(found.stream, limit=0)).head
            facts, closed = await self._open_calls_for(found, mode)
            puts += closed
        facts.append(_user(said, task))
        records = [as_record(fact, now) for fact in facts]
        write = Write(found.stream, records, head=head, wake=now)
        heads = await self._store.commit(
            *self._outbox.also([write], [*puts, *key_put(said, found.stream)])
        )
        gone = dict.fromkeys(put.key for put in closed)
        self._near.wrote(write, facts, heads, known=known, waits=gone)
        return Receipt(known, heads[found.stream])

    async def _open_calls_for(
        self, found: SessionEntry, mode: WhileWaiting
    ) -> tuple[list[events.Event], list[Put]]:
        waiting = [entry async for entry in open_calls(self._store, found.stream)]
        if waiting and mode == "reject":
            raise Conflict(
                f"session {found.record.id!r} waits for {len(waiting)} calls and takes no "
                "message until they are settled",
                code="SESSION_WAITING",
                hint="settle or cancel them: perdure pending list",
            )
        return self._cancelled(waiting, CancelCall())

    def _cancelled(
        self, waiting: Sequence[Entry], command: CancelCall
    ) -> tuple[list[events.Event], list[Put]]:
        facts: list[events.Event] = []
        puts: list[Put] = []
        entries = {entry.key: entry for entry in waiting}
        records = [pending.decode(entry.data) for entry in waiting]
        for outcome in decide.give_up_all(records, command, self._store.now()):
            entry = entries[outcome.record.id]
            facts += outcome.facts
            puts.append(pending_put(outcome.record, entry.version, entry.stream))
        return facts, puts

    async def cancel(self, address: SessionRef, by: str | None, reason: str | None) -> None:
        """End the run: once this answers, no effect of it is intended any more.

        A run that is over stays as it is.
        """
        while True:
            found = await self.known(address)
            if found.record.is_over:
                return
            head = (await self._store.read(found.stream, limit=0)).head
            waiting = [entry async for entry in open_calls(self._store, found.stream)]
            facts, puts = self._cancelled(waiting, CancelCall(by=by))
            facts.append(events.Cancelled(by=by, reason=reason, task_id=found.record.task_id))
            now = self._store.now()
            puts.append(found.put(state="cancelled", updated_at=now, problem=None))
            records = [as_record(fact, now) for fact in facts]
            write = Write(found.stream, records, head=head, wake=now)
            try:
                with erased_as_not_found(address.session_id):
                    await self._commit(write, puts)
            except (HeadMoved, VersionMoved):
                continue
            return

    async def fail(self, found: SessionEntry, error: PerdureError) -> bool:
        """End a run as failed that nobody drives; False if somebody does, or it has moved."""
        at = await self._store.read(found.stream, limit=0)
        if at.holder is not None:
            return False
        waiting = [entry async for entry in open_calls(self._store, found.stream)]
        facts, puts = self._cancelled(waiting, CancelCall())
        run, now = found.record.task_id or "", self._store.now()
        facts.append(
            events.AgentError(run=run, error=error.message, code=error.code, hint=error.hint)
        )
        puts.append(found.put(state="failed", updated_at=now, problem=None))
        records = [as_record(fact, now) for fact in facts]
        try:
            await self._commit(Write(found.stream, records, head=at.head, wake=now), puts)
        except (HeadMoved, VersionMoved, Gone):
            return False
        return True

    async def start_again(self, found: SessionEntry) -> None:
        """A failed run is followed by a new one from the recorded prefix; of n callers one wins."""
        now, task = self._store.now(), new_id("task")
        fact = events.AgentStart(run=task, agent=found.record.agent)
        put = found.put(state="pending", task_id=task, updated_at=now, problem=None)
        write = Write(found.stream, [as_record(fact, now)], wake=now)
        with erased_as_not_found(found.record.id), suppress(VersionMoved):  # somebody else did it
            await self._commit(write, [put])

    async def hurry(self, found: SessionEntry) -> None:
        """Let a model be asked now that was to be asked again later."""
        now, record = self._store.now(), found.record
        fact = events.AgentStart(run=record.task_id or "", agent=record.agent)
        with erased_as_not_found(record.id):
            await self._commit(Write(found.stream, [as_record(fact, now)], wake=now))

    async def ask_for_summary(
        self, found: SessionEntry, wanted: events.CompactionRequested, head: int
    ) -> None:
        """Record that somebody wants a summary of what was said up to there. Raises HeadMoved."""
        now = self._store.now()
        with erased_as_not_found(found.record.id):
            await self._commit(Write(found.stream, [as_record(wanted, now)], head=head, wake=now))

    async def wake(self, found: SessionEntry) -> None:
        """Let somebody look at a session that should move."""
        with erased_as_not_found(found.record.id):
            await self._store.commit([Write(found.stream, wake=self._store.now())])

    async def set_metadata(self, address: SessionRef, changes: Mapping[str, Any]) -> None:
        """Change metadata; None removes a key."""
        while not await self.put_metadata(await self.known(address), changes):
            pass

    async def put_metadata(self, found: SessionEntry, changes: Mapping[str, Any]) -> bool:
        """The same, unless the session's entry has changed meanwhile; whether it was done."""
        _check_json(changes, "metadata")
        now = self._store.now()
        merged = {**found.record.metadata, **changes}
        kept = index.listed_metadata(merged)
        write = Write(found.stream, [as_record(events.Metadata(changes=dict(changes)), now)])
        try:
            with erased_as_not_found(found.record.id):
                await self._commit(write, [found.put(metadata=kept, updated_at=now)])
        except VersionMoved:
            return False
        return True

    async def erase(self, address: SessionRef) -> None:
        """Delete a session with everything that finds it."""
        found = await self.known(address)
        with erased_as_not_found(address.session_id):
            await self._commit(Write(found.stream, erase=True))

    async def _commit(self, write: Write, puts: Sequence[Put] = ()) -> None:
        """Write, keep nothing of it in memory, and tell who listens here."""
        heads = await self._store.commit(*self._outbox.also([write], puts))
        self._near.forget(write.stream)
        self._near.tell(write.stream, heads[write.stream])


def _is_of(address: SessionRef, known: SessionEntry) -> bool:
    return not address.agents or known.record.agent in address.agents


def _checked(address: SessionRef, known: SessionEntry) -> SessionEntry:
    if not _is_of(address, known):
        raise Conflict(
            f"session {address.session_id!r} belongs to agent {known.record.agent!r}, "
            f"not to {address.agents[0]!r}",
            code="SESSION_OF_OTHER_AGENT",
            hint="use another session id, or that agent",
        )
    return known


def _new_record(address: SessionRef, said: NewMessage | None, now: int) -> SessionRecord:
    metadata = {k: v for k, v in (address.metadata or {}).items() if v is not None}
    _check_json(metadata, "metadata")
    return SessionRecord(
        id=address.session_id,
        tenant=address.tenant,
        agent=address.agents[0],
        queue=address.queue,
        task_id=None if said is None else new_id("task"),
        created_at=now,
        updated_at=now,
        metadata=metadata,
        title="" if said is None else said.title,
    )


def _user(said: NewMessage, task: str | None) -> events.User:
    return events.User(
        role="user",
        content=said.content,
        task_id=task,
        key=said.key,
        by=said.by,
        redact=said.redact,
    )


def title_of(content: events.Content) -> str:
    """The beginning of a message, for lists."""
    if not isinstance(content, str):
        names = ("text", "name", "mediaType")
        content = " ".join(next((part[n] for n in names if part.get(n)), "") for part in content)
    return " ".join(content.split())[:80]


def _key(stream: str, key: str) -> str:
    return f"{stream}|{key}"


def key_put(said: NewMessage, stream: str) -> list[Put]:
    """The write that remembers a message by its key, if it has one."""
    if said.key is None:
        return []
    data = index.encode_key(KeyRecord(_digest(said.content)))
    return [Put("key", _key(stream, said.key), 0, stream, "sent", None, data)]


def _check_same(sent: Entry, said: NewMessage) -> None:
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
