"""`holdfast db copy`: all that a store holds, into another."""

import logging
from contextlib import AsyncExitStack

import anyio

from holdfast.app.stores import is_in_memory, open_store
from holdfast.cli.opening import check_exists, log_to_stderr
from holdfast.cli.settings import Settings
from holdfast.cli.terminal import Terminal
from holdfast.errors import Refused
from holdfast.store.base import Store
from holdfast.store.copy import Copied, copy
from holdfast.store.postgres import inspect as postgres_care

_EVERY = 500  # streams, from one word about it to the next


def _check_made(source: Store) -> None:
    """Raises StoreError for a source that opening would make: there is nothing to copy."""
    look = postgres_care.look_of(source)
    if look is not None:
        look.vitals(0)


def copy_store(settings: Settings, source: str, target: str) -> int:
    """Copy, compare, and say what is there now."""
    for url in (source, target):
        if is_in_memory(url):
            raise Refused(
                "what is in memory ends with its process and cannot be copied",
                code="STORE_IN_MEMORY",
                hint="name a store that stays, such as sqlite:///holdfast.db",
            )
    check_exists(source, "existing")
    log_to_stderr(settings, logging.WARNING)
    terminal = Terminal(settings)

    def tell(done: int, total: int) -> None:
        if done % _EVERY == 0:
            terminal.say(f"{done:,} of {total:,} streams")

    async def main() -> Copied:
        async with AsyncExitStack() as stack:
            here, there = open_store(source), open_store(target)
            _check_made(here)
            for store in (here, there):
                await store.open()
                stack.push_async_callback(store.close)
            return await copy(here, there, tell)

    copied = anyio.run(main)
    answer = {
        "streams": copied.streams,
        "records": copied.records,
        "entries": copied.entries,
        "digest": copied.digest,
    }
    text = (
        f"✓ {copied.streams:,} streams with {copied.records:,} records and "
        f"{copied.entries:,} entries, the same on both sides: {copied.digest}"
    )
    terminal.either(answer, lambda: terminal.say(text))
    return 0
