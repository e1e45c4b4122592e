"""Tables of locks: in a store, shared by its processes, or in one process."""

from collections.abc import Mapping, Sequence
from itertools import count
from typing import Final, Protocol

from perdure.core.tasks import locks
from perdure.core.tasks.locks import LockHolder, LockRequest, LockState
from perdure.errors import Conflict
from perdure.runtime.records.entries import all_entries
from perdure.runtime.tasks.locks.process import LockProcess
from perdure.runtime.tasks.locks.values import LockInfo
from perdure.store.base import Clock, Entry, Put, Store, VersionMoved, Write

_REMEMBERED: Final = 10_000  # locks whose version is remembered


class LockTable(Protocol):
    """Locks by resource, of one tenant."""

    async def acquire(
        self, tenant: str, resources: Sequence[str], request: LockRequest
    ) -> list[LockHolder]:
        """Acquire all resources or none. Raises Conflict LOCK_CONFLICT."""
        ...

    async def release(self, tenant: str, resource: str, token: str) -> bool:
        """Release what a token holds; False if it holds nothing."""
        ...

    async def get(self, tenant: str, resource: str) -> LockState | None:
        """Return a lock with its live holders; None if it was never acquired."""
        ...

    async def held(self, tenant: str | None) -> list[tuple[str, LockState]]:
        """Return the tenants and the locks that have live holders."""
        ...

    async def sweep(self) -> int:
        """Free the locks of expired and dead holders; return the number of holders."""
        ...

    async def drop_owner(self, tenant: str, owner: str) -> int:
        """Free everything that an owner holds; return the number of holders."""
        ...

    def now(self) -> int:
        """Return the present instant in ms."""
        ...


