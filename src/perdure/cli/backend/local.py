"""A runtime in this process, as commands work on it."""

from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from perdure.app import Runtime, service_of, tenant_of
from perdure.cli.backend.base import Given, Handle, Json
from perdure.cli.settings import login_name
from perdure.core.pending.commands import (
    Approve,
    CancelCall,
    Command,
    Deny,
    Respond,
    SubmitError,
    SubmitResult,
)
from perdure.core.pending.record import PendingRecord
from perdure.core.session.state import State
from perdure.hitl.showing import pause_json
from perdure.runtime.models.base import Delta
from perdure.runtime.records.entries import SessionEntry, SessionRef
from perdure.runtime.sessions.handle import Session
from perdure.runtime.sessions.service import NO_KIND
from perdure.runtime.values import Content
from perdure.runtime.views import (
    Event,
    Result,
    Snapshot,
    pending_json,
    permission_json,
    problem_of,
    session_json,
)

VIA: Final = "cli"


_COMMANDS: Final[dict[str, Callable[[Given], Command]]] = {
    "approve": lambda g: Approve(g["by"], VIA, g["args"], g["note"], g["remember"]),
    "deny": lambda g: Deny(g["by"], VIA, g["reason"]),
    "respond": lambda g: Respond(g["by"], VIA, g["output"]),
    "result": lambda g: SubmitResult(g["output"], g["title"], g["metadata"], g["by"], VIA),
    "error": lambda g: SubmitError(g["message"], g["by"], VIA),
    "cancel": lambda g: CancelCall(g["by"], VIA),
}


async def reap_dead_workers(runtime: Runtime) -> None:
    """Let the store notice workers whose lease has run out, as any claim does.

    Until somebody claims, a session that a killed worker held still names it as its driver.
    """
    await service_of(runtime).host.claim(NO_KIND, 0)


@dataclass(frozen=True, slots=True)
class Local:
    """The runtime that the options name."""

    runtime: Runtime

    def now(self) -> int:
        """The store's clock."""
        return service_of(self.runtime).desk.store.now()

    def drives(self, agent: str) -> bool:
        """Whether the agent is known here."""
        return service_of(self.runtime).agents.find(agent) is not None

    def shows_thinking(self, agent: str) -> bool:
        """As the agent says, where it is known."""
        found = service_of(self.runtime).agents.find(agent)
        return found is not None and found.agent.show_thinking

    def session(
        self,
        session_id: str,
        *,
        tenant: str | None = None,
        agent: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        queue: str | None = None,
    ) -> Handle:
        """The handle of a session. Raises NotFound for an agent that nobody here knows."""
        agents = service_of(self.runtime).agents
        if agent is not None and agents.names():
            agents.get(agent)  # a mistyped name must not become a session that nobody ever drives
        seen = self.runtime if tenant is None else self.runtime.tenant(tenant)
        handle = seen.session(session_id, agent=agent, metadata=metadata, queue=queue)
        return LocalSession(seen, handle)

    async def sessions(self, *, whole: bool) -> AsyncIterator[Json]:
        """All of them; unless they must be whole, as their entries say."""
        service = service_of(self.runtime)
        async for known in service.sessions(tenant_of(self.runtime)):
            if whole:
                yield (await service.listed(known)).to_json()
            else:
                problem = problem_of(known.record.problem, known.record.problem_text)
                yield session_json(Snapshot(known.record, State(), problem=problem))

    async def pending(self, session: Json | None, status: str | None) -> AsyncIterator[Json]:
        """Calls that wait, or that have this status."""
        service = service_of(self.runtime)
        stream = None if session is None else (await known_of(self.runtime, session)).stream
        tenant = tenant_of(self.runtime)
        async for record in service.pending(tenant, status=status, stream=stream):
            yield self._shown(record)

    async def pending_call(self, pending_id: str) -> Json:
        """One call. Raises NotFound."""
        settling = service_of(self.runtime).desk.settling
        return self._shown(await settling.pending(pending_id, tenant_of(self.runtime)))

    async def settle(self, verb: str, call: Json, given: Given) -> Json:
        """Give a call its outcome."""
        command = _COMMANDS[verb](given)
        outcome = await service_of(self.runtime).settle(call["id"], command, call["tenant"])
        return {**self._shown(outcome.record), "duplicate": outcome.duplicate}

    def _shown(self, record: PendingRecord) -> Json:
        desk = service_of(self.runtime).desk
        return pending_json(record, desk.pending_call(record).callback_url)


