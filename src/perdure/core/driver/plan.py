"""What a driver does next: one pure function of the folded log."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from msgspec import Struct, field

from perdure.core.driver import effects
from perdure.core.driver.effects import Effect
from perdure.core.durations import format_ms
from perdure.core.log import events
from perdure.core.log.events import Stamped
from perdure.core.session.calls import Call, CallStatus
from perdure.core.session.state import Run, State

MAX_TRIES: Final = 5
SLOTS: Final = 16  # calls of one turn that run at one time
IN_PLACE_MS: Final = 1_000  # a back-off not longer than this is not worth giving the lease back
_READY: Final = (CallStatus.NEW, CallStatus.APPROVED)


class Limits(Struct, frozen=True):
    """Where a run of this agent is stopped."""

    max_turns: int = 100
    budget: Mapping[str, float] = field(default_factory=dict)
    running_ms: int | None = None  # without the time in which it waits


class DriveView(Struct, frozen=True):
    """Who plans: the driver's epoch, its claims that led to nothing, what it has in flight."""

    epoch: int
    tries: int = 1
    in_flight: Collection[str] = ()
    asking: bool = False
    stuck: Collection[str] = ()  # calls that this process cannot start
    limits: Limits = field(default_factory=Limits)
    grace: int | None = 0  # ms after a deadline for people in place; None: it never acts
    until: int | None = None  # when the running time is up


def plan(state: State, seat: DriveView, now: int) -> Effect:
    """The one next thing to do. Parks exactly when nothing here can move the session."""
    if state.cancelling:
        return effects.CloseCalls()
    strays = tuple([c for c in state.calls.values() if (c.gate or c.wait) and not c.is_open])
    if strays:
        return effects.CloseStrays(strays)
    if state.run is None or state.run.end is not None:
        return _summary(state, seat, now) or _rest(state, seat)
    if seat.tries > MAX_TRIES:
        return _drivers_die(seat)
    waiting = state.open_calls
    if seat.until is not None and seat.until <= now:
        effect: Effect | None = _overrun(seat.limits)
    else:
        effect = _calls(waiting, seat, now) if waiting else _model(state, seat, now)
    return effect or _rest(state, seat, waiting)


def _calls(waiting: Sequence[Call], seat: DriveView, now: int) -> Effect | None:
    held = [c for c in waiting if c.held is not None]
    if held and (given_up := _given_up(held, seat, now)):
        return given_up
    cut_off = tuple([c for c in waiting if _is_cut_off(c, seat)])
    if cut_off:
        return effects.Interrupted(cut_off)
    due = tuple([c for c in waiting if _is_due(c, now)])
    if due:
        return effects.FireTimers(due)
    free = SLOTS - len(seat.in_flight)
    ready = tuple([c for c in waiting if c.status in _READY and c.id not in seat.stuck])
    if ready and free > 0:
        return effects.StartCalls(ready[:free])
    return None


def _is_cut_off(call: Call, seat: DriveView) -> bool:
    running = call.status is CallStatus.RUNNING or (
        call.status is CallStatus.WAITING and call.epoch is not None and not call.returned
    )
    return running and call.epoch != seat.epoch


def _given_up(held: Sequence[Call], seat: DriveView, now: int) -> Effect | None:
    """Whether a person was waited for in place in vain."""
    waiting = [c for c in held if c.holder is not None]
    if any(c.holder != seat.epoch for c in waiting):
        return effects.GiveUpLost()
    overdue = tuple(c for c in waiting if (end := _end(c, seat)) is not None and end <= now)
    return effects.GiveUpUnanswered(overdue) if overdue else None


def _end(call: Call, seat: DriveView) -> int | None:
    """Until when a person is waited for in place."""
    if call.expires_at is None or seat.grace is None:
        return None
    return call.expires_at + seat.grace


def _is_due(call: Call, now: int) -> bool:
    return (
        call.kind == "timer"
        and call.status is CallStatus.WAITING
        and call.expires_at is not None
        and call.expires_at <= now
    )


def _model(state: State, seat: DriveView, now: int) -> Effect | None:
    if not state.needs_model or seat.in_flight or seat.asking:
        return None
    if state.retry is not None and state.retry.next > now:
        return _back_off(state.retry.next, seat, now)
    if state.needs_summary:
        return effects.Summarise()
    return _limit(state, seat.limits) or effects.AskModel(state.turn + 1)


def _summary(state: State, seat: DriveView, now: int) -> Effect | None:
    """What somebody wants of a session whose run is over."""
    if not state.needs_summary or seat.asking:
        return None
    if seat.tries > MAX_TRIES:
        return _drivers_die(seat)
    if state.retry is not None and state.retry.next > now:
        return _back_off(state.retry.next, seat, now)
    return effects.Summarise()


def _back_off(until: int, seat: DriveView, now: int) -> Effect:
    if until - now > IN_PLACE_MS:
        return effects.Park(until)
    return effects.Idle(until if seat.until is None else min(until, seat.until))


def _limit(state: State, limits: Limits) -> Effect | None:
    run = state.run
    if run is None:
        return None
    spent = {"max_turns": float(run.turns), "turns": float(run.turns), "tokens": run.tokens}
    allowed = {**limits.budget, "max_turns": float(limits.max_turns)}
    for name, most in allowed.items():
        if name in spent and spent[name] >= most:
            return effects.Fail(
                f"the run reached its limit: {name} {most:g}",
                "SAFETY_LIMIT",
                "raise the limit on the agent, then resume the session",
                name,
                spent[name],
            )
    return None


def _overrun(limits: Limits) -> Effect:
    most = limits.running_ms or 0
    return effects.Fail(
        f"the run reached its limit: timeout {format_ms(most)}",
        "SAFETY_LIMIT",
        "raise the limit on the agent, then resume the session",
        "timeout",
        most / 1_000,
        stops=True,
    )


def _drivers_die(seat: DriveView) -> Effect:
    return effects.Fail(
        f"drivers keep dying: {seat.tries} workers took this session and wrote nothing",
        "DRIVERS_KEEP_DYING",
        "look into the workers' logs, then resume the session",
    )


def _rest(state: State, seat: DriveView, waiting: Sequence[Call] = ()) -> Effect:
    if seat.in_flight or seat.asking:
        return effects.Idle(seat.until)
    if state.run is None or state.run.end is not None:
        return effects.Park()  # a timer of a run that is over wakes nobody
    timers = [
        c.expires_at
        for c in waiting
        if c.kind == "timer" and c.status is CallStatus.WAITING and c.expires_at is not None
    ]
    held = [c for c in waiting if c.held is not None and c.holder is not None]
    if held:  # a person is waited for in place
        ends = [end for c in held if (end := _end(c, seat)) is not None]
        return effects.Idle(min([*timers, *ends], default=None), in_place=True)
    return effects.Park(min(timers, default=None))


# What somebody else writes, whether the run is driven at that moment or not.
_OUTSIDE: Final = (events.User, events.Metadata, events.Cancelled, events.Revoked, events.Restored)
# After these it goes on, perhaps in the same drive: the time before was spent waiting.
_ANSWERS: Final = (events.Decision, events.Settled)


def running_ms(log: Iterable[Stamped], run: Run) -> int:
    """The time in which it was driven, up to the last event that a driver wrote."""
    total, mark = 0, None
    for seq, at, event in log:
        if seq < run.since or isinstance(event, _OUTSIDE):
            continue
        if isinstance(event, events.AgentStart) and event.worker:
            mark = event.since or at
        if mark is not None:
            total += 0 if isinstance(event, _ANSWERS) else max(0, at - mark)
            mark = at
    return total
