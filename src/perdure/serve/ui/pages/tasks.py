"""Page of all tasks: background agents and shared tasks, newest first."""

from typing import Any, Final

from starlette.responses import Response

from perdure.core.roles import Permit
from perdure.errors import Refused
from perdure.runtime.sessions.task_lists import STATUSES
from perdure.runtime.sessions.task_verbs import AnyTaskVerbs
from perdure.serve.ui.view import PageView
from perdure.views.tasks import AnyTask

PAGE: Final = 50

# States of sessions whose signs the statuses of tasks share.
SIGNS: Final = {"error": "failed", "in_progress": "running", "resumed": "running"}


def task_verbs(view: PageView) -> AnyTaskVerbs:
    """Return the verbs on tasks, as this person."""
    return AnyTaskVerbs(view.scope.service, view.caller)


def task_row(view: PageView, task: AnyTask) -> dict[str, Any]:
    """Return a task with its address and its sign."""
    url = task_url(view, task.id, task.tenant)
    more = {"url": url, "sign": SIGNS.get(task.status, task.status)}
    return {"resumeCount": 0, **task.to_json(), **more}


def task_url(
    view: PageView, task_id: str, tenant: str, *more: str, **query: str | int | None
) -> str:
    """Return the address of a task; it names the tenant if this person sees several."""
    is_needed = bool(tenant) and not view.scope.is_scoped
    return view.url("tasks", task_id, *more, tenant=tenant if is_needed else None, **query)


async def show_tasks(view: PageView) -> Response:
    """Show tasks that match the filters of the address."""
    filters = {name: view.query(name) for name in ("kind", "status", "parent")}
    offset = _offset(view.query("offset"))
    chosen = {name: value or None for name, value in filters.items()}
    cursor = view.query("cursor") or None
    part = {"limit": PAGE, "offset": offset, "cursor": cursor}
    page = await task_verbs(view).list({**chosen, **part})
    kept = {name: value for name, value in filters.items() if value}
    agents = view.scope.service.agents.all()
    return view.page(
        "tasks.html",
        tasks=[task_row(view, task) for task in page.tasks],
        total=page.count,
        filters=filters,
        kinds=("background", "sandbox"),
        statuses=STATUSES,
        agents=sorted(agent.name for agent in agents),
        next_url=view.url("tasks", **kept, cursor=page.next) if page.next else None,
        is_first=offset == 0 and cursor is None,
        may_operate=view.may(Permit.OPERATE),
        now=view.scope.service.now(),
        section="tasks",
    )


def _offset(text: str) -> int:
    if text and not (text.isdecimal() and len(text) <= 9):
        raise Refused("the address of this page is not valid", hint="open /tasks")
    return int(text or 0)
