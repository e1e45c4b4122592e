"""Commands in the tasks of a server, with the verbs and the JSON of the server's own."""

from collections import Counter
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any, Final

import httpx2

from perdure.client.connection import CONNECT_S, HttpConnection, HttpRequest, RetryTimer, url_path
from perdure.client.errors import response_error, unreachable
from perdure.client.events import MAX_EVENT_BYTES, SILENCE_S

Json = dict[str, Any]
TIMEOUT_MS: Final = 30_000
QUEUE_S: Final = 60.0  # for the end of another command of the task


class RemoteExecutions:
    """Commands in the tasks of one tenant."""

    def __init__(self, connection: HttpConnection, scope: Mapping[str, Any]) -> None:
        self._connection = connection
        self._scope = dict(scope)

    async def execute(self, task_id: str, command: str, options: Mapping[str, Any]) -> Json:
        """Run a command and wait for its end; `options` has its `timeout`, in ms."""
        return await self._post_command(task_id, command, options, wait=True)

    async def start(self, task_id: str, command: str, options: Mapping[str, Any]) -> Json:
        """Start a command on the server, and return the running execution."""
        return await self._post_command(task_id, command, options, wait=False)

    async def _post_command(
        self, task_id: str, command: str, options: Mapping[str, Any], *, wait: bool
    ) -> Json:
        timeout_ms = options.get("timeout") or TIMEOUT_MS
        body = {"command": command, "timeout": timeout_ms, "wait": wait}
        wait_s = QUEUE_S + (timeout_ms / 1000 if wait else 0)
        path = url_path("tasks", task_id, "exec")
        return await self._send("POST", path, body=body, wait_s=wait_s)

    async def list(self, task_id: str, limit: int = 50, after: str | None = None) -> Json:
        """List executions, newest first: `{taskId, executions, next}`."""
        params: Json = {"limit": limit} if after is None else {"limit": limit, "after": after}
        return await self._send("GET", url_path("tasks", task_id, "executions"), params)

    async def get(self, task_id: str, execution_id: str) -> Json:
        """Return an execution, with its output once it has ended. Raises NotFound."""
        return await self._send("GET", url_path("tasks", task_id, "executions", execution_id))

    async def cancel(self, task_id: str, execution_id: str) -> Json:
        """Stop a command, and return it when it has ended."""
        path = url_path("tasks", task_id, "executions", execution_id, "cancel")
        return await self._send("POST", path, repeatable=True, wait_s=QUEUE_S)

    async def follow(self, task_id: str, execution_id: str) -> AsyncGenerator[Json, None]:
        """Yield `{type: "output", channel, text}`, and last `{type: "finished", execution}`.

        After a broken connection it continues with the output that it has not shown yet.
        """
        timer = RetryTimer(self._connection.patience_s)
        shown: Counter[str] = Counter()  # characters by channel
        while True:
            try:
                async with aclosing(self._new_events(task_id, execution_id, shown)) as events:
                    async for event in events:
                        timer.renew()
                        yield event
                        if event["type"] == "finished":
                            return
                error: Exception = ConnectionError("the stream ended")
            except httpx2.TransportError as broken:
                error = broken
            if not await timer.pause():
                raise unreachable(self._connection.url, error)

    async def _new_events(
        self, task_id: str, execution_id: str, shown: Counter[str]
    ) -> AsyncGenerator[Json, None]:
        """Yield the events of one connection without the output that was shown before."""
        skipped = Counter(shown)
        path = url_path("tasks", task_id, "executions", execution_id)
        async with aclosing(self._events(path)) as events:
            async for event in events:
                if event["type"] != "output":
                    yield event
                    continue
                channel, text = event["channel"], event["text"]
                skip = min(skipped[channel], len(text))
                skipped[channel] -= skip
                if skip < len(text):
                    shown[channel] += len(text) - skip
                    yield {**event, "text": text[skip:]}

    async def _events(self, path: str) -> AsyncGenerator[Json, None]:
        headers = {"Accept": "text/event-stream", "Cache-Control": "no-store"}
        timeout = httpx2.Timeout(SILENCE_S, connect=CONNECT_S)
        async with self._connection.client.stream(
            "GET", path, params=self._scope, headers=headers, timeout=timeout
        ) as response:
            if not response.is_success:
                await response.aread()
                raise response_error(response)
            async for message in httpx2.EventSource(response, max_event_size=MAX_EVENT_BYTES):
                if message.data:
                    event: Any = message.json()
                    yield event

    async def _send(
        self, method: str, path: str, params: Mapping[str, Any] | None = None, **options: Any
    ) -> Json:
        request = HttpRequest(method, path, {**(params or {}), **self._scope}, **options)
        return dict((await self._connection.send(request)).body or {})
