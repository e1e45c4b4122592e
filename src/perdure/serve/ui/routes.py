"""Routes of the pages: which function shows an address, and which form does what."""

import re
from dataclasses import dataclass
from re import Pattern
from typing import Final
from urllib.parse import unquote

from perdure.core.roles import Permit
from perdure.serve.ui.pages import (
    agents,
    decision,
    health,
    inbox,
    session,
    session_forms,
    sessions,
    task,
    task_forms,
    tasks,
)
from perdure.serve.ui.view import Page


@dataclass(frozen=True, slots=True)
class PageRoute:
    """Address with the function that answers it, and the permit that it requires."""

    method: str
    pattern: Pattern[str]
    permit: Permit
    function: Page


def _route(method: str, path: str, permit: Permit, function: Page) -> PageRoute:
    pattern = re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]{1,2000})", path)
    return PageRoute(method, re.compile(pattern), permit, function)


ROUTES: Final = (
    _route("GET", "/", Permit.READ_TOOL_CALLS, inbox.show_inbox),
    _route("GET", "/pending", Permit.READ_TOOL_CALLS, inbox.show_inbox),
    _route("GET", "/pending/{pending_id}", Permit.READ_TOOL_CALLS, decision.show_decision),
    _route("POST", "/pending/{pending_id}/approve", Permit.DECIDE, decision.approve),
    _route("POST", "/pending/{pending_id}/deny", Permit.DECIDE, decision.deny),
    _route("POST", "/pending/{pending_id}/respond", Permit.DECIDE, decision.respond),
    _route("POST", "/pending/{pending_id}/result", Permit.SUBMIT, decision.submit_result),
    _route("POST", "/pending/{pending_id}/error", Permit.SUBMIT, decision.submit_error),
    _route("POST", "/pending/{pending_id}/cancel", Permit.OPERATE, decision.cancel),
    _route("POST", "/decisions", Permit.DECIDE, decision.approve_several),
    _route("GET", "/sessions", Permit.READ, sessions.show_sessions),
    _route("POST", "/sessions", Permit.OPERATE, session_forms.start),
    _route("GET", "/sessions/{session_id}", Permit.READ, session.show_session),
    _route("GET", "/sessions/{session_id}/export", Permit.ADMIN, session.export_session),
    _route("POST", "/sessions/{session_id}/messages", Permit.OPERATE, session_forms.send_message),
    _route("POST", "/sessions/{session_id}/resume", Permit.OPERATE, session_forms.resume),
    _route("POST", "/sessions/{session_id}/cancel", Permit.OPERATE, session_forms.cancel),
    _route("POST", "/sessions/{session_id}/fork", Permit.OPERATE, session_forms.fork),
    _route("POST", "/sessions/{session_id}/compact", Permit.OPERATE, session_forms.compact),
    _route("POST", "/sessions/{session_id}/restart", Permit.OPERATE, session_forms.start_again),
    _route("POST", "/sessions/{session_id}/delete", Permit.ADMIN, session_forms.delete),
    _route("POST", "/sessions/{session_id}/tasks/clear", Permit.OPERATE, task_forms.clear),
    _route("GET", "/tasks", Permit.READ, tasks.show_tasks),
    _route("POST", "/tasks", Permit.OPERATE, task_forms.create),
    _route("GET", "/tasks/{task_id}", Permit.READ, task.show_task),
    _route("POST", "/tasks/{task_id}/resume", Permit.OPERATE, task_forms.resume),
    _route("POST", "/tasks/{task_id}/cancel", Permit.OPERATE, task_forms.cancel),
    _route("POST", "/tasks/{task_id}/delete", Permit.ADMIN, task_forms.delete),
    _route("POST", "/tasks/{task_id}/execute", Permit.OPERATE, task_forms.execute),
    _route(
        "POST",
        "/tasks/{task_id}/executions/{execution_id}/cancel",
        Permit.OPERATE,
        task_forms.stop_execution,
    ),
    _route("POST", "/tasks/{task_id}/checkpoints", Permit.OPERATE, task_forms.take_checkpoint),
    _route(
        "POST",
        "/tasks/{task_id}/checkpoints/{checkpoint_id}/restore",
        Permit.OPERATE,
        task_forms.restore_checkpoint,
    ),
    _route("GET", "/health", Permit.READ, health.show_health),
    _route("GET", "/deliveries", Permit.READ, health.show_deliveries),
    _route("GET", "/deliveries/{delivery_id}", Permit.READ, health.show_delivery),
    _route("POST", "/deliveries/{delivery_id}/redeliver", Permit.ADMIN, health.redeliver),
    _route("GET", "/agents", Permit.READ, agents.show_agents),
)


def find_route(method: str, path: str) -> tuple[PageRoute, dict[str, str]] | None:
    """Return the route of an address with the ids in it; None if there is no such page."""
    for route in ROUTES:
        if route.method == method and (match := route.pattern.fullmatch(path)):
            return route, {name: unquote(text) for name, text in match.groupdict().items()}
    return None
