"""Verbs on locks, for a table of either kind: retry, batches, status, statistics, cleanup."""

import logging
from asyncio import sleep
from collections.abc import Sequence
from typing import Any, Final

from perdure.errors import Conflict, PerdureError, Refused
from perdure.ids import secret_id
from perdure.tasks.locks.tables import LockTable
from perdure.tasks.locks.values import LockInfo
from perdure.tasks.model import locks
from perdure.tasks.model.locks import LockHolder, LockMode, LockRequest, LockState

logger = logging.getLogger("perdure")

RETRIES: Final = 3
MAX_BATCH: Final = 1_000


class Locks:
    """Locks of a table, and the tokens that were acquired through this object."""

    def __init__(self, table: LockTable) -> None:
        self.table = table
        # Tokens by tenant, resource and owner, newest last.
        self._tokens: dict[tuple[str, str, str], list[str]] = {}

    async def acquire(  # noqa: PLR0913 - the parameters of a lock
        self,
        tenant: str,
        resources: Sequence[str],
        owner: str,
        *,
        mode: LockMode = "exclusive",
        retries: int = 0,
        timeout: float | None = None,  # noqa: ASYNC109 - of the lock
        token: str | None = None,
    ) -> list[LockInfo]:
        """Acquire resources, all or none, in their order. Raises Conflict LOCK_CONFLICT.

        In collaborative mode it is tried again after 100 ms, 200 ms … up to 1 s.
        """
        for resource in resources:
            locks.check_request(resource, owner, mode, timeout)
        _check_retries(retries)
        limit = None if timeout is None else max(1, round(timeout))
        request = LockRequest(owner, token or secret_id("lock"), "", mode, limit)
        holders = await self._acquire_with_retry(tenant, resources, request, retries)
        for resource in resources:
            if mode == "exclusive" and token is None:  # then no older token holds it any more
                self._tokens.pop((tenant, resource, owner), None)
            self.adopt(tenant, resource, owner, request.token)
        return [
            _info(resource, holder, mode)
            for resource, holder in zip(resources, holders, strict=True)
        ]

    def adopt(self, tenant: str, resource: str, owner: str, token: str) -> None:
        """Remember a token, so that its owner can release the lock by its name."""
        self._tokens.setdefault((tenant, resource, owner), []).append(token)

    async def _acquire_with_retry(
        self, tenant: str, resources: Sequence[str], request: LockRequest, retries: int
    ) -> list[LockHolder]:
        attempt = 0
        while True:
            try:
                return await self.table.acquire(tenant, resources, request)
            except Conflict:
                attempt += 1
                if request.mode == "exclusive" or attempt > retries:
                    raise
            await sleep(locks.wait_ms(attempt) / 1000)

    async def release(
        self, tenant: str, resource: str, owner: str, token: str | None = None
    ) -> bool:
        """Release a lock; False and a warning if it is free.

        Without a token it is the newest one that the owner acquired through this object. Raises
        NotAllowed LOCK_PERMISSION_DENIED if another holder has it.
        """
        locks.check_lock_names(resource, owner)
        while chosen := self._take_token(tenant, resource, owner, token):
            try:
                if await self.table.release(tenant, resource, chosen):
                    return True
            except BaseException:  # it may still be held, and its owner tries again
                self.adopt(tenant, resource, owner, chosen)
                raise
            if token is not None:
                break
        present = await self.table.get(tenant, resource)
        if present is not None and present.holders:
            raise locks.not_owner(resource, owner, present.holders[0].owner)
        logger.warning("there is no lock on %r for %r to release", resource, owner)
        return False

    def _take_token(self, tenant: str, resource: str, owner: str, token: str | None) -> str | None:
        """Forget a token and return it: the given one, or the newest one of the owner."""
        key = (tenant, resource, owner)
        tokens = self._tokens.get(key, [])
        if token is None:
            token = tokens.pop() if tokens else None
        elif token in tokens:
            tokens.remove(token)  # an equal one is as good as the newest
        if not tokens:
            self._tokens.pop(key, None)
        return token

    async def release_all(self, tenant: str, resources: Sequence[str], owner: str) -> None:
        """Release several locks; those that fail are named in BATCH_UNLOCK_FAILED."""
        failures: dict[str, str] = {}
        for resource in resources:
            try:
                if not await self.release(tenant, resource, owner):
                    failures[resource] = "it is not locked"
            except PerdureError as error:
                failures[resource] = error.message
        if failures:
            raise Conflict(
                f"{len(failures)} of {len(resources)} locks were not released: "
                + ", ".join(sorted(failures)),
                code="BATCH_UNLOCK_FAILED",
                hint="the others were released; look at get_lock_status()",
                details={"failures": failures},
            )

    async def status(self, tenant: str, resource: str) -> LockInfo | None:
        """Return a lock, with the owners of all its holders; None if it is free."""
        locks.check_lock_names(resource)
        state = await self.table.get(tenant, resource)
        return None if state is None or not state.holders else _status(state)

    async def statuses(self, tenant: str | None) -> dict[str, LockInfo]:
        """Return every lock that is held, by resource."""
        return {state.resource: _status(state) for _, state in await self.table.held(tenant)}

    async def statistics(self, tenant: str | None) -> dict[str, Any]:
        """Return the number of locks, in all and by owner, and the age of the oldest in ms."""
        held = [state for _, state in await self.table.held(tenant)]
        holders = [(state.resource, holder) for state in held for holder in state.holders]
        owners: dict[str, int] = {}
        for _, holder in holders:
            owners[holder.owner] = owners.get(holder.owner, 0) + 1
        numbers: dict[str, Any] = {"totalLocks": len(holders), "locksByOwner": owners}
        if holders:
            resource, oldest = min(holders, key=lambda item: item[1].acquired_at)
            age = self.table.now() - oldest.acquired_at
            numbers["oldestLock"] = {"resource": resource, "age": age}
        return numbers

    async def drop_owner(self, tenant: str, owner: str) -> int:
        """Free everything that an owner holds, in any process; return the number of locks."""
        dropped = await self.table.drop_owner(tenant, owner)
        logger.warning("emergency cleanup freed %d locks of %r", dropped, owner)
        return dropped

    async def sweep(self) -> int:
        """Free the locks of expired holders and of dead processes; return their number."""
        return await self.table.sweep()


def _check_retries(retries: Any) -> None:
    if isinstance(retries, bool) or not isinstance(retries, int) or retries < 0:
        text = f"max_retries must be 0 or more, not {ascii(retries)[:60]}"
        raise _invalid(text, "pass the number of further attempts")


def _invalid(text: str, hint: str) -> Refused:
    return Refused(text, code="INVALID_REQUEST", hint=hint)


def _info(resource: str, holder: LockHolder, mode: LockMode) -> LockInfo:
    return LockInfo(
        resource,
        holder.owner,
        holder.acquired_at / 1000,
        holder.timeout,
        holder.version,
        mode,
        holder.token,
        (holder.owner,),
    )


def _status(state: LockState) -> LockInfo:
    first = state.holders[0]
    owners = tuple(holder.owner for holder in state.holders)
    return LockInfo(
        state.resource,
        first.owner,
        first.acquired_at / 1000,
        first.timeout,
        first.version,
        state.mode,
        "",
        owners,
    )
