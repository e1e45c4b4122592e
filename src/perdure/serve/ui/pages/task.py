"""Page of one task: a background agent with its tree, or a shared task with its layers."""

from collections.abc import Awaitable
from typing import Any, Final

from starlette.responses import Response

from perdure.core.roles import Permit
from perdure.errors import NotFound, PerdureError
from perdure.runtime.sessions.task_verbs import AnyTaskVerbs
from perdure.serve.ui.calls import paused_text
from perdure.serve.ui.pages.tasks import task_row, task_url, task_verbs
from perdure.serve.ui.view import PageView
from perdure.tasks.model.locks import is_lock_of
from perdure.views.base import View
from perdure.views.tasks import BackgroundTask

LOG_LINES: Final = 100
EXECUTIONS: Final = 20
CHILDREN: Final = 100


async def show_task(view: PageView, task_id: str) -> Response:
    """Show a task of any kind."""
    verbs = task_verbs(view)
    shown = await verbs.get(task_id)
    task = task_row(view, shown)
    if task.get("pending"):
        task["sign"] = "waiting"
    values = {
        "task": task,
        "now": view.scope.service.now(),
        "may_operate": view.may(Permit.OPERATE),
        "may_administer": view.may(Permit.ADMIN),
        "section": "tasks",
    }
    if isinstance(shown, BackgroundTask):
        values["paused"] = paused_text(shown.pending)
        return view.page("task_background.html", **values, **await _background(view, verbs, task))
    return view.page("task_shared.html", **values, **await _shared(view, verbs, task))


async def _background(view: PageView, verbs: AnyTaskVerbs, task: dict[str, Any]) -> dict[str, Any]:
    """Return the ancestors and children of a background agent, and its session."""
    tenant, has_session = task["tenant"], True
    try:
        await view.verbs_in(tenant).logs.stream(task["sessionID"])
    except NotFound:
        has_session = False
    children: list[dict[str, Any]] = []
    if has_session:
        below = await verbs.list({"parent": task["sessionID"], "limit": CHILDREN})
        # One without a parent is an entry of its own session.
        children = [task_row(view, child) for child in below.tasks if child.id != task["id"]]
    return {
        "children": children,
        "ancestors": [
            (name, view.session_url(name, tenant)) for name in task.get("ancestry") or ()
        ],
        "session_url": view.session_url(task["sessionID"], tenant) if has_session else None,
        "is_active": task["status"] in ("pending", "running", "resumed"),
    }


async def _shared(view: PageView, verbs: AnyTaskVerbs, task: dict[str, Any]) -> dict[str, Any]:
    """Return the layers of a shared task; one that cannot be read says why."""
    task_id, shared = task["id"], verbs.shared
    executions = await _part(shared.executions.list(task_id, EXECUTIONS, None))
    items = [_execution(view, task, item) for item in executions.get("executions", ())]
    execution = await _chosen_execution(view, verbs, task)
    locks = await view.scope.service.tasks.locks.statuses(view.caller.home_tenant)
    running = next((item for item in items if item["status"] == "running"), None)
    return {
        "logs": await _part(shared.newest_logs(task_id, LOG_LINES)),
        "decisions": await _part(shared.decisions(task_id)),
        "checkpoints": _with_urls(view, task, await _part(shared.checkpoints(task_id))),
        "executions": {**executions, "executions": items},
        "execution": execution,
        "running": execution if execution and execution["status"] == "running" else running,
        "locks": [info for name, info in sorted(locks.items()) if is_lock_of(name, task_id)],
        "difference": await _difference(view, verbs, task_id),
        "files": await _files(view, verbs, task),
        "is_active": task["status"] in ("pending", "running", "in_progress"),
        "availability": await _part(shared.executions.availability()),
    }


async def _files(view: PageView, verbs: AnyTaskVerbs, task: dict[str, Any]) -> dict[str, Any]:
    """Return the files of the folder that the address names, with their addresses."""
    task_id, tenant, folder = task["id"], task["tenant"], view.query("folder")
    page = await _part(verbs.shared.list_files(task_id, folder))
    for item in page.get("files", ()):
        item["url"] = None
        if item["type"] == "file" and item["path"]:
            item["url"] = task_url(view, task_id, tenant, "files", path=item["path"])
        elif item["path"]:
            item["url"] = f"{task_url(view, task_id, tenant, folder=item['path'])}#files"
    parent = folder.rpartition("/")[0]
    up = f"{task_url(view, task_id, tenant, folder=parent or None)}#files" if folder else None
    return {**page, "folder": folder, "up": up}


async def _part(read: Awaitable[View]) -> dict[str, Any]:
    """Return a layer of a task, or why it cannot be read: the others are shown all the same."""
    try:
        return {"problem": None, **(await read).to_json()}
    except PerdureError as error:
        return {"problem": error.message}


async def _chosen_execution(
    view: PageView, verbs: AnyTaskVerbs, task: dict[str, Any]
) -> dict[str, Any] | None:
    name = view.query("execution")
    if not name:
        return None
    execution = await verbs.shared.executions.get(task["id"], name)
    return _execution(view, task, execution.to_json())


def _execution(view: PageView, task: dict[str, Any], item: dict[str, Any]) -> dict[str, Any]:
    name = item["executionID"]
    return {
        **item,
        "url": f"{task_url(view, task['id'], task['tenant'], execution=name)}#execution",
        "stop_url": task_url(view, task["id"], task["tenant"], "executions", name, "cancel"),
        "stream_url": task_url(view, task["id"], task["tenant"], "executions", name),
    }


def _with_urls(view: PageView, task: dict[str, Any], page: dict[str, Any]) -> dict[str, Any]:
    """Return checkpoints with the addresses of their forms."""
    task_id, tenant = task["id"], task["tenant"]
    checkpoints = [
        {
            **item,
            "diff_url": f"{task_url(view, task_id, tenant, checkpoint=name)}#difference",
            "restore_url": task_url(view, task_id, tenant, "checkpoints", name, "restore"),
        }
        for item in page.get("checkpoints", ())
        for name in [item["checkpointID"]]
    ]
    return {**page, "checkpoints": checkpoints}


async def _difference(view: PageView, verbs: AnyTaskVerbs, task_id: str) -> dict[str, Any] | None:
    """Return what has changed since the checkpoint that the address names."""
    name = view.query("checkpoint")
    if not name:
        return None
    try:
        return {"problem": None, **(await verbs.shared.diff(task_id, name)).to_json()}
    except NotFound:
        raise
    except PerdureError as error:
        return {"checkpointID": name, "problem": error.message}
