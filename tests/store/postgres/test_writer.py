"""What one batch of commits may hold."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from perdure.store.base import Record, Write
from perdure.store.judge import Commit
from perdure.store.postgres import writer as postgres_writer
from perdure.store.postgres.store import PostgresStore
from perdure.store.postgres.writer import BatchWriter
from perdure.testing.contract.steps import put, texts


def test_a_batch_is_small_enough_for_a_small_machine() -> None:
    assert postgres_writer._LARGEST_BYTES <= 16 * 2**20


async def test_a_batch_is_bounded_by_its_bytes(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hundred sessions that write much at one time are many statements, none of them large."""
    monkeypatch.setattr(postgres_writer, "_LARGEST_BYTES", 10_000)
    sizes: list[list[int]] = []
    write = BatchWriter.write

    async def watched(self: Any, line: Any, commits: Sequence[Commit], now: int) -> Any:
        sizes.append([postgres_writer._bytes(commit) for commit in commits])
        return await write(self, line, commits, now)

    monkeypatch.setattr(BatchWriter, "write", watched)
    said = {f"s{n}": "x" * (25_000 if n == 50 else 2_400) for n in range(100)}
    await asyncio.gather(
        *(
            store.commit(
                [Write(name, [Record("said", text.encode())], create="session")],
                [put(name, stream=name, data=b"y" * 100)],
            )
            for name, text in said.items()
        )
    )
    assert all(sum(batch) <= 10_000 or len(batch) == 1 for batch in sizes)
    assert [25_100] in sizes
    assert max(map(len, sizes)) == 4
    assert {name: await texts(store, name) for name in said} == {n: [t] for n, t in said.items()}


async def test_commits_of_one_stream_keep_their_order_however_large(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_writer, "_LARGEST_BYTES", 10)
    words = ["a" * 9, "b", "c" * 30, "d", "e" * 10, "f"]
    await asyncio.gather(
        *(store.commit([Write("s", [Record("said", w.encode())], create="session")]) for w in words)
    )
    assert await texts(store, "s") == words
