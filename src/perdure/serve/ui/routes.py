"""Routes of the pages: which function shows an address, and which form does what."""

from dataclasses import dataclass
from typing import Final

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
    path: str
    permit: Permit
    function: Page


PAGES: Final = (
    PageRoute("GET", "/", Permit.READ_TOOL_CALLS, inbox.show_inbox),
    PageRoute("GET", "/pending", Permit.READ_TOOL_CALLS, inbox.show_inbox),
    PageRoute("GET", "/pending/{pending_id}", Permit.READ_TOOL_CALLS, decision.show_decision),
    PageRoute("POST", "/pending/{pending_id}/approve", Permit.DECIDE, decision.approve),
    PageRoute("POST", "/pending/{pending_id}/deny", Permit.DECIDE, decision.deny),
    PageRoute("POST", "/pending/{pending_id}/respond", Permit.DECIDE, decision.respond),
    PageRoute("POST", "/pending/{pending_id}/result", Permit.SUBMIT, decision.submit_result),
    PageRoute("POST", "/pending/{pending_id}/error", Permit.SUBMIT, decision.submit_error),
    PageRoute("POST", "/pending/{pending_id}/cancel", Permit.OPERATE, decision.cancel),
    PageRoute("POST", "/decisions", Permit.DECIDE, decision.approve_several),
    PageRoute("GET", "/sessions", Permit.READ, sessions.show_sessions),
    PageRoute("POST", "/sessions", Permit.OPERATE, session_forms.start),
    PageRoute("GET", "/sessions/{session_id}", Permit.READ, session.show_session),
    PageRoute("GET", "/sessions/{session_id}/export", Permit.ADMIN, session.export_session),
    PageRoute(
        "POST", "/sessions/{session_id}/messages", Permit.OPERATE, session_forms.send_message
    ),
    PageRoute("POST", "/sessions/{session_id}/resume", Permit.OPERATE, session_forms.resume),
    PageRoute("POST", "/sessions/{session_id}/cancel", Permit.OPERATE, session_forms.cancel),
    PageRoute("POST", "/sessions/{session_id}/fork", Permit.OPERATE, session_forms.fork),
    PageRoute("POST", "/sessions/{session_id}/compact", Permit.OPERATE, session_forms.compact),
    PageRoute("POST", "/sessions/{session_id}/restart", Permit.OPERATE, session_forms.start_again),
    PageRoute("POST", "/sessions/{session_id}/delete", Permit.ADMIN, session_forms.delete),
    PageRoute("POST", "/sessions/{session_id}/tasks/clear", Permit.OPERATE, task_forms.clear),
    PageRoute("GET", "/tasks", Permit.READ, tasks.show_tasks),
    PageRoute("POST", "/tasks", Permit.OPERATE, task_forms.create),
    PageRoute("GET", "/tasks/{task_id}", Permit.READ, task.show_task),
    PageRoute("POST", "/tasks/{task_id}/resume", Permit.OPERATE, task_forms.resume),
    PageRoute("POST", "/tasks/{task_id}/cancel", Permit.OPERATE, task_forms.cancel),
    PageRoute("POST", "/tasks/{task_id}/delete", Permit.ADMIN, task_forms.delete),
    PageRoute("POST", "/tasks/{task_id}/execute", Permit.OPERATE, task_forms.execute),
    PageRoute(
        "POST",
        "/tasks/{task_id}/executions/{execution_id}/cancel",
        Permit.OPERATE,
        task_forms.stop_execution,
    ),
    PageRoute("POST", "/tasks/{task_id}/checkpoints", Permit.OPERATE, task_forms.take_checkpoint),
    PageRoute(
        "POST",
        "/tasks/{task_id}/checkpoints/{checkpoint_id}/restore",
        Permit.OPERATE,
        task_forms.restore_checkpoint,
    ),
    PageRoute("GET", "/health", Permit.READ, health.show_health),
    PageRoute("GET", "/deliveries", Permit.READ, health.show_deliveries),
    PageRoute("GET", "/deliveries/{delivery_id}", Permit.READ, health.show_delivery),
    PageRoute("POST", "/deliveries/{delivery_id}/redeliver", Permit.ADMIN, health.redeliver),
    PageRoute("GET", "/agents", Permit.READ, agents.show_agents),
)
