"""Transfers: fork, export, import and adoption of sessions."""

from collections.abc import AsyncIterator, Iterable
from typing import NamedTuple

from perdure.core.transfer.foreign import ForeignSession
from perdure.errors import Corrupt
from perdure.runtime.inbox.children import ChildInbox
from perdure.runtime.inbox.sessions import SessionInbox
from perdure.runtime.records.entries import SessionEntry, SessionRef, all_readable
from perdure.runtime.sessions.runs import Runs
from perdure.runtime.transfer.adopt import Adopted, adopt
from perdure.runtime.transfer.create import NewSession, SessionNames, create_session
from perdure.runtime.transfer.exports import export_lines
from perdure.runtime.transfer.fork import fork
from perdure.runtime.transfer.imports import ImportReport, import_lines
from perdure.store.base import Store


class SessionExport(NamedTuple):
    """The lines of one session, which are read when they are asked for."""

    tenant: str
    session_id: str
    lines: AsyncIterator[bytes]


class Transfers:
    """Sessions copied within a store, written as lines, and created from them."""

    def __init__(self, store: Store, inbox: SessionInbox, children: ChildInbox, runs: Runs) -> None:
        self._store = store
        self._inbox = inbox
        self._children = children
        self._runs = runs

    async def fork(
        self, entry: SessionEntry, *, at: int | None = None, session_id: str | None = None
    ) -> SessionEntry:
        """Copy a session up to the last settled point, not after event `at`."""
        return await fork(self._store, entry, at=at, session_id=session_id)

    async def export(self, entry: SessionEntry, *, secrets: bool = False) -> AsyncIterator[bytes]:
        """Yield a session as lines of JSON, with its background agents after it.

        Raises Corrupt after all that can be read.
        """
        damage: list[Corrupt] = []
        async for session in self.tree(entry):
            try:
                async for line in export_lines(self._store, session, secrets=secrets):
                    yield line
            except Corrupt as error:
                damage.append(error)
        if damage:
            raise damage[0]

    async def tree(self, entry: SessionEntry) -> AsyncIterator[SessionEntry]:
        """Yield a session, and after it the sessions of the background agents below it."""
        yield entry
        async for item in self._children.tasks_of(entry.stream):
            child = await self._runs.find_child(item.task)
            if child is not None and child.stream != entry.stream:
                async for session in self.tree(child):
                    yield session

    async def exports(
        self, tenant: str | None, names: Iterable[tuple[str, str]] | None, *, secrets: bool
    ) -> AsyncIterator[SessionExport]:
        """Yield the exports of these sessions with their background agents, or of all, each once.

        Their lines raise Corrupt after all that can be read.
        """
        entries: dict[str, SessionEntry] = {}
        if names is None:
            async for entry in all_readable(self._store, "session", SessionEntry.decode_listed):
                if tenant is None or entry.record.tenant == tenant:
                    entries[entry.stream] = entry
        for name in names or ():
            root = await self._inbox.session_entry(SessionRef(*name))
            entries |= {item.stream: item async for item in self.tree(root)}
        for entry in entries.values():
            lines = self._export_single(entry, secrets=secrets)
            yield SessionExport(entry.record.tenant, entry.record.id, lines)

    async def _export_single(self, entry: SessionEntry, *, secrets: bool) -> AsyncIterator[bytes]:
        if entry.is_damaged:
            SessionEntry.decode(entry.index_entry)
        async for line in export_lines(self._store, entry, secrets=secrets):
            yield line

    async def import_lines(self, lines: Iterable[bytes], tenant: str | None = None) -> ImportReport:
        """Create the sessions of an export. Raises Refused, Conflict."""
        return await import_lines(self._store, lines, tenant)

    async def adopt(self, foreign: ForeignSession, names: SessionNames) -> Adopted:
        """Create a session that another program wrote. Raises Refused, Conflict."""
        return await adopt(self._store, foreign, names)

    async def restore(self, session: NewSession) -> SessionEntry:
        """Create a session from its log. Raises HeadMoved or VersionMoved if it exists."""
        return await create_session(self._store, session)
