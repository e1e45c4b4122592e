"""Table of the calls of a turn, indexed by what a driver must act on."""

from collections.abc import Collection
from operator import attrgetter

from perdure.core.session.calls import Call, CallStatus


class CallTable(dict[str, Call]):
    """The calls of a turn, in the order in which the model requested them.

    A step of a driver looks at `active`, never at all calls, and a fold changes the table that it
    has copied until it closes it: n calls in one turn cost n steps, not n².
    """

    __slots__ = ("active", "is_closed", "new", "strays", "waiting")

    def __init__(self, table: "CallTable | None" = None) -> None:
        if table is None:
            self.new: dict[str, Call] = {}  # requested; no driver has looked at them yet
            self.active: dict[str, Call] = {}  # open; a driver may have to do something
            self.waiting: dict[str, Call] = {}  # open; only an outcome from outside moves them
            self.strays: dict[str, Call] = {}  # settled, but a pending record of theirs is open
        else:
            super().__init__(table)
            self.new, self.active = table.new.copy(), table.active.copy()
            self.waiting, self.strays = table.waiting.copy(), table.strays.copy()
        self.is_closed = True

    def put(self, call: Call) -> None:
        """Add or replace a call."""
        before = self.get(call.id)
        if before is not None and (part := self._part(before)) is not None:
            del part[call.id]
        self[call.id] = call
        if (part := self._part(call)) is not None:
            part[call.id] = call

    def _part(self, call: Call) -> dict[str, Call] | None:
        """Return the part of the table that a call belongs to, unless nothing is left to do."""
        status = call.status
        if status is CallStatus.NEW:
            return self.new
        if status is CallStatus.SETTLED:
            return self.strays if call.approval_id or call.pending_id else None
        is_left_alone = call.blocking_epoch is None and call.mail is None and call.kind != "timer"
        return self.waiting if is_left_alone and call.is_pending else self.active

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
        return bool(self.active or self.waiting or self.new)

    @property
    def open_calls(self) -> list[Call]:
        """Calls without a result, in the order of the response."""
        return in_order((*self.active.values(), *self.waiting.values(), *self.new.values()))

    @property
    def are_pending(self) -> bool:
        """True if calls are open, and each waits for an outcome or a decision from outside."""
        if self.new or not (self.active or self.waiting):
            return False
        return not self.active or all([call.is_pending for call in self.active.values()])  # noqa: C419 - a generator costs more


def in_order(calls: Collection[Call]) -> list[Call]:
    """Return calls in the order in which the model requested them."""
    return sorted(calls, key=_index) if len(calls) > 1 else [*calls]


_index = attrgetter("index")
