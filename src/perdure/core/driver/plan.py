"""Plan of a driver: its next effect, as one pure function of the folded log."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import islice
from typing import Final, get_args

from msgspec import Struct, field

from perdure.core.driver import effects
from perdure.core.driver.effects import Effect
from perdure.core.log import events
from perdure.core.log.events import StampedEvent
from perdure.core.session.budgets import BudgetState, limit_text
from perdure.core.session.call_table import in_order
from perdure.core.session.calls import Call, CallStatus
from perdure.core.session.children import ChildEvent
from perdure.core.session.naming import POISONED
from perdure.core.session.state import Run, State
from perdure.views.durations import format_ms

POISON_AFTER: Final = 5  # processes that stopped while they drove a session
MIN_CLOCK_STEP_MS: Final = 1_000  # a smaller difference is none
SLOTS: Final = 16  # calls of one turn that run at the same time
SHORT_BACK_OFF_MS: Final = 1_000  # up to this a back-off is waited for in place: parking costs more
_INCOMPLETE: Final = effects.FailRun(
    "records of this run were lost, and a call among them may have run",
    "EVENTS_LOST",
    "check what the run has done, then resume the session: it continues with what is left",
    closes_calls=True,
)


class Limits(Struct, frozen=True):
    """Limits at which a run of an agent is stopped."""

    max_turns: int = 100
    running_ms: int | None = None  # without the time in which it is waiting


class DriveView(Struct, frozen=True):
    """The driver's view: its epoch, claims without progress, and effects in flight."""

    epoch: int
    tries: int = 1
    in_flight: Collection[str] = ()
    is_asking_model: bool = False
    unstartable: Collection[str] = ()  # calls that this process cannot start
    external: Collection[str] = ()  # names of tools whose calls take no slot: nothing runs
    checked: Collection[str] = ()  # pending ids of results that this drive has validated
    callers: Mapping[str, bool] = {}  # by holder, whether callers with reservations are alive
    limits: Limits = field(default_factory=Limits)
    budgets: Sequence[BudgetState] = ()  # that bound the run, with what was spent of them
    grace: int | None = 0  # ms that deadlines are extended in place; None: deadlines do not count
    until: int | None = None  # end of the running time
    poison_after: int = POISON_AFTER


def plan(state: State, view: DriveView, now: int) -> Effect:
    """Return the next effect: Park exactly if this driver cannot move the session."""
    children = state.children
    may_close = state.cancelling or state.calls.strays or children.active or children.queued
    if may_close and (closing := _closing_effect(state)) is not None:
        return closing
    if state.run is None or state.run.end is not None:
        effect = _summary_effect(state, view, now) or _queued_effect(state, view)
        effect = effect or _mail_effect(state, view, now)
        return effect or _idle_or_park(state, view, now=now)
    active = in_order(state.calls.active.values())
    if (first := _first_effect(state, state.run, active, view)) is not None:
        return first
    if view.until is not None and view.until <= now:
        effect = _timeout(view.limits)
    elif state.calls.has_open:
        effect = (
            _call_effect(active, view, now) or _child_effect(active, state) if active else None
        ) or _start_effect(active, state.calls.new, view)
    else:
        effect = _model_effect(state, view, now)
    return effect or _idle_or_park(state, view, active, now)


def _first_effect(state: State, run: Run, active: Sequence[Call], view: DriveView) -> Effect | None:
    """Return what comes before every other effect of a run."""
    if run.is_incomplete:
        return _INCOMPLETE
    may_poison = active or view.tries > view.poison_after
    if may_poison and (poisoned := _poison(run, active, view)) is not None:
        return poisoned
    if run.wait is not None and (denied := _denied_budget(run)) is not None:
        return denied
    return _check_effect(state, view) if state.unchecked else None


def _closing_effect(state: State) -> Effect | None:
    """Return what is left to do of a cancelled run, or of calls that were settled elsewhere."""
    if state.cancelling:
        return effects.CloseCalls()
    if state.calls.strays:
        return effects.CloseStrays(tuple(in_order(state.calls.strays.values())))
    ending = state.children.ending
    return effects.CancelChildren(tuple(ending)) if ending else None


def _child_effect(waiting: Sequence[Call], state: State) -> Effect | None:
    """Return the settlement of calls that wait for background agents whose runs are over."""
    calls = [c for c in waiting if c.mail is not None and c.status is CallStatus.WAITING]
    ready = tuple([c for c in calls if c.mail and state.children.is_settled(c.mail)])
    return effects.SettleChildCalls(ready) if ready else None


def _queued_effect(state: State, view: DriveView) -> Effect | None:
    """Return the start of a run by a queued follow-up, also after a failed run: it was accepted."""
    if not state.queued or view.in_flight or view.is_asking_model:
        return None
    return effects.StartQueued()


