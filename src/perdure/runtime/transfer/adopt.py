"""Adoption of a session that another program wrote: repaired, parked, ready for a message."""

import base64
import binascii
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from perdure.core.conversation.repair import Issue
from perdure.core.log import events
from perdure.core.log.events import StampedEvent
from perdure.core.session.naming import check_id, check_tenant
from perdure.core.session.state import fold
from perdure.core.transfer.foreign import ForeignSession, convert
from perdure.errors import Conflict, Refused
from perdure.runtime.records.content import store_bytes
from perdure.runtime.records.entries import SessionEntry
from perdure.runtime.records.log import as_record
from perdure.runtime.transfer.create import NewSession, SessionNames, create_session, session_record
from perdure.store.base import HeadMoved, Store, VersionMoved


@dataclass(frozen=True, slots=True)
class Adopted:
    """A session that was adopted, and the repairs that it needed."""

    entry: SessionEntry
    format: str
    events: int
    issues: tuple[Issue, ...]
    notes: tuple[str, ...]
    others: tuple[str, ...]


async def adopt(store: Store, foreign: ForeignSession, names: SessionNames) -> Adopted:
    """Create the session, in one commit. Raises Refused, Conflict SESSION_EXISTS."""
    if not foreign.messages:
        raise Refused(
            "it contains no message",
            code="IMPORT_INVALID",
            hint="export the session again where it was written",
        )
    check_tenant(names.tenant)
    check_id(names.session_id)
    check_id(names.agent, "agent name")
    converted = convert(foreign, names.agent, store.now())
    log = [
        StampedEvent(seq, at, await store_files(store, event))
        for seq, (at, event) in enumerate(converted.log, 1)
    ]
    record = session_record(names, log, fold(log))
    records = [as_record(item.event, item.at) for item in log]
    try:
        entry = await create_session(store, NewSession(record, log, records))
    except (HeadMoved, VersionMoved) as error:
        raise Conflict(
            f"session {names.session_id!r} exists already",
            code="SESSION_EXISTS",
            hint="give it another id with --as; an import never changes a session",
            details={"sessionID": names.session_id, "tenant": names.tenant},
        ) from error
    return Adopted(
        entry, foreign.format, len(log), converted.issues, converted.notes, foreign.other_agents
    )


async def store_files(store: Store, event: events.Event) -> events.Event:
    """Return the event with the bytes of its files in the store."""
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
