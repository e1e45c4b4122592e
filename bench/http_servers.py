"""Servers of the HTTP benchmark: `python -m bench.http_servers SERVER FOLDER FD`.

`perdure` accepts results for pending calls, with the connections of `perdure serve`. `reference`
is a minimal implementation: a FastAPI endpoint that inserts a row into SQLite, with one durable
commit for all requests that are waiting.
"""

import asyncio
import os
import queue
import sys
import threading
from pathlib import Path
from typing import Any, Final

import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel

from perdure import Agent, PendingCall, Principal, Runtime, tool
from perdure.serve.connections import Capacity, protocol_factory
from perdure.serve.http.app import application
from perdure.serve.http.auth import token_authenticator
from perdure.serve.http.middleware import Rules
from perdure.serve.limits import Rate
from perdure.store.sqlite.open import apply_settings, python_connect
from perdure.testing import ScriptedModel

TOKEN: Final = "bench"  # noqa: S105 - not a secret
CALLS: Final = 32  # of one session
UNLIMITED: Final = Rate(10**9, 10**9)


@tool(deferred=True, timeout=None)
def ask(n: int, call: PendingCall) -> str:
    """Start a job elsewhere."""
    return f"job-{n}"


def agent() -> Agent[str]:
    """Agent that waits for many results at once."""
    calls = [{"tool": "ask", "args": {"n": n}} for n in range(CALLS)]
    return Agent("bench", model=ScriptedModel([{"calls": calls}, {"text": "done"}]), tools=[ask])


async def park_calls(folder: Path, calls: int) -> list[str]:
    """Create at least `calls` pending calls in a new store; return their ids."""
    async with Runtime(f"sqlite:///{folder / 'perdure.db'}", agents=[agent()]) as rt:
        sessions = [rt.session(f"s{n}", agent="bench") for n in range(-(-calls // CALLS))]
        await asyncio.gather(*(session.run("Go") for session in sessions))
        return [call.id async for call in rt.pending()]


def perdure_app(folder: Path) -> Any:
    """Application of perdure with its usual checks: token, host, origin, rate and body size."""
    rt = Runtime(f"sqlite:///{folder / 'perdure.db'}", agents=[agent()])
    auth = token_authenticator({TOKEN: Principal("bench", "submitter")})
    inner = application(rt, auth, Rules(per_source=UNLIMITED, per_id=UNLIMITED))
    lifespan = asyncio.Lock()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await receive()
            async with lifespan, rt:
                await send({"type": "lifespan.startup.complete"})
                await receive()
            await send({"type": "lifespan.shutdown.complete"})
            return
        await inner(scope, receive, send)

    return app


class ResultBody(BaseModel):
    """Result in the body that perdure accepts."""

    output: str


class SubmissionBody(BaseModel):
    """Body that perdure accepts."""

    pendingID: str  # noqa: N815 - the name of the JSON field
    result: ResultBody


class CommitThread:
    """Thread with one connection; all rows queued during a sync go into the next commit."""

    def __init__(self, path: Path) -> None:
        self._queue: queue.SimpleQueue[tuple[tuple[str, str], asyncio.Future[None]]] = (
            queue.SimpleQueue()
        )
        self._db = apply_settings(python_connect(str(path)))
        self._db.execute("CREATE TABLE result (id TEXT PRIMARY KEY, output TEXT NOT NULL)")
        self._loop = asyncio.get_running_loop()
        threading.Thread(target=self._run, daemon=True).start()

    async def add(self, pending_id: str, output: str) -> None:
        """Insert a row; return when it is durable."""
        done = self._loop.create_future()
        self._queue.put(((pending_id, output), done))
        await done

    def _run(self) -> None:
        while True:
            group = [self._queue.get()]
            while not self._queue.empty():
                group.append(self._queue.get())
            self._db.execute("BEGIN IMMEDIATE")
            self._db.executemany("INSERT INTO result VALUES (?, ?)", [row for row, _ in group])
            self._db.execute("COMMIT")
            self._loop.call_soon_threadsafe(_settle, [done for _, done in group])


def _settle(group: list[asyncio.Future[None]]) -> None:
    for done in group:
        done.set_result(None)


def reference_app(folder: Path) -> FastAPI:
    """Minimal application of FastAPI and SQLite."""
    app = FastAPI()
    commits: list[CommitThread] = []

    @app.post("/async-tool/result")
    async def result(body: SubmissionBody) -> dict[str, Any]:
        if not commits:
            commits.append(CommitThread(folder / "reference.db"))
        await commits[0].add(body.pendingID, body.result.output)
        return {"success": True}

    return app


APPS: Final = {"perdure": perdure_app, "reference": reference_app}


def main() -> None:
    """Serve on the socket with the given file descriptor until the process is killed."""
    server, folder, descriptor = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    http: Any = protocol_factory(Capacity()) if server == "perdure" else "auto"
    uvicorn.run(
        APPS[server](folder),
        fd=descriptor,
        http=http,
        log_level="error",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        ws="none",
    )


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    main()