def _mail_effect(state: State, view: DriveView, now: int) -> Effect | None:
    """Return the delivery of mail to a session that is at rest.

    A failed run is not followed by another one until a caller asks for it.
    """
    if not state.children.mail or view.in_flight or view.is_asking_model or _has_failed(state):
        return None
    unchecked = state.children.holders(now) - view.callers.keys()
    if unchecked:
        return effects.CheckCallers(tuple(unchecked))
    mail = state.children.due_mail(now, view.callers)
    return effects.DeliverMail(tuple(mail)) if mail else None


def _has_failed(state: State) -> bool:
    return state.run is not None and state.run.end == "failed"


def _check_effect(state: State, view: DriveView) -> Effect | None:
    unchecked = tuple([c for c in state.unchecked_calls if c.unchecked not in view.checked])
    return effects.CheckResults(unchecked) if unchecked else None


def _call_effect(waiting: Sequence[Call], view: DriveView, now: int) -> Effect | None:
    blocking: list[Call] = []
    interrupted: list[Call] = []
    due: list[Call] = []
    for call in waiting:
        if call.blocking_epoch is not None:
            blocking.append(call)
        if call.epoch != view.epoch and call.is_started:
            interrupted.append(call)
        if call.kind == "timer" and _is_due(call, now):
            due.append(call)
    if blocking and (ending := _in_place_ending(blocking, view, now)):
        return ending
    if interrupted:
        return effects.HandleInterrupted(tuple(interrupted))
    return effects.FireTimers(tuple(due)) if due else None


def _start_effect(
    active: Sequence[Call], new: Mapping[str, Call], view: DriveView
) -> Effect | None:
    """Return the start of approved and new calls, as many as there are free slots.

    An approved call of an external tool takes no slot.
    """
    free = max(0, SLOTS - len(view.in_flight))
    stuck, external = view.unstartable, view.external
    if not free and not external:
        return None
    ready: list[Call] = []
    outside: list[Call] = []
    for call in active:
        if call.status is CallStatus.APPROVED and call.id not in stuck:
            (outside if call.tool in external else ready).append(call)
    if new and free:
        ready += islice((c for c in new.values() if c.id not in stuck), free)
    calls = in_order([*outside, *in_order(ready)[:free]])
    return effects.StartCalls(tuple(calls)) if calls else None


def _is_interrupted(call: Call, view: DriveView) -> bool:
    return call.is_started and call.epoch != view.epoch and not call.has_lost_records


def _in_place_ending(blocking: Sequence[Call], view: DriveView, now: int) -> Effect | None:
    """Return how to end a run that waited in place for an approver in vain; None to wait on."""
    waiting = [c for c in blocking if c.open_blocking_epoch is not None]
    if any(c.open_blocking_epoch != view.epoch for c in waiting):
        return effects.FailLostRun()
    overdue = tuple(
        c for c in waiting if (end := _in_place_deadline(c, view)) is not None and end <= now
    )
    return effects.EndUnansweredRun(overdue) if overdue else None


def _in_place_deadline(call: Call, view: DriveView) -> int | None:
    """Return the instant until which an approver is waited for in place."""
    if call.expires_at is None or view.grace is None:
        return None
    return call.expires_at + view.grace


def _is_due(timer: Call, now: int) -> bool:
    is_waiting = timer.status is CallStatus.WAITING
    return is_waiting and timer.expires_at is not None and timer.expires_at <= now


def _model_effect(state: State, view: DriveView, now: int) -> Effect | None:
    if not state.is_model_due or view.in_flight or view.is_asking_model:
        return None
    if (until := _back_off_end(state, now)) is not None:
        return _back_off(until, view, now)
    if state.is_summary_due:
        return effects.Summarize()
    deliver = _mail_effect(state, view, now) if state.children.mail else None
    return deliver or _limit(state, view) or effects.AskModel(state.turn + 1)


def _summary_effect(state: State, view: DriveView, now: int) -> Effect | None:
    """Return the effect of a compaction requested for a session whose run has ended."""
    if not state.is_summary_due or view.is_asking_model:
        return None
    if view.tries > view.poison_after:
        return _poisoned(view.tries - 1)
    if (until := _back_off_end(state, now)) is not None:
        return _back_off(until, view, now)
    return effects.Summarize()


def _back_off_end(state: State, now: int) -> int | None:
    """Return until when the next model request is put off; None: it may be made now.

    If the last event is in the future, the clock was ahead, and so is the end of the back-off.
    """
    retry = state.retry
    if retry is None or retry.next <= now or state.updated_at > now + MIN_CLOCK_STEP_MS:
        return None
    return retry.next


