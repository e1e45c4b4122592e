"""What a command works on, whether a runtime in this process or a server: everything as JSON.

The shapes are those that every door shows, so that a command is written once and prints the same.
"""

from collections.abc import AsyncIterator, Mapping
from typing import Any, Protocol

from perdure.runtime.values import Content

Json = dict[str, Any]
Given = Mapping[str, Any]  # the options of a command


class Handle(Protocol):
    """One session, which need not exist yet."""

    @property
    def id(self) -> str:
        """Its id."""
        ...

    async def get(self) -> Json:
        """The session as it stands now. Raises NotFound."""
        ...

    async def events(self, *, after: int = 0) -> list[Json]:
        """Its events after a seq."""
        ...

    def follow(self, *, after: int = 0) -> AsyncIterator[Json]:
        """Its events after a seq and those to come, for ever."""
        ...

    def stream(self, message: Content | None, key: str | None) -> AsyncIterator[Json]:
        """Go on, perhaps with a message: events, deltas (of type "delta"), the session last."""
        ...

    async def send(self, message: Content, key: str | None) -> Json:
        """Record a message, and answer the session."""
        ...

    async def state(self) -> Json:
        """The states of the runs that are paused in it, its open calls, and for how long."""
        ...

    async def permissions(self) -> list[Json]:
        """What people allowed for the rest of it."""
        ...

    async def revoke(self, number: int, by: str | None) -> None:
        """Ask again about what that number allows. Raises NotFound."""
        ...

    async def hurry(self) -> None:
        """Let a model that is asked again later be asked at once, when it goes on."""
        ...

    async def cancel(self, by: str | None, reason: str | None) -> Json:
        """End its run."""
        ...

    async def compact(self, wanted: Given) -> Json:
        """Let the model summarise it, and answer the session."""
        ...

    async def fork(self, at: int | None, new_id: str | None) -> "Handle":
        """A copy, up to a settled point."""
        ...

    async def delete(self) -> None:
        """Delete it."""
        ...


class Backend(Protocol):
    """Sessions and pending calls, seen from one tenant or from all."""

    def now(self) -> int:
        """The present instant, in ms, for ages."""
        ...

    def drives(self, agent: str) -> bool:
        """Whether streaming a session of this agent drives it here, in the foreground."""
        ...

    def shows_thinking(self, agent: str) -> bool:
        """Whether people are shown what the model of this agent thinks."""
        ...

    def session(
        self,
        session_id: str,
        *,
        tenant: str | None = None,
        agent: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        queue: str | None = None,
    ) -> Handle:
        """The handle of a session; without a tenant in the one that is seen."""
        ...

    def sessions(self, *, whole: bool) -> AsyncIterator[Json]:
        """All of them; unless they must be `whole` perhaps without what only their logs say."""
        ...

    def pending(self, session: Json | None, status: str | None) -> AsyncIterator[Json]:
        """Calls that wait (of one session), or that have this status, or "all"."""
        ...

    async def pending_call(self, pending_id: str) -> Json:
        """One call, settled or not. Raises NotFound."""
        ...

    async def settle(self, verb: str, call: Json, given: Given) -> Json:
        """Give a call its outcome; answers the call, with `duplicate`."""
        ...


def handle_of(backend: Backend, session: Json) -> Handle:
    """The handle of a session that was found."""
    return backend.session(session["sessionID"], tenant=session["tenant"])
