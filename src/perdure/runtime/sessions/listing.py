"""Sessions in pages: those that fit, from a cursor on, without reading logs that cannot fit."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from perdure.core.session.naming import SessionRecord
from perdure.errors import NotFound
from perdure.runtime.records.entries import SessionEntry, readable
from perdure.runtime.sessions.service import Service
from perdure.runtime.views import Result
from perdure.store.shared.paging import cursor_of

_PAGE: Final = 500
_OVER: Final = ("completed", "failed", "cancelled")


@dataclass(frozen=True, slots=True)
class SessionFilter:
    """Which sessions; what is None is not asked for. Metadata is compared as text or as JSON."""

    tenant: str | None = None
    state: str | None = None
    agent: str | None = None
    parent: str | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    search: str | None = None

    def fits(self, record: SessionRecord) -> bool:
        """Whether the session can be meant, by what its entry says."""
        return (
            self.tenant in (None, record.tenant)
            and self.agent in (None, record.agent)
            and self.parent in (None, record.parent)
            and self._may_be(record)
            and all(_same(record.metadata.get(k), v) for k, v in self.metadata.items())
            and (self.search or "").lower() in f"{record.id} {record.title}".lower()
        )

    def _may_be(self, record: SessionRecord) -> bool:
        """An entry knows which runs are over; where the others stand, their log says."""
        if self.state is None:
            return True
        return record.state == self.state if self.state in _OVER else not record.is_over


def _same(value: Any, text: str) -> bool:
    return value == text or (value is not None and msgspec.json.encode(value) == text.encode())


async def page_of(
    service: Service, wanted: SessionFilter, after: str | None, limit: int
) -> tuple[list[Result[Any]], str | None]:
    """Up to `limit` sessions after a key, by key, and the key after which there are more."""
    last, cursor = after, None if after is None else cursor_of((0, after))
    found: list[Result[Any]] = []
    while True:
        page = await service.desk.store.find("session", after=cursor, limit=_PAGE)
        for known in readable(page.entries, SessionEntry.of):
            result = await _result(service, wanted, known)
            if result is None:
                continue
            if len(found) == limit:
                return found, last
            found.append(result)
            last = known.entry.key
        if page.next is None:
            return found, None
        cursor = page.next


async def _result(
    service: Service, wanted: SessionFilter, known: SessionEntry
) -> Result[Any] | None:
    if not wanted.fits(known.record):
        return None
    try:
        result = await service.listed(known)
    except NotFound:
        return None  # deleted meanwhile
    return result if wanted.state in (None, result.state) else None
