"""Tables of locks: their verbs, and the table in a store, which its processes share."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, Protocol

from perdure.errors import Conflict, Corrupt, PerdureError
from perdure.store.base import Entry, Put, Store, VersionMoved, Write
from perdure.store.shared.all_pages import all_entries
from perdure.tasks.locks.process import LockProcess
from perdure.tasks.model import locks
from perdure.tasks.model.locks import LockHolder, LockRequest, LockState

_REMEMBERED: Final = 10_000  # locks whose version is remembered
_FOREVER: Final = 2**62
SWEEP_PAGE: Final = 200  # held locks that a step of a sweep looks at


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
            if await self._commit_acquisition(tenant, resources, request.token, puts):
                for put, (state, _) in zip(puts, after, strict=True):
                    self._remember(put, state)
                return [holder for _, holder in after]

    async def _commit_acquisition(
        self, tenant: str, resources: Sequence[str], token: str, puts: Sequence[Put]
    ) -> bool:
        """Commit; a caller that is cancelled meanwhile gets no lock, so none may stay behind."""
        commit = asyncio.ensure_future(self._commit(puts))
        try:
            return await asyncio.shield(commit)
        except asyncio.CancelledError:

            async def give_back() -> None:
                with suppress(PerdureError):
                    if await commit:
                        for resource in resources:
                            await self.release(tenant, resource, token)

            self._process.run_beside(give_back)
            raise

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

    async def _commit(self, puts: Sequence[Put], *, synced: bool = True) -> bool:
        writes = [Write(put.stream, create=locks.KIND, synced=synced) for put in puts]
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
            # A release that a loss of power takes back frees the lock all the same: its process
            # has ended then. The next acquisition, which is synced, makes it durable.
            if await self._commit([put], synced=False):
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
        state = None if tenant is None else locks.entry_state(tenant)
        held = all_entries(self._store, locks.KIND, state=state, due_before=_FOREVER)
        return [(locks.parse_tenant(entry.state), entry) async for entry in held]

    async def sweep(self) -> int:
        """Free the locks of expired and dead holders; return the number of holders."""
        freed, after = await self.sweep_page(None)
        while after is not None:
            number, after = await self.sweep_page(after)
            freed += number
        return freed

    async def sweep_page(self, after: str | None) -> tuple[int, str | None]:
        """Sweep some of the held locks; return the number of freed holders, and what is next."""
        page = await self._store.find(
            locks.KIND, due_before=_FOREVER, after=after, limit=SWEEP_PAGE
        )
        if not page.entries:
            return 0, None
        is_alive, freed = await self._process.is_alive(), 0
        for entry in page.entries:
            with suppress(Corrupt):  # which `doctor` reports
                state = locks.decode(entry.data)
                after_sweep = locks.without_dead(state, self.now(), is_alive)
                put = _put(locks.parse_tenant(entry.state), after_sweep, entry.version)
                if after_sweep is not state and await self._commit([put]):
                    freed += len(state.holders) - len(after_sweep.holders)
        return freed, page.next

    async def drop_owner(self, tenant: str, owner: str) -> int:
        """Free everything that an owner holds; return the number of holders."""
        return await self.drop(tenant, lambda _, holder: holder.owner == owner)

    async def drop(self, tenant: str, is_dropped: Callable[[str, LockHolder], bool]) -> int:
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
    names = locks.entry_state(tenant), locks.entry_due(state)
    return Put(locks.KIND, key, expect, stream, *names, locks.encode(state))
