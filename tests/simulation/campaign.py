"""The campaign: a fleet with callers, approvers, submitters and readers, under faults of a seed."""

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Final, TypeVar

from tests.simulation.agents import GATED, agents_of, campaign_of
from tests.simulation.situations import situations_of

from perdure import Agent, Context, PendingCall, PerdureError, Runtime
from perdure.background.manager import BackgroundManager
from perdure.options import Budget, Compaction, FollowUps
from perdure.testing.simulation.fleet import Fleet, Role
from perdure.testing.simulation.judgement import session_entries
from perdure.testing.simulation.loop import Process
from perdure.testing.simulation.oracle import Problem
from perdure.testing.simulation.replies import Replies, SettledReply
from perdure.testing.simulation.story import waits

T = TypeVar("T")
Request = Callable[[Runtime], Awaitable[Any]]
Settlement = tuple[Request, SettledReply | None]  # and the reply that it gets

FAULTS_S: Final = 20.0
REST_S: Final = 600.0  # in which every session must end
EASY_S: Final = 120.0  # before that, approvers decide at once
RETRIED: Final = ("STORE_UNAVAILABLE", "COMMIT_UNKNOWN", "LEASE_LOST", "ERROR", "INTERNAL")
ENDS: Final = ("completed", "failed", "cancelled")


class NoReply(Exception):
    """The request or its reply was lost."""


