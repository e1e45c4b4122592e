"""Routes of background agents: their outcome, follow-ups, and clearing those of a session."""

from typing import Final

from msgspec import Struct
from starlette.responses import Response

from perdure.runtime.sessions.message_content import store_content
from perdure.serve.http.dependencies import OPERATES, READS, RequestScope
from perdure.serve.http.parameters import KEY
from perdure.serve.http.responses import json_response
from perdure.serve.http.routes.tasks import any_verbs
from perdure.serve.http.table import Route, tagged
from perdure.views.task_bodies import DEFAULT_TIMEOUT_MS, ResumeBody, Timeout
from perdure.views.tasks import AgentOutcome, ClearedAgents


class OutputQuery(Struct, frozen=True, kw_only=True):
    """The wait of a caller for the outcome: at all, and for how long."""

    block: bool = False
    timeout: Timeout = DEFAULT_TIMEOUT_MS


async def get_task_output(scope: RequestScope, task_id: str, query: OutputQuery) -> Response:
    """Return the outcome of a background agent, or 202 while it is running.

    With `block`, wait for it, at most `timeout` ms. Reading takes nothing from the parent.
    """
    outcome = await any_verbs(scope).output(
        task_id, block=query.block, timeout=query.timeout, gone=scope.disconnected
    )
    return json_response(outcome, 200 if outcome.has_ended else 202)


async def resume_task(scope: RequestScope, task_id: str, body: ResumeBody) -> Response:
    """Send a follow-up to a completed background agent (202).

    With `block`, wait for the answer (200). If it does not come in time (202), or the caller has
    disconnected, the parent is notified.
    """
    verbs = any_verbs(scope)
    message = await store_content(scope.service, await verbs.session(task_id), body.message)
    outcome = await verbs.send(
        task_id,
        message,
        block=body.block,
        timeout=body.timeout,
        key=scope.key or None,  # a header may be empty
        gone=scope.disconnected,
    )
    return json_response(outcome, 200 if outcome.has_ended else 202)


async def clear_tasks(scope: RequestScope, session_id: str) -> ClearedAgents:
    """Cancel the running background agents of a session and remove all of them from lists."""
    return await any_verbs(scope).clear(session_id)


_OUTCOME: Final = {200: AgentOutcome, 202: AgentOutcome}
_TASK: Final = "/tasks/{task_id}"
ROUTES: Final = tagged(
    "tasks",
    Route("GET", f"{_TASK}/output", READS, get_task_output, returns=_OUTCOME, errors=(409,)),
    Route("POST", f"{_TASK}/resume", OPERATES, resume_task, headers=(KEY,), returns=_OUTCOME),
    Route("POST", "/sessions/{session_id}/tasks/clear", OPERATES, clear_tasks),
)
