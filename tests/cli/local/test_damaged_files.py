"""Commands on damaged SQLite files: no traceback, the right exit code, all that can be read."""

import json
import os
import re
import shutil
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import pytest
from click.testing import CliRunner, Result
from tests.support.random_damage import damage_file

from perdure import Agent, File, Runtime, tool
from perdure.cli.root import cli
from perdure.store.sqlite.packed_data import unpack
from perdure.testing import ScriptedModel

CASES = 200
SESSIONS = 6
CORRUPT = 7
SUFFIXES = ("", "-wal", ".lock")

Events = dict[str, list[tuple[Any, ...]]]  # by session: seq, type, timestamp, data


@tool(requires_approval=True)
def pay(cents: int) -> str:
    """Pay."""
    return f"paid {cents}"


@tool
def look(text: str) -> str:
    """Return the text."""
    return text * 3


async def _fill(path: Path) -> None:
    """Create sessions, the last ones only in the log of the database."""
    turns: list[dict[str, Any]] = [
        {"text": "Let me look. " * 40, "calls": [{"tool": "look", "args": {"text": "x" * 400}}]},
        {"text": "I would pay.", "calls": [{"tool": "pay", "args": {"cents": 7}}]},
        {"text": "Done."},
    ]
    one = Agent("clerk", model=ScriptedModel(turns), tools=[pay, look])
    source = path.with_name("source.db")
    async with Runtime(f"sqlite:///{source}", agents=[one]) as rt:
        for number in range(SESSIONS):
            content: Any = f"Please number {number}: " + "words " * 300
            if number % 3 == 2:
                content = [content, File("image/png", os.urandom(9000))]
            result = await rt.session(f"s{number}", agent=one).run(content)
            if number % 2:
                await rt.approve(result.pending[0].id, by="ana")
                await rt.session(f"s{number}", agent=one).run()
            if number == SESSIONS - 2:
                with closing(sqlite3.connect(source)) as raw:
                    raw.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        for suffix in SUFFIXES:
            shutil.copy(f"{source}{suffix}", f"{path}{suffix}")


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("original") / "perdure.db"
    anyio.run(_fill, path)
    return path


def run(path: Path, *words: str) -> Result:
    result = CliRunner().invoke(cli, ["--store", f"sqlite:///{path}", *words])
    assert "Traceback" not in result.output, result.output
    assert "INTERNAL" not in result.output, result.output
    assert "Error:" not in result.stderr, result.stderr
    return result


def exported(output: str) -> Events:
    sessions: Events = {}
    current: list[tuple[Any, ...]] = []
    lines = [json.loads(line) for line in output.splitlines()]
    for line in lines:
        if "perdure" in line:
            current = sessions.setdefault(line["sessionID"], [])
        elif "seq" in line:
            current.append((line["seq"], line["type"], line["timestamp"], line["data"]))
    ends = {line["end"] for line in lines if "end" in line}
    assert ends == sessions.keys(), "a session without its end cannot be imported"
    return sessions


def readable(path: Path, sound: "Sound") -> Events:
    """Return the events before the first unreadable one of each session, row by row."""
    events: Events = {}
    lost: set[str] = set()
    with closing(sqlite3.connect(path)) as raw:
        for pos, (session, *row) in sorted(sound.events.items()):
            places = [pos, *(sound.files[name] for name in re.findall(b"sha256:[0-9a-f]+", row[3]))]
            if session in lost or any(_row(raw, at) != sound.rows[at] for at in places):
                lost.add(session)
                continue
            events.setdefault(session, []).append((*row[:3], json.loads(row[3])))
    return events


def _row(raw: sqlite3.Connection, pos: int) -> Any:
    try:
        return raw.execute("SELECT * FROM record WHERE pos = ?", (pos,)).fetchone()
    except sqlite3.DatabaseError:
        return None


