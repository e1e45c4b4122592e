"""The backend on a server, through its HTTP client."""

import os
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from perdure.cli.backend.shapes import Json, Options, item_json
from perdure.cli.process import run_async
from perdure.cli.settings import Settings, login_name
from perdure.client import Client, RemoteSession
from perdure.client.sandbox_tasks import RemoteSandboxTasks
from perdure.client.tasks import RemoteTasks
from perdure.errors import ConfigError, PerdureError
from perdure.views.values import Content

R = TypeVar("R")

TOKEN: Final = "PERDURE_TOKEN"  # noqa: S105 - the name of the variable
PATIENCE_S: Final = 3.0  # short, because a person is waiting
# A server's hints are HTTP requests; a user of the command line gets the command instead.
_COMMANDS: Final = (
    (re.compile(r"GET /(pending|sessions)"), r"perdure \1 list"),
    (re.compile(r"GET /(pending|sessions)/(\S+)"), r"perdure \1 show \2"),
    (re.compile(r"GET /sessions/(\S+)/permissions"), r"perdure sessions permissions \1"),
    (re.compile(r"POST /sessions/(\S+)/resume"), r"perdure sessions resume \1"),
)


def with_server(settings: Settings, main: Callable[["RemoteBackend"], Awaitable[R]]) -> R:
    """Await `main` with the server that the options name. Raises the errors of the server."""
    if settings.config or settings.app or settings.store:
        raise ConfigError(
            "--server cannot be combined with --config, --app or --store",
            code="OPTIONS_CLASH",
            hint="remove them: the server has its own store and agents",
        )
    token = _token(settings)
    client = Client(settings.server or "", token, tenant=settings.tenant, patience=PATIENCE_S)
    by = login_name() if token is None else None  # a token has a name

    async def inside() -> R:
        async with client:
            return await main(RemoteBackend(client, by))

    try:
        return run_async(inside)
    except PerdureError as error:
        error.hint = _as_command(error.hint)
        if error.code == "NOT_AUTHENTICATED":
            error.hint = _token_hint(settings, token)
        raise


def _token_hint(settings: Settings, token: str | None) -> str:
    if token is None:
        return f"set {TOKEN} to a token of this server, or pass --token-file FILE"
    source = TOKEN if settings.token_file is None else settings.token_file
    return f"{source} is not a token of this server: see server.tokens, or {TOKEN}, of its operator"


def _token(settings: Settings) -> str | None:
    """Return the token. It is never an argument, since other users can read those."""
    if settings.token_file is None:
        return os.environ.get(TOKEN) or None
    try:
        return Path(settings.token_file).read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise ConfigError(
            f"the token file {settings.token_file} cannot be read: {reason}",
            code="TOKEN_UNREADABLE",
            hint=f"check --token-file, or put the token into {TOKEN}",
        ) from error


def _as_command(hint: str | None) -> str | None:
    for request, command in _COMMANDS:
        if hint and request.fullmatch(hint):
            return request.sub(command, hint)
    return hint


