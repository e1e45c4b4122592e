"""Table of locks in one process, without a store; the same rules."""

from collections.abc import Callable, Iterable, Mapping, Sequence

from perdure.store.base import Clock
from perdure.tasks.locks.values import LockInfo
from perdure.tasks.model import locks
from perdure.tasks.model.locks import LockHolder, LockRequest, LockState


class LocalLocks:
    """Locks in one process, without a store; the same rules."""

    def __init__(self, clock: Clock, next_version: Callable[[], int]) -> None:
        self._clock = clock
        self._next_version = next_version  # of acquisitions of any resource
        self.table: dict[str, LockState | LockInfo | str] = {}  # a free one has its last owner

    def unfold(self, resources: Iterable[str] | None = None) -> list[LockInfo]:
        """Turn plain locks, which have one holder, into states; return them.

        Those on these resources only, or all.
        """
        names = self.table if resources is None else resources
        locked = [self.table.get(name) for name in names if isinstance(name, str)]
        plain = [lock for lock in locked if isinstance(lock, LockInfo)]
        for lock in plain:
            self.table[lock.resource] = _unfolded(lock)
        return plain

    def forget_free(self) -> None:
        """Forget the resources that are free."""
        for name in [name for name, lock in self.table.items() if isinstance(lock, str)]:
            del self.table[name]

    def _state(self, resource: str) -> LockState | None:
        state = self.table.get(resource)
        if isinstance(state, LockInfo):  # acquired while a caller waited for its next attempt
            return _unfolded(state)
        return state if isinstance(state, LockState) else None

    def now(self) -> int:
        """Return the clock's time."""
        return self._clock.now()

    async def acquire(
        self, tenant: str, resources: Sequence[str], request: LockRequest
    ) -> list[LockHolder]:
        """Acquire all resources or none. Raises Conflict LOCK_CONFLICT."""
        del tenant
        now = self.now()
        changes: dict[str, LockState] = {}
        holders: list[LockHolder] = []
        for resource in resources:
            present = self._state(resource) or LockState(resource)
            live = locks.without_dead(present, now)
            version = live.version if live.holder(request.token) else self._next_version() - 1
            numbered = LockState(resource, version, live.mode, live.holders)
            changes[resource], holder = locks.acquire(numbered, request, now)
            holders.append(holder)
        self.table |= changes
        return holders

    async def release(self, tenant: str, resource: str, token: str) -> bool:
        """Release what a token holds; False if it holds nothing."""
        del tenant
        state = self._state(resource)
        if state is None or state.holder(token) is None:
            return False
        self._set(locks.release(state, token))
        return True

    def _set(self, state: LockState) -> None:
        """Keep a lock that has holders; the version never starts over, so others are forgotten."""
        if state.holders:
            self.table[state.resource] = state
        else:
            self.table.pop(state.resource, None)

    async def get(self, tenant: str, resource: str) -> LockState | None:
        """Return a lock with its live holders; None if it is free."""
        del tenant
        state = self._state(resource)
        return None if state is None else locks.without_dead(state, self.now())

    async def held(self, tenant: str | None) -> list[tuple[str, LockState]]:
        """Return the locks that have live holders."""
        del tenant
        live = [locks.without_dead(state, self.now()) for state in self._all]
        return [("", state) for state in live if state.holders]

    async def sweep(self) -> int:
        """Free the locks of expired holders; return the number of holders."""
        return self._replace({s.resource: locks.without_dead(s, self.now()) for s in self._all})

    async def drop_owner(self, tenant: str, owner: str) -> int:
        """Free everything that an owner holds; return the number of holders."""
        del tenant
        after = {
            s.resource: LockState(
                s.resource,
                s.version,
                s.mode,
                tuple(item for item in s.holders if item.owner != owner),
            )
            for s in self._all
        }
        return self._replace(after)

    @property
    def _all(self) -> list[LockState]:
        return [state for state in self.table.values() if isinstance(state, LockState)]

    def _replace(self, after: Mapping[str, LockState]) -> int:
        freed = sum(len(s.holders) - len(after[s.resource].holders) for s in self._all)
        for state in after.values():
            self._set(state)
        return freed


def _unfolded(lock: LockInfo) -> LockState:
    """Return a plain lock as a state."""
    at = round(lock.acquired * 1000)
    limit = None if lock.timeout is None else round(lock.timeout)
    holder = LockHolder(lock.token, lock.owner, "", lock.version, at, limit)
    return LockState(lock.resource, lock.version, lock.mode, (holder,))
