"""Checks: the results of a health check, each with a level and a remedy."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal

from perdure.runtime.diagnosis.commands import Commands
from perdure.runtime.transfer.readable import decode_or_none

Level = Literal["ok", "finding", "corrupt"]

MAX_LISTED: Final = 10  # findings listed of each kind


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One result of a health check; a finding has a remedy."""

    level: Level
    code: str
    text: str
    remedy: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the check as JSON."""
        return asdict(self)


Checks = Iterator[CheckResult]


def fine(code: str, text: str) -> CheckResult:
    """Return a check without a finding."""
    return CheckResult("ok", code, text)


def exit_code(checks: list[CheckResult]) -> int:
    """Return 0 without findings, 1 with findings, 7 if the database is damaged."""
    levels = {check.level for check in checks}
    return 7 if "corrupt" in levels else 1 if "finding" in levels else 0


def restore_command(commands: Commands) -> str:
    """Return what to do about a database to which nothing should be written any more."""
    export = commands.command("sessions", "export", "--all")
    return f"stop all workers and restore a backup; readable sessions: {export}"


__all__ = [
    "MAX_LISTED",
    "CheckResult",
    "Checks",
    "decode_or_none",
    "exit_code",
    "fine",
    "restore_command",
]
