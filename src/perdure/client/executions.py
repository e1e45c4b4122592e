"""Commands in the tasks of a server, with the verbs of the server's own."""

from collections import Counter
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any, Final

import httpx2
from msgspec.structs import replace

from perdure.client.connection import CONNECT_S, RetryTimer, TenantConnection, url_path
from perdure.client.errors import response_error, unreachable
from perdure.client.events import MAX_EVENT_BYTES, SILENCE_S
from perdure.views.tasks import CommandOutput, Execution, ExecutionPage, FinishedCommand

Item = CommandOutput | FinishedCommand

TIMEOUT_MS: Final = 30_000
QUEUE_S: Final = 60.0  # for the end of another command of the task
_ITEMS: Final[Mapping[str, type[Item]]] = {"output": CommandOutput, "finished": FinishedCommand}


class RemoteExecutions:
    """Commands in the tasks of one tenant."""

    def __init__(self, tenant: TenantConnection) -> None:
        self._tenant = tenant
        self._connection = tenant.connection

    async def execute(self, task_id: str, command: str, options: Mapping[str, Any]) -> Execution:
        """Run a command and wait for its end; `options` has its `timeout`, in ms."""
        return await self._post_command(task_id, command, options, wait=True)

    async def start(self, task_id: str, command: str, options: Mapping[str, Any]) -> Execution:
        """Start a command on the server, and return the running execution."""
        return await self._post_command(task_id, command, options, wait=False)

    async def _post_command(
        self, task_id: str, command: str, options: Mapping[str, Any], *, wait: bool
    ) -> Execution:
        timeout_ms = options.get("timeout") or TIMEOUT_MS
        body = {"command": command, "timeout": timeout_ms, "wait": wait}
        wait_s = QUEUE_S + (timeout_ms / 1000 if wait else 0)
        path = url_path("tasks", task_id, "exec")
        return await self._tenant.read("POST", path, Execution, body=body, wait_s=wait_s)

    async def list(self, task_id: str, limit: int = 50, after: str | None = None) -> ExecutionPage:
        """List executions, newest first, without output."""
        params = {"limit": limit, "after": after}
        return await self._tenant.read(
            "GET", url_path("tasks", task_id, "executions"), ExecutionPage, params
        )

    async def get(self, task_id: str, execution_id: str) -> Execution:
        """Return an execution, with its output once it has ended. Raises NotFound."""
        path = url_path("tasks", task_id, "executions", execution_id)
        return await self._tenant.read("GET", path, Execution)

    async def cancel(self, task_id: str, execution_id: str) -> Execution:
        """Stop a command, and return it when it has ended."""
        path = url_path("tasks", task_id, "executions", execution_id, "cancel")
        return await self._tenant.read("POST", path, Execution, repeatable=True, wait_s=QUEUE_S)

    async def follow(self, task_id: str, execution_id: str) -> AsyncGenerator[Item, None]:
        """Yield the output as it comes, and last the command that has ended.

        After a broken connection it continues with the output that it has not shown yet.
        """
        timer = RetryTimer(self._connection.patience_s)
        shown: Counter[str] = Counter()  # characters by channel
        while True:
            try:
                async with aclosing(self._new_items(task_id, execution_id, shown)) as items:
                    async for item in items:
                        timer.renew()
                        yield item
                        if isinstance(item, FinishedCommand):
                            return
                error: Exception = ConnectionError("the stream ended")
            except httpx2.TransportError as broken:
                error = broken
            if not await timer.pause():
                raise unreachable(self._connection.url, error)

    async def _new_items(
        self, task_id: str, execution_id: str, shown: Counter[str]
    ) -> AsyncGenerator[Item, None]:
        """Yield the items of one connection without the output that was shown before."""
        skipped = Counter(shown)
        path = url_path("tasks", task_id, "executions", execution_id)
        async with aclosing(self._items(path)) as items:
            async for item in items:
                if isinstance(item, FinishedCommand):
                    yield item
                    continue
                channel, text = item.channel, item.text
                skip = min(skipped[channel], len(text))
                skipped[channel] -= skip
                if skip < len(text):
                    shown[channel] += len(text) - skip
                    yield replace(item, text=text[skip:])

    async def _items(self, path: str) -> AsyncGenerator[Item, None]:
        headers = {"Accept": "text/event-stream", "Cache-Control": "no-store"}
        timeout = httpx2.Timeout(SILENCE_S, connect=CONNECT_S)
        async with self._connection.client.stream(
            "GET", path, params=self._tenant.scope, headers=headers, timeout=timeout
        ) as response:
            if not response.is_success:
                await response.aread()
                raise response_error(response)
            async for message in httpx2.EventSource(response, max_event_size=MAX_EVENT_BYTES):
                if (kind := _ITEMS.get(message.event)) is not None:
                    yield self._connection.decode(message.data, kind)
