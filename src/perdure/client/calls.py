"""Pending calls of a server, with the verbs of a runtime."""

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from perdure.client.connection import TenantConnection, page_path, url_path, without_none
from perdure.views.base import bind, view_as
from perdure.views.calls import CallOrID, DecidedCall, PendingCall, PendingPage, call_id
from perdure.views.decisions import Decisions, decision_items
from perdure.views.sessions import DecidedCalls, PausedState, Result, SubmittedResult

Json = dict[str, Any]
S = TypeVar("S", Result[Any], PausedState)
C = TypeVar("C", bound=PendingCall)


@dataclass(frozen=True, slots=True)
class RemoteCalls:
    """Pending calls of one tenant; `by` is the person for whom a client acts."""

    tenant: TenantConnection
    by: str | None

    def bound(self, session: S) -> S:
        """Return a session whose calls have verbs."""
        for call in session.pending:
            bind(call, _owner=self)
        return session

    def _bound_call(self, call: C) -> C:
        return bind(call, _owner=self)

    async def pages(self, params: Mapping[str, Any]) -> AsyncIterator[PendingCall]:
        """Yield the calls of a list."""
        async for page in self.tenant.pages("/pending", PendingPage, params):
            for call in page.pending:
                yield self._bound_call(call)

    async def get(self, pending_id: str) -> PendingCall:
        """Return one pending call, open or settled. Raises NotFound."""
        path = page_path("pending", pending_id)
        return self._bound_call(await self.tenant.read("GET", path, PendingCall))

    async def approve(
        self,
        call: CallOrID,
        *,
        by: str | None = None,
        args: Mapping[str, Any] | None = None,
        note: str | None = None,
        remember: bool | str = False,
        all_tools: bool = False,
    ) -> DecidedCall:
        """Approve a call: exactly the stored call runs, with `args` merged over its arguments."""
        body = {"by": by, "args": args, "note": note, **_remember(remember, all_tools=all_tools)}
        return await self._decide(call, "approve", body)

    async def deny(
        self,
        call: CallOrID,
        *,
        by: str | None = None,
        reason: str | None = None,
        remember: bool | str = False,
        all_tools: bool = False,
    ) -> DecidedCall:
        """Deny a call: it does not run, and the model gets the reason."""
        body = {"by": by, "reason": reason, **_remember(remember, all_tools=all_tools)}
        return await self._decide(call, "deny", body)

    async def respond(self, call: CallOrID, output: Any, *, by: str | None = None) -> DecidedCall:
        """Answer a question with any JSON, or give an output instead of running a call."""
        return await self._decide(call, "respond", {"by": by}, output=output)

    async def _decide(self, call: CallOrID, verb: str, fields: Json, **more: Any) -> DecidedCall:
        body = {**more, **without_none({**fields, "by": fields["by"] or self.by})}
        path = url_path("pending", call_id(call), verb)
        options: Json = {"body": body, "repeatable": True}
        return self._bound_call(await self.tenant.read("POST", path, DecidedCall, **options))

    async def decide(self, decisions: Decisions, *, by: str | None = None) -> list[DecidedCall]:
        """Decide about several calls in one commit: about all of them, or about none."""
        items = [msgspec.to_builtins(item) for item in decision_items(decisions)]
        body = without_none({"decisions": items, "by": by or self.by})
        options: Json = {"body": body, "repeatable": True}
        decided = await self.tenant.read("POST", "/decisions", DecidedCalls, **options)
        return [self._bound_call(call) for call in decided.decisions]

    async def submit_result(
        self,
        call: CallOrID,
        output: Any,
        *,
        title: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        by: str | None = None,
    ) -> DecidedCall:
        """Submit the result of a deferred call: text or any other JSON value."""
        result = {"output": output, **without_none({"title": title, "metadata": metadata})}
        return await self._submit(call, "result", result, by)

    async def submit_error(
        self, call: CallOrID, error: str, *, by: str | None = None
    ) -> DecidedCall:
        """Submit the error of a deferred call."""
        return await self._submit(call, "error", error, by)

    async def _submit(self, call: CallOrID, kind: str, value: Any, by: str | None) -> DecidedCall:
        body = without_none({"pendingID": call_id(call), kind: value, "by": by or self.by})
        options: Json = {"body": body, "repeatable": True}
        path = f"/async-tool/{kind}"
        submitted = await self.tenant.read("POST", path, SubmittedResult, **options)
        settled = await self.get(call_id(call))
        return self._bound_call(view_as(DecidedCall, settled, duplicate=submitted.duplicate))

    async def cancel_call(self, call: CallOrID, *, by: str | None = None) -> DecidedCall:
        """Cancel one pending call; the model is informed."""
        path, params = url_path("pending", call_id(call)), {"by": by or self.by}
        return self._bound_call(await self.tenant.read("DELETE", path, DecidedCall, params))


def _remember(remember: bool | str, *, all_tools: bool) -> Json:
    return {"remember": remember or None, "allTools": all_tools or None}
