"""Routes of background agents: their outcome, follow-ups, and clearing those of a session."""

from typing import Annotated

from fastapi import APIRouter, Query, Response
from msgspec import Meta, Struct

from perdure.runtime.agents.delegation import DEFAULT_TIMEOUT_MS, MAX_TIMEOUT_MS
from perdure.serve.http.content import PromptIn, store_content
from perdure.serve.http.dependencies import Id, Key, Operates, Reads
from perdure.serve.http.responses import json_response, object_schema, request_body, responses
from perdure.serve.http.routes.tasks import OBJECTS, OUTCOME, any_verbs
from perdure.serve.http.schemas import BOOLEAN, INTEGER, TEXT

router = APIRouter(tags=["tasks"])

_CLEARED = object_schema(
    ("success", "parent", "cleared", "tasks"),
    success=BOOLEAN,
    parent=TEXT,
    cleared=INTEGER,
    tasks=OBJECTS,
)

# Milliseconds; a longer one counts as the maximum.
_Timeout = Annotated[float, Meta(gt=0, description=f"Milliseconds, at most {MAX_TIMEOUT_MS}.")]


class ResumeBody(Struct, forbid_unknown_fields=True):
    """Body of a follow-up; with `block` the response has the answer, if it comes in time."""

    message: PromptIn
    block: bool = False
    timeout: _Timeout = DEFAULT_TIMEOUT_MS


@router.get("/tasks/{task_id}/output", responses=responses({200: OUTCOME, 202: OUTCOME}, 404, 409))
async def get_task_output(
    scope: Reads,
    task_id: Id,
    block: bool = False,
    timeout: Annotated[  # noqa: ASYNC109 - limits the waiting, not the run
        float, Query(gt=0, description=f"Milliseconds, at most {MAX_TIMEOUT_MS}.")
    ] = DEFAULT_TIMEOUT_MS,
) -> Response:
    """Return the outcome of a background agent, or 202 while it is running.

    With `block`, wait for it, at most `timeout` ms. Reading takes nothing from the parent.
    """
    verbs = any_verbs(scope)
    return _outcome(
        await verbs.output(task_id, block=block, timeout=timeout, gone=scope.disconnected)
    )


def _outcome(outcome: dict[str, object]) -> Response:
    return json_response(outcome, 200 if "output" in outcome or "error" in outcome else 202)


@router.post(
    "/tasks/{task_id}/resume",
    responses=responses({200: OUTCOME, 202: OUTCOME}, 404, 409),
    openapi_extra=request_body(ResumeBody),
)
async def resume_task(scope: Operates, task_id: Id, key: Key = None) -> Response:
    """Send a follow-up to a completed background agent (202).

    With `block`, wait for the answer (200). If it does not come in time (202), or the caller has
    disconnected, the parent is notified.
    """
    body = await scope.read_body(ResumeBody)
    verbs = any_verbs(scope)
    message = await store_content(scope.service, await verbs.session(task_id), body.message)
    outcome = await verbs.resume(
        task_id,
        message,
        block=body.block,
        timeout=body.timeout,
        key=key or None,  # a header may be empty
        gone=scope.disconnected,
    )
    return _outcome(outcome)


@router.post("/sessions/{session_id}/tasks/clear", responses=responses({200: _CLEARED}, 404))
async def clear_tasks(scope: Operates, session_id: Id) -> Response:
    """Cancel the running background agents of a session and remove all of them from lists."""
    return json_response(await any_verbs(scope).clear(session_id))
