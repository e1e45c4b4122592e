"""What many cases do: make a stream, take a lease, be refused."""

from collections.abc import Awaitable
from typing import TypeVar

from perdure.store.base import Entry, Lease, Put, Record, Store, Write

E = TypeVar("E", bound=Exception)

TTL_MS = 10_000


def record(text: str = "x") -> Record:
    """A record that says this."""
    return Record("said", text.encode(), 1)


async def make(store: Store, *streams: str, wake: int | None = 0) -> None:
    """New sessions with one record each, due at once."""
    await store.commit(
        [Write(s, [record("first")], create="session", head=0, wake=wake) for s in streams]
    )


async def join(store: Store, holder: str, ttl_ms: int = TTL_MS) -> None:
    """A worker that is alive."""
    await store.renew(holder, ttl_ms, join=True)


async def take(store: Store, holder: str, stream: str) -> Lease:
    """The lease of a stream that is due."""
    (lease,) = await store.claim(holder, "session", 1, only=stream)
    return lease


async def drive(store: Store, holder: str = "worker", stream: str = "s") -> Lease:
    """A new session that a new worker holds."""
    await make(store, stream)
    await join(store, holder)
    return await take(store, holder, stream)


def put(key: str, expect: int = 0, **fields: object) -> Put:
    """An open pending call of the session `s`, or a variation of it."""
    values: dict[str, object] = {
        "kind": "pending",
        "stream": "s",
        "state": "open",
        "due": None,
        "data": b"",
        **fields,
    }
    return Put(key=key, expect=expect, **values)  # type: ignore[arg-type]


async def texts(store: Store, stream: str) -> list[str]:
    """What the records of a stream say."""
    return [r.data.decode() for r in (await store.read(stream)).records]


async def entry(store: Store, key: str, kind: str = "pending") -> Entry:
    """An entry that must be there."""
    found = await store.get(kind, key)
    assert found is not None, f"{kind} {key} is missing"
    return found


async def refused(kind: type[E], attempt: Awaitable[object]) -> E:
    """The error that the attempt must end with."""
    try:
        answer = await attempt
    except kind as error:
        return error
    raise AssertionError(f"expected {kind.__name__}, got the answer {answer!r}")
