"""Locks of resources, for the agents of one process or of all processes on a store."""

from collections.abc import Awaitable, Callable, Sequence
from itertools import count
from time import time
from typing import Any, TypeVar, overload

from perdure.app import Runtime, tenant_of
from perdure.core.tasks.locks import MAX_RESOURCE, LockMode, LockState
from perdure.errors import Refused
from perdure.runtime.tasks.locks.manager import MAX_BATCH, RETRIES, Locks
from perdure.runtime.tasks.locks.tables import LocalLocks
from perdure.runtime.tasks.locks.values import LockInfo
from perdure.store.base import WallClock
from perdure.tasks.access import open_tasks

T = TypeVar("T")

MAX_NAMES = 10_000  # that are remembered as checked


class LockManager:
    """Locks on the store of an open runtime; without a runtime, in this process only.

    A lock belongs to its token and to the runtime that acquired it. It is free when it is
    released, when its timeout (in ms) has passed, or when the process has died.
    """

    def __init__(self, rt: Runtime | None = None) -> None:
        self._rt = rt
        self._local = LocalLocks(WallClock()) if rt is None else None
        self._own = None if self._local is None else Locks(self._local)
        # Exclusive locks without a timeout are plain values: most locks in a process are such, and
        # none of the rules of the others applies to them.
        self._plain: dict[Any, LockState | LockInfo] | None = None
        self._checked: set[str] = set()  # resources and owners that are valid
        self._versions = count(1)
        if self._local is not None:
            self._plain, self._versions = self._local.table, self._local.versions

    @property
    def _locks(self) -> Locks:
        if self._own is None or self._local is None:
            assert self._rt is not None  # noqa: S101 - one of the two is there
            return open_tasks(self._rt).locks
        for lock in self._local.unfold():
            self._own.adopt("", lock.resource, lock.owner, lock.key)
        return self._own

    @property
    def _tenant(self) -> str:
        return "" if self._rt is None else tenant_of(self._rt) or ""

    async def acquire_lock_with_retry(
        self,
        resource: str,
        owner: str,
        mode: LockMode = "exclusive",
        max_retries: int = RETRIES,
        timeout: float | None = None,  # noqa: ASYNC109 - of the lock
        *,
        token: str | None = None,
    ) -> LockInfo:
        """Acquire a lock. Raises OpenCodeError LOCK_CONFLICT.

        An exclusive lock is refused at once; a collaborative one is tried again, `max_retries`
        times. With the `token` of a lock that this caller holds, it is acquired once more.
        """
        plain = self._plain
        if (
            plain is not None
            and timeout is None
            and token is None
            and mode == "exclusive"
            and max_retries == 3  # the default: others are checked
            and resource not in plain
            and owner in self._checked
            and (resource in self._checked or self._is_name(resource))
        ):
            lock = plain[resource] = LockInfo(resource, owner, time(), None, next(self._versions))
            return lock
        acquired = await self._locks.acquire(
            self._tenant,
            [resource],
            owner,
            mode=mode,
            retries=max_retries,
            timeout=timeout,
            token=token,
        )
        if self._plain is not None:
            self._is_name(owner)
        return acquired[0]

    def _is_name(self, text: str) -> bool:
        """Return True for a valid resource or owner, and remember it."""
        is_valid = text.__class__ is str and len(text) <= MAX_RESOURCE and not text.isspace()
        if is_valid and text and len(self._checked) < MAX_NAMES:
            self._checked.add(text)
        return is_valid and bool(text)

    async def release_lock(
        self, resource: str | LockInfo, owner: str | None = None, *, token: str | None = None
    ) -> bool:
        """Release a lock: the one that was returned, or by resource and owner.

        False and a warning if there is none. Raises OpenCodeError LOCK_PERMISSION_DENIED if
        another holder has it.
        """
        plain = self._plain
        if plain is not None and token is None:
            lock = plain.get(resource)
            if lock.__class__ is LockInfo and lock.owner == owner:
                del plain[resource]
                return True
        if isinstance(resource, LockInfo):
            held = resource
            resource, owner, token = held.resource, held.owner, held.key
        if not isinstance(resource, str) or not isinstance(owner, str):
            raise Refused(
                "a release needs a lock, or a resource and its owner",
                code="INVALID_REQUEST",
                hint="pass what acquire_lock_with_retry returned",
            )
        return await self._locks.release(self._tenant, resource, owner, token)

    async def with_lock(
        self,
        resource: str,
        owner: str,
        fn: Callable[[], Awaitable[T]],
        mode: LockMode = "exclusive",
        timeout: float | None = None,  # noqa: ASYNC109 - of the lock
        *,
        token: str | None = None,
    ) -> T:
        """Call an async function while holding a lock, and release it however that ends."""
        return await self._locks.with_lock(
            self._tenant, resource, owner, fn, mode=mode, timeout=timeout, token=token
        )

    async def acquire_batch_lock(
        self,
        resources: Sequence[str],
        owner: str,
        mode: LockMode = "exclusive",
        timeout: float | None = None,  # noqa: ASYNC109 - of the locks
    ) -> list[str]:
        """Acquire locks on all resources in one commit, or on none; returns them sorted."""
        names = _batch(resources)
        if names:
            retries = RETRIES if mode == "collaborative" else 0
            await self._locks.acquire(
                self._tenant, names, owner, mode=mode, retries=retries, timeout=timeout
            )
        return names

    async def release_batch_lock(self, resources: Sequence[str], owner: str) -> None:
        """Release locks; raises OpenCodeError BATCH_UNLOCK_FAILED with those that failed."""
        await self._locks.release_all(self._tenant, _batch(resources), owner)

    @overload
    async def get_lock_status(self, resource: str) -> LockInfo | None: ...

    @overload
    async def get_lock_status(self, resource: None = None) -> dict[str, LockInfo]: ...

    async def get_lock_status(
        self, resource: str | None = None
    ) -> LockInfo | dict[str, LockInfo] | None:
        """Return the lock on a resource or None; without a resource all locks, by resource."""
        if resource is None:
            return await self._locks.statuses(self._tenant)
        return await self._locks.status(self._tenant, resource)

    async def get_lock_statistics(self) -> dict[str, Any]:
        """Return `{totalLocks, locksByOwner, oldestLock?: {resource, age}}`; the age is in ms."""
        return await self._locks.statistics(self._tenant)

    async def emergency_cleanup(self, owner: str) -> int:
        """Free all locks of an owner, in any process; returns their number."""
        return await self._locks.drop_owner(self._tenant, owner)

    async def sweep(self) -> int:
        """Free the locks of expired holders and of dead processes; returns their number."""
        return await self._locks.sweep()


def _batch(resources: Sequence[str]) -> list[str]:
    if isinstance(resources, str) or not all(isinstance(name, str) for name in resources):
        raise Refused(
            "a batch is a list of resources", code="INVALID_REQUEST", hint='pass ["a", "b"]'
        )
    if len(resources) > MAX_BATCH:
        raise Refused(
            f"a batch has {len(resources):,} resources, and {MAX_BATCH:,} are allowed",
            code="INVALID_REQUEST",
            hint="acquire them in several batches",
        )
    return sorted(set(resources))
