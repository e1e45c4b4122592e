"""Kinds of damage to the lines of an export, as data: what an editor, a disk or a person does."""

import asyncio
import re
from collections.abc import Callable
from pathlib import Path

from tests.damage.cases import SqliteFiles, run
from tests.damage.scenes import Scene, settle

Lines = list[bytes]


def _where(lines: Lines, word: bytes) -> int:
    return next((n for n, line in enumerate(lines) if word in line), len(lines) - 1)


def _without(word: bytes) -> Callable[[Lines], Lines]:
    return lambda lines: [line for n, line in enumerate(lines) if n != _where(lines, word)]


def _changed(word: bytes, old: bytes, new: bytes) -> Callable[[Lines], Lines]:
    def change(lines: Lines) -> Lines:
        n = _where(lines, word)
        return [*lines[:n], re.sub(old, new, lines[n]), *lines[n + 1 :]]

    return change


def _swapped(lines: Lines) -> Lines:
    n = _where(lines, b'"tool_call"')
    return [*lines[:n], lines[n + 1], lines[n], *lines[n + 2 :]]


def _doubled(lines: Lines) -> Lines:
    n = _where(lines, b'"tool_call"')
    return [*lines[: n + 1], lines[n], *lines[n + 1 :]]


EXPORT_DAMAGES: dict[str, Callable[[Lines], Lines]] = {
    "first line lost": lambda lines: lines[1:],
    "last line lost": lambda lines: lines[:-1],
    "cut off in the middle": lambda lines: lines[: len(lines) // 2],
    "cut off in a line": lambda lines: [*lines[:-1], lines[-1][:20]],
    "only the first line": lambda lines: lines[:1],
    "empty": lambda _: [],
    "first event lost": _without(b'"seq":1,'),
    "gate lost": _without(b'"type":"pending"'),
    "intent lost": _without(b'"type":"tool_started"'),
    "result lost": _without(b'"type":"tool_result"'),
    "open call lost": _without(b'{"pending":'),
    "two lines swapped": _swapped,
    "line twice": _doubled,
    "file twice": lambda lines: lines * 2,
    "arguments changed": _changed(b'"tool_call"', rb'"cents":\d', b'"cents":9'),
    "type changed": _changed(b'"tool_result"', b"tool_result", b"tool_resalt"),
    "gate turned into metadata": _changed(b'"type":"pending"', b'"pending"', b'"metadata"'),
    "number of events changed": _changed(b'{"end":', rb'"events":\d+', b'"events":3'),
    "loss denied": _changed(b'{"end":', rb',"lost":\[[^]]*\]', b""),
    "byte order mark": lambda lines: [b"\xef\xbb\xbf" + lines[0], *lines[1:]],
    "line of garbage": lambda lines: [*lines[:2], b"\x00\xff{", *lines[2:]],
}


def run_exports(files: SqliteFiles, scene: Scene, folder: Path) -> list[str]:
    """Damage an export of a scene in every way; what is imported must do no harm."""
    path, template = files.template(scene)
    exported = run("sessions", "export", "--all", "--secrets", "--store", f"sqlite:///{path}")
    lines, faults = exported.stdout_bytes.splitlines(), list[str]()
    for number, (name, damage) in enumerate(EXPORT_DAMAGES.items()):
        file, url = folder / f"{number}.jsonl", f"sqlite:///{folder / f'{number}.db'}"
        file.write_bytes(b"\n".join(damage(lines)) + b"\n")
        result = run("sessions", "import", str(file), "--store", url)
        if result.exit_code not in (0, 2, 5):
            faults.append(f"{scene}, {name}: {result.output}")
        if result.exit_code == 0:
            settled = asyncio.run(settle(url, template.ledger.copy()))
            faults += [f"{scene}, {name}: {fault}" for fault in settled]
    return faults
