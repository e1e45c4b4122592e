"""The files store: what stands in its folder, and what becomes of it when a process dies there."""

import asyncio
import errno
import json
import os
import shutil
import subprocess
import sys
import threading
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from perdure.app.layouts import SessionFiles
from perdure.core.session.naming import session_stream
from perdure.errors import Corrupt, Refused
from perdure.store.base import (
    DELETE,
    Gone,
    NoStream,
    Put,
    Record,
    Slice,
    Unavailable,
    Unknown,
    Write,
)
from perdure.store.files.folder import Folder
from perdure.store.files.layout import HEADS
from perdure.store.files.store import FilesStore
from perdure.store.shared import line_files as files_logs
from perdure.store.shared.names import file_name, id_from_name, reversible_name

S = session_stream("", "s1")
USER = Record("user", b'{"role":"user","content":"Hello"}', 1701234567890)
HI = b'{"role":"assistant","content":"Hi!","agent":"default"}'
REPLY = Record("assistant", HI, 1701234568123)


@asynccontextmanager
async def opened(base: Path) -> AsyncIterator[FilesStore]:
    store = FilesStore(base, SessionFiles())
    await store.open()
    try:
        yield store
    finally:
        await store.close()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def session_put(expect: int = 0, state: str = "pending") -> Put:
    data = {"id": "s1", "agent": "shop", "state": state}
    return Put("session", "/s1", expect, S, state, None, json.dumps(data).encode())


def pending_put(number: int, expect: int = 0, **more: Any) -> Put:
    record = {
        "id": f"p_{number}",
        "sessionID": "s1",
        "messageID": "m1",
        "partID": f"m1.{number}",
        "callID": f"c{number}",
        "effectID": f"e{number}",
        "taskID": "task_1",
        "agent": "shop",
        "tool": "deploy",
        "input": {},
        "kind": "tool",
        "time": {"created": 1},
        "timeout": 100 - number,
        **more,
    }
    return Put("pending", f"p_{number}", expect, S, "open", None, json.dumps(record).encode())


async def fill(base: Path) -> Slice:
    """A session with two events, an entry of its own and two calls that wait."""
    async with opened(base) as store:
        await store.commit([Write(S, [USER], create="session:shop", head=0)], [session_put()])
        await store.commit([Write(S, [REPLY])], [session_put(1, "waiting"), pending_put(1)])
        await store.commit([Write(S)], [pending_put(2)])
        return await store.read(S)


async def test_a_session_is_a_folder_of_documented_lines_with_one_key_more(tmp_path: Path) -> None:
    """S2.4, S2.18, S2.20, SX.5"""
    await fill(tmp_path)
    lines = (tmp_path / "s1" / "events.jsonl").read_text().splitlines()
    assert lines[0].startswith(
        '{"type":"user","timestamp":1701234567890,"data":{"role":"user","content":"Hello"},"perdure":'
    )
    events = [json.loads(line) for line in lines]
    assert [list(event) for event in events] == [["type", "timestamp", "data", "perdure"]] * 2
    assert [event["perdure"]["seq"] for event in events] == [1, 2]
    assert [entry["key"] for entry in events[1]["perdure"]["entries"]] == ["/s1", "p_1"]


async def test_calls_and_sessions_are_files_and_an_index_of_them(tmp_path: Path) -> None:
    """S0.74"""
    await fill(tmp_path)
    call = json.loads((tmp_path / "storage/pending_tool/p_1.json").read_text())
    shown = (call["id"], call["sessionID"], call["tool"], call["status"])
    assert shown == ("p_1", "s1", "deploy", "waiting")
    session = json.loads((tmp_path / "storage/session/shop/s1.json").read_text())
    assert session == {"id": "s1", "agent": "shop", "state": "waiting"}
    assert json.loads((tmp_path / "storage/pending_tool/index.json").read_text()) == {
        "bySession": {"s1": ["p_1", "p_2"]},
        "byStatus": {"waiting": ["p_1", "p_2"]},
        "byExpiration": [
            {"pendingID": "p_2", "expiresAt": 98},
            {"pendingID": "p_1", "expiresAt": 99},
        ],
    }


