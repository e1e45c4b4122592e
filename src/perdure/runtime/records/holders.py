"""Holders: the names of processes in the store."""

from perdure.store.base import Store


async def live_holders(store: Store) -> frozenset[str]:
    """Return the names of the holders that are alive, after those that are not were reaped."""
    await store.reap(store.now())
    return frozenset((await store.census(())).alive)
