"""Simulation of sessions on several stores, and of the rule that finds each by its id.

    python examples/shards.py --stores 4 --sessions 200

Every id names its shard: `a3f~order-991`. The shard of a new session is the hash of its name; a
child has its parent's shard, and a pending call that of its session. An id therefore leads to its
store without a lookup. There are many more shards than stores, so that some shards of a full store
can be moved. Here the stores are SQLite files; in a fleet they are PostgreSQL primaries.
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
from perdure.testing import ScriptedModel

SHARDS = 4096  # three hexadecimal digits, fixed forever; their distribution over stores may change
MARK = "~"


# --- the rule ------------------------------------------------------------------------------------


def id_for(name: str) -> str:
    """Return the id of a new session."""
    return f"{hashlib.sha256(name.encode()).hexdigest()[:3]}{MARK}{name}"


def id_of_child(name: str, parent: str) -> str:
    """Return the id of a child: it is in its parent's store, so that they commit together."""
    return f"{shard_of(parent):03x}{MARK}{name}"


def shard_of(id_: str) -> int:
    """Return the shard of an id. Raises ValueError if the id names none."""
    digits, mark, name = id_.partition(MARK)
    if not mark or not name or len(digits) != 3:
        raise ValueError(f"{id_!r} does not name its shard")
    return int(digits, 16)


ChildRule = Callable[[str, str], str]


@dataclass
class Router:
    """Runtimes, one per store, and the store of each shard."""

    runtimes: list[Runtime] = field(default_factory=list)
    stores: list[int] = field(default_factory=list)  # by shard, the number of its store

    def at(self, id_: str) -> Runtime:
        """Return the runtime that has this session, child or call."""
        return self.runtimes[self.stores[shard_of(id_)]]

    def public_id(self, session: str, pending: str) -> str:
        """Return the id under which approvers know a call."""
        return f"{shard_of(session):03x}{MARK}{pending}"

    async def approve(self, public_id: str) -> None:
        """Approve a call by nothing but its public id."""
        await self.at(public_id).approve(public_id.partition(MARK)[2], by="simulation")

    async def move(self, shard: int, target: int) -> int:
        """Move a shard with its sessions to another store and return their number.

        Nothing may drive the shard meanwhile: in a fleet its workers are stopped first.
        """
        source = self.at(f"{shard:03x}{MARK}any")
        ids = [result.session_id async for result in source.sessions()]
        moved = [id_ for id_ in ids if shard_of(id_) == shard]
        for id_ in moved:
            session = source.session(id_)
            await self.runtimes[target].import_sessions(session.export(secrets=True))
            await session.delete()
        self.stores[shard] = target
        return len(moved)


# --- the simulation ------------------------------------------------------------------------------


def clerk(router: Router, child_rule: ChildRule) -> Agent[str]:
    """Return an agent that starts a child beside itself, then waits for an approval."""

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
    """Run the simulation and return its report. Raises AssertionError if the rule is violated."""
    async with AsyncExitStack() as stack:
        router = Router(stores=[shard * stores // SHARDS for shard in range(SHARDS)])
        for number in range(stores + 1):  # the last one is new and empty
            colleague = Agent("colleague", model=ScriptedModel([{"text": "Here."}]))
            agents = [clerk(router, child_rule), colleague]
            rt = Runtime(f"sqlite:///{folder}/shard-{number}.db", agents=agents)
            router.runtimes.append(await stack.enter_async_context(rt))
        return await _run(router, stores, [id_for(f"order-{n}") for n in range(sessions)])


async def _run(router: Router, stores: int, ids: list[str]) -> list[str]:
    public_ids = await asyncio.gather(*(_start(router, id_) for id_ in ids))
    moved_shard = shard_of(ids[0])
    moved = await router.move(moved_shard, stores)
    random.Random(7).shuffle(public_ids)  # noqa: S311 - an order, not a secret
    await asyncio.gather(*(router.approve(public_id) for public_id in public_ids))
    for id_ in ids:
        result = await router.at(id_).session(id_, agent="clerk").run()
        assert result.state == "completed", (id_, result.state)
    counts = await _count_sessions(router)
    assert sum(counts.values()) == 2 * len(ids), "every session and its child is in one store"
    spread = [counts[number] for number in range(stores)]
    return [
        f"{len(ids)} sessions with a child each on {stores} stores: {spread}",
        f"shard {moved_shard:03x} moved to a new store with its {moved} waiting sessions",
        f"{len(public_ids)} decisions found their session by their id alone",
    ]


async def _start(router: Router, id_: str) -> str:
    result = await router.at(id_).session(id_, agent="clerk").run("Refund me.", key="start")
    assert result.state == "waiting", (id_, result.state)
    return router.public_id(id_, result.pending[0].id)


async def _count_sessions(router: Router) -> Counter[int]:
    """Count the sessions of each store; each must be in the store that its id names."""
    counts: Counter[int] = Counter()
    for number, rt in enumerate(router.runtimes):
        async for result in rt.sessions():
            assert router.at(result.session_id) is rt, f"{result.session_id} is in store {number}"
            counts[number] += 1
    return counts


def main() -> None:
    """Run the simulation in a temporary folder."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--stores", type=int, default=4)
    parser.add_argument("--sessions", type=int, default=200)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        print("\n".join(asyncio.run(simulate(Path(folder), options.stores, options.sessions))))


if __name__ == "__main__":
    main()
