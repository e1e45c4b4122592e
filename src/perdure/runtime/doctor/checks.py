"""One thing that was looked at, by any checkup."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Level = Literal["ok", "finding", "corrupt"]


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at; a finding has a remedy."""

    level: Level
    code: str
    text: str
    remedy: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The check as every door shows it."""
        return asdict(self)


Checks = Iterator[Check]


def fine(code: str, text: str) -> Check:
    """Nothing is wrong here."""
    return Check("ok", code, text)


def exit_code(checks: list[Check]) -> int:
    """0: all is well, 1: something was found, 7: the database is damaged."""
    levels = {check.level for check in checks}
    return 7 if "corrupt" in levels else 1 if "finding" in levels else 0
