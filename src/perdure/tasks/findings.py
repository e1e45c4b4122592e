"""Findings about shared tasks."""

from typing import Final

from perdure.errors import Corrupt
from perdure.findings.severities import failure
from perdure.findings.steps import NO_WORKER, worker_step
from perdure.findings.texts import line
from perdure.views.findings import Finding

_LONGEST_COMMAND: Final = 200


def shared_task_findings(task_id: str, command: str | None) -> tuple[Finding, ...]:
    """Return what is wrong with a shared task, whose running command its process has abandoned."""
    if command is None:
        return ()
    text = (
        f"Task {line(task_id)} waits for a worker ({NO_WORKER}): the process that ran its command "
        f"`{line(command, _LONGEST_COMMAND)}` has stopped.\nA worker records what it has printed, "
        "and does not run it again."
    )
    return (
        Finding(
            code=NO_WORKER,
            severity="warning",
            subject=task_id,
            text=text,
            missing="a worker",
            steps=(worker_step(),),
        ),
    )


def damaged_task(name: str, error: Corrupt) -> Finding:
    """Return the finding about a task of which something stored cannot be read."""
    text = f"task {name}: {error.message}"
    return failure("TASK_DAMAGED", text, "restore a backup of the store", subject=name)
