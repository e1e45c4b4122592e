"""`perdure chat`: messages line by line, with decisions in between."""

import re
from dataclasses import dataclass
from typing import Any

import click

from perdure.cli.backend.console import Console, Handle, with_api
from perdure.cli.commands.foreground import DriveOptions, follow, live_printer, resolve_last
from perdure.cli.exit_codes import INTERRUPTED
from perdure.cli.recent import remember_session
from perdure.cli.settings import Settings, by_option, with_settings
from perdure.cli.terminal.findings import session_lines
from perdure.cli.terminal.prompt import DecisionPrompt, StdinLines
from perdure.cli.terminal.terminal import Terminal, line, value_text
from perdure.errors import NotFound, PerdureError
from perdure.ids import new_id
from perdure.views.sessions import Result

_LEAVE = ("/quit", "/exit", "/q", "quit", "exit")
_COMMAND = re.compile(r"/[a-z]+")
_HELP = """  /help   this text
  /exit   leave; also exit, quit, Ctrl-D and Ctrl-C. The session is saved

Every other line is a message. When a call needs a decision, you are asked: yes, no, no because
REASON, edit KEY=VALUE, always, never or later; help explains them."""


@click.command()
@click.argument("agent")
@click.option("-s", "--session", metavar="SESSION", help="Use this session.  [default: a new one]")
@by_option
@with_settings
def chat(settings: Settings, agent: str, session: str | None, by: str | None) -> int:
    """Talk with AGENT, and decide approvals inline.

    Leave with /exit, Ctrl-D or Ctrl-C. The session is saved, and you can continue it later. Type
    /help inside the chat.
    """
    names = [new_id("s") if session is None else session]
    terminal = Terminal(settings)

    async def main(console: Console) -> None:
        names[0], tenant = await resolve_last(console, names[0])
        handle = console.in_tenant(tenant).session(names[0], agent=agent)
        remember_session(settings, handle.id)
        prompt = DecisionPrompt(console.api.pending_call, console, StdinLines(), by)
        await Chat(console, handle, prompt, agent).run()

    code = INTERRUPTED
    try:
        code = with_api(settings, main, need="any")
    except KeyboardInterrupt:
        terminal.print()
    terminal.print(f"Session {line(names[0])} is saved.")
    terminal.print(f"  continue   {settings.command('chat', agent, '-s', names[0])}")
    return code


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
