"""Subscriptions to resources, in both eras: whatever any process records reaches the client."""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, Final

import anyio
from mcp.server.session import ServerSession
from mcp.server.subscriptions import ListenHandler, ResourceUpdated, ServerEvent

from perdure.errors import NotFound, Refused
from perdure.runtime.sessions.service import Service
from perdure.runtime.sessions.verbs.caller import Caller
from perdure.serve.mcp.resources import is_changed_by, parse_uri, task_of
from perdure.store.base import Record
from perdure.tasks.verbs import TaskVerbs

logger = logging.getLogger("perdure")

MOST: Final = 1_000  # subscriptions of one session
SEND_S: Final = 5.0  # a client that does not read for so long loses its subscriptions
Listener = Callable[[ServerEvent], None]


class WatchedResources:
    """URIs that clients watch, by tenant and task; each counts as often as it is watched."""

    def __init__(self) -> None:
        self._uris: dict[tuple[str, str], Counter[str]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._uris.values()))

    def add(self, tenant: str, uri: str) -> None:
        """Watch a URI. Raises NotFound if it is not one of a task."""
        self._uris.setdefault((tenant, parse_uri(uri).task_id), Counter())[uri] += 1

    def remove(self, tenant: str, uri: str) -> None:
        """Take back one `add`."""
        task = tenant, parse_uri(uri).task_id
        uris = self._uris[task]
        uris[uri] -= 1
        if not uris[uri]:
            del uris[uri]
        if not uris:
            del self._uris[task]

    def changed_by(self, record: Record) -> list[tuple[str, str]]:
        """Return tenant and URI of what a record may have changed."""
        task = task_of(record)
        if task is None:
            return []
        uris = self._uris.get(task, ())
        return [(task[0], uri) for uri in uris if is_changed_by(parse_uri(uri), record)]


