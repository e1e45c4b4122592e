"""Writing on whatever happens, as a driver does: what is not known is read."""

import anyio

from perdure.store.base import NoStream, Record, Unavailable, Unknown, Write
from perdure.store.postgres.store import PostgresStore


async def write_once(store: PostgresStore, stream: str, number: int) -> None:
    """Write the next number of a stream; after Unknown it is looked for first."""
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
    """Where it ends, asked until there is an answer."""
    while True:
        try:
            return (await store.read(stream)).head
        except NoStream:
            return 0
        except Unavailable:
            await anyio.sleep(0.01)
