"""Random sessions, played with a scripted model: the log of each, and its model requests.

`python -m tests.support.drive_scenarios` records them in tests/data/drives. The recorded logs are
those of the engine as it was when they were recorded, so record them again only for a change that
is meant to change logs.
"""

import asyncio
import gzip
import json
import random
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any, Final
from unittest import mock

from msgspec import to_builtins
from tests.support.paths import DATA

from perdure import (
    Agent,
    ApprovalRequired,
    Conflict,
    Context,
    Delta,
    InputRequired,
    PerdureError,
    Refused,
    Runtime,
    ToolError,
    tool,
)
from perdure.core.conversation.messages import Answer
from perdure.runtime.models.base import Request
from perdure.store.memory import MemoryStore
from perdure.testing import Crashed, ManualClock, ScriptedModel, crash_after
from perdure.views.sessions import Result

RECORDED: Final = DATA / "drives" / "logs.jsonl.gz"
COUNT: Final = 200
TRIALS: Final = 4
MOST_STEPS: Final = 25
TOOLS: Final = (
    *("look", "look", "look", "pay", "order", "build", "count"),
    *("careful", "ask_user", "wait", "todo_write", "stop", "missing"),
)
_ID: Final = re.compile(r"\b(?:task|p|e)_[0-9A-HJKMNP-TV-Z]{26}\b")


@dataclass
class Order:
    """Output type of the sessions that have one."""

    item: str
    count: int


class RecordingModel(ScriptedModel):
    """Scripted model that keeps its requests in a shared list, and may be disturbed in a turn."""

    def __init__(self, scenario: "Scenario", turns: list[dict[str, Any]], name: str) -> None:
        super().__init__(turns, name=name)
        self._scenario = scenario

    async def answer(self, request: Request) -> AsyncIterator[Delta | Answer]:
        """Record the request, and play its turn."""
        self._scenario.requests.append(_plain_request(self.name, request))
        await self._scenario.disturb(request.turn)
        async for item in super().answer(request):
            yield item


def _plain_request(model: str, request: Request) -> dict[str, Any]:
    return {
        "model": model,
        "turn": request.turn,
        "purpose": request.purpose,
        "instructions": request.instructions,
        "messages": [
            [type(item).__name__, to_builtins(item, builtin_types=(bytes,))]
            for item in request.messages
        ],
        "tools": [spec.name for spec in request.tools],
        "schema": request.output_schema is not None,
    }


