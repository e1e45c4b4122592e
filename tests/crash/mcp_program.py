"""Process that kills forks of itself after every durable write of a story told through MCP.

Usage: mcp_program FOLDER TASKS; prints one object of JSON per point: what the client was told
before the kill, and what another process finds, and does, afterwards.
"""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import httpx2
from tests.crash.task_program import CountedStore, Points
from tests.support.mcp_client import RawClient

from perdure import Principal, Runtime, asgi
from perdure.app import around_store
from perdure.options import TaskOptions

TOKEN: Final = "a-token"  # noqa: S105
COMMAND: Final = "echo ran >> effects"


class Story:
    """A client that creates a task, works in it, cancels it and deletes it."""

    def __init__(self, client: RawClient, task_id: str, acks: Path) -> None:
        self._client = client
        self._names = {"taskId": task_id}
        self._acks = acks

    async def tell(self) -> None:
        """Make every call; what is acknowledged is written down."""
        agent = {**self._names, "agentId": "me"}
        await self._call("create_task_sandbox", {**self._names, "name": "x"})
        await self._call("attach_agent_to_task", agent)
        handle = await self._call("execute_in_task", {**self._names, "command": COMMAND})
        await self.ended(handle["taskId"])
        self._ack("executed", {})
        await self._call("cancel_task", self._names)
        await self._call("delete_task", self._names)

    async def _call(self, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
        result = await self._client.call(tool, **arguments)
        self._ack(tool, result)
        return result

    def _ack(self, name: str, result: dict[str, Any]) -> None:
        with self._acks.open("a") as file:
            file.write(json.dumps([name, result]) + "\n")
            file.flush()
            os.fsync(file.fileno())

    async def ended(self, handle: str) -> dict[str, Any]:
        """Return the task of a handle when it does not work any more."""
        while True:
            task = await self._client.request("tasks/get", {"taskId": handle})
            if task.get("status") != "working":
                return task
            await asyncio.sleep(0.01)


@asynccontextmanager
async def opened(folder: Path, options: TaskOptions) -> AsyncIterator[RawClient]:
    """Yield a client of a server in this process."""
    url = f"sqlite:///{folder / 'h.db'}"
    async with Runtime(url, tasks=options, worker=True) as rt:
        app = asgi(rt, auth={TOKEN: Principal("ana", "admin")})
        async with httpx2.AsyncClient(
            transport=httpx2.ASGITransport(app=app),
            base_url="http://perdure",
            headers={"Authorization": f"Bearer {TOKEN}"},
            timeout=60,
        ) as http:
            yield RawClient(http)


async def play(folder: Path, options: TaskOptions, at: int) -> None:
    """Play the story until the kill."""
    points = Points(folder, at)

    def counted(store: Any) -> Any:
        return CountedStore(store, points)

    around_store.set(counted)
    async with opened(folder, options) as client:
        points.is_armed = True
        await Story(client, f"t{at}", folder / f"acks{at}").tell()
    (folder / "end").touch()


def count_effects(folder: Path, task: str) -> int:
    """Return how often the command has run."""
    return sum(len(path.read_text().splitlines()) for path in folder.rglob(f"{task}/**/effects"))


async def look(folder: Path, options: TaskOptions, at: int) -> None:
    """Write down what another process finds; then finish the story."""
    acks = folder / f"acks{at}"
    lines = [json.loads(line) for line in acks.read_text().splitlines()] if acks.exists() else []
    replies = dict(lines)
    async with opened(folder, options) as client:
        task = f"t{at}"
        status = (await client.call("get_task_status", taskId=task))["structuredContent"]
        view: dict[str, Any] = {"at": at, "acks": [name for name, _ in lines], "status": status}
        if "execute_in_task" in replies:
            story = Story(client, task, acks)
            view["handle"] = await story.ended(replies["execute_in_task"]["taskId"])
        view["effects"] = count_effects(folder, task)
        deleted = (await client.call("delete_task", taskId=task))["structuredContent"]
        view["deleted"] = deleted
        left = (await client.call("list_tasks"))["structuredContent"]
        view["left"] = left["count"]
    (folder / "view").write_text(json.dumps(view))


def in_fork(work: Callable[[], Awaitable[None]]) -> int:
    """Do work in a fork; return its wait status."""
    pid = os.fork()
    if pid:
        return os.waitpid(pid, 0)[1]
    code = 1
    try:
        asyncio.run(work())  # type: ignore[arg-type]
        code = 0
    finally:
        os._exit(code)


def main() -> None:
    """Kill at every point, one after the other."""
    folder, options = Path(sys.argv[1]), json.loads(sys.argv[2])
    views: list[Any] = []
    at = 0
    while not (folder / "end").exists():
        at += 1
        in_fork(partial(play, folder, options, at))
        code = in_fork(partial(look, folder, options, at))
        if code:
            views.append({"failed": at, "code": code})
            break
        views.append(json.loads((folder / "view").read_text()))
    print(json.dumps(views))  # noqa: T201 - the report


if __name__ == "__main__":
    main()
