"""`perdure tasks output`, `resume`, `clear`: background agents."""

from collections.abc import Mapping
from typing import Any

from perdure.cli.actions.pending import continue_session, worker_hint
from perdure.cli.actions.run import TIMED_OUT, run_interruptibly
from perdure.cli.actions.tasks.every_kind import print_waiting
from perdure.cli.backend.base import Backend, Json
from perdure.cli.backend.find import find_session, find_task
from perdure.cli.open import with_backend
from perdure.cli.settings import Settings
from perdure.cli.terminal.terminal import Terminal, plural
from perdure.core.durations import duration_ms
from perdure.core.session.children import ACTIVE


def show_output(settings: Settings, typed_id: str, options: Mapping[str, Any]) -> int:
    """Print the outcome of a background agent; wait for it with --block."""
    terminal = Terminal(settings)
    block, timeout = options["block"], _timeout_ms(options)

    async def main(backend: Backend) -> Json:
        task = await find_task(backend, typed_id)
        return await backend.any_tasks.output(task["id"], block=block, timeout=timeout)

    return _print_outcome(terminal, with_backend(settings, main), is_waited=block)


def _print_outcome(terminal: Terminal, outcome: Json, *, is_waited: bool) -> int:
    is_deleted = "message" in outcome and outcome["status"] not in ACTIVE

    def show() -> None:
        if "output" in outcome:
            terminal.print_result(outcome["output"])
        elif "error" in outcome or is_deleted:
            terminal.print(outcome.get("error") or outcome["message"])
        else:
            task_id = outcome["taskId"]
            wait = terminal.settings.command("tasks", "output", task_id, "--block")
            terminal.print(f"Task {task_id} is {outcome['status']}. Wait for it: {wait}")
            print_waiting(terminal, outcome, "It ")

    terminal.print_either(outcome, show)
    if "error" in outcome or is_deleted:
        return 1
    return TIMED_OUT if is_waited and "output" not in outcome else 0


def _timeout_ms(options: Mapping[str, Any]) -> int | None:
    return None if options["timeout"] is None else duration_ms(options["timeout"])


def resume_task(settings: Settings, typed_id: str, message: str, options: Mapping[str, Any]) -> int:
    """Send a follow-up; then wait for the answer, leave it to a worker, or drive it here."""
    terminal = Terminal(settings)
    names: list[str] = []
    block, timeout = options["block"], _timeout_ms(options)

    async def main(backend: Backend) -> int:
        task = await find_task(backend, typed_id)
        names.append(str(task.get("sessionID", "")))
        outcome = await backend.any_tasks.resume(task["id"], message, block=block, timeout=timeout)
        if block:
            return _print_outcome(terminal, outcome, is_waited=True)
        is_queued = outcome.get("queued", False)
        verb = "queued" if is_queued else "sent"
        number = outcome["resumeCount"] + is_queued
        text = f"✓ {verb} follow-up {number} to {task['id']} ({task['agent']})"
        terminal.print_either(outcome, lambda: terminal.print(text))
        if options["no_run"]:
            terminal.print(worker_hint(settings, task))
            return 0
        code = await continue_session(backend, task, terminal, wait=False)
        if task["parent"] is not None:
            parent = settings.command("sessions", "resume", task["parent"])
            terminal.print(f"Its parent {task['parent']} reads the answer next: {parent}", dim=True)
        return code

    return run_interruptibly(settings, names, lambda: with_backend(settings, main))


def clear_tasks(settings: Settings, typed_id: str) -> int:
    """Cancel the running background agents of a session and remove all from lists."""
    terminal = Terminal(settings)

    async def main(backend: Backend) -> Json:
        parent = (await find_session(backend, typed_id))["sessionID"]
        return await backend.any_tasks.clear(parent)

    cleared = with_backend(settings, main)
    text = f"cleared {plural(cleared['cleared'], 'task')} of session {cleared['parent']}"
    terminal.print_either(cleared, lambda: terminal.print(text))
    return 0
