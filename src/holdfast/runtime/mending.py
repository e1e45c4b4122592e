"""Making a damaged session anew from what can be read of it; the original is kept in a file."""

from dataclasses import dataclass, replace
from pathlib import Path

from holdfast.core.transfer.salvage import salvaged
from holdfast.errors import Conflict
from holdfast.runtime.checkup_session import SessionCheckup
from holdfast.runtime.making import going_on, make
from holdfast.store.base import Gone, Store
from holdfast.store.inspect import Look


@dataclass(frozen=True, slots=True)
class Mended:
    """What was done to one session."""

    session_id: str
    tenant: str
    events: int
    lost: int
    original: Path


async def mend(store: Store, look: Look, found: SessionCheckup) -> Mended:
    """Keep the original, then make the session anew under its name, in one commit.

    Conflict BEING_RESUMED if somebody drives it: what is being written cannot be looked at.
    """
    tenant, session_id, *_ = found.names
    if found.is_held:
        raise Conflict(
            f"session {session_id!r} is driven by {found.look.holder}",
            code="BEING_RESUMED",
            hint="stop the workers first",
        )
    lost = len(found.log.unreadable) + len(found.log.missing)
    told = [
        {"type": check.code, "details": check.text}
        for check in found.checks()
        if check.level == "corrupt"
    ]
    now = store.now()
    log = salvaged(found.log.events, told, now)
    making = going_on(found.names, log, now)
    original = look.keep_original(found.look.stream)
    try:
        await make(store, replace(making, replaces=found.look.stream))
    except Gone:  # deleted meanwhile: then nothing is to be made
        return Mended(session_id, tenant, 0, lost, original)
    return Mended(session_id, tenant, len(log), lost, original)
