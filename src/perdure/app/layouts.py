"""File layout of a files store: the files of sessions and pending calls in its folder."""

from bisect import insort
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import msgspec

from perdure.core.pending import record as pending
from perdure.core.session import naming as index
from perdure.errors import Corrupt
from perdure.store.base import Entry
from perdure.store.shared.names import file_name


class SessionFiles:
    """`{session}/events.jsonl`, and in `storage` one file per pending call and session.

    These are `pending_tool/{id}.json` and `session/{agent}/{session}.json`. The name of a tenant's
    session is `{tenant}@{session}`.
    """

    kinds: Collection[str] = ("pending", "session")
    indexed_kind: str | None = "pending"

    def folder(self, stream: str) -> str | None:
        """Return the name of the folder of a session's log."""
        names = index.parse_session_stream(stream)
        return None if names is None else _name(*names)

    def file_path(self, entry: Entry) -> str | None:
        """Return the file of a session or a pending call; None if its entry cannot be read."""
        if entry.kind == "pending":
            return f"storage/pending_tool/{file_name(entry.key)}.json"
        if entry.kind != "session":
            return None
        try:
            record = index.decode(entry.data)
        except Corrupt:
            return None
        return f"storage/session/{file_name(record.agent)}/{_name(record.tenant, record.id)}.json"

    def content(self, entry: Entry) -> bytes:
        """Return the data of the entry; that of a pending call always states its status."""
        if entry.kind != "pending":
            return entry.data
        try:
            status = str(pending.decode(entry.data).status)
        except Corrupt:
            return entry.data
        return msgspec.json.encode({**msgspec.json.decode(entry.data), "status": status})

    def index(self, entries: Iterable[Entry]) -> bytes:
        """Return pending calls by session, by status and by deadline, the next deadline first."""
        sessions: dict[str, list[str]] = {}
        statuses: dict[str, list[str]] = {}
        deadlines: list[tuple[int, str]] = []
        for entry in entries:
            try:
                record = pending.decode(entry.data)
            except Corrupt:
                continue
            insort(sessions.setdefault(record.session_id, []), record.id)
            insort(statuses.setdefault(str(record.status), []), record.id)
            if record.is_open and record.timeout is not None:
                insort(deadlines, (record.timeout, record.id))
        data: dict[str, Any] = {
            "bySession": dict(sorted(sessions.items())),
            "byStatus": dict(sorted(statuses.items())),
            "byExpiration": [{"pendingID": key, "expiresAt": at} for at, key in deadlines],
        }
        return msgspec.json.encode(data)


def _name(tenant: str, session_id: str) -> str:
    return file_name(session_id) if not tenant else f"{file_name(tenant)}@{file_name(session_id)}"


class PendingNames:
    """Names in the index of pending calls: session ids, and the statuses of records."""

    def session(self, stream: str) -> str:
        """Return the session id of a stream; two tenants may use the same id."""
        names = index.parse_session_stream(stream)
        return stream if names is None else names[1]

    def status(self, entry: Entry) -> str:
        """Return the status of the record; if it cannot be read, the state of its entry."""
        try:
            return str(pending.decode(entry.data).status)
        except Corrupt:
            return entry.state

    def statuses(self, state: str) -> Sequence[str]:
        """Return the statuses of a state: an open call waits, or is processed."""
        return ("open", "waiting", "processing") if state == "open" else (state,)
