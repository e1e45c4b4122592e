"""A server, as commands work on it: the same verbs through its client."""

import base64
import os
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import anyio

from perdure.cli.backend.base import Backend, Given, Handle, Json
from perdure.cli.settings import Settings, login_name
from perdure.client import Client, RemoteSession
from perdure.errors import ConfigError, PerdureError
from perdure.runtime.values import Content, File

R = TypeVar("R")

TOKEN: Final = "PERDURE_TOKEN"  # noqa: S105 - the name of the variable
PATIENCE_S: Final = 3.0  # somebody sits there and waits
# Hints of a server are requests; who typed a command is told the command instead.
_COMMANDS: Final = (
    (re.compile(r"GET /(pending|sessions)"), r"perdure \1 list"),
    (re.compile(r"GET /(pending|sessions)/(\S+)"), r"perdure \1 show \2"),
    (re.compile(r"GET /sessions/(\S+)/permissions"), r"perdure sessions permissions \1"),
    (re.compile(r"POST /sessions/(\S+)/resume"), r"perdure sessions resume \1"),
)


def served(settings: Settings, main: Callable[[Backend], Awaitable[R]]) -> R:
    """Await `main` with the server that the options name. Raises what the server refuses."""
    if settings.config or settings.app or settings.store:
        raise ConfigError(
            "--server goes with neither --config, --app nor --store",
            code="OPTIONS_CLASH",
            hint="the server knows its own store and agents",
        )
    token = _token(settings)
    client = Client(settings.server or "", token, tenant=settings.tenant, patience=PATIENCE_S)
    by = login_name() if token is None else None  # a token has a name

    async def inside() -> R:
        async with client:
            return await main(Remote(client, by))

    try:
        return anyio.run(inside)
    except PerdureError as error:
        error.hint = _as_command(error.hint)
        raise


def _token(settings: Settings) -> str | None:
    """The token: never an argument, for everybody on the machine can read those."""
    if settings.token_file is None:
        return os.environ.get(TOKEN) or None
    try:
        return Path(settings.token_file).read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise ConfigError(
            f"the token file {settings.token_file} cannot be read: {why}",
            code="TOKEN_UNREADABLE",
            hint=f"or put the token into {TOKEN}",
        ) from error


def _as_command(hint: str | None) -> str | None:
    for request, command in _COMMANDS:
        if hint and request.fullmatch(hint):
            return request.sub(command, hint)
    return hint


@dataclass(frozen=True, slots=True)
class Remote:
    """The server that the options name."""

    client: Client
    by: str | None  # who types, where no token says it

    def now(self) -> int:
        """The clock of this machine."""
        return time.time_ns() // 1_000_000

    def drives(self, agent: str) -> bool:
        """A session is driven where the server is, never here."""
        del agent
        return False

    def shows_thinking(self, agent: str) -> bool:
        """Not known from here."""
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
    ) -> Handle:
        """The handle of a session."""
        seen = self.client if not tenant else self.client.tenant(tenant)
        handle = seen.session(session_id, agent=agent, metadata=metadata, queue=queue)
        return Served(handle, self.by)

    def sessions(self, *, whole: bool) -> AsyncIterator[Json]:
        """All of them, whole."""
        del whole
        return self.client.sessions()

    def pending(self, session: Json | None, status: str | None) -> AsyncIterator[Json]:
        """Calls that wait, or that have this status."""
        if session is None:
            return self.client.pending(status=status)
        seen = self.client.tenant(session["tenant"]) if session["tenant"] else self.client
        return seen.pending(session=session["sessionID"], status=status)

    async def pending_call(self, pending_id: str) -> Json:
        """One call. Raises NotFound."""
        return await self.client.pending_call(pending_id)

    async def settle(self, verb: str, call: Json, given: Given) -> Json:
        """Give a call its outcome."""
        said: Json = {"by": given["by"] or self.by}
        match verb:
            case "approve":
                said |= {"args": given["args"], "note": given["note"]}
                said |= {"remember": given["remember"] or None}
                answer = await self.client.approve(call["id"], **said)
            case "deny":
                answer = await self.client.deny(call["id"], reason=given["reason"], **said)
            case "respond":
                answer = await self.client.respond(call["id"], given["output"], **said)
            case "result":
                said |= {"title": given["title"], "metadata": given["metadata"]}
                answer = await self.client.submit_result(call["id"], given["output"], **said)
            case "error":
                answer = await self.client.submit_error(call["id"], given["message"], **said)
            case _:
                answer = await self.client.cancel(call["id"], **said)
        settled = await self.client.pending_call(call["id"])
        return {**settled, "duplicate": bool(answer.get("duplicate"))}


@dataclass(frozen=True, slots=True)
class Served:
    """A session of the server."""

    session: RemoteSession
    by: str | None

    @property
    def id(self) -> str:
        """Its id."""
        return self.session.id

    async def get(self) -> Json:
        """The session as it stands."""
        return await self.session.get()

    async def events(self, *, after: int = 0) -> list[Json]:
        """Its events after a seq."""
        return await self.session.events(after=after)

    def follow(self, *, after: int = 0) -> AsyncIterator[Json]:
        """Its events after a seq and those to come."""
        return self.session.follow(after=after)

    def stream(self, message: Content | None, key: str | None) -> AsyncIterator[Json]:
        """Let the server go on with it, and watch."""
        said = None if message is None else content_json(message)
        return self.session.stream(said, key=key)

    async def send(self, message: Content, key: str | None) -> Json:
        """Record a message."""
        return await self.session.send(content_json(message), key=key)

    async def state(self) -> Json:
        """The states of its paused runs."""
        return await self.session.state()

    async def permissions(self) -> list[Json]:
        """What people allowed for the rest of it."""
        return await self.session.permissions()

    async def revoke(self, number: int, by: str | None) -> None:
        """Ask again about what that number allows."""
        await self.session.revoke(number, by=by or self.by)

    async def hurry(self) -> None:
        """Nothing to do: going on without a message is the same to a server."""

    async def cancel(self, by: str | None, reason: str | None) -> Json:
        """End its run."""
        return await self.session.cancel(by=by or self.by, reason=reason)

    async def compact(self, wanted: Given) -> Json:
        """Let the model summarise it."""
        return await self.session.compact(**{**wanted, "by": wanted["by"] or self.by})

    async def fork(self, at: int | None, new_id: str | None) -> Handle:
        """A copy, up to a settled point."""
        return Served(await self.session.fork(at=at, id=new_id), self.by)

    async def delete(self) -> None:
        """Delete it."""
        await self.session.delete()


def content_json(content: Content) -> str | list[Json]:
    """A message as JSON carries it."""
    if isinstance(content, str):
        return content
    parts = [content] if isinstance(content, File) else content
    return [_part(part) for part in parts]


def _part(part: str | File) -> Json:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    file: Json = {"type": "file", "mediaType": part.media_type}
    if part.name is not None:
        file["name"] = part.name
    if part.data is None:
        return {**file, "url": part.url}
    return {**file, "data": base64.b64encode(part.data).decode("ascii")}
