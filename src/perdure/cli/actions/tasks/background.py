"""`perdure tasks output`, `resume`, `clear`: background agents."""

from collections.abc import Mapping
from typing import Any

from perdure.cli.actions.pending import continue_session, worker_hint
from perdure.cli.actions.run import TIMED_OUT, run_interruptibly
from perdure.cli.actions.tasks.every_kind import print_waiting
from perdure.cli.backend.find import find_session, find_task
from perdure.cli.backend.kinds import Backend
from perdure.cli.open import with_backend
from perdure.cli.settings import Settings
from perdure.cli.terminal.terminal import Terminal, plural
from perdure.core.session.children import ACTIVE
from perdure.views.durations import duration_ms
from perdure.views.tasks import AgentOutcome, BackgroundTask, ClearedAgents


def show_output(settings: Settings, typed_id: str, options: Mapping[str, Any]) -> int:
    """Print the outcome of a background agent; wait for it with --block."""
    terminal = Terminal(settings)
    block, timeout = options["block"], _timeout_ms(options)

    async def main(backend: Backend) -> AgentOutcome:
        task = await find_task(backend, typed_id)
        return await backend.any_tasks.output(task.id, block=block, timeout=timeout)

    return _print_outcome(terminal, with_backend(settings, main), is_waited=block)


def _print_outcome(terminal: Terminal, outcome: AgentOutcome, *, is_waited: bool) -> int:
    task, output = outcome.task, outcome.output
    is_deleted = outcome.message is not None and task.status not in ACTIVE
    failure = outcome.error or (outcome.message if is_deleted else None)

    def show() -> None:
        if output is not None:
            terminal.print_result(output)
        elif failure is not None:
            terminal.print(failure)
        else:
            wait = terminal.settings.command("tasks", "output", task.id, "--block")
            terminal.print(f"Task {task.id} is {task.status}. Wait for it: {wait}")
            print_waiting(terminal, task, "It ")

    terminal.print_either(outcome, show)
    if failure is not None:
        return 1
    return TIMED_OUT if is_waited and output is None else 0


def _timeout_ms(options: Mapping[str, Any]) -> int | None:
    return None if options["timeout"] is None else duration_ms(options["timeout"])


def resume_task(settings: Settings, typed_id: str, message: str, options: Mapping[str, Any]) -> int:
    """Send a follow-up; then wait for the answer, leave it to a worker, or drive it here."""
    terminal = Terminal(settings)
    names: list[str] = []
    block, timeout = options["block"], _timeout_ms(options)

    async def main(backend: Backend) -> int:
        task = await find_task(backend, typed_id)
        names.append(task.session_id if isinstance(task, BackgroundTask) else "")
        outcome = await backend.any_tasks.resume(task.id, message, block=block, timeout=timeout)
        if block:
            return _print_outcome(terminal, outcome, is_waited=True)
        sent = outcome.task
        verb = "queued" if sent.queued else "sent"
        text = f"✓ {verb} follow-up {sent.resume_count + sent.queued} to {sent.id} ({sent.agent})"
        terminal.print_either(outcome, lambda: terminal.print(text))
        if options["no_run"]:
            terminal.print(worker_hint(settings, sent.to_json()))
            return 0
        code = await continue_session(backend, sent.to_json(), terminal, wait=False)
        if sent.parent is not None:
            parent = settings.command("sessions", "resume", sent.parent)
            terminal.print(f"Its parent {sent.parent} reads the answer next: {parent}", dim=True)
        return code

    return run_interruptibly(settings, names, lambda: with_backend(settings, main))


def clear_tasks(settings: Settings, typed_id: str) -> int:
    """Cancel the running background agents of a session and remove all from lists."""
    terminal = Terminal(settings)

    async def main(backend: Backend) -> ClearedAgents:
        parent = (await find_session(backend, typed_id))["sessionID"]
        return await backend.any_tasks.clear(parent)

    cleared = with_backend(settings, main)
    text = f"cleared {plural(cleared.cleared, 'task')} of session {cleared.parent}"
    terminal.print_either(cleared, lambda: terminal.print(text))
    return 0
