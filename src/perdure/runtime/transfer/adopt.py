"""Taking over a session that another program wrote: repaired, at rest, ready for a message."""

import base64
import binascii
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from perdure.core.conversation.repair import Issue
from perdure.core.log import events
from perdure.core.log.events import Stamped
from perdure.core.session.naming import check_id, check_tenant
from perdure.core.session.state import fold
from perdure.core.transfer.foreign import Foreign, convert
from perdure.errors import Conflict, Refused
from perdure.runtime.records.content import store_bytes
from perdure.runtime.records.entries import SessionEntry
from perdure.runtime.records.log import as_record
from perdure.runtime.transfer.create import NewSession, SessionNames, listed, make
from perdure.store.base import HeadMoved, Store, VersionMoved


@dataclass(frozen=True, slots=True)
class Adopted:
    """A session that is here now, and what had to be done for it."""

    known: SessionEntry
    format: str
    events: int
    issues: tuple[Issue, ...]
    notes: tuple[str, ...]
    others: tuple[str, ...]


async def adopt(store: Store, foreign: Foreign, names: SessionNames) -> Adopted:
    """Make the session, in one commit. Conflict SESSION_EXISTS if there is one of that name."""
    if not foreign.said:
        raise Refused("there is no message in it", code="IMPORT_INVALID")
    check_tenant(names.tenant)
    check_id(names.session_id)
    check_id(names.agent, "agent name")
    found = convert(foreign, names.agent, store.now())
    log = [
        Stamped(seq, at, await _kept(store, event)) for seq, (at, event) in enumerate(found.log, 1)
    ]
    record = listed(names, log, fold(log))
    records = [as_record(one.event, one.at) for one in log]
    try:
        known = await make(store, NewSession(record, log, records))
    except (HeadMoved, VersionMoved) as error:
        raise Conflict(
            f"there is a session {names.session_id!r} already",
            code="SESSION_EXISTS",
            hint="give it another id with --as; an import never changes a session",
            details={"sessionID": names.session_id, "tenant": names.tenant},
        ) from error
    return Adopted(known, foreign.format, len(log), found.issues, foreign.notes, foreign.others)


async def _kept(store: Store, event: events.Event) -> events.Event:
    """The event with the bytes of its files stored, as ours are."""
    if isinstance(event, events.User) and isinstance(event.content, list):
        return replace(event, content=await _parts(store, event.content))
    if isinstance(event, events.ToolResult) and isinstance(event.result, list):
        return replace(event, result=await _parts(store, event.result))
    return event


async def _parts(store: Store, parts: Sequence[events.Part]) -> list[events.Part]:
    return [await _part(store, part) for part in parts]


async def _part(store: Store, part: events.Part) -> events.Part:
    if "data" not in part:
        return part
    rest: dict[str, Any] = {key: value for key, value in part.items() if key != "data"}
    try:
        data = base64.b64decode(part["data"])
        return {**rest, "blob": await store_bytes(store, data)}
    except (binascii.Error, ValueError, TypeError, Refused):
        return {"type": "text", "text": f"[a {part.get('mediaType')} that could not be kept]"}
