"""Verification that the log of a session can be read, before a command changes the session."""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from perdure import host
from perdure.core.log import events
from perdure.core.session import naming as index
from perdure.errors import Corrupt, StoreError
from perdure.runtime.records.cache import SessionCache
from perdure.runtime.records.entries import SessionEntry
from perdure.runtime.records.log import Log, as_record, check_end, decode_record
from perdure.store.base import (
    ForeignWrite,
    Gone,
    NoStream,
    Put,
    Record,
    Slice,
    Store,
    StoreRefusal,
    Write,
)

TRUST_S: Final = 10.0  # how long a log that was read completely is not read again
FRESH_S: Final = 0.02  # how long nothing is read again: about as long as a commit takes
MOST_FRESH_S: Final = 0.25  # the same after a commit that took as long, as under load
MAX_STREAMS: Final = 1_000
_PAGE: Final = 1_000  # records per read


Commit = Callable[[Sequence[Write], Sequence[Put]], Awaitable[object]]


class _VerifiedLog(NamedTuple):
    """Log that was read completely; the instants are monotonic."""

    head: int
    until: float
    fresh_until: float


class LogVerifier:
    """Reads a log from the store, not from the cache, before a command is accepted.

    A command that no driver could act on must be refused while nothing is consumed. A complete
    read counts for a few seconds, in which only newer records are read, and those not more often
    than commits take: ten thousand results of one turn must not read its log ten thousand times.
    """

    def __init__(self, store: Store, cache: SessionCache, commit: Commit) -> None:
        self._store = store
        self._commit = commit
        self._cache = cache
        self._verified: OrderedDict[str, _VerifiedLog] = OrderedDict()  # by stream, oldest first
        self._reading: dict[str, asyncio.Future[None]] = {}  # logs that are read, by stream
        self._foreign_at = 0.0  # when a command was refused because another process had written

    async def verify(self, stream: str) -> None:
        """Mark the session as failed and raise Corrupt if its log cannot be read."""
        try:
            with suppress(NoStream, Gone):  # deleted: the command's own commit reports that
                await self._read(stream)
        except Corrupt as error:
            raise await self.fail_session(stream, error) from error

    async def rely_or_verify(self, stream: str) -> int | None:
        """Return the count of foreign writes on which a command may rely; else read the log.

        A log that this process has begun a few seconds ago, and written alone, it need not read
        back: a commit that names the count is refused if anybody else has written the store. Raises
        as `verify` does.
        """
        cached = self._cache.get(stream)
        if cached is not None and cached.log.foreign_writes is not None:
            since = max(self._foreign_at, host.elapsed() - TRUST_S)
            if cached.log.begun_at > since:
                return cached.log.foreign_writes
        await self.verify(stream)
        return None

    def note_refusal(self, refusal: StoreRefusal) -> None:
        """Rely on no log that was begun by now, if another process has written the store."""
        if isinstance(refusal, ForeignWrite):
            self._foreign_at = host.elapsed()
            self._verified.pop(refusal.stream, None)

    def extend(self, stream: str, added: int, head: int, took_s: float = 0.0) -> None:
        """Count records that this process has committed as read, if they follow what was read.

        Such a commit has shown that nothing else was written, as a read at its moment would have.
        So nothing is read for as long as it took: what comes in between could as well come while
        the next command waits for its commit.
        """
        verified = self._verified.get(stream)
        if verified is not None and verified.head + added == head:
            fresh_s = min(max(took_s, FRESH_S), MOST_FRESH_S)
            fresh_until = max(verified.fresh_until, host.elapsed() + fresh_s)
            self._verified[stream] = _VerifiedLog(head, verified.until, fresh_until)

    async def _read(self, stream: str) -> None:
        # Many results of one turn arrive at once: the first of them reads the log for all.
        while not await self._read_tail(stream):
            reading = self._reading.get(stream)
            if reading is not None:
                await asyncio.wait((reading,))
                continue
            reading = self._reading[stream] = asyncio.get_running_loop().create_future()
            try:
                now = host.elapsed()
                head = await self._read_all(stream)
                self._keep(stream, _VerifiedLog(head, now + TRUST_S, now + FRESH_S))
            finally:
                del self._reading[stream]
                reading.set_result(None)
            return

    async def _read_tail(self, stream: str) -> bool:
        """Read only what is newer; False if the log was not read completely a short time ago."""
        verified, now = self._verified.get(stream), host.elapsed()
        if verified is None or now >= verified.until:
            return False
        if now < verified.fresh_until:
            return True
        head = await self._read_from(stream, verified.head)
        if head is None:
            self._verified.pop(stream, None)
            return False
        self._keep(stream, _VerifiedLog(head, verified.until, now + FRESH_S))
        return True

    def _keep(self, stream: str, verified: _VerifiedLog) -> None:
        """Keep the newest of what concurrent callers have read."""
        previous = self._verified.pop(stream, None)
        self._verified[stream] = verified if previous is None else max(previous, verified)
        while len(self._verified) > MAX_STREAMS:
            self._verified.popitem(last=False)

    async def _read_all(self, stream: str) -> int:
        """Decode the whole log, or compare it with the cached one; return the head."""
        least = await self._least(stream)
        if self._cache.get(stream) is not None:
            return await self._read_from(stream, 0, least=least) or 0
        log = Log(self._store, stream, least)
        await log.decode_page()
        while log.has_more:
            await asyncio.sleep(0)
            await log.decode_page()
        self._cache.decoded.add(log)
        return log.slice.head

    async def _least(self, stream: str) -> int:
        """Return how many events the log must have, by the entry of its session."""
        cached = self._cache.get(stream)
        if cached is not None and cached.entry.record.head:  # a log only grows: it may be stale
            return cached.entry.record.head
        key = index.session_key(*(index.parse_session_stream(stream) or ("", "")))
        entry = await self._store.get("session", key)
        is_own = entry is not None and entry.stream == stream
        return max(1, index.decode(entry.data).head if is_own and entry else 0)

    async def _read_from(self, stream: str, after: int, *, least: int | None = None) -> int | None:
        """Decode the records after a seq and return the head.

        Returns None if another process has reported damage, or the end of the log is gone: then
        all must be read, with the number of events that there must be at `least`.
        """
        while True:
            page: Slice = await self._store.read(stream, after=after, limit=_PAGE)
            if least is not None:
                check_end(page, stream, least)
            elif page.head < after:
                return None
            if least is None and any(map(_is_damage_report, page.records)):
                return None
            cached = self._cache.get(stream)
            # What this process has written or decoded, it can decode.
            if cached is None or not cached.log.has_records(page.records, after):
                for record in page.records:
                    decode_record(record)
            if len(page.records) < _PAGE:
                return page.head
            after = page.records[-1].seq

    async def fail_session(self, stream: str, error: Corrupt) -> Corrupt:
        """Mark a session as failed whose log cannot be read; return the error for the caller.

        The report that this appends moves the head: no process continues from its cache.
        """
        self._cache.remove(stream)
        self._cache.decoded.take(stream)
        self._verified.pop(stream, None)
        tenant, session_id = index.parse_session_stream(stream) or ("", "")
        with suppress(StoreRefusal, StoreError):  # the entry may be damaged too
            entry = await self._store.get("session", index.session_key(tenant, session_id))
            if entry is not None and entry.stream == stream:
                await self._mark_failed(SessionEntry.decode(entry), error)
        return Corrupt(
            f"failed to load execution state: {error.message}",
            hint=f"perdure doctor {session_id} --fix continues it with its readable events",
            details=error.details,
        )

    async def _mark_failed(self, entry: SessionEntry, error: Corrupt) -> None:
        if entry.record.is_over:
            return
        now = self._store.now()
        issue = {"type": error.code, "details": error.message}
        report = as_record(events.SessionRecovery(issues=[issue]), now)
        put = entry.put(
            state="failed", problem=error.code, problem_text=error.message, updated_at=now
        )
        await self._commit([Write(entry.stream, [report])], [put])


def _is_damage_report(record: Record) -> bool:
    return record.type == "session_recovery"