@dataclass(frozen=True, slots=True)
class RemoteBackend:
    """The server that the options name."""

    client: Client
    by: str | None  # the login name, where there is no token with a name

    @property
    def tasks(self) -> RemoteSandboxTasks:
        """The tasks with a workspace of the server."""
        return self.client.sandbox_tasks

    @property
    def any_tasks(self) -> RemoteTasks:
        """Tasks of every kind of the server."""
        return self.client.tasks

    def now(self) -> int:
        """Return the time of this machine."""
        return time.time_ns() // 1_000_000

    def is_driven_here(self, agent: str) -> bool:
        """Return False: workers of the server drive the sessions."""
        del agent
        return False

    def may_show_thinking(self, agent: str) -> bool:
        """Return False: the settings of the server's agents are not known here."""
        del agent
        return False

    def session(
        self,
        session_id: str,
        *,
        tenant: str | None = None,
        agent: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        queue: str | None = None,
    ) -> "ServerSession":
        """Return the handle of a session."""
        client = self.client if not tenant else self.client.tenant(tenant)
        handle = client.session(session_id, agent=agent, metadata=metadata, queue=queue)
        return ServerSession(handle, self.by)

    async def sessions(self, *, is_complete: bool) -> AsyncIterator[Json]:
        """Iterate over all sessions, always complete."""
        del is_complete
        async for session in self.client.sessions():
            yield session.to_json()

    async def pending(self, session: Json | None, status: str | None) -> AsyncIterator[Json]:
        """Iterate over pending calls: open ones, or with this status."""
        tenant, name = ("", None) if session is None else (session["tenant"], session["sessionID"])
        client = self.client.tenant(tenant) if tenant else self.client
        async for call in client.pending(session=name, status=status):
            yield call.to_json()

    async def pending_call(self, pending_id: str) -> Json:
        """Return one pending call. Raises NotFound."""
        return (await self.client.pending_call(pending_id)).to_json()

    async def statistics(self, hours: int) -> Json:
        """Return how many calls were made, settled and expired per hour, and how fast."""
        return (await self.client.statistics(hours)).to_json()

    async def settle(self, verb: str, call: Json, options: Options) -> Json:
        """Settle a call, and return it with `duplicate`."""
        fields: Json = {"by": options["by"] or self.by}
        match verb:
            case "approve":
                fields |= {"args": options["args"], "note": options["note"]}
                fields |= _remember(options)
                response = await self.client.approve(call["id"], **fields)
            case "deny":
                fields |= {"reason": options["reason"], **_remember(options)}
                response = await self.client.deny(call["id"], **fields)
            case "respond":
                response = await self.client.respond(call["id"], options["output"], **fields)
            case "result":
                fields |= {"title": options["title"], "metadata": options["metadata"]}
                response = await self.client.submit_result(call["id"], options["output"], **fields)
            case "error":
                response = await self.client.submit_error(call["id"], options["message"], **fields)
            case _:
                response = await self.client.cancel_call(call["id"], **fields)
        shown: Json = response.to_json()
        del shown["success"]
        return shown

    async def decide(self, verb: str, calls: Sequence[Json], options: Options) -> list[Json]:
        """Decide about several calls, all or none, and return each with `duplicate`."""
        remember = _remember(options)
        fields = {
            "note": options.get("note"),
            "reason": options.get("reason"),
            "remember": remember["remember"],
            "allTools": remember["all_tools"],
        }
        choice: Json = {name: value for name, value in fields.items() if value is not None}
        choice["decision"] = verb
        decisions: Any = {call["id"]: choice for call in calls}
        decided = await self.client.decide(decisions, by=options["by"] or self.by)
        return [call.to_json() for call in decided]


def _remember(options: Options) -> Json:
    return {"remember": options["remember"], "all_tools": options["all_tools"]}


@dataclass(frozen=True, slots=True)
class ServerSession:
    """A session of the server."""

    session: RemoteSession
    by: str | None

    @property
    def id(self) -> str:
        """Its id."""
        return self.session.id

    async def get(self) -> Json:
        """Return the session as it stands."""
        return (await self.session.get()).to_json()

    async def events(self, *, after: int = 0) -> list[Json]:
        """Return its events after a seq."""
        return [event.to_json() for event in await self.session.events(after=after)]

    async def follow(self, *, after: int = 0) -> AsyncIterator[Json]:
        """Iterate over its events after a seq, including those to come."""
        async for event in self.session.follow(after=after):
            yield item_json(event)

    async def stream(self, message: Content | None, key: str | None) -> AsyncIterator[Json]:
        """Let the server continue it, and follow."""
        async for item in self.session.stream(message, key=key, by=self.by):
            yield item_json(item)

    async def send(self, message: Content, key: str | None) -> Json:
        """Record a message."""
        return (await self.session.send(message, key=key, by=self.by)).to_json()

    async def state(self) -> Json:
        """Return the execution states of its paused runs."""
        return (await self.session.state()).to_json()

    async def permissions(self) -> list[Json]:
        """Return the permissions that approvers granted for the rest of it."""
        return [item.to_json() for item in await self.session.permissions()]

    async def revoke(self, number: int, by: str | None) -> None:
        """Revoke the permission with this number."""
        await self.session.revoke(number, by=by or self.by)

    async def resume(self) -> None:
        """Do nothing: for a server, streaming without a message already resumes the session."""

    async def cancel(self, by: str | None, reason: str | None) -> Json:
        """Cancel its run."""
        return (await self.session.cancel(by=by or self.by, reason=reason)).to_json()

    async def compact(self, options: Options) -> Json:
        """Let the model summarize it."""
        fields = {**options, "by": options["by"] or self.by}
        return (await self.session.compact(**fields)).to_json()

    async def fork(self, at: int | None, new_id: str | None) -> "ServerSession":
        """Copy it up to an event at which every call is settled."""
        return ServerSession(await self.session.fork(at=at, id=new_id), self.by)

    async def delete(self) -> None:
        """Delete it."""
        await self.session.delete()
