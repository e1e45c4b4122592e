"""A runtime behind an index in Redis: the same answers, and keys that others can read."""

import builtins
import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from redis.asyncio import Redis

from perdure import Agent, PendingCall, Runtime, tool
from perdure.app.stores import around_store, has_liveness_locks, indexed, open_store, store_id
from perdure.cli.root import cli
from perdure.errors import ConfigError
from perdure.store.base import Check, Heads, Put, Store, Write
from perdure.store.memory import MemoryStore
from perdure.testing import ManualClock, ScriptedModel


@tool(requires_approval=True)
def refund(cents: int) -> str:
    """Pay money back."""
    return f"refunded {cents}"


@tool(deferred=True, timeout="1h")
def deploy(branch: str, call: PendingCall) -> str:
    """Deploy a branch."""
    return "dep_88"


CALLS = [
    {"tool": "refund", "args": {"cents": 5}},
    {"tool": "deploy", "args": {"branch": "x"}},
    {"tool": "deploy", "args": {"branch": "y"}},
]


def shop() -> Agent[str]:
    model = ScriptedModel([{"calls": CALLS}, {"text": "Done."}])
    return Agent("shop", model=model, tools=[refund, deploy])


async def members(redis: Redis, key: str) -> set[str]:
    return {str(one) for one in await redis.smembers(key)}


@pytest.fixture
async def redis(redis_url: str) -> AsyncIterator[Redis]:
    client = Redis.from_url(redis_url, decode_responses=True)
    yield client
    await client.aclose()


async def test_what_waits_can_be_read_from_redis_and_answered(
    tmp_path: Path, redis_url: str, redis: Redis
) -> None:
    """S0.78"""
    clock = ManualClock()
    store = f"sqlite:///{tmp_path / 'perdure.db'}"
    async with Runtime(store, agents=[shop()], index=redis_url, clock=clock) as rt:
        await rt.session("s", agent="shop").run("Go")
        await rt.tenant("acme").session("s", agent="shop").run("Go")
        waiting = [call async for call in rt.tenant("").pending(session="s")]
        assert len(waiting) == 3
        both = {call.id async for call in rt.pending()}
        assert len(both) == 6
        assert await members(redis, "pending:by-session:s") == both  # of both tenants
        by_status = [await members(redis, f"pending:by-status:{s}") for s in ("waiting", "open")]
        assert by_status == [both, set()]
        deferred = [call for call in waiting if call.kind == "tool"]
        assert await redis.zcard("pending:expiration") == 4
        score = await redis.zscore("pending:expiration", deferred[0].id)
        assert score == clock.now() + 3_600_000

        await rt.submit_result(deferred[0].id, "live")
        done = [call.id async for call in rt.pending(status="completed")]
        assert done == [deferred[0].id]
        assert await members(redis, "pending:by-status:completed") == {deferred[0].id}
        clock.advance("2h")
        report = await rt.recover()
        assert len(report.expired) == 3
        assert await redis.zcard("pending:expiration") == 0
        assert await members(redis, "pending:by-status:expired") == {c.id for c in report.expired}
        assert len([call async for call in rt.pending(status="waiting")]) == 2


class Watched:
    """Keeps each put of a pending call that changed where an index has it."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._commit = store.commit
        self.silent: list[Put] = []
        self.told = 0
        store.commit = self.commit  # type: ignore[method-assign]

    async def commit(
        self, writes: Sequence[Write], puts: Sequence[Put] = (), checks: Sequence[Check] = ()
    ) -> Heads:
        before = {put.key: await self._store.get("pending", put.key) for put in puts}
        heads = await self._commit(writes, puts, checks)
        recorded = {write.stream for write in writes if write.records}
        for put in puts:
            old = before[put.key]
            is_alike = old is not None and (old.state, old.due) == (put.state, put.due)
            if put.kind != "pending" or is_alike or not isinstance(put.data, bytes):
                continue
            if put.stream in recorded:
                self.told += 1
            else:
                self.silent.append(put)
        return heads


async def test_no_call_changes_its_state_or_deadline_without_a_record() -> None:
    """The index follows the records: what came without one, nobody would hear of."""
    clock = ManualClock()
    store = MemoryStore(clock)
    watched = Watched(store)
    async with Runtime(store, agents=[shop()], clock=clock) as rt:
        for name in ("s", "t", "u"):
            await rt.session(name, agent="shop").run("Go")
        calls = [call async for call in rt.pending(session="s")]
        for call in calls:
            if call.kind == "approval":
                await rt.approve(call.id, by="ada")
            else:
                await rt._resources.pending_inbox.mark_started(call.id)
                await rt.submit_result(call.id, "live")
        await rt.session("t").cancel()
        clock.advance("2h")
        await rt.recover()
        await rt.work(once=True)
    assert watched.silent == []
    assert watched.told > 15


def test_yaml_names_the_index_of_a_store(
    tmp_path: Path, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "turns.json").write_text(json.dumps([{"text": "Hello."}]))
    (tmp_path / "perdure.yaml").write_text(f"""
