"""A lock file that cannot be locked or written: told to who waits, and the writer goes on."""

import errno
import fcntl
import os
from pathlib import Path
from typing import Any

import anyio
import pytest

from perdure.store.base import Record, Unavailable, Write
from perdure.store.sqlite.store import SqliteStore

WRITE = Write("a", [Record("x", b"{}")], create="k")


async def test_a_lock_that_cannot_be_had_is_told_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = SqliteStore(tmp_path / "h.db")
    await store.open()
    refusals = [OSError(errno.ENOLCK, "No locks available")]
    real = fcntl.flock

    def flock(fd: int, how: int) -> None:
        if refusals and how & fcntl.LOCK_EX:
            raise refusals.pop()
        real(fd, how)

    monkeypatch.setattr(fcntl, "flock", flock)
    with anyio.fail_after(5):
        with pytest.raises(Unavailable, match="No locks available"):
            await store.commit([WRITE])
        assert await store.commit([WRITE]) == {"a": 1}
    await store.close()


async def test_a_lock_that_cannot_be_signed_is_a_lock_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name in it is for people; a full disk must not keep it locked."""

    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    store = SqliteStore(tmp_path / "h.db")
    await store.open()
    with anyio.fail_after(5):
        assert await store.commit([WRITE]) == {"a": 1}
    await store.close()