async def test_a_file_goes_with_its_entry(tmp_path: Path) -> None:
    """S0.74"""
    await fill(tmp_path)
    async with opened(tmp_path) as store:
        gone = Put("pending", "p_1", 1, S, "", None, DELETE)
        await store.commit([Write(S)], [gone])
        assert names(tmp_path / "storage/pending_tool") == ["index.json", "p_2.json"]
        await store.commit([Write(S, erase=True)])
    assert not (tmp_path / "s1").exists()
    assert names(tmp_path / "storage" / "session" / "shop") == []
    assert json.loads((tmp_path / "storage/pending_tool/index.json").read_text())["bySession"] == {}


async def test_a_reader_of_all_streams_passes_one_that_is_erased_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = session_stream("", "s2")
    async with opened(tmp_path) as store:
        for stream in (S, other):
            await store.commit([Write(stream, [USER, REPLY], create="session")])
        read = store._read

        async def erase_first(reading: Any) -> Any:
            monkeypatch.setattr(store, "_read", read)
            await store.commit([Write(S, erase=True)])
            return await read(reading)

        monkeypatch.setattr(store, "_read", erase_first)
        feed = await store.tail("0")
        assert [record.stream for record in feed.records] == [other, other]
        await store.commit([Write(other, [USER])])
        assert len((await store.tail(feed.cursor)).records) == 1
        with pytest.raises((Gone, NoStream)):
            await store.read(S)


@pytest.mark.parametrize("harm", ["missing", "garbled"])
async def test_what_is_derived_is_made_again(tmp_path: Path, harm: str) -> None:
    """S0.75"""
    await fill(tmp_path)
    shown = [
        "storage/pending_tool/index.json",
        "storage/pending_tool/p_1.json",
        "storage/session/shop/s1.json",
    ]
    before = [(tmp_path / name).read_bytes() for name in shown]
    for name in shown:
        (tmp_path / name).unlink() if harm == "missing" else (tmp_path / name).write_text("{oops")
    async with opened(tmp_path) as store:
        assert len((await store.find("pending", stream=S)).entries) == 2
    assert [(tmp_path / name).read_bytes() for name in shown] == before


async def test_a_reader_sees_a_file_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S0.76: a process that dies while it writes leaves the old content."""
    await fill(tmp_path)
    before = (tmp_path / "storage/pending_tool/p_1.json").read_bytes()
    monkeypatch.setattr(os, "fsync", _failing(os.fsync, after=1))
    async with opened(tmp_path) as store:
        await store.commit([Write(S)], [pending_put(1, 1, tool="other")])
        assert (tmp_path / "storage/pending_tool/p_1.json").read_bytes() == before
    monkeypatch.undo()
    async with opened(tmp_path):
        after = json.loads((tmp_path / "storage/pending_tool/p_1.json").read_text())
    assert after["tool"] == "other"


def _failing(real: Any, after: int) -> Any:
    count = 0

    def call(*arguments: Any) -> Any:
        nonlocal count
        count += 1
        if count == after + 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(*arguments)

    return call


# --- one process ----------------------------------------------------------------------------------

_OPEN = """
import anyio, sys
from perdure.store.files.store import FilesStore
async def main():
    store = FilesStore(sys.argv[1])
    await store.open()
    print("open", flush=True)
    sys.stdin.readline()
