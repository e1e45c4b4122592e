"""Changes of budgets by callers without a lease: a launch counts, and an answer raises a limit."""

from collections.abc import Mapping, Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from perdure.core.log import events
from perdure.core.log.events import Bound
from perdure.core.pending import settlement as decide
from perdure.core.pending.commands import Respond
from perdure.core.pending.record import PendingRecord
from perdure.core.session import budgets
from perdure.core.session.budgets import BudgetRecord, BudgetState, total_spent
from perdure.errors import Refused
from perdure.runtime.records.budgets import read_budget, share_of, shares_of
from perdure.runtime.records.entries import PendingEntry
from perdure.store.base import Put, Store

# --- launches ---------------------------------------------------------------------------------


async def count_child(
    store: Store, bounds: Sequence[Bound], run: str | None
) -> tuple[list[Put], BudgetState | None]:
    """Return the puts that count one more background agent, or the budget that allows no more.

    In that case the puts record that the run wanted one.
    """
    puts: list[Put] = []
    for bound in bounds:
        stored = await read_budget(store, bound.run, bound.stream)
        budget = BudgetState(bound, record=stored.record)
        if stored.record.children >= budget.limits.get("children", float("inf")):
            refused = () if run is None else (run,)
            after = replace(stored.record, refused=(*stored.record.refused, *refused))
            return ([stored.put(after)] if refused else []), budget
        puts.append(stored.put(replace(stored.record, children=stored.record.children + 1)))
    return puts, None


# --- answers ----------------------------------------------------------------------------------


class RaisedBudgets(Struct):
    """Changes that come with answers to questions about budgets."""

    facts: dict[str, list[events.Event]] = field(default_factory=dict)  # by stream
    puts: list[Put] = field(default_factory=list)

    @property
    def woken(self) -> set[str]:
        """Streams of the sessions that continue."""
        return {stream for stream, facts in self.facts.items() if facts}

    def merged(self, facts: Mapping[str, list[events.Event]]) -> dict[str, list[events.Event]]:
        """Return the facts of a commit with these, by stream."""
        streams = {**facts, **self.facts}
        return {s: [*facts.get(s, ()), *self.facts.get(s, ())] for s in streams}


async def raise_budgets(
    store: Store, answered: Sequence[tuple[PendingRecord, str]], now: int
) -> RaisedBudgets:
    """Return the changes of the budgets whose questions are answered with new limits.

    Other questions that the same limits answer are settled too. Raises Refused if a new limit does
    not exceed what is spent by now.
    """
    change, ids = RaisedBudgets(), [record.id for record, _ in answered]
    for run, (records, stream) in _by_budget(answered).items():
        stored = await read_budget(store, run, stream)
        limits = {name: value for record in records for name, value in _limits(record).items()}
        others = await _settle_others(store, stored.record, records[-1], ids, now, change)
        spent = total_spent([share_of(entry) async for entry in shares_of(store, run)])
        budget = BudgetState(Bound(run, stored.stream, {}), spent, stored.record)
        change.puts.append(stored.put(budgets.raised(budget, limits, [*ids, *others])))
        change.facts.setdefault(stored.stream, [])
    return change


def _by_budget(
    answered: Sequence[tuple[PendingRecord, str]],
) -> dict[str, tuple[list[PendingRecord], str]]:
    """Return the questions that were answered with new limits, by the run of their budget."""
    by_run: dict[str, tuple[list[PendingRecord], str]] = {}
    for record, stream in answered:
        if record.budget is not None and _limits(record):
            by_run.setdefault(record.budget.run, ([], stream))[0].append(record)
    return by_run


def _limits(record: PendingRecord) -> Mapping[str, float]:
    decision = record.decision
    if decision is None or decision.kind != "respond":
        return {}
    limits: Mapping[str, float] = decision.output  # its schema was checked
    return limits


async def _settle_others(
    store: Store,
    budget: BudgetRecord,
    answered: PendingRecord,
    ids: Sequence[str],
    now: int,
    change: RaisedBudgets,
) -> list[str]:
    """Answer the other questions at a limit of the budget; return their ids."""
    decision, settled = answered.decision, []
    if decision is None:
        return []
    command = Respond(decision.by, decision.via, decision.output)
    for pending_id in budget.waiting:
        entry = None if pending_id in ids else await store.get("pending", pending_id)
        question = None if entry is None else PendingEntry.decode(entry)
        if question is None or not question.record.is_open:
            continue
        try:
            outcome = decide.settle(question.record, command, now)
        except Refused:  # it waits at a limit that the answer does not raise
            continue
        change.facts.setdefault(question.stream, []).extend(outcome.facts)
        change.puts.append(question.with_record(outcome.record).as_put)
        settled.append(pending_id)
    return settled
