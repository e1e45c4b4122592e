"""Prompts for decisions at the terminal. Only exact words decide."""

import os
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

import anyio

from perdure.cli.backend.base import Backend, Json
from perdure.cli.terminal.terminal import Terminal, call_text, line, plural, value_text
from perdure.core.pending.answers import answer_text, parse_answer
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
    "rest of the session, always RULE all calls that match the rule; never and never RULE deny them"
)
_NO_OPTIONS: Final = {
    **dict.fromkeys(("args", "note", "reason", "output", "title", "metadata")),
    "remember": False,
    "all_tools": False,
}
_REMEMBERED: Final = {"always": "approve", "never": "deny"}


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
            is_askable = call["kind"] in APPROVER_KINDS and not call.get("problem")
            if not is_askable or not await self.ask(call):
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
        self._print_details(call)
        while True:
            self.terminal.print_part(
                "answer> " if is_question else "approve? [yes/no/always/never/later] "
            )
            text = await self.lines.next()
            if text is None or text.strip().casefold() in ("later", "/later"):
                return False
            try:
                settled = await self._apply(call, text, is_question=is_question)
                if settled is not None:
                    return not settled.get("missingApprovals")
            except PerdureError as error:
                self.terminal.print(f"  {line(error.message, 300)}")
                if error.code in ("ALREADY_DECIDED", "LOST_AT_RESTART", "PENDING_NOT_FOUND"):
                    return True  # there is nothing left to decide

    async def _apply(self, call: Json, text: str, *, is_question: bool) -> Json | None:
        """Return the call if the text decided it, or was an approval of several; else None."""
        if is_question:
            answer = parse_answer(text, call.get("schema"), call.get("choices"))
            return await self._settle("respond", call, output=answer) if text.strip() else None
        word, first = parse_decision(text), text.strip().split(maxsplit=1)
        if word is not None:
            return await self._settle(word, call)
        if first and (verb := _REMEMBERED.get(first[0].casefold())):
            return await self._settle_remembered(verb, call, first[1:])
        if first and first[0].casefold() == "show":
            self.terminal.print(value_text(call["input"]))
            return None
        raise Refused(HELP)

    def _print_details(self, call: Json) -> None:
        """Print what the tool shows with its request, the choices, and the approvals so far."""
        if call.get("details"):
            self.terminal.print(f"  {value_text(call['details'])}")
        for number, choice in enumerate(call.get("choices") or (), 1):
            self.terminal.print(f"  {number}  {line(answer_text(choice), 200)}")
        if call.get("schema"):
            self.terminal.print(f"  JSON schema: {value_text(call['schema'])}", dim=True)
        if call.get("votes"):
            names = ", ".join(line(vote["by"]) for vote in call["votes"])
            self.terminal.print(f"  approved by {names}; {call['missingApprovals']} missing")

    async def _settle_remembered(self, verb: str, call: Json, rest: list[str]) -> Json | None:
        """Settle a call and remember the decision, for it or for the rule that was typed."""
        rule = parse_rule(rest[0]) if rest else None
        is_confirmed = False
        if rule is not None and rule.is_every_tool:
            self.terminal.print_part(
                f"{rule.text} covers every tool of the session. Sure? [yes/no] "
            )
            is_confirmed = parse_decision(await self.lines.next() or "") == "approve"
            if not is_confirmed:
                return None
        remember = True if rule is None else rule.text
        return await self._settle(verb, call, remember=remember, all_tools=is_confirmed)

    async def _settle(self, verb: str, call: Json, **options: Any) -> Json:
        options = {**_NO_OPTIONS, "by": self.by, **options}
        settled = await self.backend.settle(verb, call, options)
        missing = settled.get("missingApprovals") or 0
        if missing:
            self.terminal.print(f"  recorded; {plural(missing, 'more approval')} needed")
        return settled
