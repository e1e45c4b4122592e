"""Driver of one session: read, fold, plan, act and commit until nothing is left, then park.

An effect is started only by the driver whose own commit of the intent was acknowledged,
immediately after it. A refused commit means that nothing has happened: read and plan again.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

from perdure.core.driver import drafts as turns
from perdure.core.driver import effects
from perdure.core.driver.draft_builder import Draft
from perdure.core.driver.effects import Effect, Park
from perdure.core.driver.model_failures import retry_text
from perdure.core.driver.plan import DriveView, plan, running_ms
from perdure.core.log import events
from perdure.core.session.call_table import in_order
from perdure.core.session.calls import Call, CallStatus
from perdure.core.session.naming import stream_label
from perdure.core.session.state import State
from perdure.errors import PerdureError
from perdure.runtime.agents.agents import ReadyAgent
from perdure.runtime.engine.drafts import Drafts, WrittenEffect
from perdure.runtime.engine.in_flight import (
    FACT_OUTCOMES,
    InFlight,
    Outcome,
    ToolAsked,
    ToolReturned,
)
from perdure.runtime.engine.model_calls import ModelCalls
from perdure.runtime.engine.summaries import NOTHING_TO_COMPACT, Summaries
from perdure.runtime.engine.tool_calls import CallContext, ToolCalls, Verdicts
from perdure.runtime.engine.writer import LeasedWriter, ParkAfter
from perdure.runtime.records.cache import CachedSession
from perdure.runtime.records.log import Log
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


class RunClock:
    """Time limit of a run, as one drive of it computes the deadline."""

    def __init__(self, limit_ms: int | None) -> None:
        self._limit_ms = limit_ms
        self._run = ""
        self._deadline = 0

    def deadline(self, log: Log, now: int) -> int | None:
        """Return the deadline; None without a limit. The time of earlier drives counts."""
        run = log.state.run
        if self._limit_ms is None or run is None or run.end is not None:
            return None
        if run.id != self._run:  # computed once, before this drive writes
            self._run = run.id
            self._deadline = now + self._limit_ms - running_ms(log.events, run)
        return self._deadline

    def exclude(self, ms: int) -> None:
        """Extend the deadline by the time that the drive waited for an approver in place."""
        self._deadline += ms


class Driver:
    """Drives one session under one lease."""

    def __init__(
        self,
        resources: Resources,
        lease: Lease,
        agent: ReadyAgent,
        session: CachedSession,
        is_alive: Callable[[], bool],
    ) -> None:
        record = session.entry.record
        self._agent = agent
        self._resources = resources
        self._lease = lease
        self._is_alive = is_alive
        self._log = session.log
        self._writer = LeasedWriter(resources, lease, session, agent, is_alive)
        context = CallContext(resources, agent, record.tenant, record.id)
        verdicts = Verdicts(context)
        self._tool_calls = ToolCalls(context, verdicts)
        self._model_calls = ModelCalls(context, verdicts, self._log.canonical)
        self._summaries = Summaries(self._model_calls, self._log)
        self._drafts = Drafts(agent, self._writer, verdicts, self._summaries)
        self._news = asyncio.Event()
        self._in_flight = InFlight(self._news.set)
        self._started_intents: set[tuple[str, int]] = set()  # effect id, attempt
        self._launch_state: State | None = None  # whose intended calls were started
        self._planned: tuple[State, Effect] | None = None  # the effect that follows the last commit
        self._clock = RunClock(agent.limits.running_ms)
        self._stuck: dict[str, PerdureError] = {}
        self._checked: set[str] = set()  # pending ids of results that were validated here
        self.is_waiting_in_place = False  # for an approver; nothing else runs
        self._is_stopping = False
        self._is_stale = False  # another writer has written since we last read
        self._has_written = False
        self._request_count = 0  # model requests in this drive

    # --- the loop -----------------------------------------------------------------------------

    @property
    def log(self) -> Log:
        """The log, as far as it was read and written here."""
        return self._log

    @property
    def has_written(self) -> bool:
        """True if this drive has recorded anything."""
        return self._has_written

    @property
    def cached_session(self) -> CachedSession:
        """The session as this drive left it, for the cache."""
        return CachedSession(self._log, self._writer.entry, self._writer.pending_entries())

    async def run(self, on_parked: Callable[[], None]) -> None:
        """Drive until the session is parked, and call `on_parked`.

        A call that cannot be cancelled may continue; `wait_ended` waits for it. Raises Fenced,
        Gone or Lost if the lease is lost.
        """
        if self._log.state.head != self._lease.head:
            await self._catch_up()
        session_id, before = self._writer.entry.record.id, self._log.state
        try:
            with self._resources.telemetry.drive(self._agent.name, session_id, before) as span:
                self._writer.trace = span.trace
                while not await self._step():
                    pass
                span.record_state(self._log.state)
            on_parked()
        finally:
            self._in_flight.cancel_all()
            await self._in_flight.wait_ended(STOP_WAIT_S)

    async def wait_ended(self) -> None:
        """Wait until no effect runs any more."""
        await self._in_flight.wait_ended()

    def stop(self) -> None:
        """Start no new effects, and park as soon as none runs."""
        self._is_stopping = True
        self._planned = None
        self._in_flight.cancel_request()
        self._news.set()

    def cancel_async_calls(self) -> None:
        """Cancel running async tools, whose calls count as interrupted then."""
        self._in_flight.cancel_async_calls()

    def on_commit(self, seq: int) -> None:
        """Note that the stream has grown to this seq."""
        if seq > self._log.state.head:
            self._is_stale = True
            self._news.set()

    async def _step(self) -> bool:
        if self._is_stale:
            self._is_stale = False
            self._planned = None
            await self._catch_up()
        self._in_flight.raise_failure()
        try:
            if self._in_flight.outcomes:
                parked = await self._record_outcomes(self._in_flight.next_outcomes())
                self._in_flight.drop_outcomes()
            else:
                parked = await self._perform(self._plan(self._log.state))
        except VersionMoved as error:
            self._writer.refresh_entry(error)
            await self._catch_up()
            return False
        except (HeadMoved, Unknown) as error:
            if isinstance(error, Unknown):
                await self._writer.wait_after_unknown(error)
            await self._catch_up()
            self._start_intended_calls()  # an intent whose commit got no reply may be in the log
            return False
        if not parked:
            self._start_intended_calls()
        return parked

    async def _catch_up(self) -> None:
        await self._writer.catch_up()
        holder = self._log.slice.holder
        if holder != self._lease.holder:
            raise Fenced(f"{self._lease.holder} lost the lease to {holder or 'nobody'}")

    def _plan(self, state: State) -> Effect:
        planned, self._planned = self._planned, None
        if planned is not None and planned[0] is state:
            return planned[1]
        if self._in_flight.request is not None and not (state.is_model_due or state.is_summary_due):
            self._in_flight.cancel_request()  # the run was cancelled: it would be dropped
        return plan(state, self._view(), self._resources.store.now())

    def _view(self, starting: frozenset[str] = frozenset()) -> DriveView:
        return DriveView(
            epoch=self._lease.epoch,
            tries=self._lease.tries if not self._has_written else 1,
            in_flight=starting.union(self._in_flight.calls) if starting else self._in_flight.calls,
            is_asking_model=self._in_flight.request is not None,
            unstartable=self._stuck,
            checked=self._checked,
            limits=self._agent.limits,
            grace=self._agent.blocking_grace_ms,
            poison_after=self._resources.poison_after,
            until=self._clock.deadline(self._log, self._resources.store.now()),
        )

    async def _perform(self, effect: Effect) -> bool:
        if self._is_stopping and isinstance(effect, _STARTING):
            effect = effects.Idle()
        if self._agent.problem is not None and isinstance(effect, _NEED_TOOLS):
            self._stuck[""] = self._agent.problem
            effect = Park(None)
        is_busy = bool(self._in_flight.calls) or self._in_flight.request is not None
        if self._is_stopping and isinstance(effect, effects.Idle) and not is_busy:
            effect = Park(self._resources.store.now())  # also if it waits for an approver in place
        match effect:
            case effects.AskModel() | effects.Summarize():
                return await self._request_model(effect)
            case effects.Idle():
                await self._wait(effect)
            case Park():
                await self._park(effect)
                return True
            case effects.StartCalls() | effects.CheckResults():
                is_start = isinstance(effect, effects.StartCalls)
                act = self._start_calls if is_start else self._check_results
                return await act(effect.calls)
            case _:
                return await self._write_decision(self._draft_written(effect))
        return False

    def _draft_written(self, effect: WrittenEffect) -> Draft:
        is_end = isinstance(effect, effects.CloseCalls | effects.EndUnansweredRun)
        if is_end or (isinstance(effect, effects.FailRun) and effect.closes_calls):
            self._in_flight.cancel_all()
        return self._drafts.draft_effect(effect, self._resources.store.now())

    async def _wait(self, idle: effects.Idle) -> None:
        began = self._resources.store.now()
        self.is_waiting_in_place = idle.in_place
        if idle.until is None:
            await self._news.wait()
        else:  # the store's clock decides, which may differ from ours
            remaining_s = max(0, idle.until - began) / 1_000
            with suppress(TimeoutError):
                async with asyncio.timeout(min(remaining_s, CLOCK_CHECK_S)):
                    await self._news.wait()
        self._news.clear()
        self.is_waiting_in_place = False
        if idle.in_place:
            self._clock.exclude(max(0, self._resources.store.now() - began))

    async def _park(self, park: Park) -> None:
        problem = next(iter(self._stuck.values()), None)
        if problem is not None:
            later = self._resources.store.now() + STUCK_RETRY_MS
            park = Park(later if park.due is None else min(later, park.due))
        await self._writer.park(park, problem)

    # --- commits ------------------------------------------------------------------------------

    async def _write_decision(self, draft: Draft, *, patient: bool = False) -> bool:
        park_after = self._park_after(draft)
        parked = await self._writer.write_decision(draft, park_after, patient=patient)
        self._has_written = True
        return parked

    async def _write_fact(self, draft: Draft) -> bool:
        parked = await self._writer.write_fact(draft, self._park_after(draft))
        self._has_written = True
        return parked

    def _park_after(self, draft: Draft) -> ParkAfter:
        """Return a function that tells how to park, if a draft leaves nothing to do."""
        starting = frozenset([f.id for f in draft.facts if isinstance(f, events.ToolStarted)])

        def park_after(after: State) -> Park | None:
            if self._stuck or self._is_stopping or self._in_flight.has_more_outcomes:
                return None
            effect = plan(after, self._view(starting), self._resources.store.now())
            self._planned = (after, effect)
            return effect if isinstance(effect, Park) else None

        return park_after

    async def _start_calls(self, calls: tuple[Call, ...]) -> bool:
        draft, stuck = self._drafts.draft_start(calls, self._resources.store.now())
        self._stuck.update(stuck)
        return False if draft is None else await self._write_decision(draft)

    async def _check_results(self, calls: tuple[Call, ...]) -> bool:
        """Validate results that were submitted without the tools' code, and replace bad ones."""
        invalid = await self._tool_calls.invalid_results(calls)
        self._checked.update(call.unchecked for call in calls if call.unchecked is not None)
        if not invalid:
            return False
        return await self._write_decision(
            turns.reject_results(self._log.state, invalid, self._resources.store.now())
        )

    async def _record_outcomes(self, outcomes: Sequence[Outcome]) -> bool:
        """Record one outcome, or several facts in one commit."""
        self._planned = None
        now, draft = self._resources.store.now(), None
        for outcome in outcomes:
            next_draft = self._drafts.draft_outcome(outcome, now)
            if draft is None or next_draft is None:
                draft = draft or next_draft
            else:
                draft.extend(next_draft)
        if draft is None:
            return False
        if not isinstance(outcomes[0], FACT_OUTCOMES):
            # A tool cannot be asked again what it wanted to ask: wait for the store.
            is_patient = isinstance(outcomes[0], ToolAsked)
            parked = await self._write_decision(draft, patient=is_patient)
            self._warn_of_retries(draft, now)
            return parked
        try:
            return await self._write_fact(draft)
        except (Fenced, Gone):
            self._warn_of_unrecorded(outcomes)
            raise

    def _warn_of_retries(self, draft: Draft, now: int) -> None:
        label = stream_label(self._lease.stream)
        for fact in draft.facts:
            if isinstance(fact, events.Retry):
                text = retry_text(fact, now, self._agent.retry_policy.retries + 1)
                logger.warning("%s: %s", label, text, extra=RETRY_RECORD)

    def _warn_of_unrecorded(self, outcomes: Sequence[Outcome]) -> None:
        text = "%s: %s (call %s) returned without a lease; its outcome is not recorded"
        for outcome in outcomes:
            if isinstance(outcome, ToolReturned):
                call = self._log.state.calls[outcome.call_id]
                logger.warning(text, stream_label(self._lease.stream), call.tool, call.id)

    # --- effects ------------------------------------------------------------------------------

    async def _request_model(self, effect: effects.AskModel | effects.Summarize) -> bool:
        """Request the next turn, or a summary if one is needed before it."""
        run = self._log.state.run
        if self._resources.records_starts and run is not None and not run.is_driven:
            await self._writer.write_start()
            self._has_written = True
            return False
        now, is_manual = self._resources.store.now(), isinstance(effect, effects.Summarize)
        cut = self._summaries.requested_cut() if is_manual else self._summaries.next_cut()
        if cut is not None:
            self._in_flight.start_request(partial(self._summaries.summarize, cut))
        elif is_manual:
            return await self._write_decision(turns.abandon_summary(NOTHING_TO_COMPACT, now))
        else:
            self._request_count += 1
            attempt = (self._lease.epoch, self._request_count)
            log = self._log
            self._in_flight.start_request(
                partial(self._model_calls.request_turn, log.messages(), log.state, attempt)
            )
        await self._wait(effects.Idle(self._clock.deadline(self._log, now)))
        return False

    def _start_intended_calls(self) -> None:
        """Start the calls that this drive has intended, each intent once."""
        if self._log.state is self._launch_state:
            return
        self._launch_state = self._log.state
        for call in in_order(self._log.state.calls.active.values()):
            intent = (call.effect_id, call.attempt)
            is_mine = call.epoch == self._lease.epoch and not call.returned
            is_started = call.status in (CallStatus.RUNNING, CallStatus.WAITING)
            if not is_mine or not is_started or intent in self._started_intents:
                continue
            if not self._is_alive():
                raise Lost("the lease expired before the effect could start")
            self._started_intents.add(intent)
            self._run_call(call)

    def _run_call(self, call: Call) -> None:
        opened = None if call.pending_id is None else self._writer.pending_record(call.pending_id)
        start = partial(self._tool_calls.run, call, self._log.state, opened)
        tool = self._agent.tool(call.tool)
        is_async = tool is not None and is_async_function(tool.run)
        self._in_flight.start_call(call.id, start, is_async=is_async)
