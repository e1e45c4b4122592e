"""Process that claims a session in the commit that creates it, and is killed at the reply.

`python -m tests.crash.claim_program URL HOLDER`
"""

import os
import signal
import sys

import anyio

from perdure.app.stores import open_store
from perdure.store.base import Record, Write


async def claim(url: str, holder: str) -> None:
    """Create the session `s` with a claim, and die."""
    store = open_store(url)
    await store.open()
    await store.renew(holder, 3_600_000, join=True)
    first = Record("user", b"{}")
    write = Write("s", [first], create="session", head=0, wake=store.now(), claim=holder)
    heads = await store.commit([write])
    assert heads.leases["s"].epoch == 1
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    anyio.run(claim, sys.argv[1], sys.argv[2])
