"""Prompts for decisions at the terminal. Only exact words decide."""

import os
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

import anyio

from perdure.cli.backend.base import Backend, Json
from perdure.cli.terminal.terminal import Terminal, call_text, line, value_text
from perdure.core.pending.commands import parse_decision
from perdure.core.pending.record import APPROVER_KINDS
from perdure.core.session.permissions import parse_rule
from perdure.errors import PerdureError, Refused

_CHUNK: Final = 65_536


class StdinLines:
    """Lines typed on stdin."""

    def __init__(self) -> None:
        self._buffer = b""
        self._ended = False
        try:
            self._file: int | None = sys.stdin.fileno()
        except (OSError, ValueError):
            self._file = None  # a replacement of stdin without a file descriptor

    async def next(self) -> str | None:
        """Return the next line without its line break, or None at the end."""
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
    "type yes, no, show (prints the arguments) or later; always allows exactly this call for the "
    "rest of the session, always RULE all calls that match the rule"
)
_NO_OPTIONS: Final = {
    **dict.fromkeys(("args", "note", "reason", "output", "title", "metadata")),
    "remember": False,
}


@dataclass(frozen=True, slots=True)
class DecisionPrompt:
    """Asks the approver at the terminal, and records decisions under their name."""

    backend: Backend
    terminal: Terminal
    lines: StdinLines
    by: str | None  # None if the server takes the name of the token
    lock: anyio.Lock = field(default_factory=anyio.Lock)  # one question at a time

    async def ask_all(self, session: Json) -> bool:
        """Ask about every pending call of a session. Return True if all were decided."""
        for call in session["pending"]:
            if call["kind"] not in APPROVER_KINDS or not await self.ask(call):
                return False
        return bool(session["pending"])

    async def ask_pending(self, pending_id: str) -> None:
        """Ask about a call that a running worker waits for."""
        async with self.lock:
            call = await self.backend.pending_call(pending_id)
            if call["status"] in ("waiting", "processing"):
                await self.ask(call)

    async def ask(self, call: Json) -> bool:
        """Ask about one call. Return False if the approver leaves it for later."""
        is_question = call["kind"] == "question"
        question = call.get("prompt") or call_text(call["tool"], call.get("input") or {})
        self.terminal.print(f"⏸ {line(question, 300)}", bold=True)
        while True:
            self.terminal.print_part(
                "answer> " if is_question else "approve? [yes/no/always/later] "
            )
            text = await self.lines.next()
            if text is None or text.strip().casefold() in ("later", "/later"):
                return False
            try:
                if await self._apply(call, text, is_question=is_question):
                    return True
            except PerdureError as error:
                self.terminal.print(f"  {line(error.message, 300)}")
                if error.code in ("ALREADY_DECIDED", "LOST_AT_RESTART", "PENDING_NOT_FOUND"):
                    return True  # there is nothing left to decide

    async def _apply(self, call: Json, text: str, *, is_question: bool) -> bool:
        if is_question:
            return bool(text.strip()) and await self._settle("respond", call, output=text)
        word, first = parse_decision(text), text.strip().split(maxsplit=1)
        if word is not None:
            return await self._settle(word, call)
        if first and first[0].casefold() == "always":
            rule = parse_rule(first[1]).text if len(first) > 1 else True
            return await self._settle("approve", call, remember=rule)
        if first and first[0].casefold() == "show":
            self.terminal.print(value_text(call["input"]))
            return False
        raise Refused(HELP)

    async def _settle(self, verb: str, call: Json, **options: Any) -> bool:
        await self.backend.settle(verb, call, {**_NO_OPTIONS, "by": self.by, **options})
        return True
