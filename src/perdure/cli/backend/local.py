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
from perdure.runtime.sessions.verbs.sessions import SessionVerbs
from perdure.tasks.verbs import TaskVerbs
from perdure.views.calls import DecidedCall
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
    def person(self) -> Runtime:
        """The runtime as the person at this terminal uses it."""
        principal = Principal(login_name(), ROLE, on_behalf=True)
        return self.runtime.acting_as(principal, via=VIA)

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
        backend = LocalBackend(runtime)
        options: Any = {"agent": agent, "metadata": metadata, "queue": queue}
        return LocalSession(backend, backend.person.session(session_id, **options))

    async def sessions(self, *, is_complete: bool) -> AsyncIterator[Json]:
        """Iterate over all sessions; unless complete, from their entries alone."""
        async for session in self.verbs.all(is_complete=is_complete):
            yield session.to_json()

    async def pending(self, session: Json | None, status: str | None) -> AsyncIterator[Json]:
        """Iterate over pending calls: open ones, or with this status."""
        runtime = self.person if session is None else self.person.tenant(session["tenant"])
        session_id = None if session is None else session["sessionID"]
        async for call in runtime.pending(session=session_id, status=status):
            yield call.to_json()

    async def pending_call(self, pending_id: str) -> Json:
        """Return one pending call. Raises NotFound."""
        return (await self.verbs.calls.get(pending_id)).to_json()

    async def statistics(self, hours: int) -> Json:
        """Return how many calls were made, settled and expired per hour, and how fast."""
        return (await self.verbs.calls.statistics(hours)).to_json()

    async def settle(self, verb: str, call: Json, options: Options) -> Json:
        """Settle a call, and return it with `duplicate`."""
        person, name, by = self.person.tenant(call["tenant"]), call["id"], options["by"]
        match verb:
            case "approve":
                fields = _picked(options, "by", "args", "note", *_REMEMBERED)
                settled = await person.approve(name, **fields)
            case "deny":
                settled = await person.deny(name, **_picked(options, "by", "reason", *_REMEMBERED))
            case "respond":
                settled = await person.respond(name, options["output"], by=by)
            case "result":
                fields = _picked(options, "by", "title", "metadata")
                settled = await person.submit_result(name, options["output"], **fields)
            case "error":
                settled = await person.submit_error(name, options["message"], by=by)
            case _:
                settled = await person.cancel_call(name, by=by)
        return _settled_json(settled)

    async def decide(self, verb: str, calls: Sequence[Json], options: Options) -> list[Json]:
        """Decide about several calls, all or none, and return each with `duplicate`."""
        text = "reason" if verb == "deny" else "note"
        remember = {"remember": options["remember"], "allTools": options["all_tools"]}
        choice: Any = {"decision": verb, text: options[text], **remember}
        outcomes = await self.person.decide(
            {call["id"]: choice for call in calls}, by=options["by"]
        )
        return [_settled_json(settled) for settled in outcomes]


def _person(tenant: str | None) -> Caller:
    """Return the person at this terminal, in one tenant or in all."""
    principal = Principal(login_name(), ROLE, on_behalf=True)
    return Caller(principal, tenant, VIA, drives=True, trusted_role=ROLE)


_REMEMBERED: Final = ("remember", "all_tools")


def _picked(options: Options, *names: str) -> Json:
    return {name: options[name] for name in names}


def _settled_json(settled: DecidedCall) -> Json:
    shown = settled.to_json()
    del shown["success"]
    return shown


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
        return [event.to_json() for event in await self.session.events(after=after)]

    async def follow(self, *, after: int = 0) -> AsyncIterator[Json]:
        """Iterate over its events after a seq, including those to come."""
        async for item in self.session.follow(after=after):
            yield item.to_json()

    async def stream(self, message: Content | None, key: str | None) -> AsyncIterator[Json]:
        """Drive it here, or follow the worker that drives it."""
        async for item in self.session.stream(message, key=key):
            yield item_json(item)

    async def send(self, message: Content, key: str | None) -> Json:
        """Record a message."""
        await self.session.send(message, key=key)
        return await self.get()

    async def state(self) -> Json:
        """Return the execution states of its paused runs."""
        return (await self.session.state()).to_json()

    async def permissions(self) -> list[Json]:
        """Return the permissions that approvers granted for the rest of it."""
        return [item.to_json() for item in await self.session.permissions()]

    async def revoke(self, number: int, by: str | None) -> None:
        """Revoke the permission with this number."""
        await self.session.revoke(number, by=by)

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