class StoreLocks:
    """Locks on streams of a store: one entry each, which is freed and never deleted."""

    def __init__(self, store: Store, process: LockProcess) -> None:
        self._store = store
        self._process = process
        # Locks as this process last left them: then no read precedes the next commit to one.
        self._last: dict[str, tuple[int, LockState]] = {}

    def now(self) -> int:
        """Return the store's time."""
        return self._store.now()

    async def acquire(
        self, tenant: str, resources: Sequence[str], request: LockRequest
    ) -> list[LockHolder]:
        """Acquire all resources in one commit, or none. Raises Conflict LOCK_CONFLICT."""
        process = await self._process.name()
        request = LockRequest(request.owner, request.token, process, request.mode, request.timeout)
        while True:
            present = await self._present(tenant, resources)
            try:
                after = self._decide(present, request)
            except Conflict:  # perhaps by what this process remembers, or by a dead process
                read = [await self._read(tenant, name) for name in resources]
                present = await self._without_dead(read)
                after = self._decide(present, request)
            puts = [
                _put(tenant, state, version)
                for (version, _), (state, _) in zip(present, after, strict=True)
            ]
            if await self._commit(puts):
                for put, (state, _) in zip(puts, after, strict=True):
                    self._remember(put, state)
                return [holder for _, holder in after]

    def _decide(
        self, present: Sequence[tuple[int, LockState]], request: LockRequest
    ) -> list[tuple[LockState, LockHolder]]:
        now = self.now()
        return [locks.acquire(locks.without_dead(state, now), request, now) for _, state in present]

    async def _present(self, tenant: str, resources: Sequence[str]) -> list[tuple[int, LockState]]:
        """Return version and state of each lock, as this process remembers them, or read."""
        present: list[tuple[int, LockState]] = []
        for name in resources:
            last = self._last.pop(locks.lock_key(tenant, name), None)
            present.append(await self._read(tenant, name) if last is None else last)
        return present

    async def _read(self, tenant: str, resource: str) -> tuple[int, LockState]:
        entry = await self._store.get(locks.KIND, locks.lock_key(tenant, resource))
        if entry is None:
            return 0, LockState(resource)
        return entry.version, locks.decode(entry.data)

    async def _without_dead(
        self, present: Sequence[tuple[int, LockState]]
    ) -> list[tuple[int, LockState]]:
        is_alive, now = await self._process.is_alive(), self.now()
        return [(version, locks.without_dead(state, now, is_alive)) for version, state in present]

    async def _commit(self, puts: Sequence[Put]) -> bool:
        writes = [Write(put.stream, create=locks.KIND) for put in puts]
        try:
            await self._store.commit(writes, puts)
        except VersionMoved:
            return False
        return True

    async def release(self, tenant: str, resource: str, token: str) -> bool:
        """Release what a token holds; False if it holds nothing."""
        while True:
            ((version, state),) = await self._present(tenant, [resource])
            if state.holder(token) is None:
                version, state = await self._read(tenant, resource)
            if state.holder(token) is None:
                return False
            after = locks.release(state, token)
            put = _put(tenant, after, version)
            if await self._commit([put]):
                self._remember(put, after)
                return True

    def _remember(self, put: Put, state: LockState) -> None:
        if len(self._last) >= _REMEMBERED:
            self._last.clear()
        self._last[put.key] = put.expect + 1, state

    async def get(self, tenant: str, resource: str) -> LockState | None:
        """Return a lock with its live holders; None if it was never acquired."""
        version, state = await self._read(tenant, resource)
        if version == 0:
            return None
        return (await self._without_dead([(version, state)]))[0][1]

    async def held(self, tenant: str | None) -> list[tuple[str, LockState]]:
        """Return the tenants and the locks that have live holders."""
        is_alive, now = await self._process.is_alive(), self.now()
        held = [
            (name, locks.without_dead(locks.decode(entry.data), now, is_alive))
            for name, entry in await self._held_entries(tenant)
        ]
        return [(name, state) for name, state in held if state.holders]

    async def _held_entries(self, tenant: str | None) -> list[tuple[str, Entry]]:
        """Return the entries of held locks; without a tenant, those of all tenants."""
        mark = LockState("", holders=(LockHolder("", "", "", 0, 0),))
        state = None if tenant is None else locks.entry_state(tenant, mark)
        return [
            (locks.parse_tenant(entry.state), entry)
            async for entry in all_entries(self._store, locks.KIND, state=state)
            if entry.state.startswith("held|")
        ]

    async def sweep(self) -> int:
        """Free the locks of expired and dead holders; return the number of holders."""
        is_alive, now = await self._process.is_alive(), self.now()
        freed = 0
        for name, entry in await self._held_entries(None):
            state = locks.decode(entry.data)
            after = locks.without_dead(state, now, is_alive)
            if after is not state and await self._commit([_put(name, after, entry.version)]):
                freed += len(state.holders) - len(after.holders)
        return freed

    async def drop_owner(self, tenant: str, owner: str) -> int:
        """Free everything that an owner holds; return the number of holders."""
        return await self.drop(tenant, lambda _, holder: holder.owner == owner)

    async def drop(self, tenant: str, is_dropped: "IsDropped") -> int:
        """Free the holders that a function selects; return their number."""
        dropped = 0
        for _, entry in await self._held_entries(tenant):
            resource = locks.decode(entry.data).resource
            while True:
                version, state = await self._read(tenant, resource)
                kept = [item for item in state.holders if not is_dropped(resource, item)]
                after = LockState(resource, state.version, state.mode, tuple(kept))
                if len(kept) == len(state.holders):
                    break
                if await self._commit([_put(tenant, after, version)]):
                    dropped += len(state.holders) - len(kept)
                    break
        return dropped


def _put(tenant: str, state: LockState, expect: int) -> Put:
    key, stream = locks.lock_key(tenant, state.resource), locks.lock_stream(tenant, state.resource)
    entry_state = locks.entry_state(tenant, state)
    return Put(locks.KIND, key, expect, stream, entry_state, None, locks.encode(state))


class IsDropped(Protocol):
    """Selection of holders."""

    def __call__(self, resource: str, holder: LockHolder, /) -> bool:
        """Return True if a holder is to be freed."""
        ...


class LocalLocks:
    """Locks in one process, without a store; the same rules."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.versions = count(1)  # of acquisitions of any resource
        self.table: dict[str, LockState | LockInfo] = {}

    def unfold(self) -> list[LockInfo]:
        """Turn plain locks, which have one holder for ever, into states; return them."""
        plain = [lock for lock in self.table.values() if isinstance(lock, LockInfo)]
        for lock in plain:
            at = round(lock.acquired * 1000)
            holder = LockHolder(lock.key, lock.owner, "", lock.version, at)
            name = lock.resource
            self.table[name] = LockState(name, lock.version, "exclusive", (holder,))
        return plain

    def _state(self, resource: str) -> LockState | None:
        state = self.table.get(resource)
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
            version = live.version if live.holder(request.token) else next(self.versions) - 1
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
