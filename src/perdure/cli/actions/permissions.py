"""What people allowed for the rest of a session: listed, and revoked."""

from perdure.cli.backend import find as finding
from perdure.cli.backend.base import Backend, Json, handle_of
from perdure.cli.open import working
from perdure.cli.settings import Settings
from perdure.cli.terminal.terminal import Terminal, age, call_text, line


def permissions(settings: Settings, given: str, revoked: int | None, by: str | None) -> int:
    """List what is remembered; with a number, revoke that first."""

    async def main(backend: Backend) -> None:
        handle = handle_of(backend, await finding.session(backend, given))
        if revoked is not None:
            await handle.revoke(revoked, by)
        allowed = await handle.permissions()
        terminal = Terminal(settings)
        terminal.either(
            {"sessionID": handle.id, "permissions": allowed},
            lambda: _table(terminal, allowed, backend.now()),
        )

    working(settings, main)
    return 0


def _table(terminal: Terminal, allowed: list[Json], now: int) -> None:
    if not allowed:
        terminal.say("nothing is allowed beyond what the agent's own rules say")
        return
    rows = [
        (str(one["number"]), line(_text(one), 80), line(one["by"]), f"{age(now - one['at'])} ago")
        for one in allowed
    ]
    terminal.table(("N", "ALLOWED", "BY", "SINCE"), rows)


def _text(one: Json) -> str:
    return one["rule"] or call_text(one["tool"], one["args"])
