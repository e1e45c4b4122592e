"""`perdure sessions permissions`: list and revoke the permissions of a session."""

from perdure.cli.backend.find import find_session
from perdure.cli.backend.kinds import Backend, session_handle
from perdure.cli.backend.shapes import Json
from perdure.cli.open import with_backend
from perdure.cli.settings import Settings
from perdure.cli.terminal.terminal import Terminal, age, call_text, line


def permissions(settings: Settings, typed_id: str, revoked: int | None, by: str | None) -> int:
    """List the permissions of a session; with a number, revoke that one first."""

    async def main(backend: Backend) -> None:
        handle = session_handle(backend, await find_session(backend, typed_id))
        if revoked is not None:
            await handle.revoke(revoked, by)
        granted = await handle.permissions()
        terminal = Terminal(settings)
        terminal.print_either(
            {"sessionID": handle.id, "permissions": granted},
            lambda: _print_table(terminal, granted, backend.now()),
        )

    with_backend(settings, main)
    return 0


def _print_table(terminal: Terminal, permissions: list[Json], now: int) -> None:
    if not permissions:
        terminal.print("The session has no permissions beyond the rules of its agent.")
        return
    rows = [
        (
            str(permission["number"]),
            permission["effect"],
            line(_permission_text(permission), 80),
            line(permission["by"]),
            f"{age(now - permission['at'])} ago",
        )
        for permission in permissions
    ]
    terminal.print_table(("N", "EFFECT", "CALLS", "BY", "SINCE"), rows)


def _permission_text(permission: Json) -> str:
    return permission["rule"] or call_text(permission["tool"], permission["args"])
