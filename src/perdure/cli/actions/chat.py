"""Talking with an agent: messages line by line, decisions in between; resumable at any point."""

from dataclasses import dataclass

from perdure.cli.actions.run import INTERRUPTED, Said, followed, past
from perdure.cli.backend import find as finding
from perdure.cli.backend.base import Backend, Handle, Json
from perdure.cli.open import working
from perdure.cli.settings import Settings
from perdure.cli.terminal.ask import Asker, Lines
from perdure.cli.terminal.live import Live
from perdure.cli.terminal.terminal import Terminal, line, value_text
from perdure.cli.terminal.why import Picture, why
from perdure.errors import NotFound, PerdureError
from perdure.runtime.ids import new_id

_LEAVE = ("/quit", "/exit", "/q")


def chat(settings: Settings, agent: str, session: str | None, by: str | None) -> int:
    """Talk until the input ends; after Ctrl-C, too, the session is there to go on with."""
    names = [new_id("s") if session is None else session]
    terminal = Terminal(settings)

    async def main(backend: Backend) -> int:
        tenant = None
        if names[0] == finding.LAST:
            found = await finding.session(backend, names[0])
            names[0], tenant = found["sessionID"], found["tenant"]
        handle = backend.session(names[0], tenant=tenant, agent=agent)
        asker = Asker(backend, terminal, Lines(), by)
        await Chat(backend, handle, terminal, asker, agent).talk()
        return 0

    code = INTERRUPTED
    try:
        code = working(settings, main, need="any")
    except KeyboardInterrupt:
        terminal.say()
    terminal.say(f"Session {line(names[0])} is saved.")
    terminal.say(f"  go on   {settings.command('chat', agent, '-s', names[0])}")
    return code


@dataclass(frozen=True, slots=True)
class Chat:
    """One conversation at the terminal."""

    backend: Backend
    handle: Handle
    terminal: Terminal
    asker: Asker
    agent: str

    async def talk(self) -> None:
        """Go on where the session stands, then take messages."""
        try:
            session = await self.handle.get()
        except NotFound:
            session = None
        if session is not None and session["state"] in ("waiting", "running", "pending"):
            await self._until_decided(await self._go_on(None))
        while True:
            self.terminal.piece("> ")
            text = await self.asker.lines.next()
            if text is None or text.strip() in _LEAVE:
                return
            if text.strip():
                try:
                    await self._until_decided(await self._go_on(text))
                except PerdureError as error:
                    self.terminal.say(f"error: {line(error.message, 500)}")

    async def _go_on(self, text: str | None) -> Json:
        live = Live(self.terminal, thinking=self.backend.shows_thinking(self.agent))
        live.learn(await past(self.handle))
        said, asker = Said(text), self.asker
        session = await followed(self.handle, said, live, asker) or await self.handle.get()
        output = session["output"]
        if session["state"] == "completed" and output is not None and output != live.last_text:
            self.terminal.result(value_text(output))
        return session

    async def _until_decided(self, session: Json) -> None:
        """Ask for what waits for a person, as long as something does and they decide."""
        while session["state"] == "waiting" and await self.asker.ask_all(session):
            session = await self._go_on(None)
        if session["state"] in ("waiting", "failed", "pending") or session["stop"] is not None:
            for text in why(Picture(session, self.backend.now()), self.terminal.settings):
                self.terminal.say(text)
