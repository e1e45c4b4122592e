"""The backend on a runtime in this process."""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from perdure.app import Runtime, service_of, tenant_of
from perdure.app.health import statistics_of
from perdure.cli.backend.base import AnyTaskBackend, Handle, Json, Options, TaskBackend
from perdure.cli.settings import login_name
from perdure.core.literals import Role
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
from perdure.hitl.metadata import pause_json
from perdure.runtime.models.base import Delta
from perdure.runtime.records.entries import SessionEntry, SessionRef
from perdure.runtime.sessions.handle import Session
from perdure.runtime.sessions.task_verbs import AnyTaskVerbs
from perdure.runtime.tasks.verbs import TaskVerbs
from perdure.runtime.values import Content
from perdure.runtime.views import (
    Event,
    Result,
    Snapshot,
    permission_json,
    session_json,
    stored_problem,
)

VIA: Final = "cli"
ROLE: Final[Role] = "admin"  # of a person who can open the store: as on a server without tokens


_COMMANDS: Final[dict[str, Callable[[Options], Command]]] = {
    "approve": lambda g: Approve(
        g["by"], VIA, g["args"], g["note"], g["remember"], g["all_tools"], ROLE
    ),
    "deny": lambda g: Deny(g["by"], VIA, g["reason"], g["remember"], g["all_tools"], ROLE),
    "respond": lambda g: Respond(g["by"], VIA, g["output"], ROLE),
    "result": lambda g: SubmitResult(g["output"], g["title"], g["metadata"], g["by"], VIA),
    "error": lambda g: SubmitError(g["message"], g["by"], VIA),
    "cancel": lambda g: CancelCall(g["by"], VIA),
}


async def reap_dead_workers(runtime: Runtime) -> None:
    """Free the leases of workers whose heartbeat stopped.

    Otherwise a session that a killed worker drove still names it as its driver.
    """
    await service_of(runtime).runs.reap()


@dataclass(frozen=True, slots=True)
class LocalBackend:
    """The runtime that the options name."""

    runtime: Runtime

    @property
    def tasks(self) -> TaskBackend:
        """The tasks of the runtime."""
        return TaskVerbs(service_of(self.runtime).tasks, tenant_of(self.runtime))

    @property
    def any_tasks(self) -> AnyTaskBackend:
        """Tasks of every kind of the runtime; those that a command waits for are driven here."""
        service, tenant = service_of(self.runtime), tenant_of(self.runtime)
        return AnyTaskVerbs(service, tenant, login_name(), VIA, drive=True)

    def now(self) -> int:
        """Return the time of the store's clock."""
        return service_of(self.runtime).now()

    def is_driven_here(self, agent: str) -> bool:
        """Return True if the agent is defined here."""
        return service_of(self.runtime).agents.find(agent) is not None

    def may_show_thinking(self, agent: str) -> bool:
        """Return the setting of the agent; False if it is not defined here."""
        ready = service_of(self.runtime).agents.find(agent)
        return ready is not None and ready.agent.show_thinking

    def session(
        self,
        session_id: str,
        *,
        tenant: str | None = None,
        agent: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        queue: str | None = None,
    ) -> Handle:
        """Return the handle of a session. Raises NotFound for an agent that is not defined here."""
        agents = service_of(self.runtime).agents
        if agent is not None and agents.names():
            agents.get(agent)  # a mistyped name must not create a session that no worker drives
        runtime = self.runtime if tenant is None else self.runtime.tenant(tenant)
        handle: Session[Any] = Session(
            service_of(runtime),
            tenant_of(runtime) or "",
            session_id,
            agent=agent,
            metadata=metadata,
            queue=queue,
            via=VIA,
        )
        return LocalSession(runtime, handle)

    async def sessions(self, *, is_complete: bool) -> AsyncIterator[Json]:
        """Iterate over all sessions; unless complete, from their entries alone."""
        service = service_of(self.runtime)
        async for entry in service.sessions(tenant_of(self.runtime), damaged=True):
            if is_complete:
                yield (await service.listed_result(entry)).to_json()
            else:
                problem = stored_problem(entry.record.problem, entry.record.problem_text)
                yield session_json(Snapshot(entry.record, State(), problem=problem))

    async def pending(self, session: Json | None, status: str | None) -> AsyncIterator[Json]:
        """Iterate over pending calls: open ones, or with this status."""
        service = service_of(self.runtime)
        stream = None if session is None else (await session_entry(self.runtime, session)).stream
        tenant = tenant_of(self.runtime)
        async for record in service.calls.list(tenant, status=status, stream=stream):
            yield self._to_json(record)

    async def pending_call(self, pending_id: str) -> Json:
        """Return one pending call. Raises NotFound."""
        calls = service_of(self.runtime).calls
        return self._to_json(await calls.get(pending_id, tenant_of(self.runtime)))

    async def statistics(self, hours: int) -> Json:
        """Return how many calls were made, settled and expired per hour, and how fast."""
        return await statistics_of(self.runtime, hours, tenant_of(self.runtime))

    async def settle(self, verb: str, call: Json, options: Options) -> Json:
        """Settle a call, and return it with `duplicate`."""
        command = _COMMANDS[verb](options)
        outcome = await service_of(self.runtime).calls.settle(call["id"], command, call["tenant"])
        return {**self._to_json(outcome.record), "duplicate": outcome.duplicate}

    async def decide(self, verb: str, calls: Sequence[Json], options: Options) -> list[Json]:
        """Decide about several calls, all or none, and return each with `duplicate`."""
        commands = {call["id"]: _COMMANDS[verb](options) for call in calls}
        outcomes = await service_of(self.runtime).calls.settle_all(
            commands, tenant_of(self.runtime)
        )
        return [
            {**self._to_json(outcome.record), "duplicate": outcome.duplicate}
            for outcome in outcomes
        ]

    def _to_json(self, record: PendingRecord) -> Json:
        return service_of(self.runtime).calls.to_json(record)


