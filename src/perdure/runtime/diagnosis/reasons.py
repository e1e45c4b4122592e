"""Reasons why a call or session does not continue: their codes, texts and severities."""

from collections.abc import Mapping
from typing import Final

from perdure.errors import PerdureError, Refused
from perdure.findings.steps import NO_WORKER
from perdure.runtime.mcp.servers import DOWN_HINT, ServerDown
from perdure.runtime.queues import HELD_BACK
from perdure.views.findings import Severity

AGENT_UNKNOWN: Final = "AGENT_UNKNOWN"
ARGS_INVALID: Final = "ARGS_INVALID"
DENIED: Final = "DENIED"
OVERDUE: Final = "OVERDUE"
START_INTERRUPTED: Final = "START_INTERRUPTED"
TOOL_MISSING: Final = "TOOL_MISSING"
# What a deploy can cause and another one can repair.
OF_CODE: Final = frozenset(
    {AGENT_UNKNOWN, ARGS_INVALID, DENIED, TOOL_MISSING, ServerDown.code, "TOOL_NAME_CLASH"}
)
_WARNINGS: Final = frozenset({NO_WORKER, HELD_BACK, OVERDUE, START_INTERRUPTED})

_TEXTS: Final[Mapping[str, str]] = {
    TOOL_MISSING: "the agent has no tool of this name any more, so that the call cannot run",
    START_INTERRUPTED: "the process stopped while this call was being started; it may or may "
    "not have begun outside",
    OVERDUE: "it is past its deadline, and no worker has expired it",
}
_HINTS: Final[Mapping[str, str]] = {
    AGENT_UNKNOWN: "start a worker that has it, or add its name to the aliases of another agent",
    ServerDown.code: DOWN_HINT,
    TOOL_MISSING: "deploy the tool again, or deny or respond instead",
    START_INTERRUPTED: "look at the external system before you submit its result or cancel it",
}


def reason(code: str, text: str | None = None, missing: str | None = None) -> PerdureError:
    """Return a reason by its code, as an error with a hint; `missing` is what it waits for."""
    details = {} if missing is None else {"missing": missing}
    text = text or _TEXTS.get(code, code)
    return Refused(text, code=code, hint=_HINTS.get(code), details=details)


def stored_reason(code: str | None, text: str | None = None) -> PerdureError | None:
    """Return the reason that an entry has; None without one."""
    return None if code is None else reason(code, text)


def severity_of(problem: PerdureError) -> Severity:
    """Return the severity of a reason: an error if nothing continues by itself."""
    return "warning" if problem.code in _WARNINGS else "error"
