"""Locks of resources: who holds one, and what acquiring and releasing it changes.

An exclusive lock excludes every other holder, a collaborative one only exclusive holders. The
version of a resource grows with each acquisition and is never reused, so it fences writes.
"""

import re
from collections.abc import Callable
from typing import Final, Literal

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from perdure.core.session.naming import quote, unquote
from perdure.errors import Conflict, Corrupt, NotAllowed, Refused

LockMode = Literal["exclusive", "collaborative"]
MODES: Final[tuple[LockMode, ...]] = ("exclusive", "collaborative")

KIND: Final = "lock"  # of the streams, and of the entries that find them
MAX_RESOURCE: Final = 500  # characters
FIRST_WAIT_MS: Final = 100  # between two attempts; doubled each time
LONGEST_WAIT_MS: Final = 1_000
MAX_TIMEOUT_MS: Final = 10**12  # about 30 years
_SURROGATE: Final = re.compile("[\ud800-\udfff]")


class LockHolder(Struct, frozen=True, omit_defaults=True):
    """One acquisition of a lock: by its token, in the process that `process` names."""

    token: str
    owner: str
    process: str
    version: int
    acquired_at: int = field(name="acquiredAt")
    timeout: int | None = None  # ms
    depth: int = 1  # how often the same token has acquired it

    def is_expired(self, now: int) -> bool:
        """Return True if its timeout has passed."""
        return self.timeout is not None and now >= self.acquired_at + self.timeout


class LockState(Struct, frozen=True, omit_defaults=True):
    """A lock as its entry stores it; one without holders is free."""

    resource: str
    version: int = 0
    mode: LockMode = "exclusive"
    holders: tuple[LockHolder, ...] = ()

    def holder(self, token: str) -> LockHolder | None:
        """Return the holder with this token, if there is one."""
        return next((item for item in self.holders if item.token == token), None)


class LockRequest(Struct, frozen=True):
    """A request for a lock; `process` is the holder name of the caller's runtime."""

    owner: str
    token: str
    process: str
    mode: LockMode = "exclusive"
    timeout: int | None = None


_decoder = msgspec.json.Decoder(LockState)


def encode(state: LockState) -> bytes:
    """Return the lock as the data of its entry."""
    return msgspec.json.encode(state)


def decode(data: bytes) -> LockState:
    """Return the lock of an entry. Raises Corrupt."""
    try:
        return _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Corrupt(f"the entry of a lock cannot be read: {error}") from error


def lock_key(tenant: str, resource: str) -> str:
    """Return the key of a lock's entry."""
    return f"{quote(tenant)}/{resource}"


def lock_stream(tenant: str, resource: str) -> str:
    """Return the stream of a lock; it is never erased, since its version must not start over."""
    return f"lock:{quote(tenant)}/{quote(resource)}"


def entry_state(tenant: str) -> str:
    """Return the state of the entries of a tenant's locks, held and free ones."""
    return f"lock|{quote(tenant)}"


def parse_tenant(text: str) -> str:
    """Return the tenant in the state of a lock's entry."""
    return unquote(text.partition("|")[2])


def entry_due(state: LockState) -> int | None:
    """Return the due time of a lock's entry: that of its oldest holder; None if it is free.

    So the index by due time has exactly the locks that are held, and a sweep reads no others.
    """
    return min((holder.acquired_at for holder in state.holders), default=None)


def without_dead(
    state: LockState, now: int, is_alive: Callable[[str], bool] | None = None
) -> LockState:
    """Return the lock without expired holders and, if `is_alive` says so, without dead ones."""
    live = tuple(
        item
        for item in state.holders
        if not item.is_expired(now) and (is_alive is None or is_alive(item.process))
    )
    return state if len(live) == len(state.holders) else replace(state, holders=live)


