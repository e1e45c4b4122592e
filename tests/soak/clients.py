"""Clients of the campaign: they ask, and note what they ask for and what was acknowledged.

A client may be killed at any line. It notes a request before it sends it, and the acknowledgement
as soon as it has it: what is noted as acknowledged must be in the logs, exactly once.
"""

import itertools
import json
import random
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, contextmanager, suppress
from typing import Any, TypeVar

import anyio
import httpx2
from tests.soak.agents import AGENT, make_runtime
from tests.soak.world import Line, World

from perdure import Conflict, NotFound, PendingCall, Runtime
from perdure.errors import StoreError

T = TypeVar("T")

VERBS = {"approval": ("approve", "approve", "deny", "respond"), "tool": ("result", "error")}
IN_USE = 12  # sessions that get messages at a time
AT_ONCE = 8  # calls that a client settles in one round
LONGEST_REPLY_S = 15.0  # a frozen server must not keep a client
PAUSE_S = 0.1


class Notes:
    """File of what one client asked for and what was acknowledged, and its luck."""

    def __init__(self, world: World, name: str, start: int) -> None:
        self.world = world
        self.name = name
        self.luck = random.Random(f"{world.seed}/{name}/{start}")  # noqa: S311 - not a secret
        self._start = start
        self._numbers = itertools.count()

    def note(self, phase: str, topic: str, **line: Any) -> None:
        """Note a line: `asked`, `acked` or `failed`."""
        self.world.append(f"notes-{self.name}", {"phase": phase, "topic": topic, **line})

    @contextmanager
    def noted(self, topic: str, *lines: Line) -> Iterator[None]:
        """Note requests before the block, and their acknowledgement if it does not raise."""
        for line in lines:
            self.note("asked", topic, **line)
        yield
        for line in lines:
            self.note("acked", topic, **line)

    def unique(self) -> str:
        """Return a text that nobody else uses."""
        return f"{self.name}.{self._start}.{next(self._numbers)}"

    def session(self) -> str:
        """Return one of the sessions that are in use now, by all clients."""
        newest = int(time.monotonic() * self.world.session_rate)
        return f"s{self.luck.randint(newest - IN_USE, newest)}"

    def settlement(self, pending_id: str, kind: str) -> Line:
        """Return how to settle a call."""
        verb, text = self.luck.choice(VERBS[kind]), f"{self.name} about {pending_id}"
        return {"pending": pending_id, "verb": verb, "text": text, "by": self.name}


class Refusal(Exception):
    """The server refused a request with this status."""


class HttpClient:
    """Client over HTTP: sends, settles, cancels, runs commands and takes checkpoints."""

    def __init__(self, world: World, name: str, start: int) -> None:
        self._notes = Notes(world, name, start)
        self._world = world
        self._task = ""  # in which it runs commands
        self._http = httpx2.AsyncClient(timeout=LONGEST_REPLY_S)

    async def run(self) -> None:
        """Do one thing after the other, until the process is killed."""
        deeds: dict[Callable[[], Awaitable[None]], int] = {self._send: 6, self._settle: 6}
        deeds[self._cancel] = 1
        if self._world.has_sandbox:
            deeds |= {self._command: 2, self._checkpoint: 1}
        while True:
            (deed,) = self._notes.luck.choices(list(deeds), list(deeds.values()))
            try:
                await (self._settle if self._world.is_draining else deed)()
            except Refusal:
                continue
            await anyio.sleep(self._notes.luck.uniform(0, PAUSE_S))

    async def _send(self) -> None:
        session, text = self._notes.session(), self._notes.unique()
        body = {"agent": AGENT, "sessionID": session, "message": text}
        with self._notes.noted("message", {"session": session, "text": text}):
            await self._insist("POST", "/sessions", body, **{"Idempotency-Key": text})

    async def _cancel(self) -> None:
        session = self._notes.session()
        with self._notes.noted("cancel", {"session": session}):
            await self._insist("POST", f"/sessions/{session}/cancel", {})

    async def _settle(self) -> None:
        page = await self._insist("GET", "/pending?limit=100")
        calls = [call for call in page["pending"] if call["kind"] in VERBS]
        self._notes.luck.shuffle(calls)
        async with anyio.create_task_group() as tasks:
            for call in calls[:AT_ONCE]:
                tasks.start_soon(self._settle_one, call)

    async def _settle_one(self, call: Line) -> None:
        line = self._notes.settlement(call["id"], call["kind"])
        with suppress(Refusal), self._notes.noted("settle", {**line, "via": "http"}):
            await self._post(**line)

    async def _post(self, pending: str, verb: str, text: str, by: str) -> None:
        if verb in ("result", "error"):
            body: Line = {
                "pendingID": pending,
                verb: {"output": text} if verb == "result" else text,
            }
            await self._insist("POST", f"/async-tool/{verb}", body)
        else:
            more = {"deny": {"reason": text}, "respond": {"output": text}}.get(verb, {})
            await self._insist("POST", f"/pending/{pending}/{verb}", {"by": by, **more})

    async def _command(self) -> None:
        """Run a command once: after a lost reply nobody knows whether it ran."""
        task, token = await self._own_task(), self._notes.unique()
        line = {"task": task, "token": token}
        self._notes.note("asked", "command", **line)
        reply = await self._once("POST", f"/tasks/{task}/exec", {"command": f"echo {token} >> ran"})
        if reply is not None:
            self._notes.note("acked", "command", **line, reason=reply["reason"])

    async def _checkpoint(self) -> None:
        task = await self._own_task()
        reply = await self._once("POST", f"/tasks/{task}/checkpoints", {})
        if reply is not None:
            self._notes.note("acked", "checkpoint", task=task, id=reply["checkpointID"])

    async def _own_task(self) -> str:
        if not self._task:
            task = f"task-{self._notes.unique()}"
            await self._insist("POST", "/tasks", {"name": task, "taskID": task, "kind": "sandbox"})
            await self._insist("POST", f"/tasks/{task}/attach", {"agentID": self._notes.name})
            self._task = task
        return self._task

    async def _insist(
        self, method: str, path: str, body: Line | None = None, **headers: str
    ) -> Any:
        """Ask again, any server, until one replies. Raises Refusal."""
        while True:
            reply = await self._once(method, path, body, **headers)
            if reply is not None:
                return reply
            await anyio.sleep(PAUSE_S)

    async def _once(self, method: str, path: str, body: Any = None, **headers: str) -> Any:
        """Return the reply of a server; None if there is none, or it cannot work now."""
        url = f"http://127.0.0.1:{self._notes.luck.choice(self._world.ports)}{path}"
        try:
            reply = await self._http.request(method, url, json=body, headers=headers)
        except httpx2.TransportError:
            return None
        if reply.status_code in (429, 503):
            return None
        if reply.status_code >= 500:
            self._notes.note("failed", "http", status=reply.status_code, path=path)
        if reply.status_code >= 400:
            raise Refusal(reply.text)
        return reply.json()


