"""Runs that were under way when their process stopped, where they are not to be gone on with."""

from holdfast.errors import HoldfastError, NotFound
from holdfast.runtime.entries import Known
from holdfast.runtime.log import Log
from holdfast.runtime.service import NO_KIND, Service
from holdfast.store.base import Gone, NoStream

Names = list[str]


async def note_running(service: Service) -> None:
    """Remember what runs now, of agents known here and not by us: we have just begun."""
    async for known in service.sessions(None, "running"):
        is_mine = known.stream in service.host.drives
        if not is_mine and service.agents.find(known.record.agent) is not None:
            service.running_before[known.stream] = known


async def fail_left_alone(service: Service) -> Names:
    """Fail those of them that nobody drives; whose lease has not run out is looked at again."""
    await service.host.claim(NO_KIND, 0)  # by which the store notices who is dead
    failed = []
    for stream, known in tuple(service.running_before.items()):
        log = Log(service.desk.store, stream)
        try:
            await log.catch_up()
            if log.at.holder is not None and log.state.status == "running":
                continue
            del service.running_before[stream]
            if await _is_failed(service, known, log):
                failed.append(known.record.id)
        except (NoStream, Gone, NotFound):
            service.running_before.pop(stream, None)
    return failed


async def _is_failed(service: Service, known: Known, log: Log) -> bool:
    backs_off = log.state.retry is not None  # it was put off, and not left alone
    if log.state.status != "running" or backs_off:
        return False
    error = HoldfastError(
        "it was running when its process stopped, and is not to be gone on with by itself",
        code="INTERRUPTED_RUN",
        hint="recovery.running is fail; to go on: holdfast sessions resume",
    )
    entry = await service.desk.store.get("session", known.entry.key)
    return entry is not None and await service.desk.outside.fail(Known.of(entry), error)