async def session_entry(runtime: Runtime, session: Json) -> SessionEntry:
    """Return the entry of a session from its JSON."""
    ref = SessionRef(session["tenant"], session["sessionID"])
    return await service_of(runtime).get(ref)


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
        """Return the session as it stands. A dead worker does not count as its driver."""
        session = (await self.session.get()).to_json()
        if session["driver"] is None:
            return session
        await reap_dead_workers(self.runtime)
        return (await self.session.get()).to_json()

    async def events(self, *, after: int = 0) -> list[Json]:
        """Return its events after a seq."""
        entry = await self._entry()
        events = await service_of(self.runtime).events(entry, after)
        return [event.to_json() for event in events]

    async def follow(self, *, after: int = 0) -> AsyncIterator[Json]:
        """Iterate over its events after a seq, including those to come."""
        service, entry = service_of(self.runtime), await self._entry()
        while True:
            for event in await service.events(entry, after):
                after = event.seq
                yield event.to_json()
            await service.feed.wait_for_change(1.0)

    async def stream(self, message: Content | None, key: str | None) -> AsyncIterator[Json]:
        """Drive it here, or follow the worker that drives it."""
        async for item in self.session.stream(message, key=key, by=login_name()):
            yield _item_json(item)

    async def send(self, message: Content, key: str | None) -> Json:
        """Record a message."""
        await self.session.send(message, key=key, by=login_name())
        return await self.get()

    async def state(self) -> Json:
        """Return the execution states of its paused runs."""
        return await pause_json(service_of(self.runtime), await self._entry())

    async def permissions(self) -> list[Json]:
        """Return the permissions that approvers granted for the rest of it."""
        snapshot = await service_of(self.runtime).snapshot(await self._entry())
        return [permission_json(permission) for permission in snapshot.log_state.permissions]

    async def revoke(self, number: int, by: str | None) -> None:
        """Revoke the permission with this number."""
        entry = await self._entry()
        await service_of(self.runtime).revoke(entry, number, by or login_name(), VIA)

    async def resume(self) -> None:
        """Make it due now, so that a model request that backs off is sent at once."""
        await self.session.resume()

    async def cancel(self, by: str | None, reason: str | None) -> Json:
        """Cancel its run."""
        return (await self.session.cancel(by=by, reason=reason)).to_json()

    async def compact(self, options: Options) -> Json:
        """Let the model summarize it, here or in the worker that drives it."""
        return (await self.session.compact(**options)).to_json()

    async def fork(self, at: int | None, new_id: str | None) -> Handle:
        """Copy it up to an event at which every call is settled."""
        return LocalSession(self.runtime, await self.session.fork(at=at, id=new_id))

    async def delete(self) -> None:
        """Delete it."""
        await self.session.delete()

    async def _entry(self) -> SessionEntry:
        tenant = tenant_of(self.runtime) or ""
        return await session_entry(self.runtime, {"tenant": tenant, "sessionID": self.id})


def _item_json(item: Event | Delta | Result[Any]) -> Json:
    if isinstance(item, Delta):
        delta = {"kind": item.kind, "text": item.text, "callID": item.call_id}
        return {"type": "delta", "data": delta}
    return item.to_json()
