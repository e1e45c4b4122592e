"""A session whose log is in a storage: loaded from there, and recorded there before any effect."""

import base64
import logging
from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import msgspec

from perdure.core.log import codec, events
from perdure.core.log.events import StampedEvent
from perdure.core.session.naming import parse_session_stream
from perdure.core.transfer.foreign import (
    ForeignSession,
    convert,
    interrupted_results,
    session_log,
)
from perdure.core.transfer.stored_log import (
    StoredLog,
    StoredMark,
    in_force,
    marked,
    read_stored,
)
from perdure.errors import Corrupt
from perdure.runtime.records.content import event_blobs, find_bytes, store_bytes
from perdure.runtime.records.entries import SessionRef
from perdure.runtime.sessions.service import Service
from perdure.runtime.transfer.adopt import store_files
from perdure.runtime.transfer.create import SessionNames, session_from_log
from perdure.sessions.storage import SessionStorage
from perdure.store.base import Record, Unavailable
from perdure.store.judge import Changes
from perdure.store.memory import MemoryStore
from perdure.user_code import CONTAINED, error_line

logger = logging.getLogger("perdure")


@runtime_checkable
class BufferedStorage(Protocol):
    """Storage whose events are stored only after a `flush`."""

    async def flush(self) -> None:
        """Store all events that were appended."""
        ...


class RecordedSession:
    """Session in a storage of events, and the recorder of the commits to it."""

    def __init__(self, storage: SessionStorage, store: MemoryStore, session_id: str) -> None:
        self._storage = storage
        self._store = store
        self._session_id = session_id
        self._base = 0  # events of other programs before the runtime's
        # Events of a commit that failed later, by their number: its next attempt skips them.
        self._appended: dict[int, dict[str, Any]] = {}

    # --- loading ------------------------------------------------------------------------------

    async def load(self, service: Service, agent: str) -> None:
        """Create the session from the storage, unless the runtime has all of it; then record."""
        self._store.set_recorder(self._session_id, None)  # what is loaded is stored already
        try:
            await self._load(service, agent)
        finally:
            self._store.set_recorder(self._session_id, self._record)

    async def _load(self, service: Service, agent: str) -> None:
        ref = SessionRef("", self._session_id)
        entry = await service.find(ref)
        head = 0 if entry is None else await service.head(entry)
        stored = read_stored(await self._storage.read_events(self._session_id))
        if entry is not None and stored.head <= head:
            return
        if entry is not None:  # another executor has continued the session
            await service.erase(ref)
        if stored.own and await self._rebuild(service, stored, agent):
            return
        await self._adopt(service, agent)

    async def _rebuild(self, service: Service, stored: StoredLog, agent: str) -> bool:
        """Create the session exactly as it was; False if its log is not complete."""
        foreign = session_log.read(stored.prefix)
        log = await self._converted(foreign, agent)
        try:
            own = [_decoded(event.mark.seq, event.event) for event in stored.own]
        except (Corrupt, msgspec.MsgspecError, ValueError) as error:
            return self._warn_incomplete(str(error))
        if not stored.is_complete or own[0].seq != len(log) + 1:
            return self._warn_incomplete("events are missing")
        for event in stored.own:
            for data in event.mark.files.values():
                await store_bytes(self._store, base64.b64decode(data))
        log += own
        started = (item.event for item in log if isinstance(item.event, events.AgentStart))
        name = next((event.agent for event in started if event.agent), agent)
        names = SessionNames("", self._session_id, name)
        await service.transfers.restore(session_from_log(names, log, self._store.now()))
        self._base = stored.own[0].mark.base
        return True

    async def _converted(self, foreign: ForeignSession, agent: str) -> list[StampedEvent]:
        if not foreign.messages:
            return []
        converted = convert(foreign, agent, self._store.now())
        return [
            StampedEvent(seq, at, await store_files(self._store, event))
            for seq, (at, event) in enumerate(converted.log, 1)
        ]

    def _warn_incomplete(self, reason: str) -> bool:
        logger.warning(
            "Session %s recovery: its events in the storage are incomplete (%s); "
            "the conversation is repaired and continued",
            self._session_id,
            reason,
        )
        return False

    async def _adopt(self, service: Service, agent: str) -> None:
        """Create the session from a conversation that any program may have logged, repaired."""
        foreign = await self._foreign()
        storage, now = self._storage, self._store.now()
        if await answer_cut_off_calls(storage, self._session_id, foreign, agent, now):
            foreign = await self._foreign()
        if foreign.messages:
            await service.transfers.adopt(foreign, SessionNames("", self._session_id, agent))

    async def _foreign(self) -> ForeignSession:
        stored = await self._storage.read_events(self._session_id)
        self._base = len(stored)
        return session_log.read(in_force(stored))

    # --- recording ----------------------------------------------------------------------------

    async def _record(self, changes: Changes) -> None:
        """Append the events of a commit to the storage. Raises Unavailable.

        A commit that fails here changes nothing in the runtime, so no effect follows it. The next
        attempt appends the events that are missing; the events of another commit replace them.
        """
        address = ("", self._session_id)
        records = [
            (seq, at, record)
            for stream, seq, at, record in changes.records
            if parse_session_stream(stream) == address
        ]
        try:
            with CONTAINED:
                for seq, at, record in records:
                    await self._append(seq, at, record, records[-1][0])
                if records and isinstance(self._storage, BufferedStorage):
                    await self._storage.flush()
        except Exception as error:  # a user's code
            raise Unavailable(
                f"the storage did not store an event of session {self._session_id!r}: "
                f"{error_line(error)}",
                hint="nothing was run that is not stored; call execute() again when it works",
            ) from error
        self._appended.clear()

    async def _append(self, seq: int, at: int, record: Record, last: int) -> None:
        mark = StoredMark(seq, last, self._base, await self._files(record))
        event = marked(record.type, at, record.data, mark)
        if self._appended.get(seq) == event:
            return
        self._appended = {n: item for n, item in self._appended.items() if n < seq}
        await self._storage.append_event(self._session_id, event)
        self._appended[seq] = event

    async def _files(self, record: Record) -> dict[str, str]:
        """Return the bytes of the files of a message: the storage has no other place for them."""
        if b'"blob"' not in record.data:
            return {}
        digests = set(event_blobs(codec.decode(record.type, record.data)))
        files = {digest: await find_bytes(self._store, digest) for digest in sorted(digests)}
        return {
            digest: base64.b64encode(data).decode()
            for digest, data in files.items()
            if data is not None
        }


async def answer_cut_off_calls(
    storage: SessionStorage, session_id: str, foreign: ForeignSession, agent: str, now: int
) -> bool:
    """Store the results that the model will see for calls without one; False if none."""
    if not foreign.messages:
        return False
    results = interrupted_results(foreign, convert(foreign, agent, now))
    for at, result in results:
        data = dict(codec.event_data(result))
        event = {"type": "tool_result", "timestamp": at, "data": data}
        await storage.append_event(session_id, event)
    return bool(results)


def _decoded(seq: int, event: Mapping[str, Any]) -> StampedEvent:
    data = msgspec.json.encode(event["data"])
    return StampedEvent(seq, int(event["timestamp"]), codec.decode(event["type"], data))
