"""What people allowed for the rest of a session: listed, and revoked."""

from typing import Any

from holdfast.app import Runtime, service_of
from holdfast.cli.opening import known_session, opened
from holdfast.cli.settings import Settings
from holdfast.cli.terminal import Terminal, age, line
from holdfast.core.permissions import Allowed


def permissions(settings: Settings, given: str, revoked: int | None, by: str) -> int:
    """List what is remembered; with a number, revoke that first."""

    async def main(runtime: Runtime) -> None:
        service = service_of(runtime)
        known = await known_session(runtime, given)
        if revoked is not None:
            await service.revoke(known, revoked, by, "cli")
        allowed = (await service.sight(known)).folded.allowed
        terminal = Terminal(settings)
        terminal.either(
            {"sessionID": known.record.id, "permissions": [_json(one) for one in allowed]},
            lambda: _table(terminal, allowed, service.desk.store.now()),
        )

    opened(settings, main)
    return 0


def _table(terminal: Terminal, allowed: tuple[Allowed, ...], now: int) -> None:
    if not allowed:
        terminal.say("nothing is allowed beyond what the agent's own rules say")
        return
    rows = [
        (str(one.number), line(one.text, 80), line(one.by), f"{age(now - one.at)} ago")
        for one in allowed
    ]
    terminal.table(("N", "ALLOWED", "BY", "SINCE"), rows)


def _json(one: Allowed) -> dict[str, Any]:
    return {
        "number": one.number,
        "tool": one.tool,
        "rule": one.rule,
        "args": None if one.rule else one.shown,
        "by": one.by,
        "at": one.at,
    }
