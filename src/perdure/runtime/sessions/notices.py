"""Notices about pending calls and resumed sessions, from the records of the feed."""

from collections import OrderedDict
from collections.abc import Sequence
from itertools import zip_longest
from typing import Final

import anyio.lowlevel

from perdure.core.pending.notices import NoticeState, PendingNotice, follow_event, is_run_end
from perdure.errors import NotFound
from perdure.runtime.records.log import decode_record
from perdure.runtime.sessions.feed import EventFeed
from perdure.store.base import Record

MAX_STATES: Final = 256  # sessions whose state one reader of notices remembers
PAGE: Final = 200  # records per read


class PendingNotices:
    """Notices that the records of all sessions give, one record after the other."""

    def __init__(self, feed: EventFeed) -> None:
        self._feed = feed
        self._states: OrderedDict[str, tuple[int, NoticeState]] = OrderedDict()  # seq and state

    async def of(self, record: Record) -> list[PendingNotice]:
        """Return the notices of a record, perhaps none. Raises Corrupt."""
        before = await self._state_before(record)
        if before is None:
            return []
        after, notices = await self._follow(before, record)
        self._remember(record, after)
        return notices

    async def _follow(
        self, before: NoticeState, record: Record
    ) -> tuple[NoticeState, list[PendingNotice]]:
        stamped = decode_record(record)
        after, notices = follow_event(before, stamped)
        if not after.is_resuming or before.is_resuming:
            return after, notices
        return follow_event(before, stamped, ends_next=await self._ends_after(record))

    async def _ends_after(self, record: Record) -> bool:
        """Return whether the run ends with the event after a record, or the session is erased."""
        try:
            page = await self._feed.read(record.stream, record.seq, 1)
        except NotFound:
            return True
        return any(is_run_end(decode_record(item).event) for item in page.records)

    async def _state_before(self, record: Record) -> NoticeState | None:
        """Return the state before a record; None if its notices were sent or it is erased."""
        seq, state = self._states.get(record.stream, (0, NoticeState()))
        if seq == record.seq - 1:
            return state
        if seq >= record.seq:
            return None
        try:
            return await self._read_state(record)
        except NotFound:
            return None

    async def _read_state(self, record: Record) -> NoticeState:
        """Return the state before a record, page by page. Raises NotFound, Corrupt."""
        state, seq = NoticeState(), 0
        while seq < record.seq - 1:
            limit = min(PAGE, record.seq - 1 - seq)
            page = await self._feed.read(record.stream, seq, limit)
            state = _fold_notices(page.records, state)
            seq += limit
            await anyio.lowlevel.checkpoint()
        return state

    def _remember(self, record: Record, state: NoticeState) -> None:
        self._states[record.stream] = (record.seq, state)
        self._states.move_to_end(record.stream)
        if len(self._states) > MAX_STATES:
            self._states.popitem(last=False)


def _fold_notices(records: Sequence[Record], state: NoticeState) -> NoticeState:
    log = [decode_record(record) for record in records]
    for stamped, following in zip_longest(log, log[1:]):
        ends_next = following is not None and is_run_end(following.event)
        state, _ = follow_event(state, stamped, ends_next=ends_next)
    return state