anyio.run(main)
"""


def test_a_second_process_is_told_who_has_the_folder(tmp_path: Path) -> None:
    """S2.11, S0.76"""
    command = [sys.executable, "-c", _OPEN, str(tmp_path)]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "open\n"
        with pytest.raises(Unavailable, match=f"process {other.pid} has the files in") as told:
            anyio.run(FilesStore(tmp_path).open)
        assert told.value.code == "STORE_IN_USE"
        other.kill()
    anyio.run(fill, tmp_path)


async def test_a_dead_process_holds_nothing(tmp_path: Path) -> None:
    """Its lease is not waited for: nobody but us can have the folder."""
    async with opened(tmp_path) as store:
        await store.commit([Write(S, [USER], create="session:shop", head=0, wake=0)])
        await store.renew("worker", 3_600_000, join=True)
        (lease,) = await store.claim("worker", "session:shop", 9)
    journal = tmp_path / ".perdure" / "journal.jsonl"
    _rewrite(journal, f",{os.getpid()}]", ",1]")  # as another process would have written it
    async with opened(tmp_path) as store:
        at = await store.read(S, limit=0)
        assert at.holder is None
        assert at.due is not None
        await store.renew("next", 1000, join=True)
        (taken,) = await store.claim("next", "session:shop", 9)
        assert taken.epoch > lease.epoch


def _rewrite(journal: Path, old: str, new: str) -> None:
    """Change the lines that have a text, and their checksums."""
    changed = []
    for line in journal.read_text().splitlines():
        bare = line[: line.rindex(',"crc"')].replace(old, new)
        crc = zlib.crc32(bare.encode() + b"}")
        changed.append(f'{bare},"crc":"{crc:08x}"}}\n')
    assert any(new in line for line in changed)
    journal.write_text("".join(changed))


# --- dying ----------------------------------------------------------------------------------------


async def test_a_journal_cut_anywhere_holds_every_commit_before_the_cut(tmp_path: Path) -> None:
    """S2.9, S2.42, G1: the torn tail goes, and the next line starts on a fresh one."""
    base = tmp_path / "whole"
    await fill(base)
    journal = base / ".perdure" / "journal.jsonl"
    whole = journal.read_bytes()
    ends = [n + 1 for n, byte in enumerate(whole) if byte == 10]
    heads = {ends[-4]: 0, ends[-3]: 1, ends[-2]: 2, ends[-1]: 2}
    logs = _log_at_heads(base)
    for cut in [*range(ends[-4], len(whole), 7), len(whole)]:
        head = heads[max(end for end in heads if end <= cut)]
        copy = tmp_path / f"cut{cut}"
        _copy(base, copy, journal=whole[:cut], log=logs[head])
        async with opened(copy) as store:
            if head:
                assert (await store.read(S)).head == head
                assert await store.commit([Write(S, [REPLY])]) == {S: head + 1}
            else:
                assert await store.get("session", "/s1") is None
        async with opened(copy) as store:
            if head:
                assert len((await store.read(S)).records) == head + 1


def _log_at_heads(base: Path) -> list[bytes]:
    lines = (base / "s1" / "events.jsonl").read_bytes().splitlines(keepends=True)
    return [b"".join(lines[:n]) for n in range(len(lines) + 1)]


def _copy(base: Path, copy: Path, journal: bytes, log: bytes) -> None:
    shutil.copytree(base, copy)
    (copy / ".perdure" / "journal.jsonl").write_bytes(journal)
    (copy / ".perdure" / HEADS).unlink()  # written after the journal
    (copy / "s1" / "events.jsonl").write_bytes(log)


async def test_a_log_cut_anywhere_is_brought_up_to_the_journal(tmp_path: Path) -> None:
    """S2.9: killed between the journal and the log, or in the middle of a line."""
    base = tmp_path / "whole"
    whole = await fill(base)
    log = (base / "s1" / "events.jsonl").read_bytes()
    for cut in range(0, len(log) + 1, 11):
        copy = tmp_path / f"cut{cut}"
        shutil.copytree(base, copy)
        (copy / "s1" / "events.jsonl").write_bytes(log[:cut])
        async with opened(copy) as store:
            assert (await store.read(S)).records == whole.records
        assert (copy / "s1" / "events.jsonl").read_bytes() == log


async def test_without_its_journal_everything_is_made_from_the_logs(tmp_path: Path) -> None:
    """S0.75"""
    whole = await fill(tmp_path)
    (tmp_path / ".perdure" / "journal.jsonl").unlink()
    async with opened(tmp_path) as store:
        assert (await store.read(S)).records == whole.records
        assert [e.key for e in (await store.find("pending")).entries] == ["p_1"]
        session = await store.get("session", "/s1")
        assert session is not None
        assert (session.version, session.state) == (2, "waiting")
        await store.renew("w", 1000, join=True)
        assert [x.stream for x in await store.claim("w", "session:shop", 9)] == [S]
        assert await store.commit([Write(S, [REPLY], head=2)]) == {S: 3}


async def test_a_damaged_journal_is_kept_and_made_again(tmp_path: Path) -> None:
    whole = await fill(tmp_path)
    journal = tmp_path / ".perdure" / "journal.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join([lines[0], lines[1].replace(b"shop", b"shpo"), *lines[2:]]))
    async with opened(tmp_path) as store:
        assert (await store.read(S)).records == whole.records
    assert (tmp_path / ".perdure" / "journal.damaged.jsonl").exists()


async def test_a_last_line_that_was_damaged_later_is_not_taken_for_a_torn_one(
    tmp_path: Path,
) -> None:
    """What the logs have was acknowledged once."""
    whole = await fill(tmp_path)
    journal = tmp_path / ".perdure" / "journal.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join(lines[:-2]) + b"\x00" * len(lines[-2]))
    async with opened(tmp_path) as store:
        assert (await store.read(S)).records == whole.records
        assert await store.commit([Write(S, [REPLY], head=2)]) == {S: 3}


async def test_a_last_line_of_garbage_is_cut_also_if_it_has_an_end(tmp_path: Path) -> None:
    """S2.9"""
    whole = await fill(tmp_path)
    journal = tmp_path / ".perdure" / "journal.jsonl"
    journal.write_bytes(journal.read_bytes() + b"\x00\x00{oops\n")
    for head in (whole.head, whole.head + 1):
        async with opened(tmp_path) as store:
            assert (await store.read(S)).head == head
            await store.commit([Write(S, [REPLY], head=head)])
    assert not (tmp_path / ".perdure" / "journal.damaged.jsonl").exists()


async def test_a_disk_that_stays_full_is_unavailable_until_it_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G9: nobody has to open the store again."""
    await fill(tmp_path)

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    async with opened(tmp_path) as store:
        monkeypatch.setattr(os, "write", full)
        monkeypatch.setattr(os, "open", full)
        with pytest.raises(Unknown):
            await store.commit([Write(S, [USER])])
        with pytest.raises(Unavailable):
            await store.commit([Write(S, [USER])])
        with pytest.raises(Unavailable, match="No space left"):
            await store.read(S)
        monkeypatch.undo()
        head = (await store.commit([Write(S, [USER])]))[S]
        assert len((await store.read(S)).records) == head


