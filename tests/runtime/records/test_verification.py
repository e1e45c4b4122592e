"""When a log is read again before a command, and what counts as a read."""

from types import SimpleNamespace
from typing import Any

import pytest

from perdure import host
from perdure.core.log import events
from perdure.errors import Corrupt
from perdure.runtime.records.cache import MIN_LOG_BYTES, SessionCache
from perdure.runtime.records.log import PAGE, as_record
from perdure.runtime.records.verification import FRESH_S, LogVerifier
from perdure.store.base import Record, Slice, Write
from perdure.store.memory import MemoryStore

STREAM = "s//s1"
FACT = as_record(events.Metadata(changes={"a": 1}), 1)


class CountingStore(MemoryStore):
    """Store that counts reads."""

    reads = 0

    async def read(self, stream: str, after: int = 0, limit: int | None = None) -> Slice:
        self.reads += 1
        return await super().read(stream, after, limit)

    async def append(self) -> int:
        """Append an event, as any process may; return the new head."""
        return (await self.commit([Write(STREAM, [FACT], create="session")]))[STREAM]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Any:
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(host, "elapsed", lambda: clock.now)
    return clock


@pytest.fixture
async def store() -> CountingStore:
    store = CountingStore()
    await store.open()
    await store.append()
    return store


def verifier_of(store: CountingStore) -> LogVerifier:
    return LogVerifier(store, SessionCache(), store.commit)


async def test_an_own_commit_counts_as_a_read_for_as_long_as_it_took(
    store: CountingStore, clock: Any
) -> None:
    verifier = verifier_of(store)
    await verifier.verify(STREAM)
    assert store.reads == 1
    clock.now += 5 * FRESH_S
    verifier.extend(STREAM, 1, await store.append(), took_s=5 * FRESH_S)
    clock.now += 4 * FRESH_S
    await verifier.verify(STREAM)
    assert store.reads == 1
    clock.now += 2 * FRESH_S
    await verifier.verify(STREAM)
    assert store.reads == 2


async def test_a_commit_after_events_of_others_does_not_count_as_a_read(
    store: CountingStore, clock: Any
) -> None:
    verifier = verifier_of(store)
    await verifier.verify(STREAM)
    clock.now += 2 * FRESH_S
    await store.append()
    verifier.extend(STREAM, 1, await store.append(), took_s=5 * FRESH_S)
    await verifier.verify(STREAM)
    assert store.reads == 2


async def test_a_long_log_is_kept_for_the_drive_after_the_command(
    store: CountingStore, clock: Any
) -> None:
    cache = SessionCache()
    verifier = LogVerifier(store, cache, store.commit)
    large = as_record(events.User(role="user", content="x" * MIN_LOG_BYTES), 1)
    head = (await store.commit([Write(STREAM, [large] * PAGE)]))[STREAM]
    await verifier.verify(STREAM)
    reads = store.reads
    log = cache.decoded.take(STREAM)
    assert log is not None
    assert (len(log.events), log.state.head) == (head, 0)  # decoded, and not folded yet
    await log.catch_up()
    assert (log.state.head, log.state.input_head) == (head, head)
    assert store.reads == reads + 1  # only for what is new


async def test_a_damaged_log_is_not_kept(store: CountingStore) -> None:
    cache = SessionCache()
    verifier = LogVerifier(store, cache, store.commit)
    large = as_record(events.User(role="user", content="x" * MIN_LOG_BYTES), 1)
    await store.commit([Write(STREAM, [large])])
    await verifier.verify(STREAM)
    await verifier.fail_session(STREAM, Corrupt("torn"))
    assert cache.decoded.take(STREAM) is None
    await store.commit([Write(STREAM, [Record("user", b"{", 1)])])
    with pytest.raises(Corrupt):
        await verifier.verify(STREAM)
    assert cache.decoded.take(STREAM) is None
