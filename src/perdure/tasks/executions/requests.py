"""Requests to run a command, checked, and the results that callers get."""

from dataclasses import dataclass
from typing import Any, Final

from perdure.errors import Refused
from perdure.tasks.model.executions import ExecutionFact
from perdure.views.durations import MAX_MS, duration_ms, format_ms
from perdure.views.task_bodies import MAX_COMMAND_BYTES

TIMEOUT_S: Final = 30.0  # of a command, unless the caller names another
WAIT_S: Final = 60.0  # for the end of another command of the task


@dataclass(frozen=True, slots=True)
class CommandRequest:
    """A command to run with `sh -c`, and how long it and its turn may take."""

    command: str
    timeout_ms: int
    wait_ms: int
    by: str = ""


def check_request(
    command: Any,
    timeout_ms: float,
    longest_ms: int,
    *,
    wait_ms: float = WAIT_S * 1000,
    by: str = "",
) -> CommandRequest:
    """Return a valid request. Raises Refused INVALID_REQUEST."""
    if not isinstance(command, str) or not command.strip():
        raise _invalid("the command is empty", "pass a command line for sh")
    try:
        size = len(command.encode())
    except UnicodeEncodeError:
        raise _invalid("the command has a lone surrogate, which is not a character") from None
    if "\0" in command:
        raise _invalid("the command has a NUL character", "write it to a file first")
    if size > MAX_COMMAND_BYTES:
        raise _invalid(
            f"the command takes {size:,} bytes, and {MAX_COMMAND_BYTES:,} are allowed",
            "write it to a file of the workspace, and run that",
        )
    if not 0 < timeout_ms <= longest_ms:
        raise _invalid(
            f"timeout is {timeout_ms} ms, and must be above 0 and at most {longest_ms} ms "
            f"({format_ms(longest_ms)})",
            "the operator sets the longest one: tasks.limits.timeout",
        )
    if not 0 <= wait_ms <= MAX_MS:
        raise _invalid(f"wait is {wait_ms} ms, and must be 0 or above")
    return CommandRequest(command, max(1, round(timeout_ms)), round(wait_ms), by)


def duration_argument(value: Any, name: str) -> int:
    """Return the ms of a duration that a caller writes as seconds or text. Raises Refused."""
    try:
        return duration_ms(value)
    except Refused as error:
        raise _invalid(f"{name}: {error.message}", error.hint) from error


def ms_argument(value: Any, default_s: float, name: str) -> float:
    """Return a number of ms as JSON has it. Raises Refused INVALID_REQUEST."""
    if value is None:
        return default_s * 1000
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _invalid(f"{name} must be a number of milliseconds")
    if not -MAX_MS <= value <= MAX_MS:  # also refuses NaN
        raise _invalid(f"{name} must be a number of milliseconds, of at most a hundred years")
    return value


def _invalid(text: str, hint: str | None = None) -> Refused:
    return Refused(text, code="INVALID_REQUEST", hint=hint)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionResult:
    """Result of a command. `success` is True only for a normal exit with code 0.

    The exit code is None if the command did not start, or its end is unknown (`interrupted`).
    `duration` is in ms. `truncated` says that `stdout` or `stderr` do not have everything.
    """

    success: bool
    task_id: str
    exit_code: int | None
    stdout: str
    stderr: str
    duration: int
    reason: str
    signal: int | None
    truncated: bool
    sandbox: str
    execution_id: str
    stdout_bytes: int
    stderr_bytes: int
    guarantees: tuple[str, ...] = ()
    problem: str | None = None


def execution_result(task_id: str, fact: ExecutionFact) -> ExecutionResult:
    """Return the result of an execution that has ended."""
    end = fact.record
    return ExecutionResult(
        success=end.is_success,
        task_id=task_id,
        exit_code=end.exit_code,
        stdout=fact.stdout.text,
        stderr=fact.stderr.text,
        duration=end.duration_ms or 0,
        reason=end.reason or "",
        signal=end.signal,
        truncated=end.truncated,
        sandbox=end.sandbox,
        execution_id=end.id,
        stdout_bytes=end.stdout_bytes,
        stderr_bytes=end.stderr_bytes,
        guarantees=end.guarantees,
        problem=end.problem,
    )