async def test_a_full_disk_is_an_unknown_outcome_and_the_store_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E8: what the disk has then, a new start tells."""
    await fill(tmp_path)
    async with opened(tmp_path) as store:
        monkeypatch.setattr(os, "write", _failing(os.write, after=0))
        with pytest.raises(Unknown, match="No space left"):
            await store.commit([Write(S, [USER])])
        monkeypatch.undo()
        assert (await store.read(S)).head == 2
        monkeypatch.setattr(os, "fsync", _failing(os.fsync, after=0))
        with pytest.raises(Unknown):
            await store.commit([Write(S, [USER])])
        monkeypatch.undo()
        head = (await store.read(S)).head
        assert await store.commit([Write(S, [REPLY], head=head)]) == {S: head + 1}
    async with opened(tmp_path) as store:
        assert len((await store.read(S)).records) == head + 1


@pytest.mark.parametrize("survives", [True, False])
async def test_a_claim_of_a_commit_without_a_reply_is_undone_by_the_next_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, survives: bool
) -> None:
    """G9: its caller does not know that it should drive, and the heartbeat goes on."""
    await fill(tmp_path)
    async with opened(tmp_path) as store:
        await store.renew("worker", 60_000, join=True)
        for _ in range(7):  # however often: nobody died on it
            name = "fsync" if survives else "write"
            monkeypatch.setattr(os, name, _failing(getattr(os, name), after=0))
            with pytest.raises(Unknown):
                await store.commit([Write(S, [USER], wake=0, claim="worker")])
            monkeypatch.undo()
            assert (await store.read(S)).holder == ("worker" if survives else None)
            await store.renew("worker", 60_000)
            assert (await store.read(S)).holder is None
        heads = await store.commit([Write(S, wake=0, claim="worker")])
        assert heads.leases[S].tries == 1


async def test_a_damaged_event_is_named_and_those_before_it_can_be_read(tmp_path: Path) -> None:
    """S2.9"""
    await fill(tmp_path)
    log = tmp_path / "s1" / "events.jsonl"
    async with opened(tmp_path) as store:
        assert store._opened is not None
        store._opened.folder.compact()  # else the journal would have it still
    log.write_bytes(log.read_bytes().replace(b"Hi!", b"Ho!"))
    async with opened(tmp_path) as store:
        with pytest.raises(Corrupt, match="record 2 of s//s1"):
            await store.read(S)
        assert [r.data for r in (await store.read(S, 0, 1)).records] == [USER.data]


class Disk:
    """What of a folder would survive a power cut: files as they were last synced, and renames."""

    def __init__(self, base: Path, disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.base, self.disk = base, disk
        self._sync, self._rename = os.fsync, os.rename
        monkeypatch.setattr(os, "fsync", self.sync)
        monkeypatch.setattr(os, "rename", self.rename)

    def sync(self, fd: int) -> None:
        self._sync(fd)
        path = Path(f"/proc/self/fd/{fd}").readlink()
        if path.is_file() and path.is_relative_to(self.base):
            target = self._on_disk(path)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)

    def rename(self, source: Path, target: Path) -> None:
        self._rename(source, target)
        if self._on_disk(source).exists():
            self._rename(self._on_disk(source), self._on_disk(target))

    def _on_disk(self, path: Path) -> Path:
        return self.disk / path.relative_to(self.base)


async def test_what_was_acknowledged_survives_a_power_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G1, S2.10: after every commit, with compactions in between."""
    monkeypatch.setattr(FilesStore, "journal_limit", 3000)
    disk = Disk(tmp_path / "base", tmp_path / "disk", monkeypatch)
    async with opened(disk.base) as store:
        await store.commit([Write(S, [USER], create="session:shop", head=0)], [session_put()])
        for number in range(1, 25):
            await store.commit([Write(S, [REPLY])], [session_put(number, f"state{number}")])
            after = tmp_path / f"after{number}"
            shutil.copytree(disk.disk, after)
            async with opened(after) as survivor:
                assert (await survivor.read(S)).records == (await store.read(S)).records
                assert await survivor.get("session", "/s1") == await store.get("session", "/s1")


