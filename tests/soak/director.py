"""Director of a soak: sends, decides, kills, freezes and restarts at random."""

import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TypeVar

import anyio
from tests.soak.agents import AGENT, World
from tests.soak.oracle import DYING, Answer, Oracle
from tests.soak.workers import Nap, Workers

from perdure import Conflict, PendingCall, Runtime
from perdure.errors import StoreError

T = TypeVar("T")

WORKERS = 3
AT_ONCE = 16  # concurrent operations
SESSIONS = 12  # sessions in use at a time
LONGEST_DEED_S = 60.0  # a frozen worker must not delay any caller
OVERSLEEP_S = 2.0  # longer than a lease
VERBS = {"approval": ("approve", "approve", "deny", "respond"), "tool": ("result", "error")}
Deed = Callable[[], Awaitable[None]]


class Director:
    """Runs random actions one after the other, and records acknowledgements."""

    def __init__(
        self,
        world: World,
        rt: Runtime,
        workers: Workers,
        *,
        crowd: int = 0,
        more: dict[str, tuple[int, Deed]] | None = None,
    ) -> None:
        self.oracle = Oracle(world.seed)
        self.done: Counter[str] = Counter()
        self._luck = random.Random(world.seed)  # noqa: S311 - chance, not a secret
        self._rt = rt
        self._workers = workers
        self._crowd = [f"c{n}" for n in range(crowd)]  # sessions beside those in use
        self._asleep: dict[int, float] = {}  # end of each worker's freeze
        self._deeds: dict[str, tuple[int, Deed]] = {
            "send": (30, self._send),
            "answer": (50, self._answer),
            "cancel": (2, self._cancel),
            "kill": (4, self._kill),
            "freeze": (4, self._freeze),
            "restart": (2, self._restart),
            **(more or {}),
        }
        if crowd:  # its open calls are settled all the time
            del self._deeds["answer"]

    async def run(self, seconds: float, seen: Callable[[], object] = lambda: True) -> None:
        """Run for so long, after freezing workers until the fence has rejected one."""
        for _ in range(WORKERS):
            self._workers.start()
        async with anyio.create_task_group() as tasks:
            if self._crowd:
                await self._among(self._crowd, self._greet)
                tasks.start_soon(self._answer_crowd)
            with anyio.fail_after(LONGEST_DEED_S):
                while not seen():
                    await self._oversleep()
            await self._at_random(seconds)
            tasks.cancel_scope.cancel()

    async def _at_random(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        names = list(self._deeds)
        weights = [weight for weight, _ in self._deeds.values()]
        while time.monotonic() < until:
            (name,) = self._luck.choices(names, weights)
            with anyio.fail_after(LONGEST_DEED_S):
                await self._deeds[name][1]()
            self._wake()
            await anyio.sleep(self._luck.uniform(0, 0.03))

    async def finish(self, longest_s: float) -> None:
        """Stop breaking things and settle open calls until every session is parked."""
        for pid in list(self._workers.frozen):
            self._workers.wake(pid)
        left = set(self.oracle.messages)
        self.done["sessions"] = len(left)
        with anyio.fail_after(longest_s):
            while left:
                await self._among(await self._insist(self._waiting), self._settle)
                await self._among(list(left), partial(self._rests, left))
                self.done["at work in the end"] = max(self.done["at work in the end"], len(left))
                await anyio.sleep(0.1)

    @property
    def naps(self) -> list[Nap]:
        """Return the times of freezes."""
        return self._workers.naps

    async def _rests(self, left: set[str], name: str) -> None:
        result = await self._insist(self._rt.session(name).get)
        gave_up = result.error is not None and result.error.code == DYING
        self.done["given up"] += gave_up
        if gave_up or result.state in ("completed", "cancelled"):
            left.remove(name)

    async def _among(self, items: Sequence[T], do: Callable[[T], Awaitable[None]]) -> None:
        """Run it for all, some at a time."""
        todo = iter(items)

        async def next_ones() -> None:
            for item in todo:
                await do(item)

        async with anyio.create_task_group() as tasks:
            for _ in range(AT_ONCE):
                tasks.start_soon(next_ones)

    # --- actions -------------------------------------------------------------------------

    async def _insist(self, do: Callable[[], Awaitable[T]]) -> T:
        """Retry while the database is unavailable, as a client should."""
        while True:
            try:
                return await do()
            except StoreError:
                self.done["asked again"] += 1
                await anyio.sleep(0.1)

    async def _waiting(self) -> list[PendingCall]:
        return [call async for call in self._rt.pending()]

    async def _greet(self, name: str) -> None:
        session = self._rt.session(name, agent=AGENT)
        await self._insist(lambda: session.send("hello", key="hello"))
        self.oracle.messages[name] = ["hello"]

    async def _answer_crowd(self) -> None:
        while True:
            await self._among(await self._insist(self._waiting), self._settle)
            await anyio.sleep(0.2)

    async def _send(self) -> None:
        number = self.done["send"]
        name = f"s{self._luck.randint(max(0, number // 3 - SESSIONS), number // 3)}"
        await self.send(name, f"message {number}")

    async def send(self, name: str, text: str) -> None:
        """Send a message to a session."""
        await self._insist(lambda: self._rt.session(name, agent=AGENT).send(text, key=text))
        self.oracle.messages.setdefault(name, []).append(text)
        self.done["send"] += 1

    async def _answer(self) -> None:
        waiting = await self._insist(self._waiting)
        if waiting:
            await self._settle(self._luck.choice(waiting))

    async def _settle(self, call: PendingCall) -> None:
        verb, text = self._luck.choice(VERBS[call.kind]), f"about {call.id}"
        deeds: dict[str, Callable[[], Awaitable[PendingCall]]] = {
            "approve": lambda: self._rt.approve(call.id, by="ana"),
            "deny": lambda: self._rt.deny(call.id, by="ana", reason=text),
            "respond": lambda: self._rt.respond(call.id, text, by="ana"),
            "result": lambda: self._rt.submit_result(call.id, text),
            "error": lambda: self._rt.submit_error(call.id, text),
        }
        try:
            await self._insist(deeds[verb])
        except Conflict:  # it expired, or was cancelled with its session
            self.done["too late"] += 1
            return
        self.oracle.answers[call.id] = Answer(verb, text)
        self.done[verb] += 1

    async def _cancel(self) -> None:
        if self.oracle.messages:
            name = self._luck.choice(list(self.oracle.messages))
            await self._insist(partial(self._cancel_one, name))
            self.done["cancel"] += 1

    async def _cancel_one(self, name: str) -> None:
        self.oracle.cancels[name] += 1
        await self._rt.session(name).cancel(by="ana")

    async def _kill(self) -> None:
        if self._workers.living:
            self._workers.kill(self._luck.choice(self._workers.living))
            self._workers.start()
            self.done["kill"] += 1

    async def _freeze(self) -> None:
        """Freeze a worker for less than a lease, or until others take over."""
        if len(self._workers.living) > 1:
            pid = self._luck.choice(self._workers.living)
            self._asleep[pid] = time.monotonic() + self._luck.uniform(0.5, 3.0)
            self.done["freeze"] += self._workers.freeze(pid)

    async def _oversleep(self) -> None:
        """Freeze a busy worker until others have its sessions, then let it continue."""
        pid = self._workers.living[0]
        self._asleep[pid] = 0
        if self._workers.freeze(pid):
            await anyio.sleep(OVERSLEEP_S)
            self._wake()
            self.done["overslept"] += 1
        await anyio.sleep(0.5)

    def _wake(self) -> None:
        for pid in list(self._workers.frozen):
            if self._asleep[pid] < time.monotonic():
                self._workers.wake(pid)
                self.done["wake"] += 1

    async def _restart(self) -> None:
        if self._workers.living:
            self._workers.leave(self._luck.choice(self._workers.living))
            self._workers.start()
            self.done["restart"] += 1
