"""Beyond one primary: sessions on several stores, and the rule that finds each. A simulation.

    python examples/shards.py --stores 4 --sessions 200

Every id says its shard: `a3f~order-991`. A new session's shard is the hash of its name; a child
has its parent's, and a call that waits has its session's. So whoever has an id knows the store,
and nothing is ever looked up. There are many more shards than stores, so that a store can be
relieved of some. Here the stores are SQLite files; in a fleet they are PostgreSQL primaries.
"""

import argparse
import asyncio
import hashlib
import random
import tempfile
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from perdure import Agent, Context, Runtime, tool
from perdure.app import service_of
from perdure.runtime.records.entries import SessionRef
from perdure.runtime.transfer.archive import export_lines, import_lines
from perdure.testing import ScriptedModel

SHARDS = 4096  # three hexadecimal digits, for ever; only how they are spread over stores changes
MARK = "~"


# --- the rule ------------------------------------------------------------------------------------


def id_for(name: str) -> str:
    """The id of a new session."""
    return f"{hashlib.sha256(name.encode()).hexdigest()[:3]}{MARK}{name}"


def id_of_child(name: str, parent: str) -> str:
    """The id of a session that another one starts: where that one is, they commit together."""
    return f"{shard_of(parent):03x}{MARK}{name}"


def shard_of(id_: str) -> int:
    """Where an id belongs; ValueError if it is none of ours."""
    digits, mark, name = id_.partition(MARK)
    if not mark or not name or len(digits) != 3:
        raise ValueError(f"{id_!r} does not say its shard")
    return int(digits, 16)


ChildRule = Callable[[str, str], str]


@dataclass
class Router:
    """Runtimes on stores, and which shards each has."""

    runtimes: list[Runtime] = field(default_factory=list)
    places: list[int] = field(default_factory=list)  # by shard, the number of its store

    def at(self, id_: str) -> Runtime:
        """Who has this session, child or call."""
        return self.runtimes[self.places[shard_of(id_)]]

    def told(self, session: str, pending: str) -> str:
        """How a call is named to the world outside."""
        return f"{shard_of(session):03x}{MARK}{pending}"

    async def approve(self, told: str) -> None:
        """A decision comes in, with nothing but the id that was told."""
        await self.at(told).approve(told.partition(MARK)[2], by="simulation")

    async def move(self, shard: int, target: int) -> int:
        """Give a shard to another store, with all that waits in it; how many sessions that were.

        Nobody drives the shard meanwhile: in a fleet its workers are stopped first.
        """
        source = self.at(f"{shard:03x}{MARK}any")
        moved = [
            one.session_id async for one in source.sessions() if shard_of(one.session_id) == shard
        ]
        service = service_of(source)
        for id_ in moved:
            known = await service.desk.outside.find(SessionRef("", id_))
            assert known is not None
            lines = [line async for line in export_lines(service, known, secrets=True)]
            await import_lines(service_of(self.runtimes[target]), lines)
            await source.session(id_).delete()
        self.places[shard] = target
        return len(moved)


# --- the simulation ------------------------------------------------------------------------------


def clerk(router: Router, child_rule: ChildRule) -> Agent[str]:
    """Starts a child beside itself, then waits for an approval."""

    @tool
    async def ask_colleague(ctx: Context) -> str:
        """Start a session of another agent, in this session's own store."""
        child = child_rule(f"colleague-of-{ctx.session_id.partition(MARK)[2]}", ctx.session_id)
        home = router.at(ctx.session_id)
        result = await home.session(child, agent="colleague").run("Help me.", key="start")
        return str(result.output)

    @tool(requires_approval=True)
    def refund(cents: int) -> str:
        """Refund a customer."""
        return f"refunded {cents}"

    turns: list[dict[str, Any]] = [
        {"calls": [{"tool": "ask_colleague", "args": {}}]},
        {"calls": [{"tool": "refund", "args": {"cents": 100}}]},
        {"text": "Done."},
    ]
    return Agent("clerk", model=ScriptedModel(turns), tools=[ask_colleague, refund])


async def simulate(
    folder: Path, stores: int, sessions: int, child_rule: ChildRule = id_of_child
) -> list[str]:
    """Play it; what is told at the end. AssertionError where the rule does not hold."""
    async with AsyncExitStack() as stack:
        router = Router(places=[shard * stores // SHARDS for shard in range(SHARDS)])
        for number in range(stores + 1):  # the last one is new, and has nothing yet
            colleague = Agent("colleague", model=ScriptedModel([{"text": "Here."}]))
            agents = [clerk(router, child_rule), colleague]
            rt = Runtime(f"sqlite:///{folder}/shard-{number}.db", agents=agents)
            router.runtimes.append(await stack.enter_async_context(rt))
        return await _play(router, stores, [id_for(f"order-{n}") for n in range(sessions)])


async def _play(router: Router, stores: int, ids: list[str]) -> list[str]:
    told = await asyncio.gather(*(_begin(router, id_) for id_ in ids))
    moved_shard = shard_of(ids[0])
    moved = await router.move(moved_shard, stores)
    random.Random(7).shuffle(told)  # noqa: S311 - an order, not a secret
    await asyncio.gather(*(router.approve(one) for one in told))
    for id_ in ids:
        result = await router.at(id_).session(id_, agent="clerk").run()
        assert result.state == "completed", (id_, result.state)
    held = await _whereabouts(router)
    assert sum(held.values()) == 2 * len(ids), "every session and its child is in one store"
    spread = [held[number] for number in range(stores)]
    return [
        f"{len(ids)} sessions with a child each on {stores} stores: {spread}",
        f"shard {moved_shard:03x} moved to a new store with its {moved} sessions, which waited",
        f"{len(told)} decisions found their session by their id alone",
    ]


async def _begin(router: Router, id_: str) -> str:
    result = await router.at(id_).session(id_, agent="clerk").run("Refund me.", key="start")
    assert result.state == "waiting", (id_, result.state)
    return router.told(id_, result.pending[0].id)


async def _whereabouts(router: Router) -> Counter[int]:
    """How many sessions each store has; each must be where its id says, and nowhere else."""
    held: Counter[int] = Counter()
    for number, rt in enumerate(router.runtimes):
        async for one in rt.sessions():
            assert router.at(one.session_id) is rt, f"{one.session_id} is in store {number}"
            held[number] += 1
    return held


def main() -> None:
    """Play it in a folder that is removed afterwards."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--stores", type=int, default=4)
    parser.add_argument("--sessions", type=int, default=200)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        print("\n".join(asyncio.run(simulate(Path(folder), asked.stores, asked.sessions))))


if __name__ == "__main__":
    main()
