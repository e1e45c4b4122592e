"""Budgets: the limits of a run with everything that it launched, and the amounts they have spent.

Each session counts its own share in an entry per budget; the record of the budget, which belongs
to the session of the bounded run, has what the sessions share: new limits, the number of
background agents, and the questions that wait for a decision.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from perdure.core.log import events
from perdure.core.log.events import Bound, ReachedLimit
from perdure.core.session.state import Run
from perdure.core.session.usage import Amounts, total_tokens
from perdure.errors import Corrupt, Refused

SPENT: Final = "spent"  # kinds of entries
BUDGET: Final = "budget"
USAGE: Final = "usage"

LIMITS: Final = ("turns", "tokens", "seconds", "children", "cost")
_COUNTS: Final = frozenset({"turns", "tokens", "children"})
_DIGITS: Final = 9  # rounds sums so that floating-point noise does not show


class Spent(Struct, frozen=True, omit_defaults=True, gc=False):
    """Share of one session in what was spent of a budget: data of its entry."""

    turns: int = 0
    tokens: float = 0
    seconds: float = 0  # of running; waiting is free
    cost: float = 0

    def plus(self, other: "Spent") -> "Spent":
        """Return the sum of two shares."""
        return Spent(
            self.turns + other.turns,
            self.tokens + other.tokens,
            round(self.seconds + other.seconds, _DIGITS),
            round(self.cost + other.cost, _DIGITS),
        )


class BudgetRecord(Struct, frozen=True, omit_defaults=True, gc=False):
    """Data of a budget's entry: what all sessions share that it bounds."""

    limits: dict[str, float] = {}  # those that were raised
    children: int = 0  # background agents that were launched
    refused: tuple[str, ...] = ()  # runs that wanted to launch one more
    waiting: tuple[str, ...] = ()  # pending ids of the runs that wait at a limit


class BudgetState(Struct, frozen=True, gc=False):
    """A budget as a driver sees it: its limits, and what was spent of it."""

    bound: Bound
    spent: Spent = Spent()
    record: BudgetRecord = BudgetRecord()

    @property
    def limits(self) -> dict[str, float]:
        return {**self.bound.limits, **self.record.limits}

    @property
    def amounts(self) -> dict[str, float]:
        """The amounts that were spent, by the names of the limits."""
        spent = self.spent
        amounts = (spent.turns, spent.tokens, spent.seconds, self.record.children, spent.cost)
        return dict(zip(LIMITS, amounts, strict=True))

    def reached(self, run: str) -> ReachedLimit | None:
        """Return the limit at which a run must wait.

        A run that has launched as many background agents as it may continues, until it wants one
        more.
        """
        amounts = self.amounts
        for name, limit in self.limits.items():
            if name == "children" and run not in self.record.refused:
                continue
            if amounts.get(name, 0) >= limit:
                return ReachedLimit(self.bound.run, name, limit, amounts)
        return None


def run_bounds(run: Run | None, stream: str, limits: Mapping[str, float]) -> tuple[Bound, ...]:
    """Return the budgets that bound a run: of those that launched it, and of its own agent."""
    if run is None:
        return ()
    own = (Bound(run.budget_run, stream, dict(limits)),) if limits else ()
    return (*run.bounds, *own)


def spent_in(facts: Iterable[events.Event], running_ms: int = 0) -> Spent:
    """Return what a commit adds to the share of its session."""
    turns, tokens, cost = 0, 0.0, 0.0
    for fact in facts:
        if isinstance(fact, events.Assistant | events.Compacted):
            turns += isinstance(fact, events.Assistant)
            tokens += total_tokens(fact.usage)
            cost += (fact.usage or {}).get("cost", 0)
    return Spent(turns, tokens, running_ms / 1_000, cost)


def total_spent(shares: Iterable[Spent]) -> Spent:
    """Return the sum of the shares of several sessions."""
    total = Spent()
    for share in shares:
        total = total.plus(share)
    return total


# --- questions at a limit ---------------------------------------------------------------------


def limit_text(reached: ReachedLimit) -> str:
    """Return why a run waits or failed."""
    return f"the run reached the limit of its budget: {reached.limit} {reached.value:g}"


def limit_prompt(reached: ReachedLimit) -> str:
    """Return the question to an approver."""
    example = msgspec.json.encode({reached.limit: _example(reached.value)}).decode()
    return (
        f"{limit_text(reached).capitalize()}. Respond with a new limit such as {example} to "
        "continue it, or deny to end it."
    )


def _example(value: float) -> float:
    return _plain(value) * 2


def _plain(value: float) -> float:
    """Return a number as people write it: 436, not 436.0."""
    return int(value) if float(value).is_integer() else value


def limit_schema(reached: ReachedLimit) -> dict[str, Any]:
    """Return the JSON schema of new limits: each must exceed what was spent of it."""
    properties = {
        name: {
            "type": "integer" if name in _COUNTS else "number",
            "exclusiveMinimum": _plain(reached.spent.get(name, 0)),
        }
        for name in LIMITS
    }
    return {
        "type": "object",
        "properties": properties,
        "required": [reached.limit],
        "additionalProperties": False,
    }


def raised(
    budget: BudgetState, limits: Mapping[str, float], settled: Sequence[str]
) -> BudgetRecord:
    """Return the record of a budget with new limits, for the runs that waited for them.

    Raises Refused if more was spent meanwhile than a new limit allows.
    """
    amounts = budget.amounts
    for name, limit in limits.items():
        if limit <= amounts[name]:
            raise Refused(
                f"{name} must be greater than {amounts[name]:g}, which was spent by now",
                code="ANSWER_INVALID",
                hint="respond with a higher limit, or deny",
                details={"spent": amounts},
            )
    record = budget.record
    return replace(
        record,
        limits={**record.limits, **limits},
        refused=(),
        waiting=tuple([item for item in record.waiting if item not in settled]),
    )


# --- entries ----------------------------------------------------------------------------------


class UsageRecord(Struct, frozen=True, omit_defaults=True, gc=False):
    """Data of the entry in which a background agent keeps the usage of its session."""

    session_id: str
    ancestry: tuple[str, ...]
    usage: Amounts


def usage_below(records: Iterable[UsageRecord], session_id: str, depth: int) -> list[Amounts]:
    """Return the usages of the sessions below one that has so many ancestors."""
    return [item.usage for item in records if item.ancestry[depth : depth + 1] == (session_id,)]


T = TypeVar("T", Spent, BudgetRecord, UsageRecord)


def spent_key(run: str, stream: str) -> str:
    """Return the key of the entry with a session's share in the budget of a run."""
    return f"{run}|{stream}"


def encode(record: Spent | BudgetRecord | UsageRecord) -> bytes:
    """Return a record as the data of its entry."""
    return msgspec.json.encode(record)


def decode(data: bytes, type: type[T]) -> T:  # noqa: A002 - as msgspec names it
    """Return the record of an entry. Raises Corrupt."""
    try:
        return msgspec.json.decode(data, type=type)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Corrupt(f"the entry of a budget cannot be read: {error}") from error
