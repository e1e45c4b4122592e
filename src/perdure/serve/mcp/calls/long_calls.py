"""Calls that wait for work: they ask the person at the client what the work waits for, in its era.

In the stateless protocol the answer of the call is the form, and the client repeats the call with
the person's answer; its state is a handle in the store, so any server with this store continues.
In the older one the server asks on the stream of the call, which waits meanwhile.
"""

import asyncio
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import anyio
import mcp_types as types
import msgspec
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from perdure.core.session.child_tasks import ChildTask
from perdure.errors import NotFound, Refused
from perdure.runtime.diagnosis.tasks import waiting_row, waiting_text
from perdure.runtime.sessions.background import WaitingCaller
from perdure.runtime.sessions.service import Service
from perdure.runtime.sessions.verbs.caller import Caller
from perdure.serve.mcp.calls.forms import Form
from perdure.serve.mcp.calls.inputs import Answers, Inputs, input_requests
from perdure.serve.mcp.results import call_result, protocol_error
from perdure.serve.mcp.tasks_extension import Context, check_elicitation, may_elicit
from perdure.serve.mcp.toolbox import Json, LongAnswer, McpOptions, McpTool, ToolAnswer, WaitTime
from perdure.serve.mcp.work import WaitLimits, Works, WorkState, cancel_at, wait_in_steps
from perdure.tasks.handles import CallHandle, CallHandles, WorkRef
from perdure.views.task_bodies import MAX_TIMEOUT_MS

PROGRESS_S: Final = 5.0
FORM_S: Final = MAX_TIMEOUT_MS / 1_000  # how long a form stays open at a client, without a timeout


@dataclass(frozen=True, slots=True)
class ToolRequest:
    """A call of a tool by a client, as it was sent, with its checked arguments."""

    ctx: Context
    caller: Caller
    tool: McpTool
    args: Json
    responses: Mapping[str, Any] = field(default_factory=dict)  # by pending id
    state: str | None = None  # of a call that is repeated

    @classmethod
    def of(
        cls,
        ctx: Context,
        caller: Caller,
        tool: McpTool,
        args: Json,
        params: types.CallToolRequestParams,
    ) -> "ToolRequest":
        """Return the request of a call; the older protocol has no repeated calls."""
        if ctx.protocol_version not in MODERN_PROTOCOL_VERSIONS:
            return cls(ctx, caller, tool, args)
        responses = {
            key: response.model_dump(mode="json", by_alias=True, exclude_none=True)
            for key, response in (params.input_responses or {}).items()
        }
        return cls(ctx, caller, tool, args, responses, params.request_state)

    @property
    def is_stateless(self) -> bool:
        """True for the protocol without requests of the server."""
        return self.ctx.protocol_version in MODERN_PROTOCOL_VERSIONS

    @property
    def may_ask(self) -> bool:
        """True if the client can show a form during this call."""
        may_send = self.is_stateless or self.ctx.session.can_send_request
        return may_elicit(self.ctx) and may_send

    @property
    def wait_time(self) -> WaitTime:
        """The time that the caller wants to wait."""
        return self.tool.wait_time(self.args)

    @property
    def digest(self) -> str:
        """Digest of the arguments, to which the state of the call is bound."""
        return hashlib.sha256(msgspec.json.encode(self.args, order="deterministic")).hexdigest()


class LongCalls:
    """Calls that wait for work, of one server."""

    def __init__(self, service: Service, options: McpOptions, closing: anyio.Event) -> None:
        self.service = service
        self.options = options
        self.closing = closing
        self.works = Works(service)
        self.handles = CallHandles(service.tasks.store)

    async def repeated(self, request: ToolRequest) -> LongAnswer | None:
        """Return what a repeated call has started before; None for a new call.

        Raises MCPError if its state is not that of this call.
        """
        if request.state is None:
            return None
        handle_id, *_ = request.state.split(" ")
        caller = request.caller
        try:
            handle = await self.handles.get(handle_id, caller.home_tenant, caller.name)
        except NotFound as error:
            raise protocol_error(types.INVALID_PARAMS, _foreign_state()) from error
        if (handle.tool, handle.digest) != (request.tool.name, request.digest):
            raise protocol_error(types.INVALID_PARAMS, _foreign_state())
        return LongAnswer(handle.work, await self._reserved_again(handle))

    async def _reserved_again(self, handle: CallHandle) -> ChildTask | None:
        """Return the task whose answer is for this call alone; nobody waited since the form."""
        if not handle.is_reserved:
            return None
        background, work = self.service.background, handle.work
        task = await background.get(handle.tenant, work.task_id)
        return await background.reserve_again(task, work.number, MAX_TIMEOUT_MS)

    async def result(
        self, request: ToolRequest, work: WorkRef, waiting: WaitingCaller | None = None
    ) -> Json:
        """Wait for work, ask what can be asked, and return its outcome, a form, or a handle."""
        return await LongCall(self, request, work, waiting).result()


def _foreign_state() -> Refused:
    return Refused(
        "requestState is not that of this call",
        code="INVALID_REQUEST",
        hint="repeat the call with the same arguments, or make a new one without requestState",
    )


