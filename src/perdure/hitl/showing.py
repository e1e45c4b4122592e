"""A paused session as every door shows it: where its run stands, what it waits for, since when."""

from typing import Any

from perdure.core.log.events import PENDING_EXECUTIONS
from perdure.hitl.saving import metadata_of
from perdure.runtime.records.entries import SessionEntry
from perdure.runtime.sessions.service import Service


async def pause_json(service: Service, known: SessionEntry) -> dict[str, Any]:
    """Its open calls and the states of its paused runs; `age` is how long it waits, in ms."""
    session = (await service.result(known)).to_json()
    metadata = await metadata_of(service, known)
    now = service.desk.store.now()
    since = min((call["time"]["created"] for call in session["pending"]), default=now)
    return {
        **{name: session[name] for name in ("sessionID", "state", "pending")},
        PENDING_EXECUTIONS: metadata.get(PENDING_EXECUTIONS, {}),
        "age": now - since,
    }
