"""The folder of a files store: what is in it, and what its database does with it."""

import errno
import json
import os
import sqlite3
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from threading import Barrier
from typing import Any

import anyio
import pytest

from perdure.app.layouts import SessionFiles
from perdure.app.stores import default_tasks_root
from perdure.core.session.naming import session_stream
from perdure.errors import Corrupt, Refused
from perdure.store.base import DELETE, Put, Record, Slice, Write
from perdure.store.files.folder import is_old_format, prepare_folder
from perdure.store.files.mirror import Mirror
from perdure.store.files.store import files_store, write_files
from perdure.store.shared import line_files as files_logs
from perdure.store.shared.lines import decode_event
from perdure.store.shared.names import file_name, id_from_name, reversible_name
from perdure.store.sqlite.store import SqliteStore

S = session_stream("", "s1")
USER = Record("user", b'{"role":"user","content":"Hello"}', 1701234567890)
HI = b'{"role":"assistant","content":"Hi!","agent":"default"}'
REPLY = Record("assistant", HI, 1701234568123)


@asynccontextmanager
async def opened(base: Path) -> AsyncIterator[SqliteStore]:
    store = files_store(base, SessionFiles())
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
        await write_files(store)
        assert names(tmp_path / "storage/pending_tool") == ["index.json", "p_2.json"]
        await store.commit([Write(S, erase=True)])
    assert not (tmp_path / "s1").exists()
    assert names(tmp_path / "storage" / "session" / "shop") == []
    assert json.loads((tmp_path / "storage/pending_tool/index.json").read_text())["bySession"] == {}


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
    call = tmp_path / "storage/pending_tool/p_1.json"
    before = call.read_bytes()
    async with opened(tmp_path) as store:
        await write_files(store)
        monkeypatch.setattr(os, "fsync", _full)
        await store.commit([Write(S)], [pending_put(1, 1, tool="other")])
        await write_files(store)
        assert call.read_bytes() == before
        monkeypatch.undo()
    async with opened(tmp_path):
        pass
    assert json.loads(call.read_text())["tool"] == "other"


def _full(*_: Any) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


async def test_a_change_is_in_the_files_within_a_second(tmp_path: Path) -> None:
    """S0.74"""
    index = tmp_path / "storage/pending_tool/index.json"
    await fill(tmp_path)
    async with opened(tmp_path) as store:
        for number in range(3, 8):
            await store.commit([Write(S, [REPLY])], [pending_put(number)])
            with anyio.fail_after(1):
                while f"p_{number}" not in index.read_text():  # noqa: ASYNC110 - of a thread
                    await anyio.sleep(0.01)


async def test_what_another_store_commits_is_in_the_files_too(tmp_path: Path) -> None:
    async with opened(tmp_path) as one, opened(tmp_path) as other:
        await one.commit([Write(S, [USER], create="session:shop", head=0)], [session_put()])
        for number in range(1, 6):
            store = (one, other)[number % 2]
            await store.commit([Write(S, [REPLY])], [pending_put(number)])
    lines = (tmp_path / "s1" / "events.jsonl").read_bytes().splitlines()
    events = [decode_event(line) for line in lines]
    assert [event.perdure.seq for event in events if event] == [1, 2, 3, 4, 5, 6]
    assert names(tmp_path / "storage/pending_tool") == [
        "index.json",
        *(f"p_{n}.json" for n in range(1, 6)),
    ]


# --- damage ---------------------------------------------------------------------------------------


def removed(log: Path) -> None:
    log.unlink()


def emptied(log: Path) -> None:
    log.write_bytes(b"")


def without_end(log: Path) -> None:
    log.write_bytes(b"".join(log.read_bytes().splitlines(keepends=True)[:1]))


def without_first(log: Path) -> None:
    log.write_bytes(b"".join(log.read_bytes().splitlines(keepends=True)[1:]))


def with_flipped_bit(log: Path) -> None:
    content = bytearray(log.read_bytes())
    content[20] ^= 1
    log.write_bytes(bytes(content))


def with_torn_line(log: Path) -> None:
    log.write_bytes(log.read_bytes() + b'{"type":"user","timest')


DAMAGE = [removed, emptied, without_end, without_first, with_flipped_bit, with_torn_line]


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("is_table_lost", [False, True])
async def test_a_damaged_log_changes_nothing_and_is_written_again(
    tmp_path: Path, damage: Any, is_table_lost: bool
) -> None:
    """S0.75, S2.9"""
    whole = await fill(tmp_path)
    log = tmp_path / "s1" / "events.jsonl"
    before = log.read_bytes()
    damage(log)
    if is_table_lost:
        (tmp_path / ".perdure" / "mirror.db").write_bytes(b"not a database" * 100)
    async with opened(tmp_path) as store:
        assert (await store.read(S)).records == whole.records
    assert log.read_bytes() == before


@pytest.mark.parametrize("damage", DAMAGE)
async def test_a_log_that_is_damaged_while_it_is_written_is_whole_after_the_next_event(
    tmp_path: Path, damage: Any
) -> None:
    await fill(tmp_path)
    log = tmp_path / "s1" / "events.jsonl"
    before = log.read_bytes()
    async with opened(tmp_path) as store:
        await write_files(store)
        damage(log)
        await store.commit([Write(S, [REPLY])])
    assert log.read_bytes().startswith(before)
    assert len(log.read_bytes().splitlines()) == 3