class Campaign:
    """One seed of the campaign."""

    roles: Sequence[Role] = (Role("worker-1"), Role("worker-2"), Role("server", is_worker=False))

    def __init__(self) -> None:
        self.replies = Replies()
        self.acts: Counter[str] = Counter()
        self.fleet: Fleet

    def prepare(self, fleet: Fleet) -> None:
        """Choose what this seed is about."""
        self.fleet = fleet
        luck = self.luck = random.Random(f"campaign {fleet.seed}")  # noqa: S311
        self.background: FollowUps = {
            "resume_ended": luck.random() < 0.5,
            "queue_message": luck.random() < 0.5,
        }
        self.budget: Budget = {"turns": luck.choice([3, 6, 12])} if luck.random() < 0.4 else {}
        self.compaction: Compaction | bool = {"at": 60, "keep": 2} if luck.random() < 0.4 else True
        self.while_waiting = luck.choice(["queue", "queue", "reject", "cancel_calls"])
        self.on_expire = luck.choice(["fail", "fail", "cancel", "keep"])
        self.worker_pool = luck.choice([None, None, 1])
        self.has_model_failures = luck.random() < 0.4
        self.has_changed_code = luck.random() < 0.3
        self.has_deletions = luck.random() < 0.3
        self.has_forks = luck.random() < 0.3
        self.has_slow_approvers = luck.random() < 0.4

    def start(self, fleet: Fleet, process: Process) -> tuple[Sequence[Agent[Any]], Any]:
        """Return the agents of a process that starts; at the end the code is complete."""
        campaign_of.set(self)
        is_old = self.has_changed_code and fleet.draws.fraction("code", process.name) < 0.5
        return agents_of(self, is_complete=fleet.is_stopping or not is_old), None

    def check_arguments(self, ctx: Context) -> None:
        """Compare the arguments of a gated call, at its start, with what was approved."""
        oracle, log = self.fleet.oracle, self.fleet.oracle.log(ctx.session_id)
        if ctx.tool not in GATED or ctx.session_id in oracle.erased:
            return
        calls, decisions = log.of_call(ctx.call_id, "tool_call"), [*log.of("decision")]
        approved = [d for d in decisions if d["callID"] == ctx.call_id and d["kind"] == "edit"]
        wanted = {**calls[-1]["params"], **(approved[-1].get("args") or {} if approved else {})}
        if not any(item["callID"] == ctx.call_id for item in decisions):
            text = f"{ctx.tool} (call {ctx.call_id}) runs and nobody has approved it"
            oracle.find("G7", ctx.session_id, text, log)
        if dict(ctx.args) != wanted:
            text = f"{ctx.tool} (call {ctx.call_id}) runs with {ctx.args}, approved were {wanted}"
            oracle.find("G7", ctx.session_id, text, log)

    # --- requests to the fleet --------------------------------------------------------------------

    async def ask(self, request: Callable[[Runtime], Awaitable[T]], within_s: float = 30) -> T:
        """Send a request to some live process; raises NoReply, or what it raises."""
        fleet = self.fleet
        runtimes = list(fleet.runtimes.items())
        if not runtimes:
            await asyncio.sleep(0.2)
            raise NoReply
        process, runtime = fleet.draws.choice(runtimes, "whom to ask")
        reply: asyncio.Future[T] = fleet.loop.create_future()

        def resolve(value: T | None, error: Exception | None) -> None:
            if reply.done():
                return
            if error is None:
                reply.set_result(value)  # type: ignore[arg-type]
            else:
                reply.set_exception(error)

        async def serve() -> None:
            value, error = None, None
            try:
                value = await request(runtime)
            except Exception as failure:  # noqa: BLE001 - it is the reply
                error = failure
            fleet.loop.later(
                fleet.draws.fraction("reply to a caller") * 0.01, resolve, value, error
            )

        fleet.loop.create_task(serve(), context=process.context.copy())
        try:
            async with asyncio.timeout(within_s):
                return await reply
        except TimeoutError as error:
            raise NoReply from error

    async def attempt(self, name: str, request: Callable[[Runtime], Awaitable[Any]]) -> bool:
        """Send a request once; return whether it was acknowledged."""
        try:
            await self.ask(request)
        except NoReply:
            return False
        except PerdureError as error:
            self.acts[f"{name}: {error.code}"] += 1
            return False
        self.acts[name] += 1
        return True

    # --- clients ----------------------------------------------------------------------------------

    async def client(self, session: str) -> None:
        """Send messages with keys until each is acknowledged, and change the session at times."""
        luck = random.Random(f"{self.fleet.seed} {session}")  # noqa: S311
        agent = "solo" if int(session[1:]) % 2 else "lead"
        for number in range(luck.choice([1, 2, 3])):
            if luck.random() < 0.2:
                await self.attempt("launch", partial(self._spawn, f"{session}.{number}"))
            await self.send(session, agent, f"k{number}", is_run=luck.random() < 0.5)
            await asyncio.sleep(luck.random() * 8)
            if luck.random() < 0.5 * self.has_forks:
                fork = f"{session}-f{number}"
                if await self.attempt("fork", _fork(session, fork)):
                    await self.send(fork, agent, "f", is_run=False, most=5)
            if luck.random() < 0.1:
                await self.attempt("cancel", lambda rt: self._cancel(rt, session))
            if luck.random() < 0.3 * self.has_deletions:
                await self.delete(session)

    async def send(
        self, session: str, agent: str, key: str, *, is_run: bool, most: int = 1000
    ) -> None:
        async def request(rt: Runtime) -> None:
            handle = rt.session(session, agent=agent)
            await (handle.run(f"message {key}", key=key) if is_run else handle.send(key, key=key))

        for _ in range(most):
            try:
                await self.ask(request)
            except NoReply:
                pass
            except PerdureError as error:
                self.acts[f"send: {error.code}"] += 1
                if error.code not in RETRIED:
                    return
            else:
                self.acts["send"] += 1
                self.replies.messages.add((session, key))
                return
            await asyncio.sleep(self.fleet.draws.fraction("pause of a client"))

    async def _spawn(self, key: str, rt: Runtime) -> None:
        self.replies.launched.add((await rt.spawn("helper", f"launch {key}", key=key)).id)

    async def _cancel(self, rt: Runtime, session: str) -> None:
        result = await rt.session(session).cancel(by="ana")
        if result.state == "cancelled":  # else the run had ended before
            self.replies.cancelled.add(session)

    async def delete(self, session: str) -> None:
        self.replies.maybe_deleted.add(session)
        stream = self.fleet.oracle.stream(session)
        if await self.attempt("delete", lambda rt: rt.session(session).delete()) and stream:
            self.replies.deleted.add(stream)

    async def settler(self, name: str) -> None:
        """Look at the open calls and settle some; several settlers race."""
        luck = random.Random(f"{self.fleet.seed} {name}")  # noqa: S311
        while True:
            await asyncio.sleep(luck.random() * (2 if self.fleet.is_stopping else 1.5))
            try:
                calls = await self.ask(_open_calls)
            except (NoReply, PerdureError):
                continue
            luck.shuffle(calls)
            for call in calls[:3]:
                if self.is_easy or (luck.random() < 0.6 and not self._is_slow(call)):
                    await self._settle(call, name, luck)

    @property
    def is_easy(self) -> bool:
        """True near the end: whatever is still open is settled."""
        return self.fleet.loop.time() > self.easy_at

    easy_at = float("inf")

    def _is_slow(self, call: PendingCall) -> bool:
        age_s = self.fleet.clock.now() / 1000 - call.created_at.timestamp()
        wait_s = random.Random(call.id).random() * 45  # noqa: S311
        return self.has_slow_approvers and age_s < wait_s

    async def _settle(self, call: PendingCall, name: str, luck: random.Random) -> None:
        planned = self._settlement(call, name, luck)
        if planned is None:
            return
        request, reply = planned
        try:
            await self.ask(request)
            if luck.random() < 0.2:
                await self.ask(request)
                self.acts["settle again"] += 1
        except NoReply:
            return
        except PerdureError as error:
            self.acts[f"settle: {error.code}"] += 1
            winner = error.details.get("winner", {}).get("by") if error.details else None
            if error.code == "ALREADY_DECIDED" and winner and call.kind == "approval":
                self.replies.winners[call.id].add(winner)
            return
        self.acts[f"settle {call.kind}"] += 1
        if reply is not None:
            self.replies.settlements[call.id].add(reply)

    def _settlement(self, call: PendingCall, name: str, luck: random.Random) -> Settlement | None:
        """Return a request that settles a call, and the reply that counts; None for a vote."""
        match call.kind:
            case "approval":
                return self._decision(call, name, luck)
            case "tool":
                text = f"result by {name} {luck.randrange(3)}"
                submission = _submission(call, text, is_run=luck.random() < 0.3)
                return submission, SettledReply("result", "", text)
            case "question" if call.reason == "budget":
                return lambda rt: rt.respond(call.id, {"turns": 500}, by=name), None
            case "question":
                text = f"answer by {name}"
                reply = SettledReply("answer", "", text)
                return lambda rt: rt.respond(call.id, text, by=name), reply
            case _:
                return None

    def _decision(self, call: PendingCall, name: str, luck: random.Random) -> Settlement:
        verb = luck.choice(["approve", "approve", "deny", "edit"])
        if verb == "deny":
            return lambda rt: rt.deny(call.id, by=name), SettledReply("deny", name)
        args = {"n": luck.randrange(1000, 2000)} if verb == "edit" and call.reason is None else None
        if call.tool == "wire":
            return lambda rt: rt.approve(call.id, by=name), None  # a vote, perhaps the last one
        return lambda rt: rt.approve(call.id, by=name, args=args), SettledReply("approve", name)

    async def reader(self) -> None:
        """Read outcomes of background agents and send follow-ups: it races with their parents."""
        luck = random.Random(f"{self.fleet.seed} reader")  # noqa: S311
        while True:
            await asyncio.sleep(luck.random() * 5)
            try:
                tasks = await self.ask(_task_ids)
            except (NoReply, PerdureError):
                continue
            if not tasks:
                continue
            task = luck.choice(tasks)
            if not self.fleet.is_stopping and luck.random() < 0.3:
                await self.attempt("resume a task", _follow_up(task))
            else:
                # Callers of the manager take what they read; in some seeds they race for it.
                request, callers = (_take, 3) if self.fleet.seed % 3 == 1 else (_output, 1)
                reads = [self.attempt("read a task", request(task)) for _ in range(callers)]
                await asyncio.gather(*reads)

    # --- the whole --------------------------------------------------------------------------------

    async def run(self, fleet: Fleet) -> bool:
        """Play, stop the faults, and wait until every session has ended."""
        sessions = [f"s{number}" for number in range(self.luck.choice([1, 2, 4]))]
        clients = [asyncio.create_task(self.client(session)) for session in sessions]
        others = [asyncio.create_task(self.settler(name)) for name in ("ana", "ben", "cas")]
        others.append(asyncio.create_task(self.reader()))
        try:
            return await self._run(fleet, clients)
        finally:
            for task in (*clients, *others):
                task.cancel()
            fleet.counts += Counter({f"did {name}": n for name, n in self.acts.items()})
            fleet.counts += situations_of(self)

    async def _run(self, fleet: Fleet, clients: list["asyncio.Task[None]"]) -> bool:
        heal_at = fleet.loop.time() + FAULTS_S
        last_at = heal_at + REST_S
        self.easy_at = last_at - EASY_S
        while not (fleet.is_stopping and all(c.done() for c in clients) and self.is_over()):
            await asyncio.sleep(2)
            if fleet.oracle.problems:
                return False
            if not fleet.is_stopping and (
                fleet.loop.time() >= heal_at or fleet.faults.are_exhausted
            ):
                fleet.heal()
                if self.has_changed_code:  # the last deployment has all tools again
                    for process in tuple(fleet.processes.values()):
                        fleet.crash(process, "deployment", is_fault=False)
            if fleet.loop.time() > last_at:
                fleet.fail(Problem("G9", "", f"sessions do not end\n{waits(fleet)}"))
                return False
        for client in clients:
            client.result()
        self.replies.judge(fleet.oracle)
        return True

    def is_over(self) -> bool:
        """Return whether every session has ended, and every mail was delivered."""
        tables = self.fleet.memory._tables
        for entry, data in session_entries(self.fleet.memory):
            row, log = tables.streams[entry.stream], self.fleet.oracle.log(data["id"])
            has_message = any(item.get("key") == "f" for item in log.of("user"))
            is_new_fork = any(log.of("forked")) and not has_message
            is_moving = data["state"] not in ENDS or row.due is not None
            if not row.gone and (row.holder is not None or (is_moving and not is_new_fork)):
                return False
        return True


def _submission(
    call: PendingCall, text: str, *, is_run: bool
) -> Callable[[Runtime], Awaitable[Any]]:
    results = {call.id: text}
    if is_run:
        return lambda rt: rt.session(call.session_id).run(results=results, timeout=15)
    return lambda rt: rt.submit_result(call.id, text)


def _fork(session: str, fork: str) -> Callable[[Runtime], Awaitable[Any]]:
    return lambda rt: rt.session(session).fork(id=fork)


def _follow_up(task: str) -> Callable[[Runtime], Awaitable[Any]]:
    return lambda rt: rt.tasks.resume(task, "more")


def _output(task: str) -> Callable[[Runtime], Awaitable[Any]]:
    return lambda rt: rt.tasks.output(task, block=True, timeout=5_000)


def _take(task: str) -> Callable[[Runtime], Awaitable[Any]]:
    return lambda rt: BackgroundManager(rt).background_output(task, block=True, timeout=5_000)


async def _open_calls(rt: Runtime) -> list[PendingCall]:
    return [call async for call in rt.pending()]


async def _task_ids(rt: Runtime) -> list[str]:
    return [task.id async for task in rt.background_tasks()]


def make_campaign() -> Campaign:
    """Return a campaign for one seed."""
    return Campaign()
