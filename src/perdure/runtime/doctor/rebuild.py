"""Rebuilding of a damaged session: how it will continue, and the commit that replaces it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import msgspec

from perdure.core.log.events import StampedEvent
from perdure.core.session.child_tasks import TASK
from perdure.core.transfer.salvage import INCOMPLETE_TEXT, SalvagedLog, salvage
from perdure.errors import StoreError
from perdure.findings.severities import is_damage
from perdure.runtime.doctor.children import with_child_events
from perdure.runtime.doctor.session import SessionCheckup
from perdure.runtime.transfer.create import NewSession, create_session, session_from_log
from perdure.runtime.transfer.readable import read_remains
from perdure.store.base import Entry, Gone, Store
from perdure.store.inspect import StoreInspector
from perdure.tasks.model.record import BACKGROUND

_FROM_LOG: Final = frozenset({"session", "pending", TASK, BACKGROUND})  # kinds of entries


@dataclass(frozen=True, slots=True)
class Rebuild:
    """The decisions about a damaged session, before anything is written."""

    checkup: SessionCheckup
    salvaged: SalvagedLog

    @classmethod
    def create(cls, checkup: SessionCheckup, now: int) -> "Rebuild":
        """Decide what becomes of each open call, from what can be read."""
        issues = [
            {"type": check.code, "details": check.text.partition("\n")[0]}
            for check in checkup.checks()
            if is_damage(check)
        ]
        remains = read_remains(checkup.stream, checkup.log)
        return cls(checkup, salvage(remains, issues, now))

    @property
    def session_id(self) -> str:
        return self.checkup.names.session_id

    @property
    def lost(self) -> int:
        """Number of records that are lost."""
        return len(self.checkup.log.lost)

    def texts(self) -> Iterator[str]:
        """Yield what was decided, one line for each open call and one for the run."""
        yield from (call.text for call in self.salvaged.calls)
        if self.salvaged.is_incomplete:
            yield INCOMPLETE_TEXT

    def to_json(self) -> dict[str, Any]:
        """Return what was decided as JSON."""
        return {
            "sessionID": self.session_id,
            "tenant": self.checkup.names.tenant,
            "events": len(self.salvaged.events),
            "lost": self.lost,
            "calls": [call.to_json() for call in self.salvaged.calls],
            "incomplete": self.salvaged.is_incomplete,
        }


@dataclass(frozen=True, slots=True)
class RebuiltSession:
    """A session that was rebuilt, or only its row restored, or nothing yet in a dry run."""

    rebuild: Rebuild
    original: Path | None = None  # the file that keeps the original
    is_written: bool = False


async def rebuild_session(
    store: Store, inspector: StoreInspector, checkup: SessionCheckup, folder: Path | None = None
) -> RebuiltSession:
    """Save the original in a file, then create the session again under its name, in one commit.

    The file is beside the store, or in `folder` (the current one) for a store without files.
    Raises Conflict BEING_RESUMED while a process drives it: its log is still changing.
    """
    checkup.require_free()
    now = store.now()
    rebuild = Rebuild.create(checkup, now)
    log = await with_child_events(store, checkup.names.tenant, rebuild.salvaged.events, now)
    session = await _new_session(store, checkup, log, now)
    original = inspector.save_original(checkup.stream.stream, folder or Path.cwd())
    try:
        await create_session(store, session)
    except Gone:  # deleted meanwhile: nothing to create
        rebuild = replace(rebuild, salvaged=SalvagedLog([]))
    return RebuiltSession(rebuild, original, is_written=True)


async def _new_session(
    store: Store, checkup: SessionCheckup, log: Sequence[StampedEvent], now: int
) -> NewSession:
    """Return the session that takes the place of the damaged one, with all that it keeps."""
    stream = checkup.stream
    remains = read_remains(stream, checkup.log)
    session = session_from_log(checkup.names, log, now, remains.calls)
    record = session.record
    if remains.session is not None:
        record = msgspec.structs.replace(record, hooks=remains.session.hooks)
    return replace(
        session,
        record=record,
        replaces=stream.stream,
        epoch=max(session.epoch, stream.epoch),
        kept=await _kept_entries(store, checkup),
    )


async def _kept_entries(store: Store, checkup: SessionCheckup) -> list[Entry]:
    """Return the entries that are not made from the log: message keys, receivers, budgets, mail.

    Without the key of a lost message, a program that sends it again would start its work again.
    """
    kept: list[Entry] = []
    for kind, key, _, _ in checkup.stream.entries:
        if kind not in _FROM_LOG:
            try:
                entry = await store.get(kind, key)
            except StoreError:  # damaged too
                continue
            kept += [] if entry is None else [entry]
    return kept
