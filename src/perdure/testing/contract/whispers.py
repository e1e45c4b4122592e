"""What is said on a store without being stored: to whoever listens at that moment."""

from typing import Final

import anyio

from perdure.store.base import WHISPER_BYTES, Store, Write
from perdure.testing.contract.harness import Cases, Harness
from perdure.testing.contract.steps import make, record

cases = Cases()

_PATIENCE_S: Final = 5.0
_AGAIN_S: Final = 0.05


class _Ear:
    """One listener, and what it heard."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, bytes]] = []
        self._news = anyio.Event()

    def __call__(self, topic: str, data: bytes) -> None:
        self.heard.append((topic, data))
        self._news.set()

    async def hears(self, store: Store, topic: str, data: bytes) -> None:
        """Have it whispered until it is heard: once may get lost, always may not."""
        with anyio.fail_after(_PATIENCE_S):
            while (topic, data) not in self.heard:
                self._news = anyio.Event()
                store.broadcast(topic, data)
                with anyio.move_on_after(_AGAIN_S):
                    await self._news.wait()


@cases.of("whispers")
async def who_listens_hears_what_is_whispered_unchanged(harness: Harness) -> None:
    """Any bytes, up to the size that every backend carries; also what it says itself."""
    store, ear, other = await harness.open(), _Ear(), _Ear()
    with store.subscribe(ear), store.subscribe(other):
        for data in (b"", b"{}", "ü\u2028'\"\\".encode(), b"x" * WHISPER_BYTES):
            await ear.hears(store, "topic", data)
            await other.hears(store, "topic", data)


@cases.of("whispers")
async def another_store_on_the_same_data_hears_it(harness: Harness) -> None:
    """As another process would; where there can be none, the same store is asked."""
    one = await harness.open()
    other = await harness.open() if "shared" in harness.capabilities else one
    ear = _Ear()
    with other.subscribe(ear):
        await ear.hears(one, "topic", b"hello")
        await ear.hears(one, "another", b"hello")


@cases.of("whispers")
async def who_has_left_hears_nothing_and_who_fails_harms_nobody(harness: Harness) -> None:
    """A listener that raises is its own trouble."""
    store, gone, ear = await harness.open(), _Ear(), _Ear()

    def fail(topic: str, data: bytes) -> None:
        raise RuntimeError(f"{topic} {data!r}")

    with store.subscribe(gone):
        await gone.hears(store, "topic", b"1")
    with store.subscribe(fail), store.subscribe(ear):
        await ear.hears(store, "topic", b"2")
    assert all(data == b"1" for _, data in gone.heard)


@cases.of("hints")
async def whispering_changes_nothing_and_never_fails(harness: Harness) -> None:
    """To nobody, too much, or on a store that is closed."""
    store = await harness.open()
    await make(store, "s")
    before = await store.read("s"), (await store.tail("")).cursor
    for data in (b"", b"x" * 1_000_000):
        store.broadcast("topic", data)
    assert (await store.read("s"), (await store.tail("")).cursor) == before
    assert await store.commit([Write("s", [record()])]) == {"s": 2}
    await store.close()
    store.broadcast("topic", b"anybody there?")
    with store.subscribe(_Ear()):
        store.broadcast("topic", b"anybody there?")
