"""A files store whose journal is lost: a damaged log is reported, never shorter."""

import random
from collections.abc import Callable
from pathlib import Path

import anyio.to_thread
import pytest
from click.testing import CliRunner
from tests.support.damage import inspected

from perdure import Agent, Runtime, tool
from perdure.app.layouts import SessionFiles
from perdure.cli.root import cli
from perdure.errors import PerdureError
from perdure.store.files.inspect import FilesInspector
from perdure.store.files.store import FilesStore
from perdure.store.shared.lines import decode_event
from perdure.testing import ScriptedModel

PAYMENTS = 5
_paid: list[int] = []


@tool
def pay(number: int) -> str:
    _paid.append(number)
    return f"paid {number}"


def payer() -> Agent[str]:
    calls = [{"calls": [{"tool": "pay", "args": {"number": n}}]} for n in range(PAYMENTS)]
    return Agent("shop", model=ScriptedModel([*calls, {"text": "done"}]), tools=[pay])


async def paid_session(base: Path) -> int:
    """Run a session to its end, and return the number of its events."""
    _paid.clear()
    agent = payer()
    async with Runtime(f"files:{base}", agents=[agent]) as rt:
        session = rt.session("s1", agent=agent)
        assert (await session.run("pay")).state == "completed"
        return len(await session.events())


def lose_journal(base: Path) -> None:
    (base / ".perdure" / "journal.jsonl").unlink()


def flip(log: Path, at: int, bit: int) -> None:
    content = bytearray(log.read_bytes())
    content[at] ^= 1 << bit
    log.write_bytes(bytes(content))


async def run_again(base: Path) -> None:
    agent = payer()
    async with Runtime(f"files:{base}", agents=[agent]) as rt:
        with pytest.raises(PerdureError) as refused:
            await rt.session("s1", agent=agent).run("again")
    texts = ("cannot be read", "damaged", "is lost")
    assert any(text in refused.value.message for text in texts), refused.value.message


@pytest.mark.parametrize("seed", range(12))
async def test_a_flipped_bit_is_reported_when_the_journal_is_lost(
    tmp_path: Path, seed: int
) -> None:
    await paid_session(tmp_path)
    log, luck = tmp_path / "s1" / "events.jsonl", random.Random(seed)  # noqa: S311
    lose_journal(tmp_path)
    flip(log, luck.randrange(log.stat().st_size - 1), luck.randrange(8))
    await run_again(tmp_path)
    assert sorted(_paid) == list(range(PAYMENTS))


def without_end(log: Path) -> None:
    log.write_bytes(b"".join(log.read_bytes().splitlines(keepends=True)[:5]))


def without_middle(log: Path) -> None:
    lines = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(b"".join(lines[:5] + lines[6:]))


def without_first(log: Path) -> None:
    log.write_bytes(b"".join(log.read_bytes().splitlines(keepends=True)[1:]))


def emptied(log: Path) -> None:
    log.write_bytes(b"")


