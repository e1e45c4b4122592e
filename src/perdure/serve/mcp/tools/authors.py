"""Authors of a session: the principals that have sent messages to it."""

from perdure.core.log import events
from perdure.errors import NotFound
from perdure.runtime.records.entries import SessionRef
from perdure.runtime.sessions.service import Service


async def authors_of(service: Service, ref: SessionRef) -> set[str]:
    """Return who has sent messages to a session; nobody if it does not exist."""
    try:
        entry = await service.get(ref)
    except NotFound:
        return set()
    log = await service.log(entry)
    messages = [item.event for item in log.events if isinstance(item.event, events.User)]
    return {message.by for message in messages if message.by}
