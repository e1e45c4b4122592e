"""Putting waiting calls to the person at the terminal; only exact words decide."""

import os
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

import anyio

from perdure.cli.backend.base import Backend, Json
from perdure.cli.terminal.terminal import Terminal, call_text, line, value_text
from perdure.core.pending.commands import decision_in
from perdure.core.pending.record import PEOPLE
from perdure.core.session.permissions import rule_of
from perdure.errors import PerdureError, Refused

_CHUNK: Final = 65_536


class Lines:
    """What is typed, line by line."""

    def __init__(self) -> None:
        self._buffer = b""
        self._ended = False
        try:
            self._file: int | None = sys.stdin.fileno()
        except (OSError, ValueError):
            self._file = None  # a stand-in without a file behind it

    async def next(self) -> str | None:
        """The next line without its end; None when there are no more."""
        if self._file is None:
            text = sys.stdin.readline()
            return text.rstrip("\n") if text else None
        while b"\n" not in self._buffer and not self._ended:
            await self._more(self._file)
        if not self._buffer:
            return None
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line.decode("utf-8", "replace").rstrip("\r")

    async def _more(self, file: int) -> None:
        with suppress(OSError, NotImplementedError):  # a plain file is always readable
            await anyio.wait_readable(file)
        chunk = os.read(file, _CHUNK)
        self._ended = not chunk
        self._buffer += chunk


HELP: Final = (
    "yes or no; always: this very call is not asked about again in this session; "
    "always RULE: nor what a rule says; show: its arguments; later"
)
_NOTHING: Final = {
    **dict.fromkeys(("args", "note", "reason", "output", "title", "metadata")),
    "remember": False,
}


@dataclass(frozen=True, slots=True)
class Asker:
    """Somebody who can be asked, and under which name they decide."""

    backend: Backend
    terminal: Terminal
    lines: Lines
    by: str | None  # None: a server knows it
    turn: anyio.Lock = field(default_factory=anyio.Lock)  # one question at a time

    async def ask_all(self, session: Json) -> bool:
        """Put every call of a session that waits for a person; whether all were decided."""
        for call in session["pending"]:
            if call["kind"] not in PEOPLE or not await self.ask(call):
                return False
        return bool(session["pending"])

    async def ask_about(self, pending_id: str) -> None:
        """Put a call that a run waits for in place; left for later, it waits on."""
        async with self.turn:
            call = await self.backend.pending_call(pending_id)
            if call["status"] in ("waiting", "processing"):
                await self.ask(call)

    async def ask(self, call: Json) -> bool:
        """Put one call; False if it is left for later."""
        is_question = call["kind"] == "question"
        asked = call.get("prompt") or call_text(call["tool"], call.get("input") or {})
        self.terminal.say(f"⏸ {line(asked, 300)}", bold=True)
        while True:
            self.terminal.piece("answer> " if is_question else "approve? [yes/no/always/later] ")
            text = await self.lines.next()
            if text is None or text.strip().casefold() in ("later", "/later"):
                return False
            try:
                if await self._said(call, text, is_question=is_question):
                    return True
            except PerdureError as error:
                self.terminal.say(f"  {line(error.message, 300)}")
                if error.code in ("ALREADY_DECIDED", "LOST_AT_RESTART", "PENDING_NOT_FOUND"):
                    return True  # there is nothing left to decide

    async def _said(self, call: Json, text: str, *, is_question: bool) -> bool:
        if is_question:
            return bool(text.strip()) and await self._settle("respond", call, output=text)
        word, first = decision_in(text), text.strip().split(maxsplit=1)
        if word is not None:
            return await self._settle(word, call)
        if first and first[0].casefold() == "always":
            rule = rule_of(first[1]).text if len(first) > 1 else True
            return await self._settle("approve", call, remember=rule)
        if first and first[0].casefold() == "show":
            self.terminal.say(value_text(call["input"]))
            return False
        raise Refused(HELP)

    async def _settle(self, verb: str, call: Json, **given: Any) -> bool:
        await self.backend.settle(verb, call, {**_NOTHING, "by": self.by, **given})
        return True
