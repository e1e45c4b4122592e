"""When a log is read again before a command, and what counts as a read."""

from types import SimpleNamespace
from typing import Any

import pytest

from perdure.core.log import events
from perdure.runtime.records import verification
from perdure.runtime.records.cache import SessionCache
from perdure.runtime.records.log import as_record
from perdure.runtime.records.verification import FRESH_S, LogVerifier
from perdure.store.base import Slice, Write
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
    monkeypatch.setattr(verification, "time", SimpleNamespace(monotonic=lambda: clock.now))
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
