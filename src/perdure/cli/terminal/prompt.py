"""Prompts for decisions at the terminal."""

import os
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

import anyio
import click

from perdure.cli.terminal.findings import call_step_lines, problem_code
from perdure.cli.terminal.interrupts import asking
from perdure.cli.terminal.replies import (
    PromptReply,
    help_text,
    offered_words,
    parse_answer_reply,
    parse_reply,
)
from perdure.cli.terminal.terminal import Terminal, call_text, line, plural, value_text
from perdure.core.pending.answers import answer_text, parse_decision
from perdure.core.pending.record import APPROVER_KINDS
from perdure.core.session.permissions import parse_rule
from perdure.errors import PerdureError
from perdure.runtime.diagnosis.calls import approvers_text
from perdure.views.calls import DecidedCall, PendingCall
from perdure.views.sessions import Result

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


def choose_call(terminal: Terminal, calls: Sequence[PendingCall], reason: str) -> PendingCall:
    """Return the call that the person at the terminal chooses by its number."""
    terminal.print(f"Which call? {line(reason.partition(': ')[0], 300)}:")
    for number, call in enumerate(calls, 1):
        text = call_text(call.tool, call.args)
        terminal.print(f"  {number}  {text}  session {line(call.session_id)}")
    with asking():
        choice = click.prompt("number", type=click.IntRange(1, len(calls)))
    return calls[choice - 1]


@dataclass(frozen=True, slots=True)
class DecisionPrompt:
    """Asks the approver at the terminal, and records decisions under their name."""

    read_call: Callable[[str], Awaitable[PendingCall]]
    terminal: Terminal
    lines: StdinLines
    by: str | None = None  # None: the login name, or the name of the token
    lock: anyio.Lock = field(default_factory=anyio.Lock)  # one question at a time

    async def ask_all(self, session: Result[Any], left: set[str]) -> bool:
        """Ask about the pending calls of a session. Return True if one of them was decided.

        Calls in `left` are not asked about; those that the approver leaves for later are added.
        """
        is_decided = False
        with suppress(EOFError):
            for call in session.pending:
                is_askable = call.kind in APPROVER_KINDS and problem_code(call) is None
                if not is_askable or call.id in left:
                    continue
                if await self.ask(call):
                    is_decided = True
                else:
                    left.add(call.id)
        return is_decided

    async def ask_pending(self, pending_id: str) -> None:
        """Ask about a call that a running worker waits for, and say how to decide it later."""
        async with self.lock:
            call = await self.read_call(pending_id)
            if not call.is_open:
                return
            is_decided = False
            with suppress(EOFError):
                is_decided = await self.ask(call)
            if not is_decided:
                for text in call_step_lines(call, self.terminal.settings):
                    self.terminal.print(f"  {text}")

    async def ask(self, call: PendingCall) -> bool:
        """Ask about one call. Return False if the approver leaves it for later, or to others.

        Raises EOFError if the input has ended.
        """
        is_question = call.kind == "question"
        question = call.prompt or call_text(call.tool, call.args)
        self.terminal.print(f"⏸ {line(question, 300)}", bold=True)
        self._print_details(call)
        words = "/".join(offered_words(call))
        while True:
            text = await self._next_line("answer> " if is_question else f"approve? [{words}] ")
            try:
                reply = (parse_answer_reply if is_question else parse_reply)(text, call)
                if reply.verb == "later":
                    return False
                settled = await self._apply(call, reply)
                if settled is not None:
                    return not settled.missing_approvals
            except PerdureError as error:
                self.terminal.print(f"  {line(error.message, 300)}")
                if error.code in ("ALREADY_DECIDED", "LOST_AT_RESTART", "PENDING_NOT_FOUND"):
                    return True  # there is nothing left to decide

    async def _next_line(self, prompt: str) -> str:
        self.terminal.open_prompt(prompt)
        text = await self.lines.next()
        self.terminal.close_prompt()
        if text is None:
            raise EOFError
        return text

    async def _apply(self, call: PendingCall, reply: PromptReply) -> DecidedCall | None:
        """Return the call if the reply decided it, or was an approval of several; else None."""
        match reply.verb:
            case "show":
                self.terminal.print(value_text(call.args))
            case "help":
                self.terminal.print(help_text(call))
            case "remember":
                return await self._settle_remembered(call, **reply.options)
            case verb:
                return await self._settle(verb, call, **reply.options)
        return None

    def _print_details(self, call: PendingCall) -> None:
        """Print what the tool shows with its request, the choices, and the approvals so far."""
        if call.details:
            self.terminal.print(f"  {value_text(call.details)}")
        for number, choice in enumerate(call.choices or (), 1):
            self.terminal.print(f"  {number}  {line(answer_text(choice), 200)}")
        if call.schema:
            self.terminal.print(f"  JSON schema: {value_text(call.schema)}", dim=True)
        if call.votes:
            missing = plural(call.missing_approvals, "more approval")
            self.terminal.print(f"  {approvers_text(call.to_json())}; {missing} needed")

    async def _settle_remembered(
        self, call: PendingCall, verb: str, rule: str | None
    ) -> DecidedCall | None:
        """Settle a call and remember the decision, for it or for the rule that was typed."""
        parsed = None if rule is None else parse_rule(rule)
        is_confirmed = False
        if parsed is not None and parsed.is_every_tool:
            question = f"{parsed.text} covers every tool of the session. Sure? [yes/no] "
            is_confirmed = parse_decision(await self._next_line(question)) == "approve"
            if not is_confirmed:
                return None
        remember = True if parsed is None else parsed.text
        return await self._settle(verb, call, remember=remember, all_tools=is_confirmed)

    async def _settle(self, verb: str, call: PendingCall, **options: Any) -> DecidedCall:
        settled: DecidedCall = await getattr(call, verb)(by=self.by, **options)
        missing = settled.missing_approvals
        if missing:
            self.terminal.print(f"  recorded; {plural(missing, 'more approval')} needed")
        return settled
