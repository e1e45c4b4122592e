"""The driver of one session: read, fold, plan, act, commit, until nothing is left, then park.

An effect is done only by the driver whose own commit of its intent was acknowledged, at once
after it. A refused commit means that nothing has happened: look again.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final

from perdure.core.driver import drafts as turns
from perdure.core.driver import effects
from perdure.core.driver.drafts import Draft
from perdure.core.driver.effects import Effect, Park
from perdure.core.driver.plan import DriveView, plan, running_ms
from perdure.core.log import events
from perdure.core.session.calls import Call, CallStatus
from perdure.core.session.state import State
from perdure.errors import PerdureError
from perdure.runtime.agents.agents import ReadyAgent
from perdure.runtime.engine.drafts import FACTS, Drafts, Written
from perdure.runtime.engine.in_flight import InFlight, Outcome, ToolReturned
from perdure.runtime.engine.model_calls import NOTHING, ModelCalls, Summaries
from perdure.runtime.engine.tool_calls import CallContext, ToolCalls, Verdicts
from perdure.runtime.engine.writer import LeasedWriter, Rest
from perdure.runtime.records.cache import CachedSession
from perdure.runtime.records.log import Log
from perdure.runtime.resources import Resources
from perdure.store.base import Fenced, Gone, HeadMoved, Lease, Lost, Unknown, VersionMoved


class RunClock:
    """When the time of a run is up, as one drive of it sees that."""

    def __init__(self, limit_ms: int | None) -> None:
        self._limit_ms = limit_ms
        self._run = ""
        self._until = 0

    def until(self, log: Log, now: int) -> int | None:
        """The instant; None without a limit. What earlier drives have used counts."""
        run = log.state.run
        if self._limit_ms is None or run is None or run.end is not None:
            return None
        if run.id != self._run:  # of this drive nothing is written yet
            self._run = run.id
            self._until = now + self._limit_ms - running_ms(log.events, run)
        return self._until

    def waited(self, ms: int) -> None:
        """A person was waited for in place: that is no running time."""
        self._until += ms


logger = logging.getLogger("perdure")

LOOK_S: Final = 1.0  # how often a driver that waits for an instant looks at the clock
STUBBORN_S: Final = 2.0  # how long a drive that ends waits for a call that was called off
_BEGIN: Final = (effects.AskModel, effects.Summarise, effects.StartCalls)
_NEED_TOOLS: Final = (*_BEGIN, effects.Interrupted)
STUCK_RETRY_MS: Final = 60_000  # how often a worker looks whether it has the missing code now


class Driver:
    """Drives one session under one lease."""

    def __init__(
        self,
        desk: Resources,
        lease: Lease,
        agent: ReadyAgent,
        rested: CachedSession,
        is_alive: Callable[[], bool],
    ) -> None:
        record = rested.known.record
        self._agent = agent
        self._desk = desk
        self._lease = lease
        self._is_alive = is_alive
        self._log = rested.log
        self._ledger = LeasedWriter(desk, lease, rested, agent, is_alive)
        place = CallContext(desk, agent, record.tenant, record.id)
        verdicts = Verdicts(place)
        self._performer = ToolCalls(place, verdicts)
        self._asking = ModelCalls(place, verdicts, self._log.growing)
        self._compacting = Summaries(self._asking, self._log)
        self._drafting = Drafts(agent, self._ledger, verdicts, self._compacting)
        self._news = asyncio.Event()
        self._flight = InFlight(self._news.set)
        self._launched: set[tuple[str, int]] = set()  # effect id, attempt
        self._looked_at: State | None = None  # for what to launch
        self._foreseen: tuple[State, Effect] | None = None  # what follows from the last commit
        self._time = RunClock(agent.limits.running_ms)
        self._stuck: dict[str, PerdureError] = {}
        self._stopping = False
        self._moved = False  # somebody wrote to the stream since we last read it
        self._wrote = False
        self._asked = 0  # requests to the model in this drive

    # --- the loop -----------------------------------------------------------------------------

    @property
    def log(self) -> Log:
        """What was read and written of the session."""
        return self._log

    @property
    def rested(self) -> CachedSession:
        """The session as this drive left it."""
        return CachedSession(self._log, self._ledger.known, self._ledger.waits())

    async def run(self, parked: Callable[[], None]) -> None:
        """Drive until the session is parked, and say so; a call that cannot be stopped may go on.

        Raises Fenced, Gone or Lost if the lease went. `gone` waits for such a call.
        """
        if self._log.state.head != self._lease.head:
            await self._catch_up()
        session_id, before = self._ledger.known.record.id, self._log.state
        try:
            with self._desk.telemetry.drive(self._agent.name, session_id, before) as span:
                self._ledger.trace = span.trace
                while not await self._step():
                    pass
                span.ended(self._log.state)
            parked()
        finally:
            self._flight.stop()
            await self._flight.gone(STUBBORN_S)

    async def gone(self) -> None:
        """Until nothing runs any more."""
        await self._flight.gone()

    def stop(self) -> None:
        """Begin nothing new; park as soon as nothing runs."""
        self._stopping = True
        self._foreseen = None
        self._flight.stop_asking()
        self._news.set()

    def heard(self, seq: int) -> None:
        """Somebody wrote to the stream."""
        if seq > self._log.state.head:
            self._moved = True
            self._news.set()

    async def _step(self) -> bool:
        if self._moved:
            self._moved = False
            self._foreseen = None
            await self._catch_up()
        self._flight.check()
        try:
            if self._flight.outcomes:
                parked = await self._record_outcome(self._flight.outcomes[0])
                del self._flight.outcomes[0]
            else:
                parked = await self._do(self._plan(self._log.state))
        except VersionMoved as error:
            self._ledger.moved(error)
            await self._catch_up()
            return False
        except (HeadMoved, Unknown):
            await self._catch_up()
            self._start_intended_calls()  # an intent of ours whose answer was lost may be read back
            return False
        if not parked:
            self._start_intended_calls()
        return parked

    async def _catch_up(self) -> None:
        await self._ledger.catch_up()
        holder = self._log.at.holder
        if holder != self._lease.holder:
            raise Fenced(f"{self._lease.holder} lost it to {holder or 'nobody'}")

    def _plan(self, state: State) -> Effect:
        foreseen, self._foreseen = self._foreseen, None
        if foreseen is not None and foreseen[0] is state:
            return foreseen[1]
        if self._flight.asking is not None and not (state.needs_model or state.needs_summary):
            self._flight.stop_asking()  # cancelled meanwhile: the answer would be dropped
        return plan(state, self._seat(), self._desk.store.now())

    def _seat(self, starting: frozenset[str] = frozenset()) -> DriveView:
        return DriveView(
            epoch=self._lease.epoch,
            tries=self._lease.tries if not self._wrote else 1,
            in_flight=starting.union(self._flight.calls) if starting else self._flight.calls,
            asking=self._flight.asking is not None,
            stuck=self._stuck,
            limits=self._agent.limits,
            grace=self._agent.patience_ms,
            until=self._time.until(self._log, self._desk.store.now()),
        )

    async def _do(self, effect: Effect) -> bool:
        if self._stopping and isinstance(effect, _BEGIN):
            effect = effects.Idle()
        if self._agent.problem is not None and isinstance(effect, _NEED_TOOLS):
            self._stuck[""] = self._agent.problem
            effect = Park(None)
        is_busy = bool(self._flight.calls) or self._flight.asking is not None
        if self._stopping and isinstance(effect, effects.Idle) and not is_busy:
            effect = Park(self._desk.store.now())  # also where a person was waited for in place
        match effect:
            case effects.AskModel() | effects.Summarise():
                return await self._ask(effect)
            case effects.Idle():
                await self._wait(effect)
            case Park():
                await self._park(effect)
                return True
            case effects.StartCalls():
                return await self._start(effect.calls)
            case _:
                return await self._decide(self._written(effect))
        return False

    def _written(self, effect: Written) -> Draft:
        is_end = isinstance(effect, effects.CloseCalls | effects.GiveUpUnanswered)
        if is_end or (isinstance(effect, effects.Fail) and effect.stops):
            self._flight.stop()
        return self._drafting.draft_effect(effect, self._desk.store.now())

    async def _wait(self, idle: effects.Idle) -> None:
        began = self._desk.store.now()
        if idle.until is None:
            await self._news.wait()
        else:  # the store's clock says when it is time, and need not run as ours does
            left_s = max(0, idle.until - began) / 1_000
            with suppress(TimeoutError):
                async with asyncio.timeout(min(left_s, LOOK_S)):
                    await self._news.wait()
        self._news.clear()
        if idle.in_place:
            self._time.waited(self._desk.store.now() - began)

    async def _park(self, rest: Park) -> None:
        problem = next(iter(self._stuck.values()), None)
        if problem is not None:
            later = self._desk.store.now() + STUCK_RETRY_MS
            rest = Park(later if rest.due is None else min(later, rest.due))
        await self._ledger.park(rest, problem)

    # --- writing ------------------------------------------------------------------------------

    async def _decide(self, draft: Draft) -> bool:
        parked = await self._ledger.decide(draft, self._rest_after(draft))
        self._wrote = True
        return parked

    async def _fact(self, draft: Draft) -> bool:
        parked = await self._ledger.fact(draft, self._rest_after(draft))
        self._wrote = True
        return parked

    def _rest_after(self, draft: Draft) -> Rest:
        """Whether nothing is left to do here once a draft is written."""
        starting = frozenset([f.id for f in draft.facts if isinstance(f, events.ToolStarted)])

        def rest(after: State) -> Park | None:
            if self._stuck or self._stopping or len(self._flight.outcomes) > 1:
                return None
            effect = plan(after, self._seat(starting), self._desk.store.now())
            self._foreseen = (after, effect)
            return effect if isinstance(effect, Park) else None

        return rest

    async def _start(self, calls: tuple[Call, ...]) -> bool:
        draft, stuck = self._drafting.starting(calls, self._desk.store.now())
        self._stuck.update(stuck)
        return False if draft is None else await self._decide(draft)

    async def _record_outcome(self, outcome: Outcome) -> bool:
        self._foreseen = None
        draft = self._drafting.draft_outcome(outcome, self._desk.store.now())
        if draft is None:
            return False
        if not isinstance(outcome, FACTS):
            return await self._decide(draft)
        try:
            return await self._fact(draft)
        except (Fenced, Gone):
            if isinstance(outcome, ToolReturned):
                what = "%s: %s (call %s) came back after the lease; its outcome is not recorded"
                call = self._log.state.calls[outcome.call_id]
                logger.warning(what, self._lease.stream, call.tool, call.id)
            raise

    # --- doing --------------------------------------------------------------------------------

    async def _ask(self, effect: effects.AskModel | effects.Summarise) -> bool:
        """Ask for the next turn, or for a summary if one is wanted before it."""
        now, by_hand = self._desk.store.now(), isinstance(effect, effects.Summarise)
        cut = self._compacting.by_hand() if by_hand else self._compacting.wanted()
        if cut is not None:
            self._flight.ask(partial(self._compacting.summarise, cut))
        elif by_hand:
            return await self._decide(turns.no_summary(NOTHING, now))
        else:
            self._asked += 1
            attempt = (self._lease.epoch, self._asked)
            log = self._log
            self._flight.ask(partial(self._asking.turn, log.messages(), log.state, attempt))
        await self._wait(effects.Idle(self._time.until(self._log, now)))
        return False

    def _start_intended_calls(self) -> None:
        """Run what this very drive intended; each intent once."""
        if self._log.state is self._looked_at:
            return
        self._looked_at = self._log.state
        for call in self._log.state.open_calls:
            intent = (call.effect_id, call.attempt)
            is_mine = call.epoch == self._lease.epoch and not call.returned
            runs = call.status in (CallStatus.RUNNING, CallStatus.WAITING)
            if not is_mine or not runs or intent in self._launched:
                continue
            if not self._is_alive():
                raise Lost("the lease ran out before the effect could begin")
            self._launched.add(intent)
            self._run(call)

    def _run(self, call: Call) -> None:
        opened = None if call.wait is None else self._ledger.pending(call.wait)
        start = partial(self._performer.run, call, self._log.state, opened)
        self._flight.run(call.id, start)