async def known_of(runtime: Runtime, session: Json) -> SessionEntry:
    """The entry of a session that was found."""
    address = SessionRef(session["tenant"], session["sessionID"])
    return await service_of(runtime).desk.outside.known(address)


@dataclass(frozen=True, slots=True)
class LocalSession:
    """A session of the runtime, as JSON."""

    runtime: Runtime
    session: Session[Any]

    @property
    def id(self) -> str:
        """Its id."""
        return self.session.id

    async def get(self) -> Json:
        """The session as it stands; a driver that is dead is none."""
        found = (await self.session.get()).to_json()
        if found["driver"] is None:
            return found
        await reap_dead_workers(self.runtime)
        return (await self.session.get()).to_json()

    async def events(self, *, after: int = 0) -> list[Json]:
        """Its events after a seq."""
        known = await self._known()
        found = await service_of(self.runtime).events(known, after)
        return [event.to_json() for event in found]

    async def follow(self, *, after: int = 0) -> AsyncIterator[Json]:
        """Its events after a seq and those to come."""
        service, known = service_of(self.runtime), await self._known()
        while True:
            for event in await service.events(known, after):
                after = event.seq
                yield event.to_json()
            await service.desk.store.changed(1.0)

    async def stream(self, message: Content | None, key: str | None) -> AsyncIterator[Json]:
        """Drive it here, or watch whoever does."""
        async for item in self.session.stream(message, key=key):
            yield _shown(item)

    async def send(self, message: Content, key: str | None) -> Json:
        """Record a message."""
        await self.session.send(message, key=key)
        return await self.get()

    async def state(self) -> Json:
        """The states of its paused runs."""
        return await pause_json(service_of(self.runtime), await self._known())

    async def permissions(self) -> list[Json]:
        """What people allowed for the rest of it."""
        seen = await service_of(self.runtime).sight(await self._known())
        return [permission_json(one) for one in seen.folded.allowed]

    async def revoke(self, number: int, by: str | None) -> None:
        """Ask again about what that number allows."""
        known = await self._known()
        await service_of(self.runtime).revoke(known, number, by or login_name(), VIA)

    async def hurry(self) -> None:
        """Wait for nothing but people and results."""
        await self.session.resume()

    async def cancel(self, by: str | None, reason: str | None) -> Json:
        """End its run."""
        return (await self.session.cancel(by=by, reason=reason)).to_json()

    async def compact(self, wanted: Given) -> Json:
        """Let the model summarise it, here or wherever it is driven."""
        return (await self.session.compact(**wanted)).to_json()

    async def fork(self, at: int | None, new_id: str | None) -> Handle:
        """A copy, up to a settled point."""
        return LocalSession(self.runtime, await self.session.fork(at=at, id=new_id))

    async def delete(self) -> None:
        """Delete it."""
        await self.session.delete()

    async def _known(self) -> SessionEntry:
        tenant = tenant_of(self.runtime) or ""
        return await known_of(self.runtime, {"tenant": tenant, "sessionID": self.id})


def _shown(item: Event | Delta | Result[Any]) -> Json:
    if isinstance(item, Delta):
        told = {"kind": item.kind, "text": item.text, "callID": item.call_id}
        return {"type": "delta", "data": told}
    return item.to_json()