class Scenario:
    """One session with everything that a seed chooses: its script, its agent, and its visitors."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)  # noqa: S311 - a scenario, not a secret
        self.requests: list[dict[str, Any]] = []
        self.clock = ManualClock()
        self.store = MemoryStore(self.clock)
        self.rt: Runtime | None = None
        chance = self.random.random
        self.disturbed = self.random.choice([None, None, None, 1, 2, 3])
        self.has_output = chance() < 0.2
        self.crash = self.random.randint(1, 12) if chance() < 0.5 else None
        turns = [self._turn(number) for number in range(self.random.randint(1, 6))]
        self.agent = self._agent([*turns, self._last_turn()])

    # --- the agent ----------------------------------------------------------------------------

    def _agent(self, turns: list[dict[str, Any]]) -> Agent[Any]:
        chance, pick = self.random.random, self.random.choice
        options: dict[str, Any] = {"retries": pick([0, 1, 2])}
        if chance() < 0.5:
            options["fallback"] = RecordingModel(self, turns[:2], "second")
        if self.has_output:
            options["output_type"] = Order
        if chance() < 0.2:
            options["compaction"] = {"at": 30, "keep": 1}
        if chance() < 0.15:
            options["max_turns"] = pick([2, 3])
        if chance() < 0.2:
            options["permissions"] = pick(
                [{"ask": ["look"]}, {"deny": ["look:place=cellar"]}, {"allow": ["pay"]}]
            )
        if chance() < 0.3:
            options["while_waiting"] = "cancel_calls"
        model = RecordingModel(self, turns, "first")
        tools = [*self._tools(), "ask_user", "wait", "todo_write"]
        return Agent("a", model=model, instructions="Work.", tools=tools, **options)

    def _tools(self) -> list[Any]:
        @tool(requires_approval=True, idempotent=True)
        async def pay(amount: int) -> dict[str, int]:
            return {"paid": amount}

        @tool(deferred=True, idempotent=True)
        async def order(item: str) -> None:
            if item == "nothing":
                raise ToolError("there is nothing to order")

        @tool(requires_approval=True, deferred=True)
        async def build(plan: str) -> None:
            pass

        return [_look(), pay, order, build, _count(), _careful(), self._stop()]

    def _stop(self) -> Any:
        @tool
        async def stop(reason: str) -> str:
            assert self.rt is not None
            await self.rt.session("s").cancel(by="tool", reason=reason)
            await asyncio.sleep(60)  # until the drive cancels it
            return "never"

        return stop

    def _turn(self, number: int) -> dict[str, Any]:
        kind = self.random.choices(
            ["calls", "text", "error", "cut", "paused"], [14, 1, 3, 1, 1], k=1
        )[0]
        turn: dict[str, Any] = {"text": f"Turn {number}."}
        if kind in ("calls", "error", "cut"):
            calls = [self._call() for _ in range(self.random.choice([1, 1, 1, 2, 3, 5]))]
            # A plain function runs in a thread, and ends at any time.
            in_thread = [call for call in calls if call["tool"] in ("count", "todo_write")]
            turn["calls"] = in_thread[:1] or calls
        if kind == "error":
            transient = self.random.random() < 0.8
            turn["error"] = {"text": "busy", "times": self.random.choice([1, 2, 9])}
            turn["error"] |= {"transient": True} if transient else {"code": "MODEL_KEY"}
        if kind == "cut":
            turn["stop"] = "max_tokens"
        if kind == "paused":
            turn["stop"] = "pause_turn"
        return turn

    def _call(self) -> dict[str, Any]:
        pick = self.random.choice
        name = pick(TOOLS)
        todo = {"content": "Work", "status": "pending", "activeForm": "Working"}
        all_args: dict[str, dict[str, Any]] = {
            "look": {"place": pick(["cellar", "attic", "garden", "hall"])},
            "pay": {"amount": pick([1, 20, "many"])},
            "order": {"item": pick(["tea", "nothing"])},
            "build": {"plan": pick(["house", "boat"])},
            "count": {"number": pick([3, 4])},
            "careful": {"step": pick(["approval", "question", "none"])},
            "ask_user": {"question": "How many?"},
            "wait": {"seconds": pick([60, 3600])},
            "todo_write": {"todos": [todo]},
            "stop": {"reason": "enough"},
        }
        return {"tool": name, "args": all_args.get(name, {})}

    def _last_turn(self) -> dict[str, Any]:
        if not self.has_output:
            return {"text": "All done."}
        good = {"item": "tea", "count": 2}
        return {"output": self.random.choice([good, good, {"item": "tea"}])}

    async def disturb(self, turn: int) -> None:
        """Send a message while the model answers, once."""
        if turn == self.disturbed and self.rt is not None:
            self.disturbed = None
            await self.rt.session("s").send("One more thing.", by="guest")

    # --- the play -----------------------------------------------------------------------------

    async def play(self) -> dict[str, Any]:
        """Play the session to its end, and return its log, its requests and its end."""
        numbers = count()
        with (
            mock.patch("perdure.core.driver.model_failures.delay_ms", return_value=0),
            mock.patch("perdure.host.random_bits", side_effect=numbers),
        ):
            if self.crash is not None:
                await self._crash(self.crash)
            return await self._open_and_visit()

    async def _crash(self, commits: int) -> None:
        with crash_after(commits=commits) as crash, suppress(Exception, Crashed):
            await self._open_and_visit()
        if crash.is_over:
            self.requests.append({"crash": commits})

    async def _open_and_visit(self) -> dict[str, Any]:
        async with Runtime(self.store, agents=[self.agent]) as rt:
            self.rt = rt
            session = rt.session("s", agent=self.agent)
            result = await session.run("Begin.", key="first", by="owner")
            for _ in range(MOST_STEPS):
                if not await self._visit(rt, result):
                    break
                result = await session.run()
            events = [[event.type, event.data] for event in await session.events()]
            end = [result.state, result.output, [call.tool for call in result.pending]]
            return _normalized({"events": events, "requests": self.requests, "end": end})

    async def _visit(self, rt: Runtime, result: Result[Any]) -> bool:
        """Do something from outside; False at the end of the play."""
        session, chance = rt.session("s"), self.random.random
        if result.state in ("completed", "cancelled", "failed"):
            if chance() < 0.4:
                return False
            with suppress(PerdureError):
                if chance() < 0.3 and result.state == "completed":
                    await session.compact(keep=1, by="owner")
                await session.send("Go on.", by="owner")
            return True
        if chance() < 0.12:
            await session.send("Are you there?", by="guest")
        if chance() < 0.08:
            await session.cancel(by="owner", reason="enough")
            return True
        calls = sorted(result.pending, key=lambda call: call.call_id)
        for call in calls[: self.random.randint(1, len(calls))]:
            with suppress(Conflict, Refused):
                await self._settle(rt, call)
        return True

    async def _settle(self, rt: Runtime, call: Any) -> None:
        by, pick = "boss", self.random.choice
        actions: Mapping[str, list[Any]] = {
            "approval": [
                partial(rt.approve, call.id, by=by),
                partial(rt.approve, call.id, by=by, remember=True),
                partial(rt.approve, call.id, by=by, args=_edit(call)),
                partial(rt.deny, call.id, by=by, reason="no"),
                partial(rt.respond, call.id, "done by hand", by=by),
            ],
            "question": [
                partial(rt.respond, call.id, "left" if call.choices else "two", by=by),
                partial(rt.deny, call.id, by=by),
                partial(rt.cancel_call, call.id, by=by),
            ],
            "tool": [
                partial(rt.submit_result, call.id, {"tracking": 7}),
                partial(rt.submit_error, call.id, "out of stock"),
                partial(rt.cancel_call, call.id, by=by),
            ],
            "timer": [partial(self._pass_time)],
        }
        await pick(actions[call.kind])()

    async def _pass_time(self) -> None:
        self.clock.advance("2h")


def _look() -> Any:
    @tool
    async def look(place: str) -> str:
        if place == "attic":
            raise ToolError("the attic is locked")
        if place == "garden":
            await asyncio.sleep(0)
        return f"saw the {place}"

    return look


def _count() -> Any:
    @tool(name="count", on_crash="ask")
    def double(number: int) -> int:
        return number * 2

    return double


def _careful() -> Any:
    @tool
    async def careful(ctx: Context, step: str) -> str:
        if step == "approval" and not ctx.decisions:
            raise ApprovalRequired("Really?", details={"step": step})
        if step == "question" and not ctx.answers:
            raise InputRequired("Which?", choices=["left", "right"])
        return f"{step}: {ctx.answer}" if ctx.answers else step

    return careful


def _edit(call: Any) -> dict[str, Any] | None:
    return {"amount": 5} if call.tool == "pay" else None


def _normalized(log: dict[str, Any]) -> dict[str, Any]:
    """Number the ids by their first use, and leave out what differs between machines."""
    epochs: dict[int, int] = {}
    for type_, data in log["events"]:
        if "epoch" in data:  # whether an earlier claim was granted before a crash does not matter
            data["epoch"] = epochs.setdefault(data["epoch"], len(epochs) + 1)
        for name in ("worker", "digest", "tools", "next", "duration", "trace"):
            if name in data:
                data[name] = "…"
        if type_ == "pending":
            data.pop("expiresAt", None)
    numbers: dict[str, str] = {}

    def number(match: re.Match[str]) -> str:
        prefix = match[0].partition("_")[0]
        return numbers.setdefault(match[0], f"{prefix}_{len(numbers) + 1}")

    text = json.dumps(log, sort_keys=True, default=_plain)
    normalized: dict[str, Any] = json.loads(_ID.sub(number, text))
    return normalized


def _plain(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else repr(value)


def play(seed: int) -> dict[str, Any]:
    """Play the session of a seed."""
    return asyncio.run(asyncio.wait_for(Scenario(seed).play(), 30))


def recorded() -> dict[int, dict[str, Any]]:
    """Return the recorded logs by seed."""
    with gzip.open(RECORDED, "rt", encoding="utf-8") as lines:
        logs = [json.loads(line) for line in lines]
    return {log.pop("seed"): log for log in logs}


def main() -> None:
    """Record the logs of the first seeds whose log is the same each time."""
    RECORDED.parent.mkdir(exist_ok=True)
    found = 0
    with gzip.GzipFile(RECORDED, "wb", mtime=0) as file:
        for seed in count():
            log = play(seed)
            if any(play(seed) != log for _ in range(TRIALS)):
                continue
            line = json.dumps({"seed": seed, **log}, sort_keys=True, separators=(",", ":"))
            file.write(line.encode() + b"\n")
            found += 1
            if found == COUNT:
                return


if __name__ == "__main__":
    main()