def _back_off(until: int, view: DriveView, now: int) -> Effect:
    if until - now > SHORT_BACK_OFF_MS:
        return effects.Park(until)
    return effects.Idle(until if view.until is None else min(until, view.until))


def _limit(state: State, view: DriveView) -> Effect | None:
    """Return how a run stops at a limit: it fails, or it waits for a higher budget."""
    run = state.run
    if run is None:
        return None
    if run.turns >= view.limits.max_turns:
        return effects.FailRun(
            f"the run reached its limit: max_turns {view.limits.max_turns}",
            "SAFETY_LIMIT",
            "raise the limit on the agent, then resume the session",
            "max_turns",
            run.turns,
        )
    for budget in view.budgets:
        if (reached := budget.reached(run.id)) is not None:
            return effects.AskForBudget(reached)
    return None


def _denied_budget(run: Run) -> Effect | None:
    """Return the end of a run that an approver gave no higher budget."""
    if run.wait is None or not run.wait.is_denied:
        return None
    reached = run.wait.reached
    return effects.FailRun(
        limit_text(reached),
        "SAFETY_LIMIT",
        "raise the budget of the agent, or resume the session and raise it when it asks again",
        reached.limit,
        reached.spent.get(reached.limit, 0),
    )


def _timeout(limits: Limits) -> Effect:
    limit_ms = limits.running_ms or 0
    return effects.FailRun(
        f"the run reached its limit: timeout {format_ms(limit_ms)}",
        "SAFETY_LIMIT",
        "raise the limit on the agent, then resume the session",
        "timeout",
        limit_ms / 1_000,
        closes_calls=True,
    )


def _poison(run: Run, waiting: Sequence[Call], view: DriveView) -> Effect | None:
    """Return how to fail a run that stopped too many processes; None if it may continue.

    Either they wrote nothing, or they stopped while the same tool ran.
    """
    if view.tries > view.poison_after:
        return _poisoned(view.tries - 1)
    for call in waiting:
        if _is_interrupted(call, view):
            crashes = run.crashes.get(call.tool, (0, None))[0] + 1  # this one is not recorded yet
            if crashes >= view.poison_after:
                return _poisoned(crashes, f" while {call.tool} ran")
    return None


def _poisoned(crashes: int, detail: str = "") -> Effect:
    times = "once" if crashes == 1 else f"{crashes} times"
    return effects.FailRun(
        f"the process that drove this session stopped {times}{detail}",
        POISONED,
        "read the logs of the workers and remove the cause; resuming the session tries again",
    )


def _idle_or_park(
    state: State, view: DriveView, waiting: Sequence[Call] = (), now: int = 0
) -> Effect:
    if view.in_flight or view.is_asking_model:
        return effects.Idle(view.until)
    if state.run is None or state.run.end is not None:
        # A timer of an ended run does not wake the session; mail that a caller left does.
        has_mail = bool(state.children.mail) and not _has_failed(state)
        return effects.Park(state.children.next_due(now) if has_mail else None)
    timers: list[int] = []
    blocking: list[Call] = []
    for call in waiting:
        is_timer = call.kind == "timer" and call.status is CallStatus.WAITING
        if is_timer and call.expires_at is not None:
            timers.append(call.expires_at)
        if call.blocking_epoch is not None and call.open_blocking_epoch is not None:
            blocking.append(call)
    if blocking:  # an approver is waited for in place
        ends = [end for c in blocking if (end := _in_place_deadline(c, view)) is not None]
        return effects.Idle(min([*timers, *ends], default=None), in_place=True)
    return effects.Park(min(timers, default=None))


# Events that callers write, whether the run is driven at that moment or not.
_CALLER_EVENTS: Final = (
    events.User,
    events.FollowUpQueued,
    events.FollowUpDropped,
    events.Metadata,
    events.Cancelled,
    events.Revoked,
    events.Restored,
    *get_args(ChildEvent),
)
# After these the run continues, possibly in the same drive: the time before was spent waiting.
_SETTLING_EVENTS: Final = (events.Decision, events.Settled)


def running_ms(log: Iterable[StampedEvent], run: Run) -> int:
    """Return the time in which a run was driven, up to the last event that a driver wrote."""
    total, last_at = 0, None
    for stamped in log:
        at, event = stamped.at, stamped.event
        if stamped.seq < run.since or isinstance(event, _CALLER_EVENTS):
            continue
        if isinstance(event, events.AgentStart) and event.worker:
            last_at = event.since or at
        if last_at is not None:
            total += 0 if isinstance(event, _SETTLING_EVENTS) else max(0, at - last_at)
            last_at = at
    return total
