"""Calls of a turn by id, with those that a driver must look at in each step kept apart."""

from collections.abc import Iterable, Mapping
from operator import attrgetter

from perdure.core.session.calls import Call, CallStatus


class CallTable(dict[str, Call]):
    """The calls of a turn, in the order in which the model requested them.

    A step of a driver looks at `active`, never at all calls, and a fold changes the table that it
    has copied until it closes it: n calls in one turn cost n, not n².
    """

    __slots__ = ("active", "is_closed", "new", "strays")

    def __init__(self, table: Mapping[str, Call] | None = None) -> None:
        super().__init__()
        self.new: dict[str, Call] = {}  # requested; no driver has looked at them yet
        self.active: dict[str, Call] = {}  # neither new nor settled
        self.strays: dict[str, Call] = {}  # settled, but a pending record of theirs is open
        self.is_closed = True
        if isinstance(table, CallTable):
            self.update(table)
            self.new |= table.new
            self.active |= table.active
            self.strays |= table.strays
        elif table:
            for call in table.values():
                self.put(call)

    def put(self, call: Call) -> None:
        """Add or replace a call."""
        self[call.id] = call
        self.new.pop(call.id, None)
        self.active.pop(call.id, None)
        self.strays.pop(call.id, None)
        if call.status is CallStatus.NEW:
            self.new[call.id] = call
        elif call.status is not CallStatus.SETTLED:
            self.active[call.id] = call
        elif call.approval_id or call.pending_id:
            self.strays[call.id] = call

    def with_call(self, call: Call) -> "CallTable":
        """Return the table with a new or changed call: this one, unless it is closed."""
        table = self
        if self.is_closed:
            table = CallTable(self)
            table.is_closed = False
        table.put(call)
        return table

    @property
    def has_open(self) -> bool:
        return bool(self.active or self.new)

    @property
    def open_calls(self) -> list[Call]:
        """Calls without a result, in the order of the response."""
        return in_order((*self.active.values(), *self.new.values()))

    @property
    def are_pending(self) -> bool:
        """True if calls are open, and each waits for an outcome or a decision from outside."""
        if self.new or not self.active:
            return False
        return all(call.is_pending for call in self.active.values())


def in_order(calls: Iterable[Call]) -> list[Call]:
    """Return calls in the order in which the model requested them."""
    return sorted(calls, key=_index)


_index = attrgetter("index")