# --- growing --------------------------------------------------------------------------------------


async def test_the_journal_stays_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FilesStore, "journal_limit", 20_000)
    async with opened(tmp_path) as store:
        await store.commit([Write(S, [USER], create="session:shop", head=0)], [session_put()])
        for _ in range(300):
            await store.commit([Write(S, [REPLY])])
        assert (tmp_path / ".perdure" / "journal.jsonl").stat().st_size < 25_000
        assert len((await store.read(S)).records) == 301
    async with opened(tmp_path) as store:
        assert len((await store.tail("", 1000)).records) == 301
        assert await store.get("session", "/s1") is not None


# --- others ---------------------------------------------------------------------------------------


async def test_lines_of_others_are_left_where_they_are_and_not_taken_for_ours(
    tmp_path: Path,
) -> None:
    """S2.12: also between our own."""
    await fill(tmp_path)
    log = tmp_path / "s1" / "events.jsonl"
    files_logs.append_lines(log, [b'{"type":"todo_update","timestamp":1,"data":{}}'], sync=True)
    async with opened(tmp_path) as store:
        await store.commit([Write(S, [REPLY], head=2)])
        assert [r.seq for r in (await store.read(S)).records] == [1, 2, 3]
    assert len(log.read_text().splitlines()) == 4


async def test_the_log_of_another_program_is_kept_beside_ours(tmp_path: Path) -> None:
    foreign = tmp_path / "s1" / "events.jsonl"
    foreign.parent.mkdir()
    foreign.write_text('{"type":"user","timestamp":1,"data":{"role":"user","content":"x"}}\n')
    before = foreign.read_text()
    await fill(tmp_path)
    assert (tmp_path / "s1" / "events.foreign.jsonl").read_text() == before
    assert len(foreign.read_text().splitlines()) == 2


