"""`perdure sessions import` of a session that another program wrote."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from perdure.app import Runtime, service_of, tenant_of
from perdure.cli.open import opened
from perdure.cli.settings import Settings
from perdure.cli.terminal.terminal import Terminal, line
from perdure.core.conversation.repair import Issue
from perdure.core.transfer.foreign import Foreign, parse
from perdure.errors import Refused
from perdure.runtime.ids import new_id
from perdure.runtime.transfer.adopt import Adopted, adopt
from perdure.runtime.transfer.create import SessionNames
from perdure.store.files.layout import LOG
from perdure.store.shared.names import id_of

_MOST: Final = 20  # issues shown one by one
_SHOWN: Final = 300  # characters of each


def import_foreign(
    settings: Settings, file: str, data: bytes, agent: str | None, as_id: str | None
) -> int:
    """Take the session over: repaired, at rest, ready for a message."""
    try:
        foreign = parse(_with_parts(file, data), agent)
    except Refused as error:
        where = "stdin" if file == "-" else file
        raise Refused(f"{where}: {error.message}", code=error.code, hint=error.hint) from error
    session_id = as_id or foreign.session_id or _named_after(file)

    async def main(runtime: Runtime) -> Adopted:
        chosen = _agent(runtime, foreign, agent)
        service = service_of(runtime)
        queue = service.agents.queue_of(chosen)
        names = SessionNames(tenant_of(runtime) or "", session_id, chosen, queue)
        return await adopt(service.desk.store, foreign, names)

    made = opened(settings, main, need="existing" if settings.store is None else "any")
    terminal = Terminal(settings)
    terminal.either(_json(made), lambda: _lines(terminal, settings, made))
    return 0


def _agent(runtime: Runtime, foreign: Foreign, given: str | None) -> str:
    """Who goes on with it: the one that was named, that it had, or the only one there is."""
    here = [agent.name for agent in service_of(runtime).agents.all()]
    if given is not None:
        return given
    if foreign.agent is not None and (not here or foreign.agent in here):
        return foreign.agent
    if len(here) == 1:
        return here[0]
    raise Refused(
        "it does not say which agent goes on with the session",
        code="AGENT_NEEDED",
        hint=f"name one with --agent{': ' + ', '.join(sorted(here)) if here else ' NAME'}",
    )


def _named_after(file: str) -> str:
    path = Path(file)
    if file == "-":
        return new_id("s")
    if path.name == LOG:
        return id_of(path.absolute().parent.name) or path.absolute().parent.name
    return path.stem


def _with_parts(file: str, data: bytes) -> bytes:
    """The session of a file; where opencode keeps the messages in files beside it, with those."""
    path = Path(file).absolute()
    storage = path.parents[2] if len(path.parents) > 2 else path.parent
    messages = storage / "message" / path.stem
    if file == "-" or path.parents[1].name != "session" or not messages.is_dir():
        return data
    whole: dict[str, Any] = {"info": _value(path), "messages": []}
    for message in sorted(messages.glob("*.json")):
        parts = sorted((storage / "part" / message.stem).glob("*.json"))
        told = {"info": _value(message), "parts": [_value(part) for part in parts]}
        whole["messages"].append(told)
    return json.dumps(whole).encode()


def _value(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None  # a part that cannot be read is left out, and its message stays


def _json(made: Adopted) -> dict[str, Any]:
    record = made.known.record
    session = {
        "sessionID": record.id,
        "tenant": record.tenant,
        "agent": record.agent,
        "format": made.format,
        "events": made.events,
        "pending": 0,
        "issues": [asdict(issue) for issue in made.issues],
        "notes": list(made.notes),
        "others": list(made.others),
    }
    return {"imported": [session], "orphans": []}


def _lines(terminal: Terminal, settings: Settings, made: Adopted) -> None:
    record = made.known.record
    terminal.say(f"✓ {line(record.id)}: {made.events} events, from a {made.format} session")
    for note in made.notes:
        terminal.say(f"  {line(note, _SHOWN)}")
    for issue in made.issues[:_MOST]:
        terminal.say(f"  mended: {_issue(issue)}")
    if len(made.issues) > _MOST:
        terminal.say(f"  mended: {len(made.issues)} in all; --json lists them")
    if made.others:
        names = ", ".join(line(name) for name in made.others)
        terminal.say(f"  also in it: {names}; import again with --agent NAME --as ID")
    if settings.has_code:
        go_on = settings.command("run", record.agent, "…", "-s", record.id)
    else:
        go_on = (
            f"perdure run {record.agent} … -s {record.id} --config FILE (or --app MODULE:NAME), "
            f"where {record.agent!r} is known"
        )
    terminal.say(f"go on: {line(go_on)}")


def _issue(issue: Issue) -> str:
    where = f" (message {issue.index + 1})" if issue.index >= 0 else ""
    return f"[{issue.type}] {line(issue.details, _SHOWN)}{where}"
