"""Routes of the logs and decisions of shared tasks."""

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Annotated, Any, Final, get_args

from fastapi import APIRouter, Depends, Header, Query, Response
from msgspec import Meta, Struct, field, to_builtins

from perdure.core.tasks.facts import LogLevel
from perdure.runtime.tasks.layers import MAX_LINES
from perdure.runtime.tasks.verbs import TaskVerbs
from perdure.serve.http.dependencies import Id, Operates, Reads
from perdure.serve.http.responses import json_response, object_schema, request_body, responses
from perdure.serve.http.routes.tasks import COUNT, DONE, OBJECTS, whole_number
from perdure.serve.http.schemas import TEXT, IdText
from perdure.serve.http.sse import (
    OPENING,
    EventStreamResponse,
    event_frame,
    is_stream_requested,
    keep_alive_frame,
)

router = APIRouter(tags=["tasks"])

_INSTANT: Final[dict[str, Any]] = {"type": "string", "format": "date-time"}
_LEVELS: Final = get_args(LogLevel)
_LOGS: Final = object_schema(("taskId", "logs"), taskId=TEXT, logs=OBJECTS)
_DECISIONS: Final = object_schema(("taskId", "decisions"), taskId=TEXT, decisions=OBJECTS)

_Instant = Annotated[str, Meta(min_length=1, extra_json_schema={"format": "date-time"})]


class LogLine(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A log entry; without a timestamp it gets the present one."""

    message: str
    level: LogLevel = "info"
    timestamp: _Instant | None = None
    data: dict[str, Any] | None = None


class LogsBody(Struct, forbid_unknown_fields=True):
    """Body that appends log entries."""

    entries: Annotated[list[LogLine], Meta(max_length=MAX_LINES)]


class DecisionBody(Struct, forbid_unknown_fields=True):
    """Body that appends a decision."""

    agent_id: IdText = field(name="agentId")
    decision: str
    reasoning: str = ""
    timestamp: _Instant | None = None
    metadata: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class LogQuery:
    """Filters of a log; a stream has only the position after which it begins."""

    level: Annotated[str | None, Query(json_schema_extra={"enum": list(_LEVELS)})] = None
    startDate: Annotated[str | None, Query(json_schema_extra=_INSTANT)] = None  # noqa: N815
    endDate: Annotated[str | None, Query(json_schema_extra=_INSTANT)] = None  # noqa: N815
    limit: Annotated[str, Query(json_schema_extra=COUNT)] = "1000"
    offset: Annotated[str, Query(json_schema_extra=COUNT)] = "0"
    after: Annotated[int, Query(ge=0, description="The seq to follow after, in a stream.")] = 0
    accept: Annotated[str | None, Header(include_in_schema=False)] = None
    last: Annotated[str | None, Header(alias="last-event-id", pattern="^[0-9]{1,15}$")] = None

    @property
    def options(self) -> dict[str, Any]:
        """The options of a page."""
        dates = {"start_date": self.startDate, "end_date": self.endDate}
        return {
            "level": self.level,
            "limit": whole_number(self.limit, "limit"),
            "offset": whole_number(self.offset, "offset"),
            **dates,
        }


@router.get("/tasks/{task_id}/logs", responses=responses({200: _LOGS}, 404))
async def get_task_logs(
    scope: Reads, task_id: Id, query: Annotated[LogQuery, Depends()]
) -> Response:
    """Return the log of a task, oldest first; as `text/event-stream`, follow it.

    Each event of a stream has the lines of one record.
    """
    if is_stream_requested(query.accept):
        await scope.tasks.get(task_id)
        after = int(query.last) if query.last else query.after
        return EventStreamResponse(
            _log_frames(scope.tasks, task_id, after), scope.app_state.closing
        )
    return json_response(await scope.tasks.logs(task_id, query.options))


async def _log_frames(verbs: TaskVerbs, task_id: str, after: int) -> AsyncGenerator[bytes, None]:
    yield OPENING
    async for item in verbs.follow_logs(task_id, after):
        if item is None:
            yield keep_alive_frame()
        else:
            yield event_frame("log", item, str(item["seq"]))


@router.post(
    "/tasks/{task_id}/logs",
    responses=responses({200: DONE}, 404),
    openapi_extra=request_body(LogsBody),
)
async def append_task_logs(scope: Operates, task_id: Id) -> Response:
    """Append log entries, all or none."""
    body = await scope.read_body(LogsBody)
    return json_response(await scope.tasks.append_logs(task_id, to_builtins(body.entries)))


@router.get("/tasks/{task_id}/decisions", responses=responses({200: _DECISIONS}, 404))
async def get_task_decisions(scope: Reads, task_id: Id) -> Response:
    """Return the decisions of the agents, oldest first."""
    return json_response(await scope.tasks.decisions(task_id))


@router.post(
    "/tasks/{task_id}/decisions",
    responses=responses({200: DONE}, 404),
    openapi_extra=request_body(DecisionBody),
)
async def append_task_decision(scope: Operates, task_id: Id) -> Response:
    """Append a decision of an agent."""
    body = await scope.read_body(DecisionBody)
    fields = {"agentId": body.agent_id, "decision": body.decision, "reasoning": body.reasoning}
    decision = {**fields, "timestamp": body.timestamp, "metadata": body.metadata}
    return json_response(await scope.tasks.append_decision(task_id, decision))
