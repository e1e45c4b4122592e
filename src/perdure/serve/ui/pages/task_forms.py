"""Forms of tasks: launch, follow up, cancel, clear, delete, run commands, checkpoints."""

from starlette.responses import Response

from perdure.errors import Refused
from perdure.serve.ui.pages.tasks import task_url, task_verbs
from perdure.serve.ui.view import PageView


async def create(view: PageView) -> Response:
    """Launch a background agent, or create a shared task."""
    verbs, prompt = task_verbs(view), view.field("prompt").strip()
    if view.field("agent"):
        if not prompt:
            raise Refused("a background agent needs a prompt", hint="write one and send it again")
        description = view.field("description").strip() or None
        launched, _ = await verbs.launch(view.field("agent"), prompt, description=description)
        return _to_task(view, launched.id)
    name = view.field("name").strip()
    if not name:
        raise Refused("a task needs a name", hint="write one and send the form again")
    created = await verbs.shared.create({"name": name})
    return _to_task(view, created.id)


async def resume(view: PageView, task_id: str) -> Response:
    """Send a follow-up to a background agent."""
    message = view.field("message").strip()
    if not message:
        raise Refused("the follow-up is empty", hint="write something and send it again")
    await task_verbs(view).resume(task_id, message)
    return _to_task(view, task_id)


async def cancel(view: PageView, task_id: str) -> Response:
    """Cancel a task that has not ended."""
    await task_verbs(view).cancel(task_id)
    return _to_task(view, task_id)


async def clear(view: PageView, session_id: str) -> Response:
    """Cancel the background agents of a session and remove them from lists."""
    await task_verbs(view).clear(session_id)
    return view.redirect(view.url("tasks"))


async def delete(view: PageView, task_id: str) -> Response:
    """Delete a task that was confirmed by its id."""
    if view.field("confirm") != task_id:
        raise Refused("the id does not match", hint="type the id of the task to delete it")
    await task_verbs(view).delete(task_id)
    return view.redirect(view.url("tasks"))


async def execute(view: PageView, task_id: str) -> Response:
    """Start a command in the sandbox of a task; it does not end with the page."""
    command = view.field("command").strip()
    if not command:
        raise Refused("there is no command to run", hint="write one and send it again")
    started = await task_verbs(view).shared.executions.start(task_id, command, {"by": view.person})
    return _to_task(view, task_id, execution=started.execution_id)


async def stop_execution(view: PageView, task_id: str, execution_id: str) -> Response:
    """Stop a command."""
    await task_verbs(view).shared.executions.cancel(task_id, execution_id)
    return _to_task(view, task_id, execution=execution_id)


async def take_checkpoint(view: PageView, task_id: str) -> Response:
    """Take a checkpoint of the state, log, decisions and workspace."""
    description = view.field("description").strip() or None
    await task_verbs(view).shared.checkpoint(task_id, description)
    return _to_task(view, task_id)


async def restore_checkpoint(view: PageView, task_id: str, checkpoint_id: str) -> Response:
    """Put a checkpoint back; the present state and workspace are saved first."""
    await task_verbs(view).shared.restore(task_id, checkpoint_id, None)
    return _to_task(view, task_id)


def _to_task(view: PageView, task_id: str, **query: str) -> Response:
    return view.redirect(task_url(view, task_id, view.caller.home_tenant, **query))