class Sound:
    """Content of the database before it was damaged."""

    def __init__(self, path: Path) -> None:
        sql = "SELECT pos, id, seq, type, at, data FROM record JOIN stream USING (sid)"
        self.content = contents(path)
        self.rows = {row[0]: row for row in self.content[0]}
        with closing(sqlite3.connect(path)) as raw:
            stored = [(*row, unpack(data)) for *row, data in raw.execute(sql)]
        self.files = {row[1].removeprefix("blob/").encode(): row[0] for row in stored}
        self.events = {
            pos: (stream.removeprefix("s//"), *rest)
            for pos, stream, *rest in stored
            if stream.startswith("s//")
        }
        self.logs: Events = {}
        for _, (session, *row) in sorted(self.events.items()):
            self.logs.setdefault(session, []).append((*row[:3], json.loads(row[3])))


def contents(path: Path) -> Any:
    """Return all rows of a database; None if SQLite cannot read them."""
    tables = "SELECT * FROM record", "SELECT * FROM entry", "SELECT * FROM stream"
    try:
        with closing(sqlite3.connect(path)) as raw:
            return [sorted(raw.execute(sql).fetchall(), key=repr) for sql in tables]
    except sqlite3.DatabaseError:
        return None


def copied(original: Path, folder: Path) -> Path:
    """Return a copy of the database in an empty folder."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for suffix in SUFFIXES:
        shutil.copy(f"{original}{suffix}", folder / f"perdure.db{suffix}")
    return folder / "perdure.db"


def check(path: Path, sound: Sound, *, is_log: bool, is_shown: bool) -> None:
    """Run commands on a damaged file, and compare them with what can be read row by row."""
    oracle = path.parent.with_name("oracle.db")
    for suffix in ("", "-wal", "-shm"):
        Path(f"{oracle}{suffix}").unlink(missing_ok=True)
        if Path(f"{path}{suffix}").exists():
            shutil.copy(f"{path}{suffix}", f"{oracle}{suffix}")
    expected, content = readable(oracle, sound), contents(oracle)
    doctor, export = run(path, "doctor"), run(path, "sessions", "export", "--all")
    shown = [run(path, "sessions", *words) for words in (("list",), ("show", "s1")) if is_shown]
    assert {0, 1, 3, CORRUPT} >= {result.exit_code for result in (doctor, export, *shown)}
    if content != sound.content and not is_log:  # a log that is cut is a database of before
        assert doctor.exit_code == CORRUPT, doctor.output
    events = exported(export.stdout)
    for session, before in expected.items():
        assert events.get(session, [])[: len(before)] == before, session
    for session, after in events.items():
        # What is read after the damage is unchanged too; records that repeat a lost one are not.
        seqs = {event[0] for event in after}
        assert after == [event for event in sound.logs[session] if event[0] in seqs], session
    if doctor.exit_code != CORRUPT:
        assert export.exit_code == 0, export.output


def failures(original: Path, folder: Path, seeds: Iterable[int]) -> list[str]:
    """Return the seeds of the damages on which a command fails."""
    path = copied(original, folder / "case")
    with_log = Sound(path)
    copied(original, folder / "case")
    Path(f"{path}-wal").unlink()
    without_log = Sound(path)
    texts = []
    for seed in seeds:
        copied(original, folder / "case")
        text = damage_file(path, seed)
        is_log = text.startswith("log")
        sound = with_log if is_log else without_log
        try:
            check(path, sound, is_log=is_log, is_shown=seed % 8 < 4)
        except AssertionError as error:
            texts.append(f"seed {seed}, {text}: {str(error)[:300]}")
    return texts


@pytest.mark.parametrize("part", range(4))
def test_commands_on_a_damaged_file_read_all_that_can_be_read(
    original: Path, tmp_path: Path, part: int
) -> None:
    assert failures(original, tmp_path, range(part, CASES, 4)) == []


@pytest.mark.soak
def test_commands_on_a_thousand_damaged_files_read_all_that_can_be_read(
    original: Path, tmp_path: Path
) -> None:
    assert failures(original, tmp_path, range(1000)) == []
