"""Running a tool whose intent is recorded; whatever it does is an outcome."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from perdure.core.conversation.messages import AskedCall
from perdure.core.driver.verdicts import Defer, Reject, RequireApproval, Start, Verdict, Wait
from perdure.core.log import events
from perdure.core.pending.record import PendingRecord
from perdure.core.session.calls import NOT_THIS_CALL, Call
from perdure.core.session.permissions import NOT_TRACKED, denial
from perdure.core.session.state import State
from perdure.errors import PerdureError, Refused
from perdure.runtime.agents.agents import ReadyAgent
from perdure.runtime.engine.in_flight import StartReturned, ToolReturned
from perdure.runtime.ids import secret_id
from perdure.runtime.models.base import Delta
from perdure.runtime.probes import ToolRun, notify
from perdure.runtime.records.content import check_size, stored_content
from perdure.runtime.resources import Resources
from perdure.runtime.storable import storable_text
from perdure.runtime.tools.builtin import wait_ms
from perdure.runtime.tools.invoke import invoke, is_called_off, named, needs_approval, prompt_for
from perdure.runtime.tools.outputs import Deferred, parse_deferred, render_result
from perdure.runtime.tools.tool import Tool
from perdure.runtime.values import Context, Decision, PendingCall
from perdure.runtime.views import instant


class CallContext(Struct, frozen=True):
    """One session with its agent, as this process has it."""

    desk: Resources
    agent: ReadyAgent
    tenant: str
    session_id: str

    def context(
        self,
        state: State,
        *,
        call: AskedCall | Call | None = None,
        args: dict[str, Any] | None = None,
        pending: PendingCall | None = None,
    ) -> Context[Any]:
        """Where a tool, predicate or instruction runs."""
        running = call if isinstance(call, Call) else None
        return Context(
            deps=self.desk.deps,
            session_id=self.session_id,
            tenant=self.tenant,
            agent=self.agent.name,
            metadata=dict(state.metadata),
            tool=call.tool if call is not None else "",
            args=args or {},
            call_id=call.id if call is not None else "",
            effect_id=running.effect_id if running is not None else "",
            attempt=running.attempt if running is not None else 1,
            decision=self._decision(running),
            pending=pending,
            _progress=None if running is None else self._progress(running, state.turn),
        )

    def _decision(self, call: Call | None) -> Decision | None:
        if call is None or call.decision is None:
            return None
        made = call.decision
        at = instant(call.decided_at)
        told = (made.args, made.reason, made.note, made.remember)
        return Decision(made.kind, made.by, made.via, at, *told)

    def _progress(self, call: Call, turn: int) -> Callable[[str, float | None], Awaitable[None]]:
        async def tell(message: str, percent: float | None) -> None:
            text = message if percent is None else f"{message} ({percent:g} %)"
            self.desk.bus.say_alone(
                self.tenant, Delta(self.session_id, turn, "progress", text, call.id)
            )
            if call.wait is not None:
                news = {"message": message, "percent": percent, "at": self.desk.store.now()}
                await self.desk.settling.update(
                    call.wait, lambda record: replace(record, progress=news)
                )

        return tell


logger = logging.getLogger("perdure")

Checked = tuple[Tool[..., Any], Mapping[str, Any], dict[str, Any]]  # tool, as given, as it takes it


class Verdicts(Struct, frozen=True):
    """Judges the calls of one session by the code that is here now."""

    place: CallContext
    checked: dict[str, Checked] = {}  # arguments, by call

    def args(self, tool: Tool[..., Any], call: Call) -> dict[str, Any]:
        """The arguments of a call as its tool takes them. Raises Refused."""
        known = self.checked.pop(call.id, None)
        if known is not None and known[0] is tool and known[1] == call.params:
            return known[2]  # as the verdict on it found them
        return tool.validate(call.params)

    async def judge(self, call: AskedCall, state: State) -> Verdict:
        """What to do about a call that the model just asked for."""
        tool = self.place.agent.tool(call.tool)
        if tool is None:
            known = ", ".join(self.place.agent.tools) or "none"
            return Reject(f"There is no tool {call.tool!r}. Tools: {known}.")
        try:
            args = tool.validate(call.params)
        except Refused as error:
            return Reject(error.message)
        self.checked[call.id] = (tool, call.params, args)
        ctx = self.place.context(state, call=call, args=args)
        if tool.kind in ("question", "timer"):
            rule = self.place.agent.permissions.denies((tool.name,), args)
            return self._waits(tool, args) if rule is None else Reject(denial(tool.name, rule))
        return await self._allowed(tool, call, ctx, state)

    async def _allowed(
        self, tool: Tool[..., Any], call: AskedCall, ctx: Context[Any], state: State
    ) -> Verdict:
        """Rules first, then what was remembered, then what the tool says of itself."""
        names = {tool.name, call.tool}
        said = self.place.agent.permissions.judge(names, ctx.args)
        effect, rule = said if said is not None else (None, None)
        if effect == "deny" and rule is not None:
            return Reject(denial(call.tool, rule))
        if effect == "allow" or any(
            one.covers(names, call.params, ctx.args) for one in state.allowed
        ):
            return self.begin(tool)
        if effect == "ask" or await needs_approval(tool, ctx):
            return self._asked(tool, call)
        return self.begin(tool)

    def _waits(self, tool: Tool[..., Any], args: dict[str, Any]) -> Wait:
        ids = (secret_id("p"), secret_id("e"))
        if tool.kind == "timer":
            return Wait(*ids, "timer", until=self.place.desk.store.now() + wait_ms(args))
        prompt = prompt_for(tool, args)
        return Wait(*ids, "question", prompt, self._deadline_for_people(None))

    def _asked(self, tool: Tool[..., Any], call: AskedCall) -> RequireApproval | Reject:
        if self.place.desk.tracked:
            return self.gate(tool, dict(call.params))
        logger.warning("%s: %s", call.tool, NOT_TRACKED)
        return Reject(NOT_TRACKED)

    def gate(self, tool: Tool[..., Any] | None, params: dict[str, Any]) -> RequireApproval:
        """A person must decide; without a deadline unless the tool or the agent states one."""
        if tool is None:
            return RequireApproval(secret_id("p"), secret_id("e"), "")
        expires_at = self._deadline_for_people(tool)
        return RequireApproval(secret_id("p"), secret_id("e"), prompt_for(tool, params), expires_at)

    def _deadline_for_people(self, tool: Tool[..., Any] | None) -> int | None:
        limit = self.place.agent.input_timeout_ms
        if tool is not None and tool.approval_timeout is not None:
            limit = tool.approval_timeout_ms
        return None if limit is None else self.place.desk.store.now() + limit

    def begin(self, tool: Tool[..., Any]) -> Start | Defer:
        """It may run now."""
        if not tool.deferred:
            return Start(secret_id("e"))
        limit = tool.timeout_ms
        expires_at = None if limit is None else self.place.desk.store.now() + limit
        return Defer(secret_id("p"), secret_id("e"), expires_at)

    def recheck(self, call: Call) -> Start | Defer | Reject | Refused:
        """Whether a recorded call can run with the code that is here now."""
        if call.problem == NOT_THIS_CALL:
            return Reject(
                "The approval was given for other arguments than those of this call; "
                "it was not run."
            )
        tool = self.place.agent.tool(call.tool)
        if tool is None:
            return Refused(
                f"agent {self.place.agent.name!r} has no tool {call.tool!r} here",
                code="TOOL_MISSING",
                hint="start a worker that has it, or cancel the session",
            )
        try:
            tool.validate(call.params)
        except Refused as error:
            return error
        return self.begin(tool)


class ToolCalls(Struct, frozen=True):
    """One session's hands: everything here may be interrupted at any await without harm."""

    place: CallContext
    verdicts: Verdicts

    async def run(
        self, call: Call, state: State, opened: PendingRecord | None = None
    ) -> ToolReturned | StartReturned:
        """Run one call whose intent is recorded. Never raises: a failure is an outcome.

        `opened` is the record of a deferred call, where it need not be looked up.
        """
        tool = self.place.agent.tool(call.tool)
        if tool is None:  # it was there when the call was begun, in this very drive
            return ToolReturned(call.id, f"There is no tool {call.tool!r}.", is_error=True)
        try:
            if tool.deferred and call.wait is not None:
                record = opened or await self.place.desk.settling.pending(call.wait)
                return await self._start_deferred(tool, call, state, record)
            ctx = self.place.context(state, call=call, args=self.verdicts.args(tool, call))
            return ToolReturned(call.id, await self._rendered(await self._invoke(tool, call, ctx)))
        except PerdureError as error:
            return ToolReturned(call.id, storable_text(error.message), is_error=True)
        except (Exception, asyncio.CancelledError) as error:
            if is_called_off(error):
                raise
            logger.exception("tool %s failed (call %s)", call.tool, call.id)
            return ToolReturned(call.id, named(error), is_error=True)

    async def _start_deferred(
        self, tool: Tool[..., Any], call: Call, state: State, record: PendingRecord
    ) -> StartReturned:
        desk = self.place.desk
        own = await desk.outbox.own_secrets(record.hooks) if record.hooks else ()
        pending = desk.pending_call(record, inside=True, own=own)
        args = self.verdicts.args(tool, call)
        ctx = self.place.context(state, call=call, args=args, pending=pending)
        said = parse_deferred(await self._invoke(tool, call, ctx), record.id)
        news = events.Progress(
            pending_id=record.id,
            call_id=call.id,
            returned=True,
            external_ref=said.external_ref,
            output=said.output,
            estimated_duration=said.estimated_duration_ms,
            expires_at=_deadline(said, desk.store.now()),
        )
        return StartReturned(call.id, news)

    async def _invoke(self, tool: Tool[..., Any], call: Call, ctx: Context[Any]) -> Any:
        may_repeat = tool.crash_policy != "tell"
        run = (call.turn, call.id, call.effect_id, tool.name, may_repeat)
        notify(ToolRun, ctx.tenant, ctx.session_id, *run)
        desk = self.place.desk
        with desk.telemetry.tool(tool, call.id, ctx.session_id, ctx.args) as returned:
            value = await invoke(tool, ctx, limiter=desk.threads)
            returned(value)
        return value

    async def _rendered(self, value: Any) -> events.Content:
        shown = render_result(value)
        if isinstance(shown, str):
            check_size(shown, "the tool's result")
            return shown
        return await stored_content(self.place.desk.store, shown)


def _deadline(said: Deferred, now: int) -> int | None:
    """None: nothing was said, the tool's own stays; 0: there is none."""
    if said.timeout_ms is ...:
        return None
    return 0 if not said.timeout_ms else now + said.timeout_ms
