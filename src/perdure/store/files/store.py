"""The files backend: a SQLite store whose sessions and pending calls are readable files too."""

import os
from pathlib import Path

from anyio import to_thread

from perdure.store.base import Clock, Store
from perdure.store.files.layout import DATABASE, Layout, NoLayout
from perdure.store.files.mirror import Mirror
from perdure.store.sqlite.store import SqliteStore


def files_store(
    base: str | os.PathLike[str], layout: Layout | None = None, *, clock: Clock | None = None
) -> SqliteStore:
    """Return the store of a folder, which is created when the store is opened."""
    folder = Path(base).absolute()
    mirror = Mirror(folder, layout or NoLayout())
    return SqliteStore(folder / DATABASE, clock=clock, follower=mirror)


def mirror_of(store: Store) -> Mirror | None:
    """Return the mirror of a files store; None for another backend."""
    follower = store.follower if isinstance(store, SqliteStore) else None
    return follower if isinstance(follower, Mirror) else None


async def write_files(store: Store) -> None:
    """Return when the files have everything that was committed before; for another backend now."""
    mirror = mirror_of(store)
    if mirror is not None:
        await to_thread.run_sync(mirror.write_now)
