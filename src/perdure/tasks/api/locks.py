"""Locks of resources, for the agents of one process or of all processes on a store."""

import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from time import time
from typing import Any, TypeVar, overload

import anyio

from perdure.errors import PerdureError, Refused
from perdure.ids import secret_ids
from perdure.store.base import WallClock
from perdure.tasks.api.access import open_tasks, tenant_of
from perdure.tasks.first_use import TaskHost
from perdure.tasks.locks.local_table import LocalLocks
from perdure.tasks.locks.manager import MAX_BATCH, RETRIES, Locks
from perdure.tasks.locks.values import LockInfo
from perdure.tasks.model.locks import MAX_TIMEOUT_MS, LockMode, LockState, is_lock_name

T = TypeVar("T")

logger = logging.getLogger("perdure")

MAX_FREE = 10_000  # resources, above which those that are free are forgotten


class LockManager:
    """Locks on the store of an open runtime; without a runtime, in this process only.

    A lock belongs to its token and to the runtime that acquired it. It is free when it is
    released, when its timeout (in ms) has passed, or when the process has died.
    """

    def __init__(self, rt: TaskHost | None = None) -> None:
        self._rt = rt
        clock = WallClock()
        self._now = clock.now
        self._local = LocalLocks(clock, self._next_version) if rt is None else None
        self._own = None if self._local is None else Locks(self._local)
        # The lock of a sole holder that has it for the first time is a plain value: most locks in a
        # process are such, and need none of the rules for several holders. A resource whose last
        # such lock was released has the name of its owner: both names are valid, and it is free.
        self._plain: dict[Any, LockState | LockInfo | str] = {}
        self._forget_above = MAX_FREE
        self._version = 0  # of the last acquisition of any resource in this process
        self._tokens = secret_ids("lock")
        if self._local is not None:
            self._plain = self._local.table

    def _locks(self, *resources: str) -> Locks:
        """Return the locks by all rules, for a call that concerns these resources only, or all."""
        if self._own is None or self._local is None:
            assert self._rt is not None  # noqa: S101 - one of the two is there
            return open_tasks(self._rt).locks
        for lock in self._local.unfold(resources or None):
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
        token: str | None = None,
    ) -> LockInfo:
        """Acquire a lock. Raises OpenCodeError LOCK_CONFLICT.

        An exclusive lock is refused at once; a collaborative one is tried again, `max_retries`
        times. With the `token` of a lock that this caller holds, it is acquired once more.
        """
        try:
            last = self._plain[resource]
        except (KeyError, TypeError):  # a resource that is new, or not a name
            last = None
        is_free = (last.__class__ is str and last == owner) or self._is_new(last, resource, owner)
        if (
            is_free
            and token is None
            and (timeout is None or (timeout.__class__ is int and 0 < timeout <= MAX_TIMEOUT_MS))
            and (mode == "exclusive" or mode == "collaborative")  # noqa: PLR1714 - faster than `in`
            and (max_retries == 3 or (max_retries.__class__ is int and max_retries >= 0))
        ):
            self._version = version = self._version + 1
            at = time() if timeout is None else self._now() / 1000
            lock = self._plain[resource] = LockInfo(
                resource, owner, at, timeout, version, mode, next(self._tokens), (owner,)
            )
            return lock
        acquired = await self._locks(resource).acquire(
            self._tenant,
            [resource],
            owner,
            mode=mode,
            retries=max_retries,
            timeout=timeout,
            token=token,
        )
        return acquired[0]

    def _next_version(self) -> int:
        self._version += 1
        return self._version

    def _is_new(self, last: object, resource: str, owner: str) -> bool:
        """Return True if a resource is free in this process, and both names are valid."""
        if self._local is None or (last is not None and last.__class__ is not str):
            return False
        if len(self._plain) >= self._forget_above:
            self._local.forget_free()
            self._forget_above = max(MAX_FREE, 2 * len(self._plain))
        return is_lock_name(resource) and is_lock_name(owner)

    async def release_lock(
        self, resource: str | LockInfo, owner: str | None = None, token: str | None = None
    ) -> bool:
        """Release a lock: the one that was returned, or by resource and owner.

        False and a warning if there is none. Raises OpenCodeError LOCK_PERMISSION_DENIED if
        another holder has it.
        """
        if resource.__class__ is LockInfo:
            held: Any = resource
            resource, owner, token = held.resource, held.owner, held.key
        try:
            lock: Any = self._plain[resource]
        except (KeyError, TypeError):
            lock = None
        if (
            lock.__class__ is LockInfo
            and lock.owner == owner
            and (token is None or token == lock.token)
        ):
            self._plain[resource] = owner
            return True
        if not isinstance(resource, str) or not isinstance(owner, str):
            raise Refused(
                "a release needs a lock, or a resource and its owner",
                code="INVALID_REQUEST",
                hint="pass what acquire_lock_with_retry returned",
            )
        return await self._locks(resource).release(self._tenant, resource, owner, token)

    async def with_lock(  # noqa: PLR0913 - the parameters of a lock
        self,
        resource: str,
        owner: str,
        fn: Callable[[], Awaitable[T]],
        mode: LockMode = "exclusive",
        timeout: float | None = None,  # noqa: ASYNC109 - of the lock
        *,
        max_retries: int = RETRIES,
        token: str | None = None,
    ) -> T:
        """Call an async function while holding a lock, and release it however that ends.

        The lock is acquired as by `acquire_lock_with_retry`. A release that fails is logged, and
        hides no error of the function.
        """
        if not callable(fn):
            raise Refused(
                "with_lock needs a function to call",
                code="INVALID_REQUEST",
                hint="pass it without calling it",
            )
        lock = await self.acquire_lock_with_retry(
            resource, owner, mode, max_retries, timeout, token
        )
        try:
            return await fn()
        finally:
            await self._release_in_the_end(lock)

    async def _release_in_the_end(self, lock: LockInfo) -> None:
        try:
            if self._rt is None:  # nothing is awaited, so nothing can be cancelled
                await self.release_lock(lock)
            else:
                with anyio.CancelScope(shield=True):
                    await self.release_lock(lock)
        except PerdureError as error:
            logger.warning("the lock on %r was not released: %s", lock.resource, error.message)

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
            await self._locks(*names).acquire(
                self._tenant, names, owner, mode=mode, retries=retries, timeout=timeout
            )
        return names

    async def release_batch_lock(self, resources: Sequence[str], owner: str) -> None:
        """Release locks; raises OpenCodeError BATCH_UNLOCK_FAILED with those that failed."""
        names = _batch(resources)
        await self._locks(*names).release_all(self._tenant, names, owner)

    @overload
    async def get_lock_status(self, resource: str) -> LockInfo | None: ...

    @overload
    async def get_lock_status(self, resource: None = None) -> dict[str, LockInfo]: ...

    async def get_lock_status(
        self, resource: str | None = None
    ) -> LockInfo | dict[str, LockInfo] | None:
        """Return the lock on a resource or None; without a resource all locks, by resource."""
        if resource is None:
            return await self._locks().statuses(self._tenant)
        return await self._locks(resource).status(self._tenant, resource)

    async def get_lock_statistics(self) -> dict[str, Any]:
        """Return `{totalLocks, locksByOwner, oldestLock?: {resource, age}}`; the age is in ms."""
        return await self._locks().statistics(self._tenant)

    async def emergency_cleanup(self, owner: str) -> int:
        """Free all locks of an owner, in any process; returns their number."""
        return await self._locks().drop_owner(self._tenant, owner)

    async def sweep(self) -> int:
        """Free the locks of expired holders and of dead processes; returns their number."""
        return await self._locks().sweep()


def _batch(resources: Sequence[str]) -> list[str]:
    is_list = isinstance(resources, Iterable) and not isinstance(resources, str | bytes)
    if not is_list or not all(isinstance(name, str) for name in resources):
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