@pytest.mark.parametrize("damage", [without_end, without_middle, without_first, emptied])
async def test_a_log_that_lost_records_is_reported_when_the_journal_is_lost(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    await paid_session(tmp_path)
    damage(tmp_path / "s1" / "events.jsonl")
    lose_journal(tmp_path)
    store = FilesStore(tmp_path, SessionFiles())
    await store.open()
    with pytest.raises(PerdureError, match="cannot be read"):
        await store.read("s//s1")
    await store.close()
    (stream,) = [
        stream
        for stream in inspected(FilesInspector(tmp_path, SessionFiles()))
        if stream.stream == "s//s1"
    ]
    assert len([record for record in stream.records if not record.problem]) < stream.head
    await run_again(tmp_path)
    assert sorted(_paid) == list(range(PAYMENTS))


def removed(log: Path) -> None:
    log.unlink()


@pytest.mark.parametrize("damage", [emptied, removed])
async def test_a_session_whose_whole_log_is_lost_is_reported_until_it_is_rebuilt(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    await paid_session(tmp_path)
    damage(tmp_path / "s1" / "events.jsonl")
    lose_journal(tmp_path)
    await run_again(tmp_path)
    assert sorted(_paid) == list(range(PAYMENTS))
    fix = ["--store", f"files:{tmp_path}", "doctor", "s1", "--fix"]
    result = await anyio.to_thread.run_sync(CliRunner().invoke, cli, fix)
    assert (result.exit_code, "rebuilt s1: 2 events" in result.output) == (0, True), result.output
    assert (tmp_path / "s1" / "events.damaged-1.jsonl").read_bytes() == b""


@pytest.mark.parametrize("is_torn", [False, True])
async def test_a_journal_that_lost_its_end_is_rebuilt_from_the_logs(
    tmp_path: Path, is_torn: bool
) -> None:
    """Sessions that only the lost lines name are there, even if another log is damaged."""
    agent = payer()
    async with Runtime(f"files:{tmp_path}", agents=[agent]) as rt:
        await rt.session("first", agent=agent).run("pay")
    journal = tmp_path / ".perdure" / "journal.jsonl"
    before = journal.read_bytes()
    count = await paid_session(tmp_path)
    cut = journal.read_bytes()[: len(before) + 20] if is_torn else before
    journal.write_bytes(cut)
    (damage,) = FilesInspector(tmp_path, SessionFiles()).damage()
    assert "s//s1 had later records" in damage
    agent = payer()
    async with Runtime(f"files:{tmp_path}", agents=[agent]) as rt:
        session = rt.session("s1", agent=agent)
        assert len(await session.events()) == count
        assert (await session.run("again")).state == "completed"
    assert sorted(_paid) == list(range(PAYMENTS))
    assert FilesInspector(tmp_path, SessionFiles()).damage() == []


async def test_a_sound_log_is_complete_without_its_journal(tmp_path: Path) -> None:
    count = await paid_session(tmp_path)
    lose_journal(tmp_path)
    agent = payer()
    async with Runtime(f"files:{tmp_path}", agents=[agent]) as rt:
        session = rt.session("s1", agent=agent)
        assert len(await session.events()) == count
        assert (await session.run("again")).state == "completed"


async def test_a_line_that_was_replaced_by_a_valid_one_is_noticed(tmp_path: Path) -> None:
    await paid_session(tmp_path / "a")
    await paid_session(tmp_path / "b")
    log, other = tmp_path / "a/s1/events.jsonl", tmp_path / "b/s1/events.jsonl"
    lines, others = (path.read_bytes().splitlines(keepends=True) for path in (log, other))
    log.write_bytes(b"".join(lines[:5] + others[5:6] + lines[6:]))
    assert decode_event(others[5].strip()) is not None
    store = FilesStore(tmp_path / "a", SessionFiles())
    await store.open()
    with pytest.raises(PerdureError, match="does not follow"):
        await store.read("s//s1")
    await store.close()


async def test_a_deleted_session_stays_deleted_when_the_journal_is_lost(tmp_path: Path) -> None:
    await paid_session(tmp_path)
    agent = payer()
    async with Runtime(f"files:{tmp_path}", agents=[agent]) as rt:
        await rt.session("s1", agent=agent).delete()
    lose_journal(tmp_path)
    async with Runtime(f"files:{tmp_path}", agents=[agent]) as rt:
        assert [item async for item in rt.sessions()] == []


@pytest.mark.parametrize("content", [None, b""])
async def test_doctor_names_a_journal_that_is_missing_or_empty(
    tmp_path: Path, content: bytes | None
) -> None:
    await paid_session(tmp_path)
    journal = tmp_path / ".perdure" / "journal.jsonl"
    journal.unlink()
    if content is not None:
        journal.write_bytes(content)
    (damage,) = FilesInspector(tmp_path, SessionFiles()).damage()
    assert "missing or empty" in damage
