"""Calls that the agents of this process cannot run: open ones, and approved ones not started."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from perdure.core.pending import record as pending
from perdure.core.pending.record import PendingRecord
from perdure.core.session import naming as index
from perdure.core.session.calls import Call, CallStatus
from perdure.core.session.naming import SessionRecord
from perdure.errors import PerdureError
from perdure.findings.severities import STORE
from perdure.runtime.agents.agents import Agents
from perdure.runtime.agents.ready_agent import ReadyAgent
from perdure.runtime.diagnosis.agents import code_problem, find_agent, masked, run_problem
from perdure.runtime.diagnosis.calls import diagnosed
from perdure.runtime.diagnosis.sessions import waiting_call_finding
from perdure.runtime.records.entries import STUCK
from perdure.runtime.transfer.readable import decode_or_none, read_readable
from perdure.runtime.views import call_view
from perdure.store.base import Entry
from perdure.store.inspect import StoreInspector
from perdure.views.findings import Finding, worst_first

MOST_LOGS: Final = 500  # of sessions under way that one check reads
_ACTIVE: Final = ("pending", "running", "waiting", STUCK)


async def current_agents(agents: Agents) -> dict[str, ReadyAgent]:
    """Return the agents by every name, with the current tools of their MCP servers."""
    current = {ready.name: await agents.refresh_tools(ready) for ready in agents.all()}
    named = {name: agents.find(name) for name in agents.names()}
    return {name: current[ready.name] for name, ready in named.items() if ready is not None}


def store_findings(
    checks: Iterable[Finding],
    inspector: StoreInspector,
    agents: Mapping[str, ReadyAgent],
    tenant: str | None = None,
) -> tuple[Finding, ...]:
    """Return the findings about a store with those about the agents here, worst first.

    The agents here are not compared with what is damaged.
    """
    findings = list(checks)
    if any(finding.severity == "error" and finding.subject == STORE for finding in findings):
        return worst_first(tuple(findings))
    of_code = AgentsCheckup(inspector, agents, tenant).findings()
    names = {(finding.code, finding.subject) for finding in of_code}
    others = [item for item in findings if (item.code, item.subject) not in names]
    return worst_first((*of_code, *others))


@dataclass(frozen=True, slots=True)
class AgentsCheckup:
    """Compares the calls in a store with the agents here."""

    inspector: StoreInspector
    agents: Mapping[str, ReadyAgent]
    tenant: str | None = None  # None: all

    def findings(self) -> list[Finding]:
        """Return a finding for each call that cannot run; none where no agents are known."""
        if not self.agents:
            return []
        calls = self._open_records()
        names = {record.id for record in calls}
        return [*self._open_calls(calls), *self._approved_calls(names)]

    def _agent(self, name: str) -> ReadyAgent | PerdureError | None:
        return find_agent(self.agents, name)

    def _open_records(self) -> list[PendingRecord]:
        records: list[PendingRecord] = []

        def add(entry: Entry) -> None:
            record = decode_or_none(pending.decode, entry.data)
            if record is not None and record.is_open and self.tenant in (None, record.tenant):
                records.append(record)

        self.inspector.entries(add, "pending", "open")
        return records

    def _open_calls(self, records: Sequence[PendingRecord]) -> Iterator[Finding]:
        for record in records:
            problem = code_problem(self._agent(record.agent), record)
            if problem is not None:
                yield diagnosed(call_view(record), problem).findings[0]

    def _approved_calls(self, open_names: Collection[str]) -> Iterator[Finding]:
        for stream, record in self._active_sessions(open_names):
            for call in self._not_started(stream):
                problem = self._problem(record, call)
                if problem is not None:
                    yield waiting_call_finding(record, call.tool, call.redacted_params, problem)

    def _problem(self, record: SessionRecord, call: Call) -> PerdureError | None:
        agent = self._agent(record.agent)
        if agent is None or isinstance(agent, PerdureError):
            return agent
        return masked(run_problem(agent, call.tool, dict(call.params)), call.redact)

    def _active_sessions(self, open_names: Collection[str]) -> list[tuple[str, SessionRecord]]:
        """Return the sessions with calls to start: not those that wait for all of theirs."""
        sessions: list[tuple[str, SessionRecord]] = []

        def add(entry: Entry) -> None:
            record = decode_or_none(index.decode, entry.data)
            if record is None or record.is_over or self.tenant not in (None, record.tenant):
                return
            waits = record.state == "waiting" and record.problem is None
            if not waits or not all(name in open_names for name in record.waiting):
                sessions.append((entry.stream, record))

        for state in _ACTIVE:
            self.inspector.entries(add, "session", state)
        return sessions[:MOST_LOGS]

    def _not_started(self, stream: str) -> list[Call]:
        inspection = self.inspector.stream(stream)
        if inspection is None or inspection.gone:
            return []
        calls = read_readable(inspection).state.open_calls
        return [call for call in calls if call.status in (CallStatus.APPROVED, CallStatus.NEW)]
