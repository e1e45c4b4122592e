"""Progress of a pending call as a submitter reports it; a report sent again changes nothing."""

import hashlib
from typing import Any, Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from perdure.core.pending.record import PendingRecord

MAX_KEYS: Final = 100  # reports without a sequence that are remembered per call


class ProgressReport(Struct, frozen=True, kw_only=True):
    """One report. `sequence` orders reports; without it, `id` or the content recognizes one."""

    percent: float | None = None
    message: str | None = None
    id: str | None = None
    sequence: int | None = None

    @property
    def key(self) -> str:
        """The value by which a repetition is recognized."""
        identity: Any = self.id if self.id is not None else (self.percent, self.message)
        return hashlib.sha256(msgspec.json.encode(identity)).hexdigest()[:16]


def with_progress(record: PendingRecord, report: ProgressReport, now: int) -> PendingRecord:
    """Return the record with a report; the same object if the report is old or was sent before."""
    if _is_outdated(record, report):
        return record
    progress = {"percent": report.percent, "message": report.message, "at": now}
    if report.sequence is not None:
        return replace(record, progress=progress, progress_sequence=report.sequence)
    keys = (*record.progress_keys, report.key)[-MAX_KEYS:]
    return replace(record, progress=progress, progress_keys=keys)


def _is_outdated(record: PendingRecord, report: ProgressReport) -> bool:
    if report.sequence is not None:
        last = record.progress_sequence
        return last is not None and report.sequence <= last
    if report.key in record.progress_keys:
        return True
    # Too many reports to remember them all: an old one is recognized only by its lower percent.
    is_full = len(record.progress_keys) >= MAX_KEYS
    return is_full and (report.percent or 0) <= ((record.progress or {}).get("percent") or 0)