@pytest.mark.parametrize(
    "given",
    [
        *("..", ".", "../x", "a/b", "a\\b", "\0", "con", "NUL.txt", "storage", "session"),
        *("index.json", ".perdure", "a b", "é", "\u2028", "a%2Fb", "x.", "~", "order:991"),
        *("*?", "-rf", "A", "a"),
    ],
)
def test_an_id_is_never_a_path_and_is_found_again(given: str) -> None:
    """S2.8"""
    name = file_name(given)
    assert id_from_name(name) == given
    assert Path("/base") / name == Path("/base").joinpath(name).resolve()
    assert not name.startswith(".")
    assert name not in {"storage", "session", "index.json"}


def test_ids_that_are_too_long_have_names_of_their_own() -> None:
    """S2.8"""
    one, other = "ü" * 150 + "1", "ü" * 150 + "2"
    assert len(file_name(one)) < 200
    assert file_name(one) != file_name(other)
    assert id_from_name(file_name(one)) is None
    with pytest.raises(Refused, match="too long"):
        reversible_name(one)


async def test_a_session_of_any_id_stays_in_the_folder(tmp_path: Path) -> None:
    """S2.8: also one of a tenant, and one that begins like the folder of another."""
    base = tmp_path / "base"
    ids = [("", "../../x"), ("", "acme@x"), ("acme", "x"), ("", "ü" * 200), ("", ".perdure")]
    async with opened(base) as store:
        for tenant, session in ids:
            stream = session_stream(tenant, session)
            await store.commit([Write(stream, [USER], create="session:shop", head=0)])
        for tenant, session in ids:
            assert (await store.read(session_stream(tenant, session))).head == 1
    assert names(tmp_path) == ["base"]
    assert len(list(base.glob("*/events.jsonl"))) == len(ids)


@pytest.mark.parametrize("what", ["commit", "claim"])
async def test_a_task_that_is_cancelled_while_it_writes_tears_nothing_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """By the event loop's own cancellation, which no cancel scope shields from."""
    begun, may_write = threading.Event(), threading.Event()
    name = "write" if what == "commit" else "write_lease_changes"
    plain: Any = getattr(Folder, name)

    def slow(self: Folder, work: Any) -> Any:
        begun.set()
        may_write.wait(5)
        return plain(self, work)

    async with opened(tmp_path / "f") as store:
        await store.commit([Write(S, [USER], create="session", wake=0)])
        await store.renew("w", 10_000, join=True)
        monkeypatch.setattr(Folder, name, slow)
        work: dict[str, Any] = {
            "commit": lambda: store.commit([Write(S, [REPLY])]),
            "claim": lambda: store.claim("w", "session", 1),
        }
        task = asyncio.ensure_future(work[what]())
        assert await anyio.to_thread.run_sync(begun.wait, 5)
        task.cancel()
        await asyncio.wait([task])
        may_write.set()
        heads = await store.commit([Write(S, [REPLY])])
        read = await store.read(S)
        assert (heads[S], len(read.records)) == ((3, 3) if what == "commit" else (2, 2))
        assert read.holder == (None if what == "commit" else "w")
    async with opened(tmp_path / "f") as store:
        assert [one.seq for one in (await store.read(S)).records] == list(range(1, heads[S] + 1))
