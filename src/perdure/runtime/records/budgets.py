"""Entries of budgets, and the count of what the session of a drive spends.

The entry of a budget belongs to the session of the run that it bounds. Whatever decides by it
also puts it: a run that begins to wait, a launch, and an answer. So none of them misses another.
Each session counts its own share in an entry that it puts in the commit of the turn, so that the
count never says anything else than the log.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Final, NamedTuple

from msgspec.structs import replace

from perdure.core.log import events
from perdure.core.log.events import Bound, Event
from perdure.core.pending.record import PendingRecord
from perdure.core.session import budgets
from perdure.core.session.budgets import (
    BUDGET,
    SPENT,
    USAGE,
    BudgetRecord,
    BudgetState,
    Spent,
    UsageRecord,
    run_bounds,
    spent_in,
    spent_key,
    total_spent,
)
from perdure.core.session.naming import SessionRecord, session_key
from perdure.core.session.state import Run, State
from perdure.store.base import Entry, Put, Store
from perdure.store.shared.all_pages import all_entries

_TURN_EVENTS: Final = (events.Assistant, events.Compacted)


class StoredBudget(NamedTuple):
    """The record of a budget with the version and stream of its entry; version 0: none yet."""

    run: str
    stream: str
    version: int = 0
    record: BudgetRecord = BudgetRecord()

    def put(self, record: BudgetRecord) -> Put:
        """Return the put that replaces the record."""
        data = budgets.encode(record)
        return Put(BUDGET, self.run, self.version, self.stream, "kept", None, data)


async def read_budget(store: Store, run: str, stream: str) -> StoredBudget:
    """Return the budget of a run; if it has no entry yet, its first put creates one in `stream`."""
    entry = await store.get(BUDGET, run)
    if entry is None:
        return StoredBudget(run, stream)
    return StoredBudget(run, entry.stream, entry.version, budgets.decode(entry.data, BudgetRecord))


def shares_of(store: Store, run: str) -> AsyncIterator[Entry]:
    """Find the entries in which sessions count what they spent of the budget of a run."""
    return all_entries(store, SPENT, state=run)


def share_of(entry: Entry) -> Spent:
    """Return the share of one session. Raises Corrupt."""
    return budgets.decode(entry.data, Spent)


class _Share(NamedTuple):
    """Share of this session in the budget of a run, as its entry has it."""

    version: int
    spent: Spent


class SpendingCommit(NamedTuple):
    """The entries that one commit puts, and the shares that they hold."""

    puts: Sequence[Put] = ()
    shares: Mapping[str, _Share] = {}
    at: int = 0
    is_turn: bool = False
    questions: Sequence[Put] = ()  # the budgets with the questions that they open

    @property
    def all_puts(self) -> list[Put]:
        return [*self.puts, *self.questions]


class Spending:
    """Counts what a session spends in one drive, and reads what others spent of its budgets."""

    def __init__(
        self, store: Store, stream: str, record: SessionRecord, limits: Mapping[str, float]
    ) -> None:
        self._store = store
        self._stream = stream
        self._record = record
        self._limits = limits  # of its agent
        self._since = store.now()  # what ran before is counted
        self._shares: dict[str, _Share] = {}  # by the run of the budget
        self._others: dict[str, Spent] = {}  # of all other sessions, as last read
        self._stored: dict[str, StoredBudget] = {}
        self._gone: set[str] = set()  # streams of sessions that were erased with their budgets
        self._usage_version: int | None = None
        self._read_at: tuple[str, int] | None = None  # run and head at which it was read

    def _bounds(self, run: Run | None) -> list[Bound]:
        bounds = run_bounds(run, self._stream, self._limits)
        return [bound for bound in bounds if bound.stream not in self._gone]

    # --- reading ------------------------------------------------------------------------------

    def budgets(self, state: State) -> list[BudgetState]:
        """Return the budgets of the run with what was spent of them; none before they are read."""
        run = state.run
        if run is None or self._read_at is None or self._read_at[0] != run.id:
            return []
        running = Spent(seconds=max(0, self._store.now() - self._since) / 1_000)
        return [
            BudgetState(
                bound,
                total_spent((self._shares[bound.run].spent, self._others[bound.run], running)),
                self._stored[bound.run].record,
            )
            for bound in self._bounds(run)
        ]

    def is_current(self, state: State, *, at_head: bool = False) -> bool:
        """Return whether the budgets are known well enough to decide by them.

        A session that shares none of them knows what it spent itself.
        """
        run = state.run
        if run is None or self._read_at is None or self._read_at[0] != run.id:
            return run is None
        is_shared = any(self._is_shared(bound, state) for bound in self._bounds(run))
        return self._read_at[1] == state.head or not (is_shared or at_head)

    def _is_shared(self, bound: Bound, state: State) -> bool:
        return bool(state.children) or bound.stream != self._stream

    async def read(self, state: State) -> None:
        """Read the budgets of the run, and what was spent of them."""
        run = state.run
        for bound in self._bounds(run):
            self._stored[bound.run] = await read_budget(self._store, bound.run, bound.stream)
            self._others[bound.run] = Spent()
            if not self._is_shared(bound, state):
                await self._share(bound, run)
                continue
            key, others = spent_key(bound.run, self._stream), []
            async for entry in shares_of(self._store, bound.run):
                if entry.key == key:
                    self._shares[bound.run] = _Share(entry.version, share_of(entry))
                else:
                    others.append(share_of(entry))
            self._others[bound.run] = total_spent(others)
            await self._share(bound, run)
        self._read_at = None if run is None else (run.id, state.head)

    async def _share(self, bound: Bound, run: Run | None) -> _Share:
        """Return the share of this session, read if it is not known."""
        share = self._shares.get(bound.run)
        if share is None:
            entry = await self._store.get(SPENT, spent_key(bound.run, self._stream))
            if entry is not None:
                share = _Share(entry.version, share_of(entry))
            else:  # its first turn, or it was imported
                share = _Share(0, Spent() if run is None else Spent(run.turns, run.tokens))
            self._shares[bound.run] = share
        return share

    def forget(self) -> None:
        """Forget what was read, because a commit was refused or its outcome is not known."""
        self._shares.clear()
        self._usage_version = self._read_at = None

    def drop(self, stream: str) -> bool:
        """Drop the budgets of a session that was erased; return whether there were any."""
        is_new = stream != self._stream and stream not in self._gone
        self._gone.add(stream)
        return is_new

    # --- writing ------------------------------------------------------------------------------

    def skip(self, waited_ms: int) -> None:
        """Leave out time in which the drive waited for an approver."""
        self._since += waited_ms

    async def plan_commit(
        self, facts: Sequence[Event], before: State, after: State, now: int, *, is_park: bool
    ) -> SpendingCommit:
        """Return the entries to put with these facts."""
        is_turn = any(isinstance(fact, _TURN_EVENTS) for fact in facts)
        spent = spent_in(facts, max(0, now - self._since))
        if not is_turn and not (is_park and spent.seconds):
            return SpendingCommit()
        puts, shares = [], {}
        for bound in self._bounds(after.run):
            share = await self._share(bound, before.run)
            shares[bound.run] = _Share(share.version + 1, share.spent.plus(spent))
            key, data = spent_key(bound.run, self._stream), budgets.encode(shares[bound.run].spent)
            puts.append(Put(SPENT, key, share.version, self._stream, bound.run, None, data))
        if is_turn and self._record.parent is not None:
            puts.append(await self._usage_put(after))
        return SpendingCommit(puts, shares, now, is_turn)

    async def _usage_put(self, after: State) -> Put:
        if self._usage_version is None:
            entry = await self._store.get(USAGE, self._stream)
            self._usage_version = 0 if entry is None else entry.version
        record = self._record
        data = budgets.encode(UsageRecord(record.id, record.ancestry, after.usage))
        root = session_key(record.tenant, (*record.ancestry, record.id)[0])
        return Put(USAGE, self._stream, self._usage_version, self._stream, root, None, data)

    def apply(self, commit: SpendingCommit) -> None:
        """Apply entries that were committed."""
        if not commit.puts:
            return
        self._shares |= commit.shares
        self._since = commit.at
        if commit.is_turn and self._usage_version is not None:
            self._usage_version += 1

    def question_puts(self, records: Sequence[PendingRecord]) -> list[Put]:
        """Return the puts that list new questions at a limit of a budget.

        They name the version by which the run decided to wait: an answer in between refuses them.
        """
        puts = []
        for record in records:
            if record.budget is not None:
                stored = self._stored[record.budget.run]
                waiting = (*stored.record.waiting, record.id)
                puts.append(stored.put(replace(stored.record, waiting=waiting)))
        return puts
