"""Cache of folded logs for readers: each read folds only new events."""

import asyncio
from collections import OrderedDict
from typing import Final
from weakref import WeakValueDictionary

from msgspec import Struct

from perdure.core.session.state import State, fold
from perdure.runtime.records.entries import SessionEntry, erased_as_not_found
from perdure.runtime.records.log import PAGE, decode_record, read_log
from perdure.store.base import Record, Slice, Store

MAX_STATES: Final = 64
LONG: Final = 100  # events; a shorter log is folded each time


class FoldedLog(Struct, frozen=True):
    """State of a session, with the position of its stream; its events were not kept."""

    state: State
    slice: Slice


class FoldedLogs:
    """States of the long logs that were read last, by stream.

    Records never change, so what was folded stays true; the last record is compared with the
    stored one, because a stream can be restored from a backup or created again under its name.
    Of several readers of a long log the first reads it, and the others what is new since then.
    """

    def __init__(self) -> None:
        self._states: OrderedDict[str, tuple[State, int]] = OrderedDict()  # oldest first
        self._reading: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def read(self, store: Store, entry: SessionEntry) -> FoldedLog:
        """Return the state of a session as it is stored. Raises NotFound, Corrupt."""
        if entry.record.head < LONG and entry.stream not in self._states:
            return await self._read_all(store, entry)
        lock = self._reading.get(entry.stream)
        if lock is None:
            lock = self._reading[entry.stream] = asyncio.Lock()
        async with lock:
            return await self._extend(store, entry) or await self._read_all(store, entry)

    async def _extend(self, store: Store, entry: SessionEntry) -> FoldedLog | None:
        """Return the known state with what was appended since; None if it does not fit."""
        state, digest = self._states.pop(entry.stream, (State(), 0))
        if not state.head or state.head < entry.record.head - PAGE:
            return None
        with erased_as_not_found(entry.record.id):
            page = await store.read(entry.stream, after=state.head - 1, limit=PAGE)
        records = page.records
        is_same = bool(records) and _digest(records[0]) == digest
        if not is_same or page.head < entry.record.head or records[-1].seq != page.head:
            return None
        state = fold([decode_record(record) for record in records[1:]], state)
        return self._keep(entry.stream, FoldedLog(state, page), records[-1])

    async def _read_all(self, store: Store, entry: SessionEntry) -> FoldedLog:
        log = await read_log(store, entry)
        folded = FoldedLog(log.state, log.slice)
        if len(log.events) < LONG or not log.slice.records:
            return folded
        return self._keep(entry.stream, folded, log.slice.records[-1])

    def _keep(self, stream: str, folded: FoldedLog, last: Record) -> FoldedLog:
        self._states[stream] = (folded.state, _digest(last))
        while len(self._states) > MAX_STATES:
            self._states.popitem(last=False)
        return folded


def _digest(record: Record) -> int:
    return hash((record.seq, record.at, record.type, record.data))
