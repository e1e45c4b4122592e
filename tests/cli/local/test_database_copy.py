"""`perdure db copy`."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import anyio
import pytest
from tests.support.cli_project import Shop

from perdure.store.base import Put, Record, Write
from perdure.store.sqlite.store import SqliteStore

STREAMS = 1000


@pytest.fixture
def waits(shop: Shop) -> Shop:
    """`s1` waits for an approval."""
    shop.run("run", "support", "Refund", "-s", "s1")
    return shop


def test_a_session_that_waits_is_gone_on_with_in_another_store(waits: Shop) -> None:
    told = waits.json("db", "copy", "sqlite:///shop.db", "files:./there", app=None)
    assert told["streams"] >= 1
    assert told["records"] > 1
    assert told["entries"] >= 2
    again = waits.json("db", "copy", "files:./there", "sqlite:///back.db", app=None)
    assert again == told
    before = waits.json("sessions", "show", "s1")
    on = ("--store", "sqlite:///back.db")
    after = waits.json("sessions", "show", "s1", *on, app=None)
    for name in ("state", "pending", "seq", "createdAt", "agent"):
        assert after[name] == before[name]


def test_what_cannot_be_copied_is_said(waits: Shop) -> None:
    def code(*urls: str) -> tuple[int, str]:
        told = waits.run("db", "copy", *urls, "--json", app=None)
        return told.exit_code, json.loads(told.stderr)["code"]

    assert code("memory:", "sqlite:///b.db") == (2, "STORE_IN_MEMORY")
    assert code("sqlite:///none.db", "sqlite:///b.db") == (2, "STORE_NOT_FOUND")
    (waits.folder / "link.db").symlink_to("shop.db")
    for same in ("sqlite:///shop.db", f"sqlite:///{waits.folder}/shop.db", "sqlite:///link.db"):
        assert code("sqlite:///shop.db", same) == (5, "SAME_STORE")
    assert waits.json("db", "copy", "sqlite:///shop.db", "sqlite:///b.db", app=None)["streams"]
    waits.run("run", "support", "Refund", "-s", "s2")
    assert code("sqlite:///b.db", "sqlite:///shop.db") == (5, "TARGET_DIFFERS")


async def fill(path: Path) -> None:
    store = SqliteStore(path)
    await store.open()
    for start in range(0, STREAMS, 500):
        names = [f"s//{n:05}" for n in range(start, start + 500)]
        await store.commit(
            [Write(name, [Record("t", b"x" * 400, 1)] * 2, create="session:a") for name in names],
            [Put("pending", name, 0, name, "open", 5, b"{}") for name in names],
        )
    await store.close()


@pytest.mark.parametrize("target", ["sqlite:///there.db", "files:./there"])
def test_a_copy_that_was_killed_goes_on_where_it_was(tmp_path: Path, target: str) -> None:
    anyio.run(fill, tmp_path / "here.db")
    command = [sys.executable, "-m", "perdure.cli", "db", "copy", "sqlite:///here.db", target]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == f"500 of {STREAMS:,} streams\n"
        os.kill(first.pid, signal.SIGKILL)
        rest = first.stdout.read()
    assert first.returncode == -signal.SIGKILL
    assert "✓" not in rest
    second = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120
    )
    assert second.returncode == 0, second.stderr
    words = f"✓ {STREAMS:,} streams with {2 * STREAMS:,} records and {STREAMS:,} entries"
    assert second.stdout.splitlines()[-1].startswith(words)