class LongCall:
    """One call that waits for work."""

    def __init__(
        self, calls: LongCalls, request: ToolRequest, work: WorkRef, waiting: WaitingCaller | None
    ) -> None:
        self._calls = calls
        self._waiting = waiting
        self._request = request
        self._work = work
        self._tenant = request.caller.home_tenant
        self._inputs = Inputs(calls.service, request.caller, calls.options)
        self._time = request.wait_time
        self._left_s = self._time.seconds(calls.options)
        self._loop = asyncio.get_running_loop()
        self._start = self._loop.time()
        self._answers = Answers(dismissed=set((request.state or "").split(" ")[1:]))

    async def result(self) -> Json:
        """Return the result of the call."""
        if self._request.responses:
            check_elicitation(self._request.ctx)
            await self._settle_responses()
        while True:
            state = await self._wait()
            if state.has_ended and self._waiting is not None:
                await self._waiting.take(self._request.caller.name)
            # Agents that it launched may wait for people; an answer that was taken is returned.
            is_taken = state.has_ended and self._waiting is not None
            forms = [] if is_taken else self._forms(state)
            if not forms or self._left_s <= 0 or self._calls.closing.is_set():
                return call_result(self._answer(state), has_links=self._calls.options.links)
            if self._request.is_stateless:
                return await self._input_required(forms)
            await self._elicit(forms[0])

    def _forms(self, state: WorkState) -> list[Form]:
        """Return the forms that this client can show, without those that the person dismissed."""
        if not self._request.may_ask:
            return []
        forms = self._inputs.forms(state.waiting)
        return [form for form in forms if form.record.id not in self._answers.dismissed]

    def _is_enough(self, state: WorkState) -> bool:
        """Return whether to stop waiting: there is something to ask, or nobody here can help.

        A caller that has named a time waits for that time.
        """
        return bool(self._forms(state)) or (state.is_left_to_people and not self._time.is_given)

    async def _wait(self) -> WorkState:
        """Return the state of the work when it has ended or is enough, or the time is up."""
        start = self._loop.time()
        limits = WaitLimits(self._left_s, PROGRESS_S, self._calls.closing)
        states = wait_in_steps(self._calls.works, self._tenant, self._work, limits, self._is_enough)
        state = await anext(states)
        async for state in states:
            await self._report(state)
        self._left_s -= self._loop.time() - start
        return state

    async def _report(self, state: WorkState | None = None) -> None:
        """Report progress, so that a client sees why it waits."""
        seconds = self._loop.time() - self._start
        text = f"{self._request.tool.name}: {seconds:.0f} s"
        if state is not None and state.waiting:
            text = f"{self._request.tool.name} {waiting_text(waiting_row(state.waiting[0]))}"
        await self._request.ctx.session.report_progress(seconds, message=text)

    def _answer(self, state: WorkState) -> ToolAnswer:
        answer = self._request.tool.outcome(state.answer) if state.has_ended else state.answer
        if not self._answers.decisions:
            return answer
        fields = {**answer.fields, "decisions": self._answers.decisions}
        return ToolAnswer(fields, answer.links, answer.is_error)

    # --- the stateless protocol ---------------------------------------------------------------

    async def _settle_responses(self) -> None:
        """Settle what the person answered since the call was made the last time."""
        keys = self._request.responses
        calls = [await self._calls.works.find_call(self._tenant, self._work, key) for key in keys]
        forms = self._inputs.forms(record for record in calls if record is not None)
        self._add(await self._inputs.settle(forms, self._request.responses))

    def _add(self, answers: Answers) -> None:
        self._answers.decisions += answers.decisions
        self._answers.dismissed |= answers.dismissed

    async def _input_required(self, forms: list[Form]) -> Json:
        """Return the forms as the result: the client repeats the call with their answers."""
        state = self._request.state
        handle_id = await self._create_handle() if state is None else state.split(" ")[0]
        return {
            "resultType": "input_required",
            "inputRequests": input_requests(forms),
            "requestState": " ".join([handle_id, *sorted(self._answers.dismissed)]),
        }

    async def _create_handle(self) -> str:
        """Record what the call has started: repeated on any server, it starts nothing again."""
        request, caller = self._request, self._request.caller
        handle = await self._calls.handles.create(
            self._tenant,
            caller.name,
            request.tool.name,
            self._work,
            digest=request.digest,
            is_reserved=self._waiting is not None,
        )
        return handle.id

    # --- the older protocol -------------------------------------------------------------------

    async def _elicit(self, form: Form) -> None:
        """Ask on the stream of the call, and settle what the person answers.

        The form is withdrawn if somebody else decides first, and when its time is up.
        """
        start, record_id = self._loop.time(), form.record.id
        response: Json | None = None
        with anyio.move_on_after(self._left_s if self._time.is_given else FORM_S):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(cancel_at, self._calls.closing, tasks.cancel_scope)
                tasks.start_soon(self._cancel_when_settled, form, tasks.cancel_scope)
                tasks.start_soon(self._report_steps)
                response = await self._response(form)
                tasks.cancel_scope.cancel()
        if self._time.is_given:
            self._left_s -= self._loop.time() - start
        if response is None:
            self._answers.dismissed.add(record_id)
        else:
            self._add(await self._inputs.settle([form], {record_id: response}))

    async def _response(self, form: Form) -> Json | None:
        """Return the client's response to a form; None if it has none."""
        ctx = self._request.ctx
        try:
            result = await ctx.session.elicit_form(
                form.message, form.schema, related_request_id=ctx.request_id
            )
        except (MCPError, ValidationError):  # the client failed: nothing was decided
            return None
        response: Json = result.model_dump(mode="json", by_alias=True, exclude_none=True)
        return response

    async def _cancel_when_settled(self, form: Form, scope: anyio.CancelScope) -> None:
        """Cancel a scope when a call does not wait for a decision any more."""
        await self._calls.service.calls.wait_until_settled(form.record)
        scope.cancel()

    async def _report_steps(self) -> None:
        while True:
            await anyio.sleep(PROGRESS_S)
            await self._report()
