"""Driver of one session, from the claim to the park: read, plan, act and commit.

An effect is started only by the driver whose own commit of the intent was acknowledged,
immediately after it. A refused commit means that nothing has happened: read and plan again.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Final

from perdure.core.driver import drafts as turns
from perdure.core.driver import effects
from perdure.core.driver.draft_builder import Draft
from perdure.core.driver.effects import Effect, Park
from perdure.core.driver.model_failures import retry_text
from perdure.core.driver.plan import DriveView, plan, running_ms
from perdure.core.driver.verdicts import NOTHING_TO_COMPACT
from perdure.core.log import events
from perdure.core.session.call_table import in_order
from perdure.core.session.calls import Call, CallStatus
from perdure.core.session.children import CALLER_CHECK_MS
from perdure.core.session.naming import stream_label
from perdure.core.session.state import State
from perdure.errors import PerdureError
from perdure.holders import live_holders
from perdure.runtime.agents.ready_agent import ReadyAgent
from perdure.runtime.engine.children import ChildEffect, cancel_children, draft_child_effect
from perdure.runtime.engine.drafts import draft_effect, draft_outcome, draft_start
from perdure.runtime.engine.in_flight import (
    FACT_OUTCOMES,
    InFlight,
    ModelFailed,
    Outcome,
    ToolAsked,
    ToolReturned,
)
from perdure.runtime.engine.model_calls import request_turn
from perdure.runtime.engine.summaries import (
    SummaryProblems,
    next_cut,
    requested_cut,
    summarize,
)
from perdure.runtime.engine.tool_calls import invalid_results, run_call
from perdure.runtime.engine.verdicts import CheckedArguments
from perdure.runtime.engine.writer import LeasedWriter, PlannedCommit
from perdure.runtime.resources import Resources
from perdure.runtime.tools.invoke import is_async_function
from perdure.store.base import Fenced, Gone, HeadMoved, Lease, Lost, Unknown, VersionMoved

logger = logging.getLogger("perdure")

CLOCK_CHECK_S: Final = 1.0  # how often a driver that waits for an instant reads the store's clock
STOP_WAIT_S: Final = 2.0  # how long an ending drive waits for cancelled effects
_STARTING: Final = (effects.AskModel, effects.Summarize, effects.StartCalls)
_NEED_TOOLS: Final = (*_STARTING, effects.HandleInterrupted, effects.CheckResults)
RETRY_RECORD: Final = {"perdure_event": "retry"}  # so that a handler can tell these log records
STUCK_RETRY_MS: Final = 60_000  # how often a worker tries whether it has the missing code


class Driver(LeasedWriter):
    """One drive of a session under one lease, with its effects in flight and how it ended.

    Nothing that it holds refers back to it: a reference cycle is freed only by the garbage
    collector.
    """

    __slots__ = (
        "_callers",
        "_checked_args",
        "_checked_results",
        "_deadline",
        "_deadline_run",
        "_is_stale",
        "_is_stopping",
        "_launched",
        "_planned",
        "_request_number",
        "_started_intents",
        "_stuck",
        "_summary_problems",
        "done",
        "error",
        "in_flight",
        "is_parked",
        "is_waiting_in_place",
        "task",
        "waiter",
    )

    def __init__(
        self,
        resources: Resources,
        lease: Lease,
        agent: ReadyAgent,
        is_valid: Callable[[Lease], bool],
    ) -> None:
        super().__init__(resources, lease, agent, is_valid)
        # For the callers of the drive: its task, and how it ended.
        self.task: asyncio.Task[None] | None = None
        self.done = asyncio.Event()
        self.is_parked = False
        self.error: PerdureError | None = None
        self.waiter: asyncio.Future[list[Driver]] | None = None  # resolved at the end
        self.is_waiting_in_place = False  # for an approver; nothing else runs
        # What this drive has done, and what it knows of the session.
        self.in_flight = InFlight()
        self._request_number = 0
        self._started_intents: set[tuple[str, int]] = set()  # effect id, attempt
        self._launched: State | None = None  # whose intended calls were started
        self._planned: tuple[State, Effect] | None = None  # the effect that follows the last commit
        self._stuck: dict[str, PerdureError] = {}
        self._checked_args: dict[str, CheckedArguments] = {}  # by call id
        self._callers: dict[str, int | None] = {}  # when a holder was alive; None: it is dead
        self._checked_results: set[str] = set()  # pending ids of results that were validated here
        self._summary_problems = SummaryProblems()
        self._deadline_run, self._deadline = "", 0  # of which run, by its time limit
        self._is_stopping = False
        self._is_stale = False  # another writer has written since we last read

    # --- for others ---------------------------------------------------------------------------

    @property
    def is_busy(self) -> bool:
        """Return whether it does more than wait in place for an approver."""
        return not self.is_waiting_in_place

    @property
    def is_backing_off(self) -> bool:
        """Return whether it ended with a back-off before the next model request."""
        return self.log.state.retry is not None

    def stop(self) -> None:
        """Start no new effects, and park as soon as none runs."""
        self._is_stopping = True
        self._planned = None
        self.in_flight.cancel_request()
        self.in_flight.news.set()

    async def wait_ended(self) -> None:
        """Wait until no effect runs any more."""
        await self.in_flight.wait_ended()

    def cancel_async_calls(self) -> None:
        """Cancel running async tools, whose calls count as interrupted then."""
        self.in_flight.cancel_async_calls()

    def on_commit(self, seq: int) -> None:
        """Note that the stream has grown to this seq."""
        if seq > self.expected_head and seq > self.log.state.head:
            self._is_stale = True
            self.in_flight.news.set()

    # --- the loop -----------------------------------------------------------------------------

    async def run(self, on_parked: Callable[[], None]) -> None:
        """Drive until the session is parked, and call `on_parked`.

        A call that cannot be cancelled may continue; `wait_ended` waits for it. Raises Fenced,
        Gone or Lost if the lease is lost.
        """
        await self.load()
        launch = self.log.state.launch
        if launch is not None and launch.tools is not None:
            self.agent = self.agent.restricted(launch.tools)
        session_id, before = self.entry.record.id, self.log.state
        try:
            with self.resources.telemetry.drive(self.agent.name, session_id, before) as span:
                self.trace = span.trace
                while not await self._step():
                    pass
                span.record_state(self.log.state)
            on_parked()
        finally:
            self.in_flight.cancel_all()
            await self.in_flight.wait_ended(STOP_WAIT_S)

    async def _step(self) -> bool:
        """Record the next outcomes, or else do what is planned; return True once it is parked."""
        if self._is_stale:
            self._is_stale = False
            self._planned = None
            await self._read_news()
        if self.in_flight.failure is not None:
            raise self.in_flight.failure
        try:
            if self.in_flight.outcomes:
                parked = await self._record()
            else:
                parked = await self._perform(self._possible(self._next_effect()))
        except VersionMoved as error:
            self.refresh_entry(error)
            await self._read_news()
            return False
        except (HeadMoved, Unknown) as error:
            if isinstance(error, Unknown):
                await self.wait_after_unknown(error)
            await self._read_news()
            self._launch()  # an intent whose commit got no reply may be in the log
            return False
        if not parked:
            self._launch()
        return parked

    async def _read_news(self) -> None:
        """Read new records; what is still to be recorded cannot be obtained again."""
        await self.catch_up(patient=bool(self.in_flight.outcomes))

    def _next_effect(self) -> Effect:
        planned, self._planned = self._planned, None
        state = self.log.state
        if planned is not None and planned[0] is state:
            return planned[1]
        if self.in_flight.is_asking and not (state.is_model_due or state.is_summary_due):
            self.in_flight.cancel_request()  # the run was cancelled: it would be dropped
        return plan(state, self._view(state, self.in_flight.calls), self.resources.store.now())

    def _view(self, state: State, in_flight: Collection[str]) -> DriveView:
        return DriveView(
            epoch=self.lease.epoch,
            tries=self.lease.tries if not self.has_written else 1,
            in_flight=in_flight,
            is_asking_model=self.in_flight.is_asking,
            unstartable=self._stuck,
            external=self.agent.external_names,
            checked=self._checked_results,
            callers=self._fresh_callers() if self._callers else {},
            limits=self.agent.limits,
            budgets=() if self.spending is None else self.spending.budgets(state),
            grace=self.agent.blocking_grace_ms,
            poison_after=self.resources.poison_after,
            until=self._run_deadline(),
        )

    def _fresh_callers(self) -> dict[str, bool]:
        """Return which callers are alive, as checked a moment ago, or have died."""
        after = self.resources.store.now() - CALLER_CHECK_MS
        items = self._callers.items()
        return {name: at is not None for name, at in items if at is None or at > after}

    async def _check_callers(self, holders: Collection[str]) -> None:
        """Find out which processes are alive: a dead one on this machine is noticed at once."""
        store = self.resources.store
        alive = await live_holders(store)
        self._callers |= {name: store.now() if name in alive else None for name in holders}

    def _run_deadline(self) -> int | None:
        """Return the end of the running time; None without a limit. Earlier drives count."""
        limit_ms, run = self.agent.limits.running_ms, self.log.state.run
        if limit_ms is None or run is None or run.end is not None:
            return None
        if run.id != self._deadline_run:  # computed once, before this drive writes
            self._deadline_run = run.id
            spent = running_ms(self.log.events, run)
            self._deadline = self.resources.store.now() + limit_ms - spent
        return self._deadline

    def _possible(self, effect: Effect) -> Effect:
        """Return what can be done of a planned effect: while it stops, or without its tools."""
        if self._is_stopping and isinstance(effect, _STARTING):
            effect = effects.Idle()
        if self.agent.problem is not None and isinstance(effect, _NEED_TOOLS):
            self._stuck[""] = self.agent.problem
            return Park(None)
        is_in_flight = bool(self.in_flight.calls) or self.in_flight.is_asking
        if self._is_stopping and isinstance(effect, effects.Idle) and not is_in_flight:
            return Park(self.resources.store.now())  # also if it waits for an approver in place
        return effect

    async def _perform(self, effect: Effect) -> bool:
        match effect:
            case effects.AskModel() | effects.Summarize() | effects.AskForBudget():
                return await self._continue_run(effect)
            case effects.Idle() | Park():
                return await self._rest(effect)
            case effects.StartCalls():
                return await self._start_calls(effect.calls)
            case effects.CheckResults():
                return await self._check_results(effect.calls)
            case (
                effects.CheckCallers()
                | effects.DeliverMail()
                | effects.StartQueued()
                | effects.SettleChildCalls()
                | effects.CancelChildren()
            ):
                return await self._serve_children(effect)
            case _:
                is_end = isinstance(effect, effects.CloseCalls | effects.EndUnansweredRun)
                if is_end or (isinstance(effect, effects.FailRun) and effect.closes_calls):
                    self.in_flight.cancel_all()
                draft = draft_effect(self, effect, self.resources.store.now())
                return await self._commit_draft(draft)

    async def _rest(self, effect: effects.Idle | Park) -> bool:
        if isinstance(effect, Park):
            return await self._park(effect)
        # A worker would expire the overdue calls, but none may be running.
        deadline = await self.next_deadline()
        ends = [end for end in (effect.until, deadline) if end is not None]
        await self._wait(effects.Idle(min(ends, default=None), effect.in_place))
        if deadline is not None:
            await self.expire_overdue()
        return False

    async def _wait(self, idle: effects.Idle) -> None:
        began = self.resources.store.now()
        self.is_waiting_in_place = idle.in_place
        within_s = None
        if idle.until is not None:  # the store's clock decides, which may differ from ours
            within_s = min(max(0, idle.until - began) / 1_000, CLOCK_CHECK_S)
        await self.in_flight.news.wait(within_s)
        self.is_waiting_in_place = False
        if idle.in_place:  # the time for an approver does not count
            waited_ms = max(0, self.resources.store.now() - began)
            self._deadline += waited_ms
            if self.spending is not None:
                self.spending.skip(waited_ms)

    async def _park(self, park: Park) -> bool:
        problem = next(iter(self._stuck.values()), None)
        if problem is not None:
            later = self.resources.store.now() + STUCK_RETRY_MS
            park = Park(later if park.due is None else min(later, park.due))
        await self.write(self.plan_commit(Draft()), park, problem)
        return True

    # --- commits ------------------------------------------------------------------------------

    async def _commit_draft(
        self, draft: Draft, *, are_facts: bool = False, patient: bool = False
    ) -> bool:
        """Write a draft and, if it leaves nothing to do, park; return True if it did.

        A decision is written at the folded head, and so is a park; facts are written at any. A
        fact cannot be obtained again, so that an unavailable store is waited for, for a while and
        while the lease is valid.
        """
        commit = self.plan_commit(draft)
        park = self._park_after(commit)
        if park is not None or not are_facts:
            try:
                await self.write(commit, park, patient=patient or are_facts)
            except HeadMoved:
                if not are_facts:
                    raise
            else:
                return park is not None
        await self.write(commit, None, anywhere=True, patient=True)
        return False

    def _park_after(self, commit: PlannedCommit) -> Park | None:
        """Plan what follows a commit; return how to park if it leaves nothing to do."""
        if self._stuck or self._is_stopping or self.in_flight.has_more_outcomes:
            return None
        after = commit.after.state
        starting = [fact.id for fact in commit.facts if isinstance(fact, events.ToolStarted)]
        in_flight = {*starting, *self.in_flight.calls} if starting else self.in_flight.calls
        effect = plan(after, self._view(after, in_flight), commit.now)
        if self.spending is None:  # else the commit changes what was spent
            self._planned = (after, effect)
        return effect if isinstance(effect, Park) else None

    async def _record(self) -> bool:
        """Record the next outcome, or the facts that are there in one commit, and forget them."""
        self._planned, outcomes = None, self.in_flight.next_outcomes()
        now, draft = self.resources.store.now(), None
        for outcome in outcomes:
            mail = () if draft is None else draft.taken_mail
            next_draft = draft_outcome(self, outcome, self._summary_problems, now, mail)
            if draft is None or next_draft is None:
                draft = draft or next_draft
            else:
                draft.extend(next_draft)
        parked = False
        if draft is not None:
            first = outcomes[0]
            # A tool cannot be asked again what it wanted to ask: wait for the store.
            patient, are_facts = isinstance(first, ToolAsked), isinstance(first, FACT_OUTCOMES)
            try:
                parked = await self._commit_draft(draft, are_facts=are_facts, patient=patient)
            except (Fenced, Gone):
                self._warn_of_unrecorded(outcomes)
                raise
            if isinstance(first, ModelFailed):
                self._warn_of_retries(draft)
        self.in_flight.drop_outcomes()
        return parked

    def _warn_of_retries(self, draft: Draft) -> None:
        for fact in draft.facts:
            if isinstance(fact, events.Retry):
                text = retry_text(fact, draft.at, self.agent.retry_policy.retries + 1)
                label = stream_label(self.lease.stream)
                logger.warning("%s: %s", label, text, extra=RETRY_RECORD)

    def _warn_of_unrecorded(self, outcomes: Sequence[Outcome]) -> None:
        text = "%s: %s (call %s) returned without a lease; its outcome is not recorded"
        for outcome in outcomes:
            if isinstance(outcome, ToolReturned):
                call = self.log.state.calls[outcome.call_id]
                logger.warning(text, stream_label(self.lease.stream), call.tool, call.id)

    async def _start_calls(self, calls: tuple[Call, ...]) -> bool:
        now = self.resources.store.now()
        draft, stuck = draft_start(self, calls, self._checked_args, now)
        self._stuck.update(stuck)
        return False if draft is None else await self._commit_draft(draft)

    async def _check_results(self, calls: tuple[Call, ...]) -> bool:
        """Validate results that were submitted without the tools' code, and replace bad ones."""
        invalid = await invalid_results(self, calls)
        self._checked_results.update(call.unchecked for call in calls if call.unchecked is not None)
        if not invalid:
            return False
        now = self.resources.store.now()
        return await self._commit_draft(turns.reject_results(self.log.state, invalid, now))

    async def _serve_children(self, effect: effects.CheckCallers | ChildEffect) -> bool:
        """Serve background agents: mail, a queued follow-up, a cancelled parent's run."""
        if isinstance(effect, effects.CheckCallers):
            await self._check_callers(effect.holders)
            return False
        if isinstance(effect, effects.CancelChildren):
            await cancel_children(self, effect.children)
            draft = None
        else:
            draft = await draft_child_effect(self, effect, self.resources.store.now())
        if draft is not None:
            return await self._commit_draft(draft)
        await self.catch_up()  # other writers have recorded it
        return False

    # --- effects ------------------------------------------------------------------------------

    async def _continue_run(
        self, effect: effects.AskModel | effects.Summarize | effects.AskForBudget
    ) -> bool:
        """Request the model, or wait for a higher budget: by what was spent at this moment."""
        state, spending = self.log.state, self.spending
        is_question = isinstance(effect, effects.AskForBudget)
        if spending is not None and not spending.is_current(state, at_head=is_question):
            await spending.read(state)
            return False
        if isinstance(effect, effects.AskForBudget):
            return await self._commit_draft(draft_effect(self, effect, self.resources.store.now()))
        return await self._request_model(effect)

    async def _request_model(self, effect: effects.AskModel | effects.Summarize) -> bool:
        """Request the next turn, or a summary if one is needed before it."""
        run, is_manual = self.log.state.run, isinstance(effect, effects.Summarize)
        if self.resources.records_starts and run is not None and not run.is_driven:
            await self.write(self.plan_start(), None)
            return False
        if not self.log.is_prepared:
            await self.log.prepare_messages()
            return False  # others may have written meanwhile
        cut = requested_cut(self) if is_manual else next_cut(self, self._summary_problems)
        if cut is None and is_manual:
            now = self.resources.store.now()
            return await self._commit_draft(turns.abandon_summary(NOTHING_TO_COMPACT, now))
        self._request_number += 1
        if cut is not None:
            self.in_flight.start_request(partial(summarize, self, cut))
        else:
            attempt = (self.lease.epoch, self._request_number)
            request = (self.log.messages(), self.log.state, attempt, self._checked_args)
            self.in_flight.start_request(partial(request_turn, self, *request))
        await self._wait(effects.Idle(self._run_deadline()))
        return False

    def _launch(self) -> None:
        """Start the calls that this drive has intended, each intent once."""
        state = self.log.state
        if state is self._launched:
            return
        self._launched = state
        for call in in_order(state.calls.active.values()):
            intent = (call.effect_id, call.attempt)
            is_mine = call.epoch == self.lease.epoch and not call.returned
            is_started = call.status in (CallStatus.RUNNING, CallStatus.WAITING)
            if not is_mine or not is_started or intent in self._started_intents:
                continue
            if not self.is_valid(self.lease):
                raise Lost("the lease expired before the effect could start")
            self._started_intents.add(intent)
            start = partial(run_call, self, call, state, self._checked_args.pop(call.id, None))
            tool = self.agent.tool(call.tool)
            is_async = tool is not None and is_async_function(tool.run)
            self.in_flight.start_call(call.id, start, is_async=is_async)
