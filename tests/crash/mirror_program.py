"""A process of a files store that dies between a commit and its files: see test_mirror_kills.

Its arguments are the folder, a first number, and after how many system calls of the mirror the
process dies: right before one, or in the middle of a write. It prints each number that it has
committed. With `-` it does not die by itself.
"""

import itertools
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio

from perdure.app.layouts import SessionFiles
from perdure.core.session.naming import session_stream
from perdure.store.base import Put, Record, Write
from perdure.store.files.store import files_store, write_files

STREAM = session_stream("", "s1")
COMMITS = 4


def event(number: int) -> Record:
    return Record("user", json.dumps({"role": "user", "content": f"n{number}"}).encode(), number)


def call_put(number: int) -> Put:
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
        "timeout": number,
    }
    return Put("pending", f"p_{number}", 0, STREAM, "open", None, json.dumps(record).encode())


def die_at(number: int) -> None:
    """Let the process die at this system call of Python's own; SQLite makes its own ones."""
    calls = itertools.count(1)
    for name in ("write", "fsync", "rename", "ftruncate", "unlink"):
        setattr(os, name, _mortal(getattr(os, name), calls, number))


def _mortal(real: Callable[..., Any], calls: Iterator[int], last: int) -> Callable[..., Any]:
    def call(*arguments: Any, **named: Any) -> Any:
        if next(calls) >= last:
            if real.__name__ == "write":
                real(arguments[0], bytes(arguments[1])[: len(arguments[1]) // 2])
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*arguments, **named)

    return call


async def main(folder: Path, first: int, last: str) -> None:
    store = files_store(folder, SessionFiles())
    await store.open()
    await write_files(store)
    if last != "-":
        die_at(int(last))
    for number in range(first, first + COMMITS):
        create = {"create": "session:shop", "head": 0} if number == 1 else {}
        await store.commit([Write(STREAM, [event(number)], **create)], [call_put(number)])  # type: ignore[arg-type]
        sys.stdout.write(f"{number}\n")
        sys.stdout.flush()
        if number == first + 1:  # the files of the first two are on their way meanwhile
            await write_files(store)
    await store.close()


if __name__ == "__main__":
    anyio.run(main, Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
