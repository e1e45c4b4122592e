"""What one request gets."""

from dataclasses import dataclass, replace
from typing import Any

from perdure.testing.endpoint.failures import BROKEN, Problem, problem
from perdure.testing.endpoint.play import Asked, Body, Play
from perdure.testing.endpoint.script import Failure
from perdure.testing.provider_rules import Format


@dataclass(frozen=True, slots=True)
class Verdict:
    """A refusal or failure (`problem`), or an answer (`play`), which may go wrong on its way."""

    format: Format
    number: int
    turn: int = 0
    model: str = ""
    is_streamed: bool = False
    problem: Problem | None = None
    refused: str | None = None
    play: Play | None = None
    failure: Failure | None = None

    def refuse(self, rule: str, wrong: Problem) -> "Verdict":
        """The client is at fault."""
        where = f" at {wrong.param}" if wrong.param else ""
        return replace(self, problem=wrong, refused=f"{rule}{where}: {wrong.message}")

    def answer(self, play: Play, failure: Failure | None) -> "Verdict":
        """The request is good; a failure without a place in the stream comes in its stead."""
        if failure is None or failure.name in BROKEN:
            return replace(self, play=play, failure=failure)
        wrong = problem(failure.name, self.format, self.model)
        if failure.retry_after is not None:
            wrong = replace(wrong, headers={"retry-after": f"{failure.retry_after:g}"})
        if failure.after is not None and self.is_streamed:
            return replace(self, play=play, failure=failure, problem=wrong)
        return replace(self, failure=failure, problem=wrong)

    @property
    def status(self) -> int:
        """The HTTP status."""
        return 200 if self.play is not None or self.problem is None else self.problem.status

    def as_asked(self, body: Body) -> Asked:
        """The line of the log."""
        fail: Any = self.failure.name if self.failure is not None else None
        return Asked(
            self.number,
            self.format,
            self.model,
            self.turn,
            self.is_streamed,
            self.status,
            body,
            self.refused,
            fail,
        )
