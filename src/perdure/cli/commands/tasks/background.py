"""`perdure tasks output`, `resume`, `clear`: background agents."""

import click

from perdure.cli.backend.console import Console, api_command
from perdure.cli.backend.find import find_session, find_task
from perdure.cli.commands.continuation import continue_session, print_left
from perdure.cli.commands.option_types import text_or_stdin
from perdure.cli.commands.tasks.any_task import print_waiting
from perdure.cli.commands.tasks.group import print_line, task_command, tasks
from perdure.cli.exit_codes import FAILED, TIMED_OUT
from perdure.cli.terminal.terminal import plural
from perdure.core.session.children import ACTIVE
from perdure.views.durations import duration_ms
from perdure.views.tasks import AgentOutcome, BackgroundTask

_timeout = click.option(
    "--timeout",
    "timeout_ms",
    type=duration_ms,
    metavar="DURATION",
    help="Wait at most so long, with --block; 10m is the most.  [default: 60s]",
)


@task_command()
@click.option("--block", is_flag=True, help="Wait until the agent has finished.")
@_timeout
@api_command
async def output(console: Console, task_id: str, *, block: bool, timeout_ms: int | None) -> int:
    """Print the output of a background agent."""
    task = await find_task(console.api, task_id)
    outcome = await console.api.tasks.output(task.id, block=block, timeout=timeout_ms)
    return _print_outcome(console, outcome, is_waited=block)


def _print_outcome(console: Console, outcome: AgentOutcome, *, is_waited: bool) -> int:
    task, output = outcome.task, outcome.output
    is_deleted = outcome.message is not None and task.status not in ACTIVE
    failure = outcome.error or (outcome.message if is_deleted else None)

    def show() -> None:
        if output is not None:
            console.print_result(output)
        elif failure is not None:
            console.print(failure)
        else:
            wait = console.settings.command("tasks", "output", task.id, "--block")
            console.print(f"Task {task.id} is {task.status}. Wait for it: {wait}")
            print_waiting(console, task, "It ")

    console.print_either(outcome, show)
    if failure is not None:
        return FAILED
    return TIMED_OUT if is_waited and output is None else 0


@task_command()
@click.argument("message", type=text_or_stdin)
@click.option("--block", is_flag=True, help="Wait for the answer, and print it.")
@_timeout
@click.option("--no-run", is_flag=True, help="Record the follow-up only; a worker continues.")
@api_command
async def resume(
    console: Console,
    task_id: str,
    message: str,
    *,
    block: bool,
    timeout_ms: int | None,
    no_run: bool,
) -> int:
    """Send a follow-up to a background agent that has completed. MESSAGE may be - for stdin.

    With --block the answer is printed here, and its parent is not notified.
    """
    task = await find_task(console.api, task_id)
    console.name_session(task.session_id if isinstance(task, BackgroundTask) else "")
    outcome = await console.api.tasks.resume(task.id, message, block=block, timeout=timeout_ms)
    if block:
        return _print_outcome(console, outcome, is_waited=True)
    sent = outcome.task
    verb = "queued" if sent.queued else "sent"
    text = f"✓ {verb} follow-up {sent.resume_count + sent.queued} to {sent.id} ({sent.agent})"
    print_line(console, outcome, text)
    if no_run:
        print_left(console, sent)
        return 0
    code = await continue_session(console, sent, wait=False)
    if sent.parent is not None:
        parent = console.settings.command("sessions", "resume", sent.parent)
        console.print(f"Its parent {sent.parent} reads the answer next: {parent}", dim=True)
    return code


@tasks.command()
@click.argument("session", metavar="SESSION")
@api_command
async def clear(console: Console, session: str) -> None:
    """Cancel the running background agents of a session, and hide all of them in lists."""
    parent = await find_session(console, session)
    cleared = await console.api.tasks.clear(parent.session_id)
    text = f"cleared {plural(cleared.cleared, 'task')} of session {cleared.parent}"
    print_line(console, cleared, text)
