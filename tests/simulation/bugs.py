"""Bugs that are planted at run time: each breaks one rule, and the oracle must find it.

Planted, not found in 25 seeds, and left out: a park at any head, claims of held streams by commits,
leases that are released only once. A cancel that keeps calls is planted in the inbox and in the
driver: each of them closes what the other has left.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Final, NamedTuple

import pytest
from msgspec.structs import replace

from perdure.core.driver import drafts as turns
from perdure.core.driver.draft_builder import DraftBuilder
from perdure.core.pending import settlement
from perdure.runtime.engine import tool_calls, verdicts
from perdure.runtime.engine.driver import Driver
from perdure.runtime.engine.drives import Drives
from perdure.runtime.engine.heartbeat import LeaseHolder
from perdure.runtime.engine.in_flight import InFlight, ToolReturned
from perdure.runtime.engine.writer import LeasedWriter
from perdure.runtime.inbox.sessions import SessionInbox
from perdure.store import judge
from perdure.store.base import Heads, Unknown, Write
from perdure.store.memory import MemoryStore
from perdure.store.shared.tables import Tables
from perdure.testing.simulation.faults import KINDS
from perdure.testing.simulation.store import ProcessConnection

Patch = pytest.MonkeyPatch


class Bug(NamedTuple):
    """A bug, and the guarantees of which it breaks one."""

    plant: Callable[[Patch], None]
    guarantees: frozenset[str]
    seed: int  # that finds it
    kinds: tuple[str, ...]  # of faults


def types_of(write: Write) -> set[str]:
    return {record.type for record in write.records}


def _ignore(patch: Patch, name: str, kinds: Sequence[str] = ()) -> None:
    """Ignore a condition of commits."""
    is_accepted = judge._is_accepted

    def accepted(write: Write, row: Any) -> bool:
        return is_accepted(replace(write, **{name: None}), row)

    def applies(write: Write) -> bool:
        return not kinds or bool(types_of(write) & set(kinds))

    patch.setattr(
        judge, "_is_accepted", lambda w, r: accepted(w, r) if applies(w) else is_accepted(w, r)
    )
    condition = judge._fenced if name == "fence" else judge._head_moved
    patch.setattr(judge, condition.__name__, lambda w, r: None if applies(w) else condition(w, r))


def _any_version(patch: Patch, *kinds: str) -> None:
    """Put entries of these kinds at any version."""
    moved = judge._version_moved

    def unconditional(items: Any, rows: Any, erased: Any) -> Any:
        kept = [item for item in items if item.kind not in kinds]
        return moved(kept, rows, erased)

    patch.setattr(judge, "_version_moved", unconditional)


def _without_wake(patch: Patch, *types: str) -> None:
    """Wake nobody with records of these types."""
    row_after = judge._row_after

    def deaf(write: Write, row: Any) -> Any:
        is_deaf = bool(types_of(write) & set(types)) and not write.create
        return row_after(replace(write, wake=None) if is_deaf else write, row)

    patch.setattr(judge, "_row_after", deaf)


def _reply_before_commit(patch: Patch, *types: str) -> None:
    """Acknowledge commits of these types without making them, one of four."""
    commit, count = MemoryStore.commit, iter(range(10**9))

    async def pretended(
        self: MemoryStore, writes: Sequence[Write], *args: Any, **options: Any
    ) -> Heads:
        is_meant = any(types_of(write) & set(types) for write in writes) and len(writes) == 1
        if is_meant and not writes[0].create and next(count) % 4 == 0:
            head = self._tables.streams[writes[0].stream].head
            return Heads({writes[0].stream: head + len(writes[0].records)})
        return await commit(self, writes, *args, **options)

    pretended.__name__ = "commit"
    patch.setattr(MemoryStore, "commit", pretended)


def _intent_not_committed(patch: Patch) -> None:
    commit = LeasedWriter._commit

    async def pretended(
        self: Any, writes: list[Write], puts: Any, checks: Any, *, patient: bool = False
    ) -> Heads:
        first = writes[0]
        if types_of(first) == {"tool_started"} and first.head is not None:
            return Heads({write.stream: first.head + len(first.records) for write in writes})
        return await commit(self, writes, puts, checks, patient=patient)

    patch.setattr(LeasedWriter, "_commit", pretended)


def _interrupted_calls_are_retried(patch: Patch) -> None:
    record = turns.record_interrupted

    def retried(state: Any, scope: Any, interrupted: Any, now: int) -> Any:
        calls: Any = [(call, "retry", verdict) for call, _, verdict in interrupted]
        return record(state, scope, calls, now)

    patch.setattr(turns, "record_interrupted", retried)


def _lost_reply_is_retried_blindly(patch: Patch) -> None:
    commit = LeasedWriter._commit

    async def blind(
        self: Any, writes: list[Write], puts: Any, checks: Any, *, patient: bool = False
    ) -> Heads:
        try:
            return await commit(self, writes, puts, checks, patient=patient)
        except Unknown:
            writes = [replace(write, head=None, release=None) for write in writes]
            return await commit(self, writes, [], [], patient=patient)

    patch.setattr(LeasedWriter, "_commit", blind)


def _two_votes_of_one(patch: Patch) -> None:
    patch.setattr(settlement, "is_repeated_vote", lambda *_: False)
    patch.setattr(settlement, "check_decision", lambda *_: None)


def _votes_are_not_counted(patch: Patch) -> None:
    vote = settlement._vote
    patch.setattr(
        settlement, "_vote", lambda *args: (vote(*args)[0], replace(vote(*args)[1], missing=0))
    )


def _edit_is_ignored(patch: Patch) -> None:
    arguments = tool_calls._arguments

    def other(tool: Any, call: Any, checked: Any) -> Any:
        args = arguments(tool, call, checked)
        is_edited = call.decision is not None and call.decision.kind == "edit"
        return {**args, "n": args["n"] - 1} if is_edited and "n" in args else args

    patch.setattr(tool_calls, "_arguments", other)


def _early_expiry(patch: Patch) -> None:
    overdue = settlement.is_overdue
    patch.setattr(settlement, "is_overdue", lambda record, now: overdue(record, now + 12_000))


def _unanswered_claims_stay(patch: Patch) -> None:
    patch.setattr(ProcessConnection, "_undo_claims", lambda _: None)


def _drive_survives_its_lease(patch: Patch) -> None:
    patch.setattr(Drives, "_lose", lambda *_: None)
    patch.setattr(LeaseHolder, "is_valid", lambda *_: True)


def _deadline_is_not_checked(patch: Patch) -> None:
    patch.setattr(LeaseHolder, "is_valid", lambda *_: True)


def _tools_start_unchecked(patch: Patch) -> None:
    patch.setattr(tool_calls, "_check_lease", lambda _: None)


class _Forgetful(set[Any]):
    def add(self, _: Any) -> None:
        pass


def _intents_start_twice(patch: Patch) -> None:
    init = Driver.__init__

    def forgetful(self: Driver, *args: Any) -> None:
        init(self, *args)
        self._started_intents = _Forgetful()

    patch.setattr(Driver, "__init__", forgetful)


def _deletion_is_not_made(patch: Patch) -> None:
    commit = MemoryStore.commit

    async def kept(self: MemoryStore, writes: Sequence[Write], *args: Any, **options: Any) -> Heads:
        if any(write.erase for write in writes):
            return Heads({write.stream: 0 for write in writes})
        return await commit(self, writes, *args, **options)

    kept.__name__ = "commit"
    patch.setattr(MemoryStore, "commit", kept)


def _cancel_keeps_calls(patch: Patch) -> None:
    patch.setattr(SessionInbox, "_cancel_calls", lambda *_: ([], []))
    patch.setattr(DraftBuilder, "cancel_pending", lambda *_: None)


def _outcomes_get_lost(patch: Patch) -> None:
    finish, count = InFlight._finish, iter(range(10**9))

    def losing(self: InFlight, outcome: Any, failure: Any) -> None:
        if isinstance(outcome, ToolReturned) and next(count) % 5 == 0:
            self.news.set()
            self.calls[outcome.call_id] = None  # type: ignore[assignment]
            return
        finish(self, outcome, failure)

    patch.setattr(InFlight, "_finish", losing)


def _approval_is_not_required(patch: Patch) -> None:
    async def never(*_: Any) -> bool:
        return False

    patch.setattr(verdicts, "_is_gated", never)


def _losers_learn_another_winner(patch: Patch) -> None:
    patch.setattr(settlement, "winner", lambda _: {"by": "nobody"})


def _late_settlements_succeed(patch: Patch) -> None:
    patch.setattr(settlement, "_is_duplicate", lambda *_: True)


class _ForgetfulStore:
    """Store whose claims without a reply are forgotten."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.renew = store.renew

    async def claim(self, *args: Any, **options: Any) -> Any:
        with suppress(Unknown):
            return await self._store.claim(*args, **options)
        return []


