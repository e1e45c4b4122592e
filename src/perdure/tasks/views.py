"""Views of shared tasks, of their commands, logs and decisions, from records."""

from collections.abc import Iterable, Mapping

from perdure.sandbox.base import Channel
from perdure.tasks.model.executions import CapturedOutput, ExecutionRecord
from perdure.tasks.model.facts import AgentDecision, LogEntry
from perdure.tasks.model.record import TaskRecord
from perdure.views.base import view_of
from perdure.views.findings import Finding
from perdure.views.tasks import (
    CommandAvailability,
    Execution,
    LogLine,
    SandboxTask,
    TaskDecision,
)


def task_view(
    record: TaskRecord,
    execution: CommandAvailability | None = None,
    findings: tuple[Finding, ...] = (),
) -> SandboxTask:
    """Return the view of a task, perhaps with whether commands can run in it."""
    return SandboxTask(
        id=record.id,
        name=record.name,
        status=record.status.value,
        owner=record.owner,
        metadata=record.metadata,
        agents=record.agents,
        result=record.result,
        tenant=record.tenant,
        host=record.host,
        sandbox=record.sandbox,
        created_at_ms=record.created_at,
        updated_at_ms=record.updated_at,
        execution=execution,
        findings=findings,
    )


def execution_view(
    task_id: str, record: ExecutionRecord, output: Mapping[Channel, CapturedOutput] | None = None
) -> Execution:
    """Return the view of a command, perhaps with its output by channel."""
    is_running, duration = record.is_running, record.duration_ms
    sizes: dict[Channel, int] = {"stdout": record.stdout_bytes, "stderr": record.stderr_bytes}
    if output is not None and is_running:
        sizes = {channel: captured.size for channel, captured in output.items()}
    texts = {channel: captured.text for channel, captured in (output or {}).items()}
    return Execution(
        execution_id=record.id,
        task_id=task_id,
        command=record.command,
        status="running" if is_running else "ended",
        by=record.by or None,
        timeout=record.timeout_ms,
        started_at_ms=record.started_at,
        ended_at_ms=None if duration is None else record.started_at + duration,
        success=None if is_running else record.is_success,
        exit_code=record.exit_code,
        duration=duration,
        reason=record.reason,
        signal=record.signal,
        truncated=record.truncated,
        sandbox=record.sandbox,
        guarantees=record.guarantees,
        stdout_bytes=sizes["stdout"],
        stderr_bytes=sizes["stderr"],
        problem=record.problem,
        stdout=texts.get("stdout"),
        stderr=texts.get("stderr"),
    )


def log_lines(entries: Iterable[LogEntry]) -> tuple[LogLine, ...]:
    """Return the views of log entries."""
    return tuple(view_of(LogLine, entry) for entry in entries)


def decision_view(decision: AgentDecision) -> TaskDecision:
    """Return the view of an agent's decision."""
    return view_of(TaskDecision, decision)
