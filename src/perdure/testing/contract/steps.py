"""Steps of many cases: create a stream, claim a lease, expect an error."""

from collections.abc import Awaitable
from typing import TypeVar

from perdure.store.base import Entry, Lease, Put, Record, Store, Write

E = TypeVar("E", bound=Exception)

TTL_MS = 10_000


def record(text: str = "x") -> Record:
    """Return a record with this text."""
    return Record("said", text.encode(), 1)


async def make(store: Store, *streams: str, wake: int | None = 0) -> None:
    """Create sessions with one record each, due at once."""
    await store.commit(
        [Write(s, [record("first")], create="session", head=0, wake=wake) for s in streams]
    )


async def join(store: Store, holder: str, ttl_ms: int = TTL_MS) -> None:
    """Create the row of a new holder."""
    await store.renew(holder, ttl_ms, join=True)


async def claim(store: Store, holder: str, stream: str) -> Lease:
    """Claim one stream, which must be due."""
    (lease,) = await store.claim(holder, "session", 1, only=stream)
    return lease


async def drive(store: Store, holder: str = "worker", stream: str = "s") -> Lease:
    """Create a session, and claim it for a new holder."""
    await make(store, stream)
    await join(store, holder)
    return await claim(store, holder, stream)


def put(key: str, expect: int = 0, **fields: object) -> Put:
    """Return the put of an open pending call of the session `s`, or a variation of it."""
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
    """Return the texts of the records of a stream."""
    return [r.data.decode() for r in (await store.read(stream)).records]


async def entry(store: Store, key: str, kind: str = "pending") -> Entry:
    """Return an entry that must exist."""
    entry = await store.get(kind, key)
    assert entry is not None, f"{kind} {key} is missing"
    return entry


async def expect_error(kind: type[E], attempt: Awaitable[object]) -> E:
    """Return the error of an attempt that must fail with it."""
    try:
        result = await attempt
    except kind as error:
        return error
    raise AssertionError(f"expected {kind.__name__}, got {result!r}")
