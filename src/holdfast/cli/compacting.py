"""A summary by hand: `sessions compact`."""

from holdfast.cli import finding
from holdfast.cli.backend import Backend, Given, Json, handle_of
from holdfast.cli.driving import interruptible
from holdfast.cli.opening import working
from holdfast.cli.settings import Settings
from holdfast.cli.terminal import Terminal, line


def compact(settings: Settings, given: str, wanted: Given) -> int:
    """Let the model summarise a session; the summary is made here if its agent is known here."""

    async def main(backend: Backend) -> int:
        found, terminal = await finding.session(backend, given), Terminal(settings)
        handle = handle_of(backend, found)
        session = await handle.compact(wanted)
        if settings.as_json:
            terminal.answer(session)
        elif session["compaction"] is not None:
            _say_recorded(session, terminal)
        else:
            told = await handle.events(after=found["seq"])
            made = next(one["data"] for one in told if one["type"] == "compacted")
            name, up_to = line(session["sessionID"]), made["upTo"]
            terminal.say(f"✓ {name} goes on from a summary of what stands up to event {up_to}")
            terminal.result(made["summary"])
        return 0

    return interruptible(settings, [given], lambda: working(settings, main))


def _say_recorded(session: Json, terminal: Terminal) -> None:
    name, settings = session["sessionID"], terminal.settings
    terminal.say(f"Recorded for session {line(name)}. A worker lets the model summarise it:")
    terminal.say(f"  start one   {settings.worker(session['agent'])}")
