"""Tasks of every kind of a server, with the verbs of a runtime."""

from collections.abc import AsyncIterator, Mapping
from typing import Any, Final, TypeVar, cast
from uuid import uuid4

from perdure.client.calls import RemoteCalls
from perdure.client.connection import TenantConnection, page_path, url_path, without_none
from perdure.views import tasks as views
from perdure.views.values import Content, content_json

T = TypeVar("T")
V = TypeVar("V")
Json = dict[str, Any]

MAX_TIMEOUT_MS: Final = 600_000  # a server waits no longer
_ANY: Final = cast("type[views.AnyTask]", views.AnyTask)


class RemoteTasks:
    """Tasks of one tenant; without a tenant, those that the token sees."""

    def __init__(self, tenant: TenantConnection, by: str | None) -> None:
        self._tenant = tenant
        self._by = by

    def _bound(self, view: V) -> V:
        return views.with_verbs(view, self, RemoteCalls(self._tenant, self._by))

    async def __call__(
        self,
        *,
        kind: str | None = None,
        status: str | None = None,
        parent: str | None = None,
        owner: str | None = None,
    ) -> AsyncIterator[views.AnyTask]:
        """Iterate over tasks of every kind, newest first, each once."""
        filters = {"kind": kind, "status": status, "parent": parent, "owner": owner}
        async for task in views.every_task(self.list, filters):
            yield task

    async def list(self, filters: Mapping[str, Any]) -> views.TaskPage:
        """List tasks, newest first, with the number of all matches."""
        page = await self._read("GET", (), views.TaskPage, filters)
        for task in page.tasks:
            self._bound(task)
        return page

    async def get(self, task_id: str) -> views.AnyTask:
        """Return a task of any kind. Raises NotFound."""
        return self._bound(await self._tenant.read("GET", page_path("tasks", task_id), _ANY))

    async def spawn(
        self,
        agent: str,
        prompt: Content,
        *,
        parent: str | None = None,
        description: str | None = None,
        key: str | None = None,
    ) -> views.BackgroundTask:
        """Launch a background agent."""
        more = {"parent": parent, "description": description}
        body = without_none({"agent": agent, "prompt": content_json(prompt), **more})
        return await self._read("POST", (), views.BackgroundTask, body=body, key=key or _new_key())

    async def output(
        self,
        task_id: str,
        *,
        block: bool = False,
        timeout: float | None = None,  # noqa: ASYNC109 - limits the waiting, not the run
    ) -> views.AgentOutcome:
        """Return the outcome of a background agent, with `block` after at most `timeout` ms."""
        params = {"block": "true" if block else None, "timeout": timeout}
        path = (task_id, "output")
        wait_s = _wait_s(timeout, block=block)
        return await self._read("GET", path, views.AgentOutcome, params, wait_s=wait_s)

    async def resume(
        self,
        task_id: str,
        message: Content,
        *,
        block: bool = False,
        timeout: float | None = None,  # noqa: ASYNC109 - limits the waiting, not the run
        key: str | None = None,
    ) -> views.AgentOutcome:
        """Send a follow-up to a completed background agent; with `block`, return the answer."""
        body = {
            "message": content_json(message),
            "block": block,
            **without_none({"timeout": timeout}),
        }
        options: Json = {"key": key or _new_key(), "wait_s": _wait_s(timeout, block=block)}
        return await self._read(
            "POST", (task_id, "resume"), views.AgentOutcome, body=body, **options
        )

    async def clear(self, parent: str) -> views.ClearedAgents:
        """Cancel the running background agents of a session and remove all from lists."""
        path = url_path("sessions", parent, "tasks", "clear")
        return await self._tenant.read("POST", path, views.ClearedAgents, repeatable=True)

    async def cancel(
        self, task_id: str, *, by: str | None = None, reason: str | None = None
    ) -> views.AnyTask:
        """Cancel a task. Raises Conflict if it has ended."""
        body = without_none({"by": by or self._by, "reason": reason})
        return await self._read("POST", (task_id, "cancel"), _ANY, body=body)

    async def delete(self, task_id: str) -> views.DeletedTask:
        """Delete a task with everything it has."""
        return await self._read("DELETE", (task_id,), views.DeletedTask)

    async def _read(
        self,
        method: str,
        path: tuple[str, ...],
        kind: type[T],
        params: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> T:
        """Return the view in the response of a route below /tasks."""
        read = await self._tenant.read(method, url_path("tasks", *path), kind, params, **options)
        return self._bound(read)


def _wait_s(timeout_ms: float | None, *, block: bool) -> float:
    """Return how long a response may take beyond its usual time."""
    return min(60_000 if timeout_ms is None else timeout_ms, MAX_TIMEOUT_MS) / 1_000 * block


def _new_key() -> str:
    return uuid4().hex
