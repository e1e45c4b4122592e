"""Pages of sessions that match a filter; logs are read only where an entry may match."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from perdure.core.session.naming import SessionRecord, session_key
from perdure.errors import NotFound
from perdure.runtime.records.entries import SessionEntry
from perdure.runtime.sessions.service import Service
from perdure.runtime.views import Result
from perdure.store.shared.paging import page_cursor

_PAGE: Final = 500
_END_STATES: Final = ("completed", "failed", "cancelled")


@dataclass(frozen=True, slots=True)
class SessionFilter:
    """Filter of a list of sessions; None matches all. Metadata is compared as text or as JSON."""

    tenant: str | None = None
    state: str | None = None
    agent: str | None = None
    parent: str | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    search: str | None = None

    def may_match(self, record: SessionRecord) -> bool:
        """Report whether a session may match, by its entry."""
        return (
            self.tenant in (None, record.tenant)
            and self.agent in (None, record.agent)
            and self.parent in (None, record.parent)
            and self._may_have_state(record)
            and all(_is_equal(record.metadata.get(k), v) for k, v in self.metadata.items())
            and (self.search or "").lower() in f"{record.id} {record.title}".lower()
        )

    def _may_have_state(self, record: SessionRecord) -> bool:
        """An entry says which runs are over; the state of other runs is only in their log."""
        if self.state is None:
            return True
        return record.state == self.state if self.state in _END_STATES else not record.is_over


def _is_equal(value: Any, text: str) -> bool:
    return value == text or (value is not None and msgspec.json.encode(value) == text.encode())


async def session_page(
    service: Service, session_filter: SessionFilter, after: str | None, limit: int
) -> tuple[list[Result[Any]], str | None]:
    """Return up to `limit` sessions after a key, in order, and the key after which more follow."""
    # The keys of a tenant's sessions have a common beginning, and are read without the others'.
    prefix = "" if session_filter.tenant is None else session_key(session_filter.tenant, "")
    last, start = after, after or prefix
    cursor = page_cursor((0, start)) if start else None
    results: list[Result[Any]] = []
    while True:
        page = await service.session_page(cursor, _PAGE)
        for entry in map(SessionEntry.decode_listed, page.entries):
            if not entry.index_entry.key.startswith(prefix):
                return results, None
            result = await _result(service, session_filter, entry)
            if result is None:
                continue
            if len(results) == limit:
                return results, last
            results.append(result)
            last = entry.index_entry.key
        if page.next is None:
            return results, None
        cursor = page.next


async def _result(
    service: Service, session_filter: SessionFilter, entry: SessionEntry
) -> Result[Any] | None:
    if not session_filter.may_match(entry.record):
        return None
    try:
        result = await service.listed_result(entry)
    except NotFound:
        return None  # deleted meanwhile
    return result if session_filter.state in (None, result.state) else None
