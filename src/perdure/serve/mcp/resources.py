"""Resources of tasks: their URIs, what they contain, and which of them a record changes."""

import base64
import re
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple
from urllib.parse import quote, unquote

import msgspec
from msgspec.structs import replace

from perdure.core.roles import Permit
from perdure.errors import NotFound, Refused
from perdure.runtime.sessions.service import Service
from perdure.runtime.sessions.verbs.caller import Caller
from perdure.serve.mcp.specification import specified, task_fields
from perdure.serve.mcp.toolbox import Json
from perdure.store.base import Record
from perdure.tasks.model.record import parse_task_stream
from perdure.tasks.verbs import TaskVerbs
from perdure.views.base import iso
from perdure.views.tasks import AnyTask, Execution

SCHEME: Final = "task://"
JSON: Final = "application/json"
PAGE: Final = 100  # resources of one page of the list
_CURSOR: Final = re.compile(r"[0-9]{1,15}")
MOST_LINES: Final = 1_000  # of a log in one resource: the newest

TEMPLATES: Final[Sequence[Json]] = [
    {
        "uriTemplate": f"{SCHEME}{{id}}{path}",
        "name": name,
        "title": title,
        "description": description,
        "mimeType": media_type,
    }
    for path, name, title, description, media_type in (
        ("", "task", "Task", "A task as it stands.", JSON),
        ("/logs", "task-logs", "Log of a task", "The newest lines of its log.", JSON),
        ("/decisions", "task-decisions", "Decisions", "The decisions of its agents.", JSON),
        ("/checkpoints", "task-checkpoints", "Checkpoints", "Its checkpoints.", JSON),
        (
            "/executions/{n}/output",
            "task-output",
            "Output of a command",
            "What a command in the task has printed so far, and how it ended.",
            "text/plain",
        ),
        (
            "/files/{path}",
            "task-file",
            "File of a task",
            "A file of its workspace.",
            "application/octet-stream",
        ),
    )
]


class ResourceName(NamedTuple):
    """Parsed URI of a resource: the task, the part, and what the part is of."""

    task_id: str
    part: str = ""
    item: str = ""


def parse_uri(uri: str) -> ResourceName:
    """Return the parts of a URI. Raises NotFound."""
    if not uri.startswith(SCHEME):
        raise resource_not_found(uri)
    first, *rest = uri.removeprefix(SCHEME).split("/")
    task_id, parts = unquote(first), [unquote(part) for part in rest]
    if not parts:
        return ResourceName(task_id)
    if parts[0] in ("logs", "decisions", "checkpoints") and len(parts) == 1:
        return ResourceName(task_id, parts[0])
    if parts[0] == "executions" and len(parts) == 3 and parts[2] == "output":
        return ResourceName(task_id, "executions", parts[1])
    if parts[0] == "files" and len(parts) > 1:
        return ResourceName(task_id, "files", "/".join(parts[1:]))
    raise resource_not_found(uri)


def parse_cursor(cursor: str) -> int:
    """Return the offset that a cursor of the list means. Raises Refused INVALID_REQUEST."""
    if _CURSOR.fullmatch(cursor) is None:
        raise Refused(
            f"{cursor[:40]!a} is not a cursor of resources/list",
            code="INVALID_REQUEST",
            hint="send nextCursor of the page before, or no cursor for the first page",
        )
    return int(cursor)


def resource_not_found(uri: str) -> NotFound:
    """Return the error for a URI that names nothing."""
    return NotFound(
        f"there is no resource {uri[:200]!a}",
        code="RESOURCE_NOT_FOUND",
        hint="resources/templates/list has the forms of URIs",
        details={"uri": uri[:200]},
    )


def task_uri(task_id: str, *parts: str) -> str:
    """Return the URI of a task's resource."""
    return SCHEME + "/".join([quote(task_id, safe=""), *(quote(part) for part in parts)])


