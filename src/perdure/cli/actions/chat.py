"""`perdure chat`: messages line by line, with decisions in between."""

import re
from dataclasses import dataclass

from perdure.cli.actions.run import DriveOptions, follow, past_events
from perdure.cli.backend.find import LAST, find_session
from perdure.cli.backend.kinds import Backend, Handle
from perdure.cli.backend.shapes import Json
from perdure.cli.open import with_backend
from perdure.cli.process import INTERRUPTED
from perdure.cli.recent import remember_session
from perdure.cli.settings import Settings
from perdure.cli.terminal.findings import session_lines
from perdure.cli.terminal.live import LivePrinter
from perdure.cli.terminal.prompt import DecisionPrompt, StdinLines
from perdure.cli.terminal.terminal import Terminal, line, value_text
from perdure.errors import NotFound, PerdureError
from perdure.ids import new_id

_LEAVE = ("/quit", "/exit", "/q", "quit", "exit")
_COMMAND = re.compile(r"/[a-z]+")
_HELP = """  /help   this text
  /exit   leave; also exit, quit, Ctrl-D and Ctrl-C. The session is saved

Every other line is a message. When a call needs a decision, you are asked: yes, no, no because
REASON, edit KEY=VALUE, always, never or later; help explains them."""


def chat(settings: Settings, agent: str, session: str | None, by: str | None) -> int:
    """Chat until the input ends or Ctrl-C, and say how to continue the session."""
    names = [new_id("s") if session is None else session]
    terminal = Terminal(settings)

    async def main(backend: Backend) -> int:
        tenant = None
        if names[0] == LAST:
            session_json = await find_session(backend, names[0])
            names[0], tenant = session_json["sessionID"], session_json["tenant"]
        handle = backend.session(names[0], tenant=tenant, agent=agent)
        remember_session(settings, handle.id)
        prompt = DecisionPrompt(backend, terminal, StdinLines(), by)
        await Chat(backend, handle, terminal, prompt, agent).run()
        return 0

    code = INTERRUPTED
    try:
        code = with_backend(settings, main, need="any")
    except KeyboardInterrupt:
        terminal.print()
    terminal.print(f"Session {line(names[0])} is saved.")
    terminal.print(f"  continue   {settings.command('chat', agent, '-s', names[0])}")
    return code


@dataclass(frozen=True, slots=True)
class Chat:
    """One conversation at the terminal."""

    backend: Backend
    handle: Handle
    terminal: Terminal
    prompt: DecisionPrompt
    agent: str

    async def run(self) -> None:
        """Continue an unfinished run, then send the messages that are typed."""
        self.terminal.print(
            f"Session {line(self.handle.id)} with {line(self.agent)}. "
            "/help lists the commands, Ctrl-D leaves.",
            dim=True,
        )
        try:
            session = await self.handle.get()
        except NotFound:
            session = None
        if session is not None and session["state"] in ("waiting", "running", "pending"):
            await self._ask_until_decided(await self._drive(None))
        while True:
            self.terminal.print_part("> ")
            text = await self.prompt.lines.next()
            if text is None or text.strip().casefold() in _LEAVE:
                return
            if text.strip() == "/help":
                self.terminal.print(_HELP)
            elif _COMMAND.fullmatch(text.rstrip()):
                self.terminal.print(
                    f"{text.rstrip()} is not a command; /help lists them. "
                    "To send it as a message, type a space before it."
                )
            elif text.strip():
                await self._send(text)

    async def _send(self, text: str) -> None:
        try:
            await self._ask_until_decided(await self._drive(text))
        except PerdureError as error:
            self.terminal.print(f"error: {line(error.message, 500)}")
            if error.hint:
                self.terminal.print(f"hint: {line(error.hint, 300)}")

    async def _drive(self, text: str | None) -> Json:
        printer = LivePrinter(
            self.terminal,
            thinking=self.backend.may_show_thinking(self.agent),
            is_driven_here=self.terminal.settings.server is None,
        )
        printer.load(await past_events(self.handle))
        session = await follow(self.handle, DriveOptions(text), printer, self.prompt)
        session = session or await self.handle.get()
        output = session["output"]
        if session["state"] == "completed" and output is not None and output != printer.last_text:
            self.terminal.print_result(value_text(output))
        return session

    async def _ask_until_decided(self, session: Json) -> None:
        """Ask for decisions and drive on, until every open call is left for later."""
        left: set[str] = set()
        while session["state"] == "waiting" and await self.prompt.ask_all(session, left):
            session = await self._drive(None)
        if left:
            session = await self.handle.get()  # with approvals that did not decide a call alone
        if session["state"] in ("waiting", "failed", "pending") or session["stop"] is not None:
            for text in session_lines(session, self.terminal.settings, self.backend.now()):
                self.terminal.print(text)