def acquire(state: LockState, request: LockRequest, now: int) -> tuple[LockState, LockHolder]:
    """Return the lock with one more holder, and that holder. Raises Conflict LOCK_CONFLICT.

    The same token may acquire a lock again; it must then release it as often.
    """
    mine = state.holder(request.token)
    if mine is not None:
        deeper = replace(mine, depth=mine.depth + 1)
        holders = tuple(deeper if item is mine else item for item in state.holders)
        return replace(state, holders=holders), deeper
    both = request.mode == state.mode == "collaborative"
    if state.holders and not both:
        raise lock_conflict(state.resource, state.holders[0].owner)
    holder = LockHolder(
        request.token, request.owner, request.process, state.version + 1, now, request.timeout
    )
    holders = (*state.holders, holder) if both else (holder,)
    return LockState(state.resource, holder.version, request.mode, holders), holder


def release(state: LockState, token: str) -> LockState:
    """Return the lock without this holder, or with the holder less deep."""
    mine = state.holder(token)
    if mine is None:
        return state
    if mine.depth > 1:
        less = replace(mine, depth=mine.depth - 1)
        return replace(
            state, holders=tuple(less if item is mine else item for item in state.holders)
        )
    return replace(state, holders=tuple(item for item in state.holders if item is not mine))


def lock_conflict(resource: str, owner: str) -> Conflict:
    """Return the error for a lock that another holder has."""
    return Conflict(
        f"Resource '{resource}' is already locked by '{owner}'",
        code="LOCK_CONFLICT",
        hint="try again later, or acquire it in collaborative mode if its holder did",
        details={"resource": resource, "owner": owner},
    )


def not_owner(resource: str, owner: str, holder: str) -> NotAllowed:
    """Return the error for a release by a caller that does not hold the lock."""
    return NotAllowed(
        f"Resource '{resource}' is locked by '{holder}', and '{owner}' may not release it",
        code="LOCK_PERMISSION_DENIED",
        hint="release it in the process and with the lock that acquired it",
        details={"resource": resource, "owner": holder},
    )


def stale_lock(resource: str, version: int, present: int) -> Conflict:
    """Return the error for a write under a lock that another holder has acquired since."""
    state = f"has version {present}" if present != version else "was released"
    return Conflict(
        f"the lock on '{resource}' {state}, and the write holds version {version}",
        code="VERSION_CONFLICT",
        hint="acquire the lock again, and look at the task before you write",
        details={"resource": resource, "version": version, "present": present},
    )


def is_lock_of(resource: str, task_id: str) -> bool:
    """Return True for the lock on a task, `task:ID`, and those on parts of it."""
    name = f"task:{task_id}"
    return resource == name or resource.startswith((f"{name}:", f"{name}/"))


def is_lock_name(value: object) -> bool:
    """Return True for a valid resource or owner, which a store can keep."""
    return (
        isinstance(value, str)
        and 0 < len(value) <= MAX_RESOURCE
        and not value.isspace()
        and _SURROGATE.search(value) is None
    )


def check_lock_names(resource: object, owner: object = "-") -> None:
    """Check a resource, and the owner of a lock on it. Raises Refused INVALID_REQUEST."""
    for label, name in (("a resource", resource), ("the owner of a lock", owner)):
        if not is_lock_name(name):
            raise _invalid(f"{label} must be text of 1 to {MAX_RESOURCE} characters, and not blank")


def check_request(resource: object, owner: object, mode: object, timeout: object) -> None:
    """Check the arguments of an acquisition. Raises Refused INVALID_REQUEST."""
    check_lock_names(resource, owner)
    if mode not in MODES:
        raise _invalid(f"{_shown(mode)} is not a mode of locks: use {' or '.join(MODES)}")
    if timeout is None:
        return
    is_number = isinstance(timeout, int | float) and not isinstance(timeout, bool)
    if not is_number or not 0 < timeout <= MAX_TIMEOUT_MS:  # type: ignore[operator]
        raise _invalid(
            f"the timeout of a lock is milliseconds above 0 and up to {MAX_TIMEOUT_MS:,}, "
            f"not {_shown(timeout)}"
        )


def _shown(value: object) -> str:
    return f"{value!a}"[:60]


def _invalid(text: str) -> Refused:
    return Refused(text, code="INVALID_REQUEST", hint="see the documentation of LockManager")


def wait_ms(attempt: int) -> int:
    """Return the wait before an attempt, from 1 on: 100 ms, doubled, at most 1 s."""
    return int(min(FIRST_WAIT_MS * 2 ** (attempt - 1), LONGEST_WAIT_MS))