class TaskResources:
    """Resources of the tasks that a caller sees."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def _verbs(self, caller: Caller) -> TaskVerbs:
        return TaskVerbs(self._service.tasks, caller.tenant)

    async def page(self, caller: Caller, cursor: str | None) -> Json:
        """Return one page of the tasks, newest first; their parts are in the templates."""
        caller.require(Permit.READ)
        offset = 0 if cursor is None else parse_cursor(cursor)
        filters = {"limit": PAGE, "offset": offset, "kind": "sandbox"}
        page = await self._verbs(caller).list(filters)
        following = offset + len(page.tasks)
        more = {"nextCursor": str(following)} if following < page.count else {}
        return {"resources": [_listed(task) for task in page.tasks], **more}

    async def read(self, caller: Caller, uri: str) -> list[Json]:
        """Return the contents of a resource. Raises NotFound."""
        caller.require(Permit.READ)
        name = parse_uri(uri)
        if name.part == "files":
            return [await self._file(caller, uri, name)]
        value = await self._value(caller, name)
        if isinstance(value, str):
            return [{"uri": uri, "mimeType": "text/plain", "text": value}]
        return [{"uri": uri, "mimeType": JSON, "text": msgspec.json.encode(value).decode()}]

    async def _value(self, caller: Caller, name: ResourceName) -> Json | str:
        verbs = self._verbs(caller)
        match name.part:
            case "logs":
                log = await verbs.logs(name.task_id, {})
                return specified(replace(log, logs=log.logs[-MOST_LINES:]))
            case "decisions":
                return specified(await verbs.decisions(name.task_id))
            case "checkpoints":
                return specified(await verbs.checkpoints(name.task_id))
            case "executions":
                return _output_text(await verbs.executions.output(name.task_id, name.item))
            case _:
                return task_fields(await verbs.get(name.task_id))

    async def _file(self, caller: Caller, uri: str, name: ResourceName) -> Json:
        data = await self._verbs(caller).read_file(name.task_id, name.item)
        try:
            return {"uri": uri, "mimeType": "text/plain", "text": data.decode()}
        except UnicodeDecodeError:
            blob = base64.b64encode(data).decode()
            return {"uri": uri, "mimeType": "application/octet-stream", "blob": blob}


def _listed(task: AnyTask) -> Json:
    return {
        "uri": task_uri(task.id),
        "name": task.id,
        "title": task.name,
        "description": f"{task.status}, created {iso(task.created_at_ms)}",
        "mimeType": JSON,
    }


def _output_text(execution: Execution) -> str:
    head, text = f"$ {execution.command}\n", ""
    if execution.stdout is not None:
        text = f"{execution.stdout}{execution.stderr}\n"
    return f"{head}{text}[{_state_text(execution)}]\n"


def _state_text(execution: Execution) -> str:
    if execution.status != "running":
        return f"{execution.reason}, exit code {execution.exit_code}"
    since = f"running since {iso(execution.started_at_ms)}"
    if execution.stdout is None:
        return f"{since} on another machine; its output is here when it has ended"
    sizes = f"{execution.stdout_bytes:,} bytes of stdout and {execution.stderr_bytes:,} of stderr"
    return f"{since}, {sizes} so far"


_PARTS: Final[Mapping[str, tuple[str, ...]]] = {  # that a record changes, beside task and log
    "task_decision": ("decisions",),
    "checkpoint_created": ("checkpoints",),
    "checkpoint_deleted": ("checkpoints",),
    "exec_finished": ("executions",),
    "exec_started": ("executions",),
}


def is_changed_by(name: ResourceName, record: Record) -> bool:
    """Return whether a record of the resource's own task may have changed the resource."""
    if name.part in ("", "logs", "files"):
        return True
    return name.part in _PARTS.get(record.type, ())


def task_of(record: Record) -> tuple[str, str] | None:
    """Return tenant and id of the task that a record belongs to; None for another record."""
    return parse_task_stream(record.stream)
