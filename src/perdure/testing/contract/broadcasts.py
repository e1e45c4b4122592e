"""Broadcasts: lossy messages to the present subscribers, in any process."""

from typing import Final

import anyio

from perdure.store.base import BROADCAST_BYTES, Store, Write
from perdure.testing.contract.harness import Cases, Harness
from perdure.testing.contract.steps import make, record

cases = Cases()

_TIMEOUT_S: Final = 5.0
_RETRY_S: Final = 0.05


class _Subscriber:
    """Callback that records its messages."""

    def __init__(self) -> None:
        self.messages: list[tuple[str, bytes]] = []
        self._received = anyio.Event()

    def __call__(self, topic: str, data: bytes) -> None:
        self.messages.append((topic, data))
        self._received.set()

    async def receive(self, store: Store, topic: str, data: bytes) -> None:
        """Broadcast the message until it is received: one may get lost, not all of them."""
        with anyio.fail_after(_TIMEOUT_S):
            while (topic, data) not in self.messages:
                self._received = anyio.Event()
                store.broadcast(topic, data)
                with anyio.move_on_after(_RETRY_S):
                    await self._received.wait()


@cases.case("broadcasts")
async def subscribers_get_broadcasts_unchanged(harness: Harness) -> None:
    """Any data up to the size that every backend can carry, of the same store too."""
    store, first, second = await harness.open(), _Subscriber(), _Subscriber()
    with store.subscribe(first), store.subscribe(second):
        for data in (b"", b"{}", "ü\u2028'\"\\".encode(), b"x" * BROADCAST_BYTES):
            await first.receive(store, "topic", data)
            await second.receive(store, "topic", data)


@cases.case("broadcasts")
async def another_store_on_the_same_data_gets_them(harness: Harness) -> None:
    """As another process would; the same store where the data cannot be shared."""
    sender = await harness.open()
    receiver = await harness.open() if "shared" in harness.capabilities else sender
    subscriber = _Subscriber()
    with receiver.subscribe(subscriber):
        await subscriber.receive(sender, "topic", b"hello")
        await subscriber.receive(sender, "another", b"hello")


@cases.case("broadcasts")
async def a_former_subscriber_gets_nothing_and_a_failing_one_harms_no_other(
    harness: Harness,
) -> None:
    """An exception of a subscriber reaches neither the others nor the sender."""
    store, former, present = await harness.open(), _Subscriber(), _Subscriber()

    def fail(topic: str, data: bytes) -> None:
        raise RuntimeError(f"{topic} {data!r}")

    with store.subscribe(former):
        await former.receive(store, "topic", b"1")
    with store.subscribe(fail), store.subscribe(present):
        await present.receive(store, "topic", b"2")
    assert all(data == b"1" for _, data in former.messages)


@cases.case("hints")
async def a_broadcast_changes_nothing_and_never_fails(harness: Harness) -> None:
    """Without subscribers, too large, or on a closed store."""
    store = await harness.open()
    await make(store, "s")
    before = await store.read("s"), (await store.tail("")).cursor
    for data in (b"", b"x" * 1_000_000):
        store.broadcast("topic", data)
    assert (await store.read("s"), (await store.tail("")).cursor) == before
    assert await store.commit([Write("s", [record()])]) == {"s": 2}
    await store.close()
    store.broadcast("topic", b"anybody there?")
    with store.subscribe(_Subscriber()):
        store.broadcast("topic", b"anybody there?")