def _unknown_claims_are_forgotten(patch: Patch) -> None:
    init = LeaseHolder.__init__

    def forgetful(self: LeaseHolder, store: Any, *args: Any) -> None:
        init(self, store, *args)
        self._store = _ForgetfulStore(store)  # type: ignore[assignment]

    patch.setattr(LeaseHolder, "__init__", forgetful)


def _mail_is_not_marked(patch: Patch) -> None:
    async def nothing(*_: Any) -> list[Any]:
        return []

    patch.setattr(LeasedWriter, "_taken_mail", nothing)


def _entry_is_not_updated(patch: Patch) -> None:
    patch.setattr(LeasedWriter, "_changed_entry", lambda *_, **__: None)


def _early_reap(patch: Patch) -> None:
    reap = Tables.reap
    patch.setattr(Tables, "reap", lambda self, now: reap(self, now + 1_500))


ALL_KINDS: Final = ("session", "pending", "key", "mail", "task", "background", "budget")
ALL: Final = tuple(KINDS)
FREEZES: Final = ("freeze", "stall")
BUGS: Final[dict[str, Bug]] = {
    name: Bug(plant, frozenset(guarantees.split()), seed, kinds)
    for name, plant, guarantees, seed, kinds in (
        ("the fence is not checked", partial(_ignore, name="fence"), "G2 G3 G4 G5 G9", 21, FREEZES),
        ("the head is not checked", partial(_ignore, name="head"), "G2 G3 G4 G5 G9", 121, ALL),
        ("versions are not checked", lambda p: _any_version(p, *ALL_KINDS), "G1 G4 G9", 26, ALL),
        ("message keys are not checked", lambda p: _any_version(p, "key"), "G1", 5, ALL),
        (
            "pending calls are settled at any version",
            lambda p: _any_version(p, "pending"),
            "G1 G4",
            0,
            ALL,
        ),
        ("mail is taken at any version", lambda p: _any_version(p, "mail"), "G9", 31, ALL),
        ("sessions are put at any version", lambda p: _any_version(p, "session"), "G9", 5, ALL),
        ("intents are not committed", _intent_not_committed, "G3", 18, ALL),
        ("interrupted calls are retried", _interrupted_calls_are_retried, "G3", 5, ("crash",)),
        ("a lost reply is retried blindly", _lost_reply_is_retried_blindly, "G2 G3 G4 G9", 60, ALL),
        (
            "messages are acknowledged too early",
            lambda p: _reply_before_commit(p, "user"),
            "G1",
            1,
            ALL,
        ),
        (
            "settlements are acknowledged too early",
            lambda p: _reply_before_commit(p, "decision", "settled"),
            "G1 G4",
            1,
            ALL,
        ),
        ("one approver votes twice", _two_votes_of_one, "G7", 0, ALL),
        ("votes are not counted", _votes_are_not_counted, "G7", 0, ALL),
        ("an edit is ignored", _edit_is_ignored, "G7", 7, ALL),
        ("approvals are not required", _approval_is_not_required, "G7", 0, ALL),
        ("messages wake nobody", lambda p: _without_wake(p, "user"), "G9", 0, ALL),
        (
            "settlements wake nobody",
            lambda p: _without_wake(p, "settled", "decision"),
            "G9",
            0,
            ALL,
        ),
        (
            "ends of children wake nobody",
            lambda p: _without_wake(p, "delegation_complete"),
            "G9",
            0,
            ALL,
        ),
        ("calls expire early", _early_expiry, "G9", 0, ALL),
        ("unanswered claims stay", _unanswered_claims_stay, "G9", 7, ("lost_reply",)),
        ("unknown claims are forgotten", _unknown_claims_are_forgotten, "G9", 0, ("lost_reply",)),
        ("a drive survives its lease", _drive_survives_its_lease, "G2 G3 G5", 0, ("freeze",)),
        ("the deadline of a lease is not checked", _deadline_is_not_checked, "G5", 11, ("freeze",)),
        (
            "a tool starts without checking the lease again",
            _tools_start_unchecked,
            "G5",
            59,
            ("freeze",),
        ),
        ("holders are reaped early", _early_reap, "G5", 41, FREEZES),
        ("intents start twice", _intents_start_twice, "G3", 0, ALL),
        ("deletions are not made", _deletion_is_not_made, "G1 G9", 10, ALL),
        ("a cancel keeps calls", _cancel_keeps_calls, "G4 G9", 4, ALL),
        ("outcomes get lost", _outcomes_get_lost, "G9", 0, ALL),
        ("losers learn another winner", _losers_learn_another_winner, "G4", 12, ALL),
        ("late settlements succeed", _late_settlements_succeed, "G1 G4", 0, ALL),
        ("mail is not marked as taken", _mail_is_not_marked, "G9", 0, ALL),
        ("session entries are not updated", _entry_is_not_updated, "G9", 0, ALL),
    )
}


@contextmanager
def planted(name: str) -> Iterator[None]:
    """Plant a bug for the time of the context."""
    with pytest.MonkeyPatch.context() as patch:
        BUGS[name].plant(patch)
        yield