async def test_lines_of_others_stay_at_their_place_when_a_log_is_written_again(
    tmp_path: Path,
) -> None:
    """S2.12"""
    await fill(tmp_path)
    log = tmp_path / "s1" / "events.jsonl"
    first, second = log.read_bytes().splitlines()
    other = b'{"type":"todo_update","timestamp":1,"data":{}}'
    log.write_bytes(b"\n".join([first.replace(b"Hello", b"Hallo"), other, second, b""]))
    async with opened(tmp_path):
        pass
    assert log.read_bytes().splitlines() == [first, other, second]


async def test_events_that_an_older_database_lacks_are_kept(tmp_path: Path) -> None:
    """Whoever restores a backup finds what came after it."""
    await fill(tmp_path)
    database, log = tmp_path / ".perdure" / "store.db", tmp_path / "s1" / "events.jsonl"
    backup = database.read_bytes()
    async with opened(tmp_path) as store:
        await store.commit([Write(S, [USER])])
    newer = log.read_bytes()
    database.write_bytes(backup)
    async with opened(tmp_path) as store:
        assert (await store.read(S)).head == 2
    assert len(log.read_bytes().splitlines()) == 2
    assert (tmp_path / "s1" / "events.kept.jsonl").read_bytes() == newer


async def test_files_of_what_was_erased_while_nobody_wrote_files_go_at_the_next_open(
    tmp_path: Path,
) -> None:
    await fill(tmp_path)
    store = SqliteStore(tmp_path / ".perdure" / "store.db")  # as if killed after the commit
    await store.open()
    await store.commit([Write(S, erase=True)])
    await store.close()
    async with opened(tmp_path):
        pass
    assert not (tmp_path / "s1").exists()
    assert names(tmp_path / "storage/pending_tool") == ["index.json"]


async def test_after_a_start_of_the_machine_all_files_are_compared(tmp_path: Path) -> None:
    """Their ends may be lost although their times are not."""
    await fill(tmp_path)
    log = tmp_path / "s1" / "events.jsonl"
    before, times = log.read_bytes(), log.stat()
    log.write_bytes(before.replace(b"Hello", b"Hallo"))
    os.utime(log, ns=(times.st_atime_ns, times.st_mtime_ns))
    with sqlite3.connect(tmp_path / ".perdure" / "mirror.db") as table:
        table.execute("UPDATE note SET value = 'another' WHERE name = 'boot'")
    table.close()
    async with opened(tmp_path):
        pass
    assert log.read_bytes() == before


# --- a lost database ------------------------------------------------------------------------------


@pytest.mark.parametrize("lost", [["store.db"], ["store.db", "store.db.lock", "mirror.db"]])
async def test_a_deleted_database_is_reported_and_never_begun_anew(
    tmp_path: Path, lost: list[str]
) -> None:
    await fill(tmp_path / "shop")
    for name in lost:
        (tmp_path / "shop" / ".perdure" / name).unlink()
    with pytest.raises(Corrupt, match="is missing, and sessions were in it") as refused:
        await files_store(tmp_path / "shop", SessionFiles()).open()
    assert refused.value.code == "FILES_WITHOUT_DATABASE"
    assert "perdure sessions import" in str(refused.value.hint)
    assert not (tmp_path / "shop" / ".perdure" / "store.db").exists()


async def test_a_folder_with_logs_of_other_programs_only_can_be_opened(tmp_path: Path) -> None:
    log = tmp_path / "s1" / "events.jsonl"
    log.parent.mkdir()
    log.write_text('{"type":"user","timestamp":1,"data":{"role":"user","content":"x"}}\n')
    async with opened(tmp_path) as store:
        assert await store.streams() == []
    assert len(log.read_text().splitlines()) == 1


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


def test_the_tasks_of_a_folder_are_beside_it(tmp_path: Path) -> None:
    assert default_tasks_root(files_store(tmp_path / "shop")) == tmp_path / "shop.tasks"


def test_two_programs_may_create_a_folder_at_the_same_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C5"""
    both, rename = Barrier(2), os.rename

    def rename_together(old: str, new: Path) -> None:
        both.wait(10)
        rename(old, new)

    monkeypatch.setattr(os, "rename", rename_together)
    with ThreadPoolExecutor(2) as programs:
        list(programs.map(prepare_folder, [tmp_path / "new"] * 2))
    assert not is_old_format(tmp_path / "new")


def test_files_that_cannot_be_written_are_tried_again_after_a_pause(tmp_path: Path) -> None:
    attempts = threading.Semaphore(0)

    def fail(*, reader: bool) -> sqlite3.Connection:
        attempts.release()
        raise sqlite3.OperationalError("unable to open database file")

    mirror = Mirror(tmp_path, SessionFiles())
    mirror.prepare()
    mirror.start(fail)
    try:
        mirror.write_now()  # returns although nothing can be written
        assert attempts.acquire(timeout=5)
        number = 1
        while number <= 3 and attempts.acquire(timeout=0.3):
            number += 1
        assert number <= 3
    finally:
        mirror.stop()
