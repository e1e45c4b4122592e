"""Commits that survive failures, as a driver's do: an unknown outcome is read back."""

import anyio

from perdure.store.base import NoStream, Record, Unavailable, Unknown, Write
from perdure.store.postgres.store import PostgresStore


async def write_once(store: PostgresStore, stream: str, number: int) -> None:
    """Commit the next number of a stream; after Unknown read it back first."""
    while True:
        try:
            await store.commit(
                [Write(stream, [Record("n", b"%d" % number)], create="session", head=number)]
            )
        except Unavailable:
            await anyio.sleep(0.01)
        except Unknown:
            if await _head_of(store, stream) > number:
                return
        else:
            return


async def _head_of(store: PostgresStore, stream: str) -> int:
    """Return the head of a stream, retried until the store responds."""
    while True:
        try:
            return (await store.read(stream)).head
        except NoStream:
            return 0
        except Unavailable:
            await anyio.sleep(0.01)