class Program:
    """Python program that sends and settles with `session.run`, and so drives sessions too."""

    def __init__(self, world: World, name: str, start: int) -> None:
        self._notes = Notes(world, name, start)
        self._world = world
        self._runtime = make_runtime(world)

    async def run(self) -> None:
        """Run sessions one after the other, until the process is killed."""
        async with AsyncExitStack() as stack:
            rt = await _insist(lambda: stack.enter_async_context(self._runtime))
            while True:
                may_send = not self._world.is_draining and self._notes.luck.random() < 0.3
                await (self._send(rt) if may_send else self._settle(rt))
                await anyio.sleep(self._notes.luck.uniform(0, PAUSE_S))

    async def _send(self, rt: Runtime) -> None:
        session, text = self._notes.session(), self._notes.unique()
        handle = rt.session(session, agent=AGENT)
        with self._notes.noted("message", {"session": session, "text": text}):
            await _insist(lambda: handle.run(text, key=text, timeout=LONGEST_REPLY_S))

    async def _settle(self, rt: Runtime) -> None:
        """Settle all open calls of a session in one run."""
        calls = await _insist(lambda: _open_calls(rt))
        if not calls:
            return
        session = self._notes.luck.choice(calls).session_id
        own = [call for call in calls if call.session_id == session]
        lines = [self._settlement(call) for call in own]
        results = {line["pending"]: line["text"] for line in lines if line["verb"] == "result"}
        decisions: Any = {
            line["pending"]: _decision(line) for line in lines if line["verb"] != "result"
        }
        handle = rt.session(session)

        async def run() -> None:
            by, limit_s = self._notes.name, LONGEST_REPLY_S
            await handle.run(results=results, decisions=decisions, by=by, timeout=limit_s)

        try:
            with self._notes.noted("settle", *({**line, "via": "run"} for line in lines)):
                await _insist(run)
        except (Conflict, NotFound):
            return  # another client was faster

    def _settlement(self, call: PendingCall) -> Line:
        line = self._notes.settlement(call.id, call.kind)
        return {**line, "verb": "result"} if line["verb"] == "error" else line


async def _open_calls(rt: Runtime) -> list[PendingCall]:
    return [call async for call in rt.pending() if call.kind in VERBS]


def _decision(line: Line) -> Line:
    more = {"deny": {"reason": line["text"]}, "respond": {"output": line["text"]}}
    return {"decision": line["verb"], **more.get(line["verb"], {})}


async def _insist(do: Callable[[], Awaitable[T]]) -> T:
    """Retry while the database is unavailable, as a client should."""
    while True:
        try:
            return await do()
        except StoreError:
            await anyio.sleep(PAUSE_S)


class EventReader:
    """Reader of all events over SSE, which continues after the last one that it has written."""

    def __init__(self, world: World, name: str, start: int) -> None:
        self._world = world
        self._notes = Notes(world, name, start)
        written = world.lines("events")
        self._last = written[-1]["id"] if written else "0"

    async def run(self) -> None:
        """Read from one server after the other, until the process is killed."""
        async with httpx2.AsyncClient(timeout=20) as http:  # a comment comes every 15 seconds
            while True:
                url = f"http://127.0.0.1:{self._notes.luck.choice(self._world.ports)}/events"
                headers = {"Accept": "text/event-stream", "Last-Event-ID": self._last}
                try:
                    async with http.stream("GET", url, headers=headers) as reply:
                        if reply.status_code >= 500 and reply.status_code != 503:
                            self._notes.note("failed", "http", status=reply.status_code, path=url)
                        if reply.status_code == 200:
                            await self._read(reply)
                except httpx2.TransportError:
                    pass
                await anyio.sleep(PAUSE_S)

    async def _read(self, reply: httpx2.Response) -> None:
        self._world.append("connections", {"last": self._last})
        rest = ""
        async for chunk in reply.aiter_text():
            *blocks, rest = (rest + chunk).split("\n\n")
            lines = [line for block in blocks if (line := _parsed(block)) is not None]
            if lines:
                self._world.append("events", *lines)
                self._last = lines[-1]["id"]


def _parsed(block: str) -> Line | None:
    """Return the event of a block of the stream; None for comments and bare ids."""
    fields = dict(line.partition(": ")[::2] for line in block.splitlines())
    if "data" not in fields:
        return None
    event = json.loads(fields["data"])
    return {"id": fields["id"], **{key: event[key] for key in ("pos", "sessionID", "seq")}}
