"""Questions and approvals as inputs of work: which ones a caller may answer, and its answers."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from perdure.core.pending.commands import Decide
from perdure.core.pending.policy import decision_kind
from perdure.core.pending.record import PendingRecord
from perdure.core.roles import Permit
from perdure.errors import Conflict, NotFound
from perdure.runtime.sessions.service import Service
from perdure.serve.mcp.access import Caller
from perdure.serve.mcp.calls.forms import Form
from perdure.serve.mcp.toolbox import Json, McpOptions


@dataclass(slots=True)
class Answers:
    """Answers of a person: what was recorded, and what settled the other calls before."""

    decisions: list[Json] = field(default_factory=list)
    dismissed: set[str] = field(default_factory=set)  # calls about which nothing was decided


class Inputs:
    """Inputs for one caller: approvals only where the operator allows that clients decide."""

    def __init__(self, service: Service, caller: Caller, options: McpOptions) -> None:
        self._service = service
        self._caller = caller
        self._options = options

    def forms(self, records: Iterable[PendingRecord]) -> list[Form]:
        """Return a form for each call that this person may decide; no answer would be refused."""
        if not self._caller.may(Permit.DECIDE):
            return []
        forms = [
            Form(record, self._caller, self._parameters(record))
            for record in records
            if record.kind == "question" or self._options.approve
        ]
        return [form for form in forms if form.is_useful]

    def _parameters(self, record: PendingRecord) -> Mapping[str, Any] | None:
        agent = self._service.agents.find(record.agent)
        tool = None if agent is None else agent.tool(record.tool)
        return None if tool is None or record.kind != "approval" else tool.parameters

    async def settle(self, forms: Iterable[Form], responses: Mapping[str, Any]) -> Answers:
        """Settle the calls that have a response; responses about others are left alone.

        All responses are checked before the first of them counts. An answer that comes second
        changes nothing: it is reported with what was first. Raises Refused.
        """
        by_id = {form.record.id: form for form in forms}
        commands = {
            key: by_id[key].command(response) for key, response in responses.items() if key in by_id
        }
        answers = Answers()
        for key, command in commands.items():
            if command is None:
                answers.dismissed.add(key)
            else:
                answers.decisions.append(await self._settle(key, command))
        return answers

    async def _settle(self, pending_id: str, command: Decide) -> Json:
        row: Json = {"pendingID": pending_id, "decision": decision_kind(command)}
        try:
            await self._service.calls.settle(pending_id, command, self._caller.tenant)
        except (Conflict, NotFound) as error:
            return {**row, "recorded": False, "message": error.message, **error.details}
        return {**row, "recorded": True}


def input_requests(forms: Iterable[Form]) -> Json:
    """Return the requests for input by pending id, which is never used again."""
    return {form.record.id: form.request for form in forms}
