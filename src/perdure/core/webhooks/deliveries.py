"""Webhook deliveries: their occasions, their life as a table, and their receivers."""

from enum import StrEnum
from typing import Final, Literal

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from perdure.core.pending.record import PendingRecord
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
SERVER_KIND: Final = (
    "delivery:server"  # of the streams whose receiver only a configured process knows
)


def delivery_stream(delivery_id: str) -> str:
    """Return the stream of a delivery."""
    return f"delivery:{delivery_id}"


# --- occasions ------------------------------------------------------------------------------------


def call_occasion(record: PendingRecord, *, is_new: bool) -> Occasion | None:
    """Return the occasion of a pending call that was just written; timers have none."""
    if record.kind == "timer":
        return None
    if record.is_open:
        return "pending" if is_new else None
    return "expired" if record.status == "expired" else "decided"


def warning_at(record: PendingRecord, share: float) -> int | None:
    """Return when to warn that a call will expire: after this share of its time; None: never."""
    if record.due is None or record.timeout is None:
        return None
    created = record.time.created
    return created + int(max(0, record.timeout - created) * share)


def is_warning_current(record: PendingRecord | None, timeout: int | None) -> bool:
    """Return True if a call still has the deadline that a warning was created for."""
    return record is not None and record.due is not None and record.timeout == timeout


# --- life of a delivery ---------------------------------------------------------------------------


class DeliveryStatus(StrEnum):
    """Status of a delivery; all but the first are final until a caller requests redelivery."""

    WAITING = "waiting"
    DELIVERED = "delivered"
    DEAD = "dead"
    WITHDRAWN = "withdrawn"


class DeliveryStep(StrEnum):
    """Transition of a delivery."""

    ACCEPTED = "accepted"
    REFUSED = "refused"
    GIVEN_UP = "given_up"
    WITHDRAWN = "withdrawn"
    REQUESTED = "requested"


MOVES: Final[dict[tuple[DeliveryStatus, DeliveryStep], DeliveryStatus]] = {
    (DeliveryStatus.WAITING, DeliveryStep.ACCEPTED): DeliveryStatus.DELIVERED,
    (DeliveryStatus.WAITING, DeliveryStep.REFUSED): DeliveryStatus.WAITING,
    (DeliveryStatus.WAITING, DeliveryStep.GIVEN_UP): DeliveryStatus.DEAD,
    (DeliveryStatus.WAITING, DeliveryStep.WITHDRAWN): DeliveryStatus.WITHDRAWN,
    (DeliveryStatus.WAITING, DeliveryStep.REQUESTED): DeliveryStatus.WAITING,
    (DeliveryStatus.DELIVERED, DeliveryStep.REQUESTED): DeliveryStatus.WAITING,
    (DeliveryStatus.DEAD, DeliveryStep.REQUESTED): DeliveryStatus.WAITING,
    (DeliveryStatus.WITHDRAWN, DeliveryStep.REQUESTED): DeliveryStatus.WAITING,
}


