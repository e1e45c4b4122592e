"""Log of one session as the oracle reads it, with the effects of its tools."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple

from tests.soak.agents import done_text
from tests.soak.world import Line


class Fault(NamedTuple):
    """Promise that was broken, and where."""

    name: str
    text: str


class SessionLog:
    """Log of one session with the effects of its tools."""

    def __init__(self, session: str, events: Sequence[Line], effects: Sequence[Line]) -> None:
        self.session = session
        self.events = events
        self.effects = effects

    def fault(self, name: str, text: str) -> Fault:
        return Fault(name, f"{self.session}: {text}")

    def of(self, type_: str) -> list[Line]:
        """Return the data of the events of a type, in order, each with its seq and timestamp."""
        return self._by_type.get(type_, [])

    @cached_property
    def _by_type(self) -> dict[str, list[Line]]:
        by_type: dict[str, list[Line]] = {}
        for event in self.events:
            stamps = {"seq": event["seq"], "timestamp": event["timestamp"]}
            by_type.setdefault(event["type"], []).append({**event["data"], **stamps})
        return by_type

    @property
    def is_child(self) -> bool:
        """True if it is a background agent."""
        return bool(self.of("launched"))

    def decisions(self, call: str) -> list[Line]:
        """Return the decisions about a call, of all its pending ids."""
        return [decision for decision in self.of("decision") if decision["callID"] == call]

    def is_approved(self, call: str) -> bool:
        return any(decision["kind"] == "approve" for decision in self.decisions(call))

    def result(self, call: str) -> Any:
        """Return what the model is told about a call; None without a result."""
        results = (line["result"] for line in self.of("tool_result") if line["toolCallId"] == call)
        return next(results, None)

    def claims_done(self, call: Line) -> bool:
        """Return True if its result is the one that the tool returns."""
        return bool(self.result(call["id"]) == done_text(call["tool"], call["id"]))
