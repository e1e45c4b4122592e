"""The loop of `perdure chat`: messages line by line, with decisions in between."""

import re
from dataclasses import dataclass
from typing import Any

from perdure.cli.backend.console import Console, Handle
from perdure.cli.commands.foreground import DriveOptions, follow, live_printer
from perdure.cli.terminal.findings import session_lines
from perdure.cli.terminal.prompt import DecisionPrompt
from perdure.cli.terminal.terminal import line, value_text
from perdure.errors import NotFound, PerdureError
from perdure.views.sessions import Result

_LEAVE = ("/quit", "/exit", "/q", "quit", "exit")
_COMMAND = re.compile(r"/[a-z]+")
_HELP = """  /help   this text
  /exit   leave; also exit, quit, Ctrl-D and Ctrl-C. The session is saved

Every other line is a message. When a call needs a decision, you are asked: yes, no, no because
REASON, edit KEY=VALUE, always, never or later; help explains them."""


@dataclass(frozen=True, slots=True)
class Chat:
    """One conversation at the terminal."""

    console: Console
    handle: Handle
    prompt: DecisionPrompt
    agent: str

    async def run(self) -> None:
        """Continue an unfinished run, then send the messages that are typed."""
        self.console.print(
            f"Session {line(self.handle.id)} with {line(self.agent)}. "
            "/help lists the commands, Ctrl-D leaves.",
            dim=True,
        )
        try:
            session = await self.console.snapshot(self.handle)
        except NotFound:
            session = None
        if session is not None and session.state in ("waiting", "running", "pending"):
            await self._ask_until_decided(await self._drive(None))
        while True:
            self.console.print_part("> ")
            text = await self.prompt.lines.next()
            if text is None or text.strip().casefold() in _LEAVE:
                return
            if text.strip() == "/help":
                self.console.print(_HELP)
            elif _COMMAND.fullmatch(text.rstrip()):
                self.console.print(
                    f"{text.rstrip()} is not a command; /help lists them. "
                    "To send it as a message, type a space before it."
                )
            elif text.strip():
                await self._send(text)

    async def _send(self, text: str) -> None:
        try:
            await self._ask_until_decided(await self._drive(text))
        except PerdureError as error:
            self.console.print(f"error: {line(error.message, 500)}")
            if error.hint:
                self.console.print(f"hint: {line(error.hint, 300)}")

    async def _drive(self, text: str | None) -> Result[Any]:
        printer = await live_printer(self.console, self.handle, self.agent)
        session = await follow(self.handle, DriveOptions(text), printer, self.prompt)
        session = session or await self.console.snapshot(self.handle)
        output = session.output_json
        if session.state == "completed" and output is not None and output != printer.last_text:
            self.console.print_result(value_text(output))
        return session

    async def _ask_until_decided(self, session: Result[Any]) -> None:
        """Ask for decisions and drive on, until every open call is left for later."""
        left: set[str] = set()
        while session.state == "waiting" and await self.prompt.ask_all(session, left):
            session = await self._drive(None)
        if left:
            session = await self.console.snapshot(
                self.handle
            )  # with approvals that did not decide a call alone
        if session.state in ("waiting", "failed", "pending") or session.stop_reason is not None:
            for text in session_lines(session, self.console.settings, self.console.now()):
                self.console.print(text)
