"""`perdure doctor SESSION` and `--fix`: one session looked at, and made anew where it must be."""

from typing import Any

from perdure.app import Runtime, service_of
from perdure.cli.actions.database import check_lines, doctor, examination
from perdure.cli.backend.local import reap_dead_workers
from perdure.cli.open import opened
from perdure.cli.settings import Settings
from perdure.cli.terminal.terminal import Terminal, line
from perdure.core.session import naming as index
from perdure.errors import Refused
from perdure.runtime.doctor.checks import Check, exit_code
from perdure.runtime.doctor.session import Mended, SessionCheckup, find_stream, rebuild_session
from perdure.runtime.records.entries import session_not_found
from perdure.store.files.inspect import FilesLook
from perdure.store.inspect import Look, StreamLook


def doctor_of_session(settings: Settings, given: str, *, fix: bool) -> int:
    """Look at one session; with `fix` do what its findings say, then look again."""
    look, now = examination(settings)
    found = SessionCheckup.of(_find(look, settings.tenant, given), now, settings)
    done = _fixed(settings, [found.look.stream]) if fix else []
    if fix:
        found = SessionCheckup.of(_find(look, *found.names[:2]), now, settings)
    checks = list(found.checks())
    wrong = [check for check in checks if check.level != "ok"]
    terminal = Terminal(settings)
    answer = {
        "sessionID": found.names[1],
        "tenant": found.names[0],
        "ok": not wrong,
        "findings": len(wrong),
        "checks": [check.to_json() for check in checks],
        "mended": [_mended_json(one) for one in done],
    }
    terminal.either(answer, lambda: _session_lines(terminal, checks, wrong, done))
    return exit_code(checks)


def doctor_fix(settings: Settings, *, full: bool) -> int:
    """Mend every session that needs it, then look at everything."""
    look, _ = examination(settings)
    done = _fixed(settings, [name for name in look.streams() if index.names_in(name) is not None])
    terminal = Terminal(settings)
    for one in done:
        terminal.say(_mended_text(one))
    return doctor(settings, full=full)


def _fixed(settings: Settings, streams: list[str]) -> list[Mended]:
    """Open the store, which frees and cuts what can be; then mend what needs it."""
    look, _ = examination(settings)

    async def main(runtime: Runtime) -> list[Mended]:
        await reap_dead_workers(runtime)
        store = service_of(runtime).desk.store
        done = []
        for stream in streams:
            seen = look.stream(stream)
            found = None if seen is None else SessionCheckup.of(seen, store.now(), settings)
            if found is not None and found.is_torn and isinstance(look, FilesLook):
                look.cut_tail(stream)
            if found is not None and found.needs_mending():
                done.append(await rebuild_session(store, look, found))
        return done

    return opened(settings, main)


def _find(look: Look, tenant: str | None, given: str) -> StreamLook:
    """The session of an id, or of the only one that begins so."""
    names = [one for stream in look.streams() if (one := index.names_in(stream))]
    seen = [one for one in names if tenant in (None, one[0])]
    exact = [one for one in seen if one[1] == given]
    fitting = exact or [one for one in seen if one[1].startswith(given)]
    if len(fitting) > 1 and ("", given) in fitting:
        fitting = [("", given)]
    if len(fitting) > 1:
        shown = ", ".join(sorted(session for _, session in fitting)[:10])
        raise Refused(f"{given!r} may be {shown}", code="AMBIGUOUS_ID")
    found = find_stream(look, *fitting[0]) if fitting else None
    if found is None:
        raise session_not_found(given)
    return found


def _mended_json(one: Mended) -> dict[str, Any]:
    return {
        "sessionID": one.session_id,
        "tenant": one.tenant,
        "events": one.events,
        "lost": one.lost,
        "original": str(one.original),
    }


def _mended_text(one: Mended) -> str:
    lost = f"{one.lost} lost, " if one.lost else ""
    return (
        f"✓ {line(one.session_id)}: {one.events} events, {lost}"
        f"the original is in {line(str(one.original))}"
    )


def _session_lines(
    terminal: Terminal, checks: list[Check], wrong: list[Check], done: list[Mended]
) -> None:
    for one in done:
        terminal.say(_mended_text(one))
    check_lines(terminal, checks, wrong)