session_stores:
  main: {{backend: sql, sql: {{driver: sqlite, database: ./h.db}}, index: "{redis_url}"}}
llms: {{main: {{provider: scripted, script: turns.json}}}}
agents: {{a: {{llm: main, session_store: main}}}}
""")
    for command in (["run", "a", "Hi"], ["doctor"], ["db", "stats"], ["pending", "list"]):
        told = CliRunner().invoke(cli, command)
        assert told.exit_code == 0, told.output
    password = redis_url.partition("://:")[2].partition("@")[0]
    told = CliRunner().invoke(cli, ["config", "validate", "perdure.yaml"])
    assert (told.exit_code, password in told.output) == (0, False)


def test_an_index_that_is_none_is_told_without_its_password() -> None:
    with pytest.raises(ConfigError, match="is unknown") as refused:
        Runtime("memory:", index="memcached://:s3cret@host/0")
    assert (refused.value.code, "s3cret" in refused.value.message) == ("INDEX_UNKNOWN", False)


def test_without_the_library_one_line_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain = builtins.__import__

    def without(name: str, *more: Any, **others: Any) -> Any:
        if name == "perdure.store.redis.store":
            raise ImportError(name)
        return plain(name, *more, **others)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ConfigError) as refused:
        Runtime("memory:", index="redis://localhost/0")
    assert refused.value.hint == "pip install 'perdure[redis]'"


def test_a_store_can_be_put_around_an_indexed_one() -> None:
    seen: list[Store] = []
    token = around_store.set(lambda store: seen.append(store) or store)  # type: ignore[func-returns-value]
    Runtime("memory:", index="redis://localhost/0")
    around_store.reset(token)
    assert type(seen[0]).__name__ == "IndexedStore"


@pytest.mark.parametrize(
    "url, expected",
    [
        ("postgresql://user@localhost/agents", True),
        ("postgresql://user@localhost/agents?advisory=off", False),
        ("sqlite:///perdure.db", True),
        ("memory:", True),
    ],
)
def test_only_a_store_without_liveness_locks_gets_the_short_lease(url: str, expected: bool) -> None:
    assert has_liveness_locks(open_store(url)) is expected


def test_the_id_of_a_store_tells_stores_apart_and_reveals_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to(tmp_path)
    same = [
        ("sqlite:///shop.db", f"sqlite:///{tmp_path}/link/shop.db"),
        ("files:./shop", f"files:{tmp_path}/shop"),
        ("postgresql://ann:hush@db/shop", "postgres://ann:other@db/shop?listen=off"),
        ("memory:", "memory:"),
    ]
    ids = [{store_id(open_store(url)) for url in urls} for urls in same]
    assert [len(each) for each in ids] == [1] * len(same)
    others = ["sqlite:///other.db", "files:./other", "postgresql://db/other"]
    others += ["postgresql://other/shop", "postgresql://db/shop?schema=other"]
    every = set.union(*ids, {store_id(open_store(url)) for url in others})
    assert len(every) == len(same) + len(others)
    assert all(len(each) == 16 for each in every)
    shop = open_store("sqlite:///shop.db")
    assert store_id(indexed(shop, "redis://localhost")) in ids[0]
