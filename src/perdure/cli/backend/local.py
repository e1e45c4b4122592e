"""The backend on a runtime in this process."""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from perdure.app import Runtime, service_of, tenant_of
from perdure.cli.backend.shapes import Json, Options, item_json
from perdure.cli.settings import login_name
from perdure.core.roles import Principal
from perdure.runtime.sessions.handle import Session
from perdure.runtime.sessions.task_verbs import AnyTaskVerbs
from perdure.runtime.sessions.verbs.caller import Caller
from perdure.runtime.sessions.verbs.calls import SettledCall
from perdure.runtime.sessions.verbs.sessions import SessionVerbs
from perdure.runtime.tasks.verbs import TaskVerbs
from perdure.views.bodies import (
    ApproveBody,
    ApproveItem,
    DenyBody,
    DenyItem,
    RespondBody,
    ResultIn,
)
from perdure.views.literals import Role
from perdure.views.values import Content

VIA: Final = "cli"
ROLE: Final[Role] = "admin"  # of a person who can open the store: as on a server without tokens


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
    def verbs(self) -> SessionVerbs:
        """The verbs of the person at this terminal."""
        return self.verbs_in(tenant_of(self.runtime))

    def verbs_in(self, tenant: str | None) -> SessionVerbs:
        """The same in one tenant."""
        return SessionVerbs(service_of(self.runtime), _person(tenant))

    @property
    def tasks(self) -> TaskVerbs:
        """The tasks of the runtime."""
        return TaskVerbs(service_of(self.runtime).tasks, tenant_of(self.runtime))

    @property
    def any_tasks(self) -> AnyTaskVerbs:
        """Tasks of every kind of the runtime; those that a command waits for are driven here."""
        return AnyTaskVerbs(service_of(self.runtime), _person(tenant_of(self.runtime)))

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
    ) -> "LocalSession":
        """Return the handle of a session. Raises NotFound for an agent that is not defined here."""
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
        return LocalSession(LocalBackend(runtime), handle)

    async def sessions(self, *, is_complete: bool) -> AsyncIterator[Json]:
        """Iterate over all sessions; unless complete, from their entries alone."""
        async for session in self.verbs.all(is_complete=is_complete):
            yield session.to_json()

    async def pending(self, session: Json | None, status: str | None) -> AsyncIterator[Json]:
        """Iterate over pending calls: open ones, or with this status."""
        verbs = self.verbs if session is None else self.verbs_in(session["tenant"])
        session_id = None if session is None else session["sessionID"]
        async for call in verbs.calls.all(status, session_id):
            yield call.to_json()

    async def pending_call(self, pending_id: str) -> Json:
        """Return one pending call. Raises NotFound."""
        return (await self.verbs.calls.get(pending_id)).to_json()

    async def statistics(self, hours: int) -> Json:
        """Return how many calls were made, settled and expired per hour, and how fast."""
        return (await self.verbs.calls.statistics(hours)).to_json()

    async def settle(self, verb: str, call: Json, options: Options) -> Json:
        """Settle a call, and return it with `duplicate`."""
        calls, name, by = self.verbs_in(call["tenant"]).calls, call["id"], options["by"]
        match verb:
            case "approve":
                body = ApproveBody(**_picked(options, "by", "args", "note", *_REMEMBERED))
                settled = await calls.approve(name, body)
            case "deny":
                denial = DenyBody(**_picked(options, "by", "reason", *_REMEMBERED))
                settled = await calls.deny(name, denial)
            case "respond":
                settled = await calls.respond(name, RespondBody(output=options["output"], by=by))
            case "result":
                result = ResultIn(**_picked(options, "output", "title", "metadata"))
                settled = await calls.submit_result(name, result, by)
            case "error":
                settled = await calls.submit_error(name, options["message"], by)
            case _:
                settled = await calls.cancel(name, by)
        return _settled_json(settled)

    async def decide(self, verb: str, calls: Sequence[Json], options: Options) -> list[Json]:
        """Decide about several calls, all or none, and return each with `duplicate`."""
        item, text = (DenyItem, "reason") if verb == "deny" else (ApproveItem, "note")
        fields = _picked(options, text, *_REMEMBERED)
        items = [item(pending_id=call["id"], **fields) for call in calls]
        outcomes = await self.verbs.calls.decide(items, options["by"])
        return [_settled_json(settled) for settled in outcomes]


def _person(tenant: str | None) -> Caller:
    """Return the person at this terminal, in one tenant or in all."""
    principal = Principal(login_name(), ROLE, on_behalf=True)
    return Caller(principal, tenant, VIA, drives=True, trusted_role=ROLE)


_REMEMBERED: Final = ("remember", "all_tools")


def _picked(options: Options, *names: str) -> Json:
    return {name: options[name] for name in names}


def _settled_json(settled: SettledCall) -> Json:
    return {**settled.call.to_json(), "duplicate": settled.duplicate}


@dataclass(frozen=True, slots=True)
class LocalSession:
    """A session of the runtime, as JSON."""

    backend: LocalBackend
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
        await reap_dead_workers(self.backend.runtime)
        return (await self.session.get()).to_json()

    async def events(self, *, after: int = 0) -> list[Json]:
        """Return its events after a seq."""
        page = await self.backend.verbs.logs.events(self.id, after)
        return [event.to_json() for event in page.events]

    async def follow(self, *, after: int = 0) -> AsyncIterator[Json]:
        """Iterate over its events after a seq, including those to come."""
        async for event in self.backend.verbs.logs.follow(self.id, after):
            yield event.to_json()

    async def stream(self, message: Content | None, key: str | None) -> AsyncIterator[Json]:
        """Drive it here, or follow the worker that drives it."""
        async for item in self.session.stream(message, key=key, by=login_name()):
            yield item_json(item)

    async def send(self, message: Content, key: str | None) -> Json:
        """Record a message."""
        await self.session.send(message, key=key, by=login_name())
        return await self.get()

    async def state(self) -> Json:
        """Return the execution states of its paused runs."""
        return (await self.backend.verbs.paused(self.id)).to_json()

    async def permissions(self) -> list[Json]:
        """Return the permissions that approvers granted for the rest of it."""
        remembered = await self.backend.verbs.permissions(self.id)
        return [item.to_json() for item in remembered.permissions]

    async def revoke(self, number: int, by: str | None) -> None:
        """Revoke the permission with this number."""
        await self.backend.verbs.revoke(self.id, number, by)

    async def resume(self) -> None:
        """Make it due now, so that a model request that backs off is sent at once."""
        await self.session.resume()

    async def cancel(self, by: str | None, reason: str | None) -> Json:
        """Cancel its run."""
        return (await self.session.cancel(by=by, reason=reason)).to_json()

    async def compact(self, options: Options) -> Json:
        """Let the model summarize it, here or in the worker that drives it."""
        return (await self.session.compact(**options)).to_json()

    async def fork(self, at: int | None, new_id: str | None) -> "LocalSession":
        """Copy it up to an event at which every call is settled."""
        return LocalSession(self.backend, await self.session.fork(at=at, id=new_id))

    async def delete(self) -> None:
        """Delete it."""
        await self.session.delete()
