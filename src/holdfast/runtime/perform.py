"""Doing what was decided: asking a model, judging its calls, running a tool."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace as vary
from functools import partial
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from holdfast.core import events
from holdfast.core.calls import NOT_THIS_CALL, Call
from holdfast.core.compaction import Cut
from holdfast.core.messages import Answer, AskedCall, Message, UserMessage
from holdfast.core.pending import PendingRecord
from holdfast.core.permissions import NOT_TRACKED, denial
from holdfast.core.policy import Defer, Gate, Reject, Start, Verdict, Wait
from holdfast.core.sessions import State
from holdfast.errors import HoldfastError, ModelError, Refused
from holdfast.runtime.agents import ReadyAgent
from holdfast.runtime.answers import storable, storable_text
from holdfast.runtime.builtins import wait_ms
from holdfast.runtime.bus import Attempt
from holdfast.runtime.content import check_size, find_bytes, stored_content
from holdfast.runtime.deeds import ModelAsked, ToolRun, tell
from holdfast.runtime.desk import Desk
from holdfast.runtime.ids import secret_id
from holdfast.runtime.invoke import invoke, is_called_off, needs_approval, prompt_for
from holdfast.runtime.models.base import Delta, Model, Request
from holdfast.runtime.outcomes import Answered, ModelFailed, StartReturned, Summarised, ToolReturned
from holdfast.runtime.outputs import Deferred, parse_deferred, render_result
from holdfast.runtime.results import instant
from holdfast.runtime.tools import Tool
from holdfast.runtime.values import Context, Decision, PendingCall

logger = logging.getLogger("holdfast")


Checked = tuple[Tool[..., Any], Mapping[str, Any], dict[str, Any]]  # tool, as given, as it takes it


class Performer(Struct, frozen=True):
    """One session's hands: everything here may be interrupted at any await without harm."""

    desk: Desk
    agent: ReadyAgent
    tenant: str
    session_id: str
    checked: dict[str, Checked] = {}  # arguments, by call

    # --- the model ----------------------------------------------------------------------------

    async def ask(
        self, messages: list[Message], state: State, attempt: Attempt = (0, 0)
    ) -> Answered | ModelFailed:
        """Request one turn and judge its calls."""
        turn, head = state.turn + 1, state.head
        asked = await self._said_to(partial(self._request, messages, state, turn), state, attempt)
        if isinstance(asked, HoldfastError):
            return ModelFailed(turn, head, asked)
        answer, wrong = storable(asked)
        verdicts = tuple(
            [
                Reject(wrong[call.id]) if call.id in wrong else await self.verdict(call, state)
                for call in answer.calls
            ]
        )
        return Answered(turn, head, answer, verdicts, self._hidden(answer, wrong))

    async def summarise(
        self, cut: Cut, covered: list[Message], state: State, instructions: str
    ) -> Summarised | ModelFailed:
        """Request a summary of what was said before a cut."""
        turn, head = state.turn + 1, state.head
        messages = [*covered, UserMessage(instructions)]

        def request() -> Request:
            made = self._request(messages, state, turn)
            return vary(made, output_schema=None, purpose="summary")

        asked = await self._said_to(request, state, up_to=cut.up_to)
        if isinstance(asked, Answer) and not asked.text.strip():
            asked = ModelError(f"{self.agent.model_of(state.run).name} gave no summary")
        if isinstance(asked, HoldfastError):
            return ModelFailed(turn, head, asked, is_summary=True)
        return Summarised(turn, head, cut, storable(asked)[0])

    async def _said_to(
        self,
        make: Callable[[], Request],
        state: State,
        attempt: Attempt | None = None,
        up_to: int = 0,
    ) -> Answer | HoldfastError:
        """What the model says to a request, or why it says nothing."""
        try:
            return await self._answer(make(), self.agent.model_of(state.run), attempt, up_to)
        except HoldfastError as error:
            error.message = storable_text(error.message)
            return error
        except (Exception, asyncio.CancelledError) as error:
            if is_called_off(error):
                raise
            logger.exception("the model of agent %s failed", self.agent.name)
            return ModelError(_named(error))

    def _hidden(self, answer: Answer, wrong: Collection[str]) -> dict[str, tuple[str, ...]]:
        """The names of the arguments that are not shown, of each call that has some.

        Where the model misspelled a name, or wrote no object, a secret may stand anywhere.
        """
        hidden: dict[str, tuple[str, ...]] = {}
        for call in answer.calls:
            tool = self.agent.tool(call.tool)
            names = self.agent.hidden if tool is None else tool.hidden
            is_clear = tool is not None and call.id not in wrong
            known = tool.parameters.get("properties", {}) if tool and is_clear else {}
            if names:
                hidden[call.id] = tuple(sorted(names | (call.params.keys() - known.keys())))
        return hidden

    def _request(self, messages: list[Message], state: State, turn: int) -> Request:
        return Request(
            session_id=self.session_id,
            agent=self.agent.name,
            turn=turn,
            instructions=self._instructions(state),
            messages=messages,
            tools=self.agent.specs,
            settings=self.agent.agent.model_settings,
            output_schema=self.agent.output.schema,
            read_file=partial(find_bytes, self.desk.store),
        )

    def _instructions(self, state: State) -> str:
        said = self.agent.agent.instructions
        return said if isinstance(said, str) else said(self.context(state))

    async def _answer(
        self, request: Request, model: Model, attempt: Attempt | None, up_to: int
    ) -> Answer:
        whole: Answer | None = None
        hides = bool(self.agent.hidden)
        tell(ModelAsked(self.tenant, self.session_id, request.turn, up_to))
        with (
            self.desk.telemetry.chat(model.name, request, hides=hides) as answered,
            self._speaking(request, attempt) as say,
        ):
            async for piece in model.answer(request):
                if isinstance(piece, Answer):
                    whole = piece
                elif piece.kind != "args" or not hides:
                    say(piece)
            if whole is None:
                raise ModelError(f"{model.name} ended its answer without one")
            answered(whole)
        return self._priced(whole, model)

    def _speaking(
        self, request: Request, attempt: Attempt | None
    ) -> AbstractContextManager[Callable[[Delta], None]]:
        """How its pieces are said to people; a summary is for the model alone."""
        if attempt is None:
            return nullcontext(lambda _: None)
        return self.desk.bus.speaking((self.tenant, self.session_id), request.turn, attempt)

    def _priced(self, answer: Answer, model: Model) -> Answer:
        """What the answer cost at today's price is part of it."""
        names = (f"{answer.provider}:{answer.model}", model.name)
        return vary(answer, usage=self.desk.prices.priced(answer.usage, *names))

    # --- what becomes of a call ---------------------------------------------------------------

    async def verdict(self, call: AskedCall, state: State) -> Verdict:
        """What to do about a call that the model just asked for."""
        tool = self.agent.tool(call.tool)
        if tool is None:
            known = ", ".join(self.agent.tools) or "none"
            return Reject(f"There is no tool {call.tool!r}. Tools: {known}.")
        try:
            args = tool.validate(call.params)
        except Refused as error:
            return Reject(error.message)
        self.checked[call.id] = (tool, call.params, args)
        ctx = self.context(state, call=call, args=args)
        if tool.kind in ("question", "timer"):
            rule = self.agent.permissions.denies((tool.name,), args)
            return self._waits(tool, args) if rule is None else Reject(denial(tool.name, rule))
        return await self._allowed(tool, call, ctx, state)

    async def _allowed(
        self, tool: Tool[..., Any], call: AskedCall, ctx: Context[Any], state: State
    ) -> Verdict:
        """Rules first, then what was remembered, then what the tool says of itself."""
        names = {tool.name, call.tool}
        said = self.agent.permissions.judge(names, ctx.args)
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
            return Wait(*ids, "timer", until=self.desk.store.now() + wait_ms(args))
        prompt = prompt_for(tool, args)
        return Wait(*ids, "question", prompt, self._deadline_for_people(None))

    def _asked(self, tool: Tool[..., Any], call: AskedCall) -> Gate | Reject:
        if self.desk.tracked:
            return self.gate(tool, dict(call.params))
        logger.warning("%s: %s", call.tool, NOT_TRACKED)
        return Reject(NOT_TRACKED)

    def gate(self, tool: Tool[..., Any] | None, params: dict[str, Any]) -> Gate:
        """A person must decide; without a deadline unless the tool or the agent states one."""
        if tool is None:
            return Gate(secret_id("p"), secret_id("e"), "")
        expires_at = self._deadline_for_people(tool)
        return Gate(secret_id("p"), secret_id("e"), prompt_for(tool, params), expires_at)

    def _deadline_for_people(self, tool: Tool[..., Any] | None) -> int | None:
        limit = self.agent.input_timeout_ms
        if tool is not None and tool.approval_timeout is not None:
            limit = tool.approval_timeout_ms
        return None if limit is None else self.desk.store.now() + limit

    def begin(self, tool: Tool[..., Any]) -> Start | Defer:
        """It may run now."""
        if not tool.deferred:
            return Start(secret_id("e"))
        limit = tool.timeout_ms
        expires_at = None if limit is None else self.desk.store.now() + limit
        return Defer(secret_id("p"), secret_id("e"), expires_at)

    def ready(self, call: Call) -> Start | Defer | Reject | Refused:
        """Whether a recorded call can run with the code that is here now."""
        if call.problem == NOT_THIS_CALL:
            return Reject(
                "The approval was given for other arguments than those of this call; "
                "it was not run."
            )
        tool = self.agent.tool(call.tool)
        if tool is None:
            return Refused(
                f"agent {self.agent.name!r} has no tool {call.tool!r} here",
                code="TOOL_MISSING",
                hint="start a worker that has it, or cancel the session",
            )
        try:
            tool.validate(call.params)
        except Refused as error:
            return error
        return self.begin(tool)

    # --- tools --------------------------------------------------------------------------------

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

    async def run(
        self, call: Call, state: State, opened: PendingRecord | None = None
    ) -> ToolReturned | StartReturned:
        """Run one call whose intent is recorded. Never raises: a failure is an outcome.

        `opened` is the record of a deferred call, where it need not be looked up.
        """
        tool = self.agent.tool(call.tool)
        if tool is None:  # it was there when the call was begun, in this very drive
            return ToolReturned(call.id, f"There is no tool {call.tool!r}.", is_error=True)
        try:
            if tool.deferred and call.wait is not None:
                record = opened or await self.desk.settling.pending(call.wait)
                return await self._start_deferred(tool, call, state, record)
            ctx = self.context(state, call=call, args=self._args(tool, call))
            return ToolReturned(call.id, await self._rendered(await self._invoke(tool, call, ctx)))
        except HoldfastError as error:
            return ToolReturned(call.id, storable_text(error.message), is_error=True)
        except (Exception, asyncio.CancelledError) as error:
            if is_called_off(error):
                raise
            logger.exception("tool %s failed (call %s)", call.tool, call.id)
            return ToolReturned(call.id, _named(error), is_error=True)

    async def _start_deferred(
        self, tool: Tool[..., Any], call: Call, state: State, record: PendingRecord
    ) -> StartReturned:
        own = await self.desk.outbox.own_secrets(record.hooks)
        pending = self.desk.pending_call(record, inside=True, own=own)
        ctx = self.context(state, call=call, args=self._args(tool, call), pending=pending)
        said = parse_deferred(await self._invoke(tool, call, ctx), record.id)
        news = events.Progress(
            pending_id=record.id,
            call_id=call.id,
            returned=True,
            external_ref=said.external_ref,
            output=said.output,
            estimated_duration=said.estimated_duration_ms,
            expires_at=_deadline(said, self.desk.store.now()),
        )
        return StartReturned(call.id, news)

    def _args(self, tool: Tool[..., Any], call: Call) -> dict[str, Any]:
        known = self.checked.pop(call.id, None)
        if known is not None and known[0] is tool and known[1] == call.params:
            return known[2]  # as the verdict on it found them
        return tool.validate(call.params)

    async def _invoke(self, tool: Tool[..., Any], call: Call, ctx: Context[Any]) -> Any:
        may_repeat = tool.crash_policy != "tell"
        run = (call.turn, call.id, call.effect_id, tool.name, may_repeat)
        tell(ToolRun(self.tenant, self.session_id, *run))
        with self.desk.telemetry.tool(tool, call.id, self.session_id, ctx.args) as returned:
            value = await invoke(tool, ctx, limiter=self.desk.threads)
            returned(value)
        return value

    async def _rendered(self, value: Any) -> events.Content:
        shown = render_result(value)
        if isinstance(shown, str):
            check_size(shown, "the tool's result")
            return shown
        return await stored_content(self.desk.store, shown)


def _deadline(said: Deferred, now: int) -> int | None:
    """None: nothing was said, the tool's own stays; 0: there is none."""
    if said.timeout_ms is ...:
        return None
    return 0 if not said.timeout_ms else now + said.timeout_ms


def _named(error: BaseException) -> str:
    return storable_text(f"{type(error).__name__}: {error}")