class DeliveryRecord(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A delivery as it is stored in its entry and as JSON shows it. Its stream has the body."""

    id: str
    occasion: Occasion
    target: str  # the receiver: a hook's id, or the digest of the server's URL; never a URL
    tenant: str = ""
    session_id: str = field(name="sessionID")
    pending_id: str | None = field(default=None, name="pendingID")
    timeout: int | None = None  # deadline of the call, if the occasion is `expiring`
    status: DeliveryStatus = DeliveryStatus.WAITING
    attempts: int = 0  # since it was created, or redelivery was requested
    last_status: int | None = field(default=None, name="lastStatus")
    last_error: str | None = field(default=None, name="lastError")
    created_at: int = field(name="createdAt")
    begun_at: int = field(name="begunAt")  # start of the time for retries
    next_at: int | None = field(default=None, name="nextAt")
    settled_at: int | None = field(default=None, name="settledAt")


class DeliveryResponse(Struct, frozen=True, omit_defaults=True):
    """Response to an attempt: an HTTP status, or the error that prevented one."""

    status: int | None = None
    error: str | None = None
    retry_after_ms: int | None = None


class Attempt(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Entry of the delivery log: never the receiver's text, never a secret."""

    step: DeliveryStep
    status: int | None = None
    error: str | None = None
    by: str | None = None
    next_at: int | None = field(default=None, name="nextAt")


BACK_OFF_S: Final = (5, 30, 120, 600, 1_800, 3_600, 7_200, 14_400, 28_800, 43_200, 86_400)
LIMIT_MS: Final = 3 * 86_400_000  # after which it is dead
MAX_REFUSALS: Final = 4  # attempts if the receiver rejects the request itself
MAX_RETRY_AFTER_MS: Final = 86_400_000  # the longest wait that a receiver may request
JITTER: Final = 0.2

FORBIDDEN: Final = "the address is not allowed"  # an error before there is a status
GONE: Final = 410
_TRANSIENT: Final = frozenset({408, 425, 429})  # client errors that may pass


def record_attempt(
    delivery: DeliveryRecord, response: DeliveryResponse, now: int, chance: float
) -> DeliveryRecord:
    """Return the delivery after an attempt; `chance`, from 0 to 1, gives the jitter."""
    attempted = replace(
        delivery,
        attempts=delivery.attempts + 1,
        last_status=response.status,
        last_error=response.error,
        next_at=None,
    )
    if response.status is not None and 200 <= response.status < 300:
        return _moved(attempted, DeliveryStep.ACCEPTED, now)
    next_at = _next_attempt_at(attempted, response, now, chance)
    if next_at is None:
        return _moved(attempted, DeliveryStep.GIVEN_UP, now)
    return replace(_moved(attempted, DeliveryStep.REFUSED, now), next_at=next_at)


def _next_attempt_at(
    delivery: DeliveryRecord, response: DeliveryResponse, now: int, chance: float
) -> int | None:
    if response.status == GONE or delivery.attempts > len(BACK_OFF_S):
        return None
    if _is_final(response) and delivery.attempts >= MAX_REFUSALS:
        return None
    wait = BACK_OFF_S[delivery.attempts - 1] * 1000 * (1 + JITTER * (2 * chance - 1))
    requested = min(response.retry_after_ms or 0, MAX_RETRY_AFTER_MS)
    at = now + max(int(wait), requested)
    return at if at <= delivery.begun_at + LIMIT_MS else None


def _is_final(response: DeliveryResponse) -> bool:
    """Return True if a retry will hardly succeed: a redirect, or a rejected request."""
    if response.status is None:
        return response.error == FORBIDDEN
    return response.status < 500 and response.status not in _TRANSIENT


def withdraw(delivery: DeliveryRecord, reason: str, now: int) -> DeliveryRecord:
    """Return the delivery withdrawn: its occasion has passed, or it has no receiver."""
    return replace(_moved(delivery, DeliveryStep.WITHDRAWN, now), last_error=reason, next_at=None)


def redeliver(delivery: DeliveryRecord, now: int) -> DeliveryRecord:
    """Return the delivery due again at once, with the full time for retries."""
    again = _moved(delivery, DeliveryStep.REQUESTED, now)
    return replace(again, attempts=0, begun_at=now, next_at=now, settled_at=None)


def _moved(delivery: DeliveryRecord, step: DeliveryStep, now: int) -> DeliveryRecord:
    status = MOVES[delivery.status, step]
    return replace(
        delivery, status=status, settled_at=None if status is DeliveryStatus.WAITING else now
    )


def last_step(delivery: DeliveryRecord) -> DeliveryStep:
    """Return the transition of the last attempt, for the delivery log."""
    return {
        DeliveryStatus.WAITING: DeliveryStep.REFUSED,
        DeliveryStatus.DELIVERED: DeliveryStep.ACCEPTED,
        DeliveryStatus.DEAD: DeliveryStep.GIVEN_UP,
        DeliveryStatus.WITHDRAWN: DeliveryStep.WITHDRAWN,
    }[delivery.status]


# --- receivers ------------------------------------------------------------------------------------


SESSION_HOOK: Final = "h_"  # receives a session's pending calls and its end
CALL_HOOK: Final = "c_"  # receives the pending calls; its secret also verifies their results
KEY_ONLY: Final = "k_"  # receives nothing: only the secret of a call


class Hook(Struct, frozen=True, omit_defaults=True):
    """Receiver of a call's or a session's deliveries, in an entry that is never shown."""

    url: str
    secret: str | None = None
    of_call: bool = False  # registered for a call, not for a session

    @property
    def prefix(self) -> str:
        """Prefix of its id: a writer knows from the id whether to create a delivery."""
        if not self.url:
            return KEY_ONLY
        return CALL_HOOK if self.of_call else SESSION_HOOK

    def __repr__(self) -> str:
        return "Hook(…)"


_delivery_decoder = msgspec.json.Decoder(DeliveryRecord)
_hook_decoder = msgspec.json.Decoder(Hook)


def encode(value: DeliveryRecord | Hook | Attempt) -> bytes:
    """Return the value as the data of an entry or a record."""
    return msgspec.json.encode(value)


def decode(data: bytes) -> DeliveryRecord:
    """Return the delivery of an entry. Raises Corrupt."""
    try:
        return _delivery_decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Corrupt(f"the entry of a delivery cannot be read: {error}") from error


def decode_hook(data: bytes) -> Hook:
    """Return the hook of an entry. Raises Corrupt, without any of its content."""
    try:
        return _hook_decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise Corrupt("the entry of a hook cannot be read") from None
