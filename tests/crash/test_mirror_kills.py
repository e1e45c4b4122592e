"""Processes that are killed between a commit and its readable files, at every system call."""

import json
import subprocess
import sys
import time
from pathlib import Path

import anyio
import pytest
from tests.crash.mirror_program import COMMITS, STREAM
from tests.support.paths import ROOT

from perdure.app.layouts import SessionFiles
from perdure.store.files.inspect import different_files
from perdure.store.files.store import files_store, write_files
from perdure.store.sqlite.store import SqliteStore

PROGRAM = [sys.executable, "-m", "tests.crash.mirror_program"]


def play(folder: Path, first: int, last: str) -> tuple[int, list[int]]:
    """Run the program, and return its exit status and the numbers that it has committed."""
    command = [*PROGRAM, str(folder), str(first), last]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode in (0, -9), done.stderr
    return done.returncode, [int(line) for line in done.stdout.split()]


async def check(folder: Path, acknowledged: list[int]) -> None:
    """Every acknowledged commit is there, and after an open the files are as the database says."""
    store = files_store(folder, SessionFiles())
    await store.open()
    records = (await store.read(STREAM)).records if acknowledged else ()
    await store.close()
    contents = [json.loads(record.data)["content"] for record in records]
    assert contents[: len(acknowledged)] == [f"n{number}" for number in acknowledged]
    assert different_files(folder, SessionFiles()) == []
    lines = (folder / "s1" / "events.jsonl").read_text().splitlines() if records else []
    assert [json.loads(line)["data"]["content"] for line in lines] == contents


@pytest.mark.parametrize("part", range(4))
def test_a_process_killed_at_any_step_of_its_files_loses_no_commit_and_no_file(
    tmp_path: Path, part: int
) -> None:
    """S0.74, S0.75, S0.76, S2.9: killed before a write, in the middle of one, before a rename."""
    status, last, acknowledged = -9, 1 + part, list[int]()
    while status == -9:
        folder = tmp_path / str(last)
        status, acknowledged = play(folder, 1, str(last))
        anyio.run(check, folder, acknowledged)
        last += 4
    assert acknowledged == [*range(1, COMMITS + 1)]
    assert last > 15  # it did die at steps


def test_a_second_process_continues_the_files_of_one_that_was_killed(tmp_path: Path) -> None:
    play(tmp_path, 1, "-")
    status, last, count = -9, 1, COMMITS
    while status == -9:
        status, acknowledged = play(tmp_path, count + 1, str(last))
        last += 5
        count += len(acknowledged)
        anyio.run(check, tmp_path, [*range(1, count + 1)])
        count = anyio.run(head, tmp_path)


async def head(folder: Path) -> int:
    store = SqliteStore(folder / ".perdure" / "store.db")
    await store.open()
    try:
        return (await store.read(STREAM, limit=0)).head
    finally:
        await store.close()


async def test_a_living_process_writes_the_files_of_one_that_was_killed(tmp_path: Path) -> None:
    """S0.74: within a second, without another commit and without another open."""
    store = files_store(tmp_path, SessionFiles())
    await store.open()
    try:
        await write_files(store)
        acknowledged = (await anyio.to_thread.run_sync(play, tmp_path, 1, "1"))[1]
        assert acknowledged
        index = tmp_path / "storage" / "pending_tool" / "index.json"
        with anyio.fail_after(10):
            while await anyio.to_thread.run_sync(different_files, tmp_path, SessionFiles()):
                pass
        assert json.loads(index.read_text())["bySession"]["s1"][: len(acknowledged)]
    finally:
        await store.close()


@pytest.mark.parametrize("run", range(7))
def test_the_index_lists_what_waits_a_second_after_it_was_committed_and_after_kill_9(
    tmp_path: Path, run: int
) -> None:
    """S0.74"""
    script = (
        "import anyio, sys\n"
        "from tests.crash.mirror_program import *\n"
        "async def main():\n"
        "    store = files_store(sys.argv[1], SessionFiles())\n"
        "    await store.open()\n"
        "    for number in range(1, 6):\n"
        "        create = {'create': 'session:shop', 'head': 0} if number == 1 else {}\n"
        "        write = Write(STREAM, [event(number)], **create)\n"
        "        await store.commit([write], [call_put(number)])\n"
        "        await anyio.sleep(0.02 * int(sys.argv[2]))\n"
        "    print('committed', flush=True)\n"
        "    await anyio.sleep(60)\n"
        "anyio.run(main)\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path), str(run)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "committed\n"
        time.sleep(1)  # the promise itself
        process.kill()
    index = json.loads((tmp_path / "storage" / "pending_tool" / "index.json").read_text())
    assert index["byStatus"] == {"waiting": [f"p_{n}" for n in range(1, 6)]}
    assert [item["pendingID"] for item in index["byExpiration"]] == [f"p_{n}" for n in range(1, 6)]


def test_two_processes_write_one_folder(tmp_path: Path) -> None:
    """S0.76, S2.11"""
    play(tmp_path, 1, "-")
    script = (
        "import anyio, sys\n"
        "from tests.crash.mirror_program import *\n"
        "async def main():\n"
        "    store = files_store(sys.argv[1], SessionFiles())\n"
        "    await store.open()\n"
        "    for number in range(40):\n"
        "        put = call_put(int(sys.argv[2]) + number)\n"
        "        await store.commit([Write(STREAM, [event(number)])], [put])\n"
        "    await store.close()\n"
        "anyio.run(main)\n"
    )
    processes = [
        subprocess.Popen([sys.executable, "-c", script, str(tmp_path), first], cwd=ROOT)
        for first in ("100", "200")
    ]
    assert [process.wait(60) for process in processes] == [0, 0]
    assert anyio.run(head, tmp_path) == COMMITS + 80
    assert different_files(tmp_path, SessionFiles()) == []
    seqs = [
        json.loads(line)["perdure"]["seq"]
        for line in (tmp_path / "s1" / "events.jsonl").read_text().splitlines()
    ]
    assert seqs == [*range(1, COMMITS + 81)]
