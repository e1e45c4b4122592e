"""Routes of the logs and decisions of shared tasks."""

from typing import Annotated, ClassVar, Final, get_args

from msgspec import UNSET, Meta, Struct, UnsetType, to_builtins
from msgspec.structs import asdict
from starlette.responses import Response

from perdure.serve.http.dependencies import OPERATES, READS, RequestScope
from perdure.serve.http.parameters import ACCEPT, LAST_EVENT_ID
from perdure.serve.http.routes.tasks import Count
from perdure.serve.http.sse import EventStreamResponse, is_stream_requested, item_frames
from perdure.serve.http.table import INVALID_REQUEST, EventStream, Route, tagged, value_or_none
from perdure.views.base import wire_name
from perdure.views.task_bodies import DecisionBody, LogsBody
from perdure.views.tasks import AppendedLogs, LogLevel, TaskDecision, TaskDecisions, TaskLog

_Level = Annotated[str, Meta(extra_json_schema={"enum": list(get_args(LogLevel))})]
_Instant = Annotated[str, Meta(extra_json_schema={"format": "date-time"})]


class LogQuery(Struct, frozen=True, kw_only=True, rename=wire_name):
    """Filters of a log; a stream has only the position after which it begins."""

    level: _Level | UnsetType = UNSET
    start_date: _Instant | UnsetType = UNSET
    end_date: _Instant | UnsetType = UNSET
    limit: Count = 1000
    offset: Count = 0
    after: Annotated[int, Meta(ge=0, description="The seq to follow after, in a stream.")] = 0

    ERROR: ClassVar[str] = INVALID_REQUEST


async def get_task_logs(scope: RequestScope, task_id: str, query: LogQuery) -> TaskLog | Response:
    """Return the log of a task, oldest first; as `text/event-stream`, follow it.

    Each event of a stream has the lines of one record.
    """
    if is_stream_requested(scope.accept):
        await scope.tasks.get(task_id)
        last = (scope.request.headers.get("last-event-id") or "").partition(".")[0]
        items = scope.tasks.follow_logs(task_id, int(last) if last else query.after)
        return EventStreamResponse(item_frames(items), scope.app_state.closing)
    options = {name: value_or_none(value) for name, value in asdict(query).items()}
    del options["after"]
    return await scope.tasks.logs(task_id, options)


async def append_task_logs(scope: RequestScope, task_id: str, body: LogsBody) -> AppendedLogs:
    """Append log entries, all or none."""
    return await scope.tasks.append_logs(task_id, to_builtins(body.entries))


async def get_task_decisions(scope: RequestScope, task_id: str) -> TaskDecisions:
    """Return the decisions of the agents, oldest first."""
    return await scope.tasks.decisions(task_id)


async def append_task_decision(
    scope: RequestScope, task_id: str, body: DecisionBody
) -> TaskDecision:
    """Append a decision of an agent."""
    return await scope.tasks.append_decision(task_id, asdict(body))


_LOGS: Final = "/tasks/{task_id}/logs"
_DECISIONS: Final = "/tasks/{task_id}/decisions"
ROUTES: Final = tagged(
    "tasks",
    Route(
        "GET",
        _LOGS,
        READS,
        get_task_logs,
        headers=(ACCEPT, LAST_EVENT_ID),
        returns={200: (TaskLog, EventStream)},
    ),
    Route("POST", _LOGS, OPERATES, append_task_logs),
    Route("GET", _DECISIONS, READS, get_task_decisions),
    Route("POST", _DECISIONS, OPERATES, append_task_decision),
)