class TenantBus:
    """Events for the clients of one tenant, as the SDK's listen handler subscribes to them."""

    def __init__(self) -> None:
        self._listeners: dict[object, Listener] = {}

    async def publish(self, event: ServerEvent) -> None:
        """Deliver an event to every listener."""
        self.deliver(event)

    def deliver(self, event: ServerEvent) -> None:
        """Deliver an event to every listener, which only buffers it."""
        for listener in tuple(self._listeners.values()):
            listener(event)

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Add a listener; return the function that removes it."""
        token = object()
        self._listeners[token] = listener

        def unsubscribe() -> None:
            self._listeners.pop(token, None)

        return unsubscribe


class Subscriptions:
    """Subscriptions of all clients of a server."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._buses: dict[str, TenantBus] = {}
        self._handlers: dict[str, ListenHandler] = {}
        self.watched = WatchedResources()
        self._sessions: dict[str, dict[tuple[str, str], ServerSession]] = {}  # by session id
        self._updates: asyncio.Queue[tuple[str, str]] = asyncio.Queue(10_000)
        self._feed = ExitStack()
        self._is_watching = False

    # --- the stateless era: one request is one stream -----------------------------------------

    async def listen(self, ctx: Any, caller: Caller, params: Any) -> Any:
        """Serve one stream of updates; URIs of tasks that the caller does not see are dropped."""
        uris = list(dict.fromkeys(params.notifications.resource_subscriptions or ()))
        if len(uris) > MOST:
            raise _too_many()
        tenant = caller.home_tenant
        visible = [uri for uri in uris if await self._is_visible(caller, uri)]
        chosen = params.notifications.model_copy(update={"resource_subscriptions": visible or None})
        handler = self._handler(tenant)
        await self._start()
        for uri in visible:
            self.watched.add(tenant, uri)
        try:
            return await handler(ctx, params.model_copy(update={"notifications": chosen}))
        finally:
            for uri in visible:
                self.watched.remove(tenant, uri)

    def _handler(self, tenant: str) -> ListenHandler:
        if tenant not in self._handlers:
            self._buses[tenant] = TenantBus()
            self._handlers[tenant] = ListenHandler(self._buses[tenant])
        return self._handlers[tenant]

    def close(self) -> None:
        """End every stream in an orderly way."""
        for handler in self._handlers.values():
            handler.close()

    # --- the era of sessions ------------------------------------------------------------------

    async def subscribe(self, ctx: Any, caller: Caller, uri: str) -> None:
        """Subscribe a session to a resource. Raises NotFound, Refused."""
        if not await self._is_visible(caller, uri):
            parse_uri(uri)
            raise NotFound(
                f"there is no resource {uri[:200]!a}",
                code="RESOURCE_NOT_FOUND",
                hint="resources/list has the tasks",
            )
        session_id = _session_id(ctx)
        subscriptions = self._sessions.setdefault(session_id, {})
        if len(subscriptions) >= MOST:
            raise _too_many()
        if not subscriptions:
            # The SDK gives handlers no other way to learn of the end of their connection.
            connection = ctx.session._connection  # noqa: SLF001
            connection.exit_stack.callback(self._drop, session_id)
        if (caller.home_tenant, uri) not in subscriptions:
            self.watched.add(caller.home_tenant, uri)
        subscriptions[caller.home_tenant, uri] = ctx.session
        await self._start()

    def unsubscribe(self, ctx: Any, caller: Caller, uri: str) -> None:
        """End a subscription; one that does not exist is left alone."""
        subscriptions = self._sessions.get(_session_id(ctx), {})
        if subscriptions.pop((caller.home_tenant, uri), None) is not None:
            self.watched.remove(caller.home_tenant, uri)

    def _drop(self, session_id: str) -> None:
        """End all subscriptions of a session."""
        for tenant, uri in self._sessions.pop(session_id, {}):
            self.watched.remove(tenant, uri)

    # --- updates ------------------------------------------------------------------------------

    async def _is_visible(self, caller: Caller, uri: str) -> bool:
        try:
            await TaskVerbs(self._service.tasks, caller.tenant).get(parse_uri(uri).task_id)
        except NotFound:
            return False
        return True

    async def _start(self) -> None:
        """Follow the feed of the store, once, beside the drives."""
        if self._is_watching:
            return
        await self._service.feed.fix_start()
        if self._is_watching:  # another subscriber was first
            return
        self._is_watching = True
        self._service.feed.run_in_background(self._run)

    async def _run(self) -> None:
        try:
            with self._service.feed.on_records(self._on_records):
                while True:
                    tenant, uri = await self._updates.get()
                    for session_id, session in self._subscribed(tenant, uri):
                        await self._send(session_id, session, uri)
        finally:
            self._is_watching = False

    def _on_records(self, _: int, records: Sequence[Record]) -> None:
        updated = dict.fromkeys(
            item for record in records for item in self.watched.changed_by(record)
        )
        for tenant, uri in updated:
            if tenant in self._buses:
                self._buses[tenant].deliver(ResourceUpdated(uri=uri))
            if not self._updates.full():
                self._updates.put_nowait((tenant, uri))

    def _subscribed(self, tenant: str, uri: str) -> list[tuple[str, ServerSession]]:
        subscriptions = [(name, item.get((tenant, uri))) for name, item in self._sessions.items()]
        return [(name, session) for name, session in subscriptions if session is not None]

    async def _send(self, session_id: str, session: ServerSession, uri: str) -> None:
        with anyio.move_on_after(SEND_S) as scope:
            try:
                await session.send_resource_updated(uri)
            except Exception as error:  # noqa: BLE001 - a connection that has ended
                logger.debug("a client was not told of %s: %r", uri, error)
        if scope.cancelled_caught:
            self._drop(session_id)  # or each of its subscriptions would hold up the other clients


def _too_many() -> Refused:
    return Refused(
        f"a session may have {MOST} subscriptions",
        code="TOO_MANY_SUBSCRIPTIONS",
        hint="unsubscribe from some of them",
    )


def _session_id(ctx: Any) -> str:
    """Return the id of the client's session; a process on stdio has one."""
    return "stdio" if ctx.request is None else ctx.request.headers.get("mcp-session-id", "")
