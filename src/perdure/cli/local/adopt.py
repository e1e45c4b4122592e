"""`perdure sessions import` for sessions of other programs."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from perdure.app import Runtime, service_of, tenant_of
from perdure.cli.backend.open import with_runtime
from perdure.cli.settings import Settings
from perdure.cli.terminal.terminal import Terminal, line, plural
from perdure.core.conversation.repair import Issue
from perdure.core.json_depth import check_body_depth
from perdure.core.transfer.foreign import ForeignSession, parse
from perdure.errors import Refused
from perdure.ids import new_id
from perdure.runtime.transfer.adopt import Adopted
from perdure.runtime.transfer.create import SessionNames
from perdure.store.files.layout import LOG
from perdure.store.shared.names import id_from_name

_MOST: Final = 20  # issues shown one by one
_SHOWN: Final = 300  # characters of each


def import_foreign(
    settings: Settings, file: str, data: bytes, agent: str | None, as_id: str | None
) -> int:
    """Adopt a session: its messages are repaired, and it waits for the next message."""
    try:
        foreign = parse(_with_message_files(file, data), agent)
    except Refused as error:
        source = "stdin" if file == "-" else file
        raise Refused(f"{source}: {error.message}", code=error.code, hint=error.hint) from error
    session_id = as_id or foreign.session_id or _session_id_from(file)

    async def main(runtime: Runtime) -> Adopted:
        chosen = _choose_agent(runtime, foreign, agent)
        service = service_of(runtime)
        queue = service.agents.queue_for(chosen)
        names = SessionNames(tenant_of(runtime) or "", session_id, chosen, queue)
        return await service.transfers.adopt(foreign, names)

    adopted = with_runtime(settings, main, need="existing" if settings.store is None else "any")
    terminal = Terminal(settings)
    terminal.print_either(_report_json(adopted), lambda: _print_report(terminal, settings, adopted))
    return 0


def _choose_agent(runtime: Runtime, foreign: ForeignSession, named: str | None) -> str:
    """Return the agent to continue with: the named one, the session's own, or the only one."""
    names = [agent.name for agent in service_of(runtime).agents.all()]
    if named is not None:
        return named
    if foreign.agent is not None and (not names or foreign.agent in names):
        return foreign.agent
    if len(names) == 1:
        return names[0]
    raise Refused(
        "the file does not name an agent for the session",
        code="AGENT_NEEDED",
        hint=f"name one with --agent{': ' + ', '.join(sorted(names)) if names else ' NAME'}",
    )


def _session_id_from(file: str) -> str:
    path = Path(file)
    if file == "-":
        return new_id("s")
    if path.name == LOG:
        return id_from_name(path.absolute().parent.name) or path.absolute().parent.name
    return path.stem


def _with_message_files(file: str, data: bytes) -> bytes:
    """Return the data, for opencode together with the messages in their own files."""
    path = Path(file).absolute()
    storage = path.parents[2] if len(path.parents) > 2 else path.parent
    messages = storage / "message" / path.stem
    if file == "-" or path.parents[1].name != "session" or not messages.is_dir():
        return data
    session: dict[str, Any] = {"info": _read_json(path), "messages": []}
    for message in sorted(messages.glob("*.json")):
        parts = sorted((storage / "part" / message.stem).glob("*.json"))
        message_json = {"info": _read_json(message), "parts": [_read_json(part) for part in parts]}
        session["messages"].append(message_json)
    return json.dumps(session).encode()


def _read_json(path: Path) -> Any:
    try:
        data = path.read_bytes()
        check_body_depth(data, path.name)
        return json.loads(data)
    except (OSError, ValueError, RecursionError):
        return None  # an unreadable part is left out, and the rest of its message stays


def _report_json(adopted: Adopted) -> dict[str, Any]:
    record = adopted.entry.record
    session = {
        "sessionID": record.id,
        "tenant": record.tenant,
        "agent": record.agent,
        "format": adopted.format,
        "events": adopted.events,
        "pending": 0,
        "issues": [asdict(issue) for issue in adopted.issues],
        "notes": list(adopted.notes),
        "others": list(adopted.others),
    }
    return {"imported": [session], "orphans": []}


def _print_report(terminal: Terminal, settings: Settings, adopted: Adopted) -> None:
    record = adopted.entry.record
    events = plural(adopted.events, "event")
    terminal.print(f"✓ imported {line(record.id)}: {events} (format: {adopted.format})")
    for note in adopted.notes:
        terminal.print(f"  {line(note, _SHOWN)}")
    for issue in adopted.issues[:_MOST]:
        terminal.print(f"  repaired: {_issue_text(issue)}")
    if len(adopted.issues) > _MOST:
        terminal.print(f"  repaired: {len(adopted.issues)} in total; --json lists all")
    if adopted.others:
        names = ", ".join(line(name) for name in adopted.others)
        terminal.print(
            f"  The file also contains {names}; import it again with --agent NAME --as ID"
        )
    if settings.has_code:
        command = settings.command("run", record.agent, "…", "-s", record.id)
    else:
        command = (
            f"perdure run {record.agent} … -s {record.id} --config FILE (or --app MODULE:NAME), "
            f"where {record.agent!r} is defined"
        )
    terminal.print(f"  continue   {line(command)}")


def _issue_text(issue: Issue) -> str:
    where = f" (message {issue.index + 1})" if issue.index >= 0 else ""
    return f"[{issue.type}] {line(issue.details, _SHOWN)}{where}"
