"""Conversion of a folder of an earlier version: a database beside its logs."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

from perdure.errors import Conflict, Refused
from perdure.store.base import Put, Store, Unavailable, Write
from perdure.store.files.folder import JOURNAL, is_old_format, mark_as_new
from perdure.store.files.layout import DATABASE, LOG, OWN
from perdure.store.files.old_format import HEADS, STREAMS, OldStream, read_old_folder
from perdure.store.shared.file_lock import WriteLock
from perdure.store.shared.line_files import sync_folder
from perdure.store.shared.private_files import create_file, make_folder
from perdure.store.sqlite.store import SqliteStore

OLD: Final = f"{OWN}/old"  # the files of the earlier version
_TOGETHER: Final = 100  # streams in one commit


class Conversion(NamedTuple):
    """Numbers of what was converted, and the streams that could not be."""

    streams: int
    records: int
    entries: int
    damaged: tuple[str, ...]  # a record is missing or damaged
    kept: Path


async def convert(base: Path) -> Conversion:
    """Convert a folder; killed anywhere, it can be started again. Raises StoreError, Refused.

    The journal and the logs of the earlier version are kept aside. A stream whose driver has
    stopped is due.
    """
    _check(base)
    with _earlier_lock(base):
        streams = read_old_folder(base)
        sound = {name: stream for name, stream in streams.items() if stream.is_complete}
        create_file(base / JOURNAL)  # until the end, the folder counts as one of the old format
        _remove_database(base / DATABASE)
        store = SqliteStore(base / DATABASE)
        await store.open()
        try:
            await _write(store, sound)
        finally:
            await store.close()
        _keep_old_files(base)
        _finish(base)
    return Conversion(
        len(sound),
        sum(len(stream.records) for stream in sound.values()),
        sum(len(stream.entries) for stream in sound.values()),
        tuple(sorted(set(streams) - set(sound))),
        base / OLD,
    )


def _check(base: Path) -> None:
    if not base.is_dir():
        raise Refused(
            f"there is no folder {str(base)!r}", code="STORE_NOT_FOUND", hint="check the path"
        )
    if not is_old_format(base):
        raise Conflict(
            f"{base} is not a folder of an earlier version",
            code="NOT_OLD_FORMAT",
            hint=f"it can be opened as it is: --store files:{base}",
        )


@contextmanager
def _earlier_lock(base: Path) -> Iterator[None]:
    """Hold the lock that an earlier version holds while it has the folder open."""
    make_folder(base / OWN)
    lock = WriteLock(str(base / OWN / "lock"))
    lock.open()
    try:
        if not lock.try_acquire():
            raise Unavailable(
                f"{lock.holder()} has the files in {base} open",
                hint=f"end {lock.holder()} first",
                code="STORE_IN_USE",
            )
        yield
    finally:
        lock.close()


async def _write(store: Store, streams: dict[str, OldStream]) -> None:
    names = list(streams)
    for start in range(0, len(names), _TOGETHER):
        part = {name: streams[name] for name in names[start : start + _TOGETHER]}
        writes = [_stream_write(name, stream) for name, stream in part.items()]
        puts = [
            Put(e.kind, e.key, 0, e.stream, e.state, e.due, e.data, e.listing, e.at)
            for stream in part.values()
            for e in stream.entries.values()
        ]
        await store.commit(writes, puts)


def _stream_write(name: str, stream: OldStream) -> Write:
    records = [stream.records[seq] for seq in range(1, stream.row.head + 1)]
    due = stream.row.due
    if stream.row.holder is not None:
        due = records[-1].at if records else 0
    row = stream.row
    return Write(name, records, head=0, create=row.kind, wake=due, epoch=row.epoch)


def _remove_database(path: Path) -> None:
    for name in ("", "-wal", "-shm", ".lock"):
        Path(f"{path}{name}").unlink(missing_ok=True)


def _keep_old_files(base: Path) -> None:
    """Keep the files as they are under another name; the logs are replaced when they change."""
    paths = [*base.glob(f"*/{LOG}"), *(base / STREAMS).glob("*.jsonl")]
    for path in (*paths, base / JOURNAL, base / HEADS):
        target = base / OLD / path.relative_to(base)
        if path.exists() and not target.exists():
            make_folder(target.parent)
            _link(path, target)
            sync_folder(target.parent)


def _link(path: Path, target: Path) -> None:
    try:
        os.link(path, target)
    except OSError:  # the file system has no links
        shutil.copy2(path, target)


def _finish(base: Path) -> None:
    """Make the folder one that earlier versions refuse, and remove what is kept aside."""
    mark_as_new(base)
    sync_folder(base / OWN)
    (base / HEADS).unlink(missing_ok=True)
    for path in (base / STREAMS).glob("*.jsonl"):
        path.unlink()
    with suppress(OSError):
        (base / STREAMS).rmdir()
