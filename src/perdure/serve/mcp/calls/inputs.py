"""Questions and approvals as inputs of work: which ones a caller may answer, and its answers."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from perdure.core.pending.record import APPROVER_KINDS, PendingRecord
from perdure.core.roles import Permit
from perdure.errors import Conflict, NotFound
from perdure.runtime.sessions.service import Service
from perdure.runtime.sessions.verbs.caller import Caller
from perdure.runtime.sessions.verbs.calls import CallVerbs
from perdure.serve.mcp.calls.forms import Form
from perdure.serve.mcp.toolbox import Json, McpOptions
from perdure.views.bodies import DecisionItem


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
            if record.kind in (APPROVER_KINDS if self._options.approve else {"question"})
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
        items = {
            key: by_id[key].decision(response)
            for key, response in responses.items()
            if key in by_id
        }
        answers = Answers()
        for key, item in items.items():
            row = None if item is None else await self._settle(item)
            if row is not None:
                answers.decisions.append(row)
            if row is None or not row["recorded"]:  # if it is still open, the next call asks
                answers.dismissed.add(key)
        return answers

    async def _settle(self, item: DecisionItem) -> Json:
        row: Json = {"pendingID": item.pending_id, "decision": item.__struct_config__.tag}
        try:
            await CallVerbs(self._service, self._caller).decide_one(item)
        except (Conflict, NotFound) as error:
            return {**row, "recorded": False, "message": error.message, **error.details}
        return {**row, "recorded": True}


def input_requests(forms: Iterable[Form]) -> Json:
    """Return the requests for input by pending id, which is never used again."""
    return {form.record.id: form.request for form in forms}
