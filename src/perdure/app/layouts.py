"""Sessions and pending calls as files: which file shows what in the folder of a files store."""

from bisect import insort
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from perdure.core.pending import record as pending
from perdure.core.session import naming as index
from perdure.errors import Corrupt
from perdure.store.base import Entry
from perdure.store.shared.names import name_of


class SessionFiles:
    """`{session}/events.jsonl`, `storage/pending_tool/{id}.json`, `session/{agent}/{session}.json`.

    A session of a tenant stands under `{tenant}@{session}`.
    """

    def folder(self, stream: str) -> str | None:
        """The name of the folder of a session's log."""
        names = index.names_in(stream)
        return None if names is None else _name(*names)

    def place(self, entry: Entry) -> str | None:
        """The file that shows a session or a pending call; what cannot be read has none."""
        if entry.kind == "pending":
            return f"storage/pending_tool/{name_of(entry.key)}.json"
        if entry.kind != "session":
            return None
        try:
            record = index.decode(entry.data)
        except Corrupt:
            return None
        return f"session/{name_of(record.agent)}/{_name(record.tenant, record.id)}.json"

    def index(self, entries: Iterable[Entry]) -> bytes:
        """Pending calls by session, by status, and by deadline, the next one first."""
        sessions: dict[str, list[str]] = {}
        statuses: dict[str, list[str]] = {}
        deadlines: list[tuple[int, str]] = []
        for entry in entries:
            if entry.kind != "pending":
                continue
            try:
                record = pending.decode(entry.data)
            except Corrupt:
                continue
            insort(sessions.setdefault(record.session_id, []), record.id)
            insort(statuses.setdefault(str(record.status), []), record.id)
            if record.is_open and record.timeout is not None:
                insort(deadlines, (record.timeout, record.id))
        found: dict[str, Any] = {
            "bySession": dict(sorted(sessions.items())),
            "byStatus": dict(sorted(statuses.items())),
            "byExpiration": [{"pendingID": key, "expiresAt": at} for at, key in deadlines],
        }
        return msgspec.json.encode(found)


def _name(tenant: str, session_id: str) -> str:
    return name_of(session_id) if not tenant else f"{name_of(tenant)}@{name_of(session_id)}"


class PendingNames:
    """Sessions by their ids, statuses as the record of a call has them."""

    def session(self, stream: str) -> str:
        """The session that a stream is of; two tenants may have one of the same name."""
        names = index.names_in(stream)
        return stream if names is None else names[1]

    def status(self, entry: Entry) -> str:
        """The status in the record; of one that cannot be read, the state of its entry."""
        try:
            return str(pending.decode(entry.data).status)
        except Corrupt:
            return entry.state

    def statuses(self, state: str) -> Sequence[str]:
        """An open call waits, or is being processed."""
        return ("open", "waiting", "processing") if state == "open" else (state,)
