"""Webhooks that must go out: which facts are told, and what becomes of each attempt to tell."""

from enum import StrEnum
from typing import Final, Literal

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from perdure.core.pending.record import PendingRecord, PendingStatus
from perdure.errors import Corrupt

Occasion = Literal["pending", "expiring", "decided", "expired", "completed", "failed"]

TYPES: Final[dict[Occasion, str]] = {
    "pending": "pending.created",
    "expiring": "pending.expiring",
    "decided": "pending.decided",
    "expired": "pending.expired",
    "completed": "session.completed",
    "failed": "session.failed",
}

KIND: Final = "delivery"  # of the streams, and of the entries that find them
FOR_ALL: Final = "delivery:server"  # of the streams whose target only a configured process knows


def stream_of(delivery_id: str) -> str:
    """The stream of a delivery."""
    return f"delivery:{delivery_id}"


# --- what is told ---------------------------------------------------------------------------------


def of_call(record: PendingRecord, *, is_new: bool) -> Occasion | None:
    """What a call that was just written is an occasion for; a timer waits for nobody."""
    if record.kind == "timer":
        return None
    if record.is_open:
        return "pending" if is_new else None
    return "expired" if record.status is PendingStatus.EXPIRED else "decided"


def warn_at(record: PendingRecord, share: float) -> int | None:
    """When to tell that a call will expire: after this share of its time. None: it will not."""
    if record.due is None or record.timeout is None:
        return None
    begun = record.time.created
    return begun + int(max(0, record.timeout - begun) * share)


def still_expires(record: PendingRecord | None, timeout: int | None) -> bool:
    """Whether the deadline that a warning was made for is still the one that counts."""
    return record is not None and record.due is not None and record.timeout == timeout


# --- what becomes of it ---------------------------------------------------------------------------


class Status(StrEnum):
    """Where a delivery stands; all but the first are ends, until somebody asks for it again."""

    WAITING = "waiting"
    DELIVERED = "delivered"
    DEAD = "dead"
    WITHDRAWN = "withdrawn"


class Step(StrEnum):
    """What can happen to a delivery."""

    ACCEPTED = "accepted"
    REFUSED = "refused"
    GIVEN_UP = "given_up"
    WITHDRAWN = "withdrawn"
    REQUESTED = "requested"


MOVES: Final[dict[tuple[Status, Step], Status]] = {
    (Status.WAITING, Step.ACCEPTED): Status.DELIVERED,
    (Status.WAITING, Step.REFUSED): Status.WAITING,
    (Status.WAITING, Step.GIVEN_UP): Status.DEAD,
    (Status.WAITING, Step.WITHDRAWN): Status.WITHDRAWN,
    (Status.WAITING, Step.REQUESTED): Status.WAITING,
    (Status.DELIVERED, Step.REQUESTED): Status.WAITING,
    (Status.DEAD, Step.REQUESTED): Status.WAITING,
    (Status.WITHDRAWN, Step.REQUESTED): Status.WAITING,
}


class Delivery(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A delivery as its entry has it and as JSON shows it. The body stands in its stream."""

    id: str
    occasion: Occasion
    target: str  # who is told: a hook's id, or the server's own by its digest; never an address
    tenant: str = ""
    session_id: str = field(name="sessionID")
    pending_id: str | None = field(default=None, name="pendingID")
    timeout: int | None = None  # of the call, where it is told that it will expire
    status: Status = Status.WAITING
    attempts: int = 0  # since it was made, or asked for again
    last_status: int | None = field(default=None, name="lastStatus")
    last_error: str | None = field(default=None, name="lastError")
    created_at: int = field(name="createdAt")
    begun_at: int = field(name="begunAt")  # from when on the time for retries counts
    next_at: int | None = field(default=None, name="nextAt")
    settled_at: int | None = field(default=None, name="settledAt")


class DeliveryResponse(Struct, frozen=True, omit_defaults=True):
    """What an attempt met: a status, or what went wrong before there was one."""

    status: int | None = None
    error: str | None = None
    retry_after_ms: int | None = None


class Attempt(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A line of the delivery log: never what the receiver wrote, never a secret."""

    step: Step
    status: int | None = None
    error: str | None = None
    by: str | None = None
    next_at: int | None = field(default=None, name="nextAt")


BACK_OFF_S: Final = (5, 30, 120, 600, 1_800, 3_600, 7_200, 14_400, 28_800, 43_200, 86_400)
LIMIT_MS: Final = 3 * 86_400_000  # after which nobody tries any more
FEW: Final = 4  # attempts at a receiver that says that the request is wrong
MOST_WAIT_MS: Final = 86_400_000  # that a receiver may ask for
JITTER: Final = 0.2

FORBIDDEN: Final = "the address is not allowed"  # an error before there is a status
GONE: Final = 410
_AGAIN: Final = frozenset({408, 425, 429})  # refusals that say: later


def attempted(delivery: Delivery, answer: DeliveryResponse, now: int, chance: float) -> Delivery:
    """The delivery after an attempt; `chance`, from 0 to 1, spreads those that failed together."""
    made = replace(
        delivery,
        attempts=delivery.attempts + 1,
        last_status=answer.status,
        last_error=answer.error,
        next_at=None,
    )
    if answer.status is not None and 200 <= answer.status < 300:
        return _moved(made, Step.ACCEPTED, now)
    at = _next(made, answer, now, chance)
    if at is None:
        return _moved(made, Step.GIVEN_UP, now)
    return replace(_moved(made, Step.REFUSED, now), next_at=at)


def _next(delivery: Delivery, answer: DeliveryResponse, now: int, chance: float) -> int | None:
    if answer.status == GONE or delivery.attempts > len(BACK_OFF_S):
        return None
    if _is_final(answer) and delivery.attempts >= FEW:
        return None
    wait = BACK_OFF_S[delivery.attempts - 1] * 1000 * (1 + JITTER * (2 * chance - 1))
    asked = min(answer.retry_after_ms or 0, MOST_WAIT_MS)
    at = now + max(int(wait), asked)
    return at if at <= delivery.begun_at + LIMIT_MS else None


def _is_final(answer: DeliveryResponse) -> bool:
    """Whether the same request will hardly be taken later: a redirect, or a refusal of it."""
    if answer.status is None:
        return answer.error == FORBIDDEN
    return answer.status < 500 and answer.status not in _AGAIN


def withdrawn(delivery: Delivery, why: str, now: int) -> Delivery:
    """There is nothing to tell any more, or nobody to tell it to."""
    return replace(_moved(delivery, Step.WITHDRAWN, now), last_error=why, next_at=None)


def postponed(delivery: Delivery, at: int) -> Delivery:
    """Look at it again then; nothing was tried."""
    return replace(delivery, next_at=at)


def requested(delivery: Delivery, now: int) -> Delivery:
    """Somebody asked for it again: at once, and with the whole time for retries."""
    again = _moved(delivery, Step.REQUESTED, now)
    return replace(again, attempts=0, begun_at=now, next_at=now, settled_at=None)


def _moved(delivery: Delivery, step: Step, now: int) -> Delivery:
    status = MOVES[delivery.status, step]
    return replace(delivery, status=status, settled_at=None if status is Status.WAITING else now)


def step_of(delivery: Delivery) -> Step:
    """What the last attempt came to, for the log."""
    return {
        Status.WAITING: Step.REFUSED,
        Status.DELIVERED: Step.ACCEPTED,
        Status.DEAD: Step.GIVEN_UP,
        Status.WITHDRAWN: Step.WITHDRAWN,
    }[delivery.status]


# --- who is told ----------------------------------------------------------------------------------


SESSION_HOOK: Final = "h_"  # is told of a session's calls and its end
CALL_HOOK: Final = "c_"  # is told of the calls; and its secret signs what is said of them to us
KEY_ONLY: Final = "k_"  # is told nothing: a call's own secret alone


class Hook(Struct, frozen=True, omit_defaults=True):
    """Whom a call or a session tells: kept in an entry of its own, which no door shows."""

    url: str
    secret: str | None = None
    of_call: bool = False  # it was given for a call, and not for a session

    @property
    def prefix(self) -> str:
        """How names of such hooks begin: who writes a fact sees by the name whether to tell."""
        if not self.url:
            return KEY_ONLY
        return CALL_HOOK if self.of_call else SESSION_HOOK

    def __repr__(self) -> str:
        return "Hook(…)"


_delivery = msgspec.json.Decoder(Delivery)
_hook = msgspec.json.Decoder(Hook)


def encode(value: Delivery | Hook | Attempt) -> bytes:
    """The value as the data of an entry or a record."""
    return msgspec.json.encode(value)


def decode(data: bytes) -> Delivery:
    """The delivery of an entry. Raises Corrupt."""
    try:
        return _delivery.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Corrupt(f"the entry of a delivery cannot be read: {error}") from error


def decode_hook(data: bytes) -> Hook:
    """The hook of an entry. Raises Corrupt, which shows nothing of it."""
    try:
        return _hook.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise Corrupt("the entry of a hook cannot be read") from None
