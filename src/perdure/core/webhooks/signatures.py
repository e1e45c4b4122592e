"""Signatures of webhooks, both ways of them: made for what we send, checked on what arrives.

The plain one is `X-Webhook-Signature: sha256=` and the hex HMAC-SHA256 of the raw body. The other
is that of Standard Webhooks, which also signs an id and an instant, so that a copy grows stale.
"""

import base64
import binascii
import hashlib
import hmac
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from perdure.errors import Refused

PLAIN: Final = "x-webhook-signature"
ID: Final = "webhook-id"
TIMESTAMP: Final = "webhook-timestamp"
STANDARD: Final = "webhook-signature"

TOLERANCE_S: Final = 300
BAD_SIGNATURE: Final = "bad signature"  # all that an outsider is told, whatever was wrong

_PLAIN_IN_URLS: Final = frozenset(
    b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~"
)
_PREFIX: Final = "whsec_"
_MOST: Final = 20  # signatures in one header; more are no rotation


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a signature holds. `why` is for logs: outsiders are told BAD_SIGNATURE and no more.

    `message_id` is the signed id of a Standard Webhooks message, the same at each repetition.
    """

    ok: bool
    way: Literal["plain", "standard"] | None = None
    why: str = ""
    message_id: str | None = None


def derive(secret: str, pending_id: str) -> str:
    """The secret of one call, made of the server's: it signs that call's results and no others."""
    return hmac.new(secret.encode(), pending_id.encode(), hashlib.sha256).hexdigest()


def callback_url(public_url: str | None, pending_id: str) -> str | None:
    """Where the result of a call may be posted; it carries no secret. None: nobody reaches us."""
    if public_url is None:
        return None
    quoted = "".join(chr(b) if b in _PLAIN_IN_URLS else f"%{b:02X}" for b in pending_id.encode())
    return f"{public_url.rstrip('/')}/async-tool/webhook/{quoted}"


def sign(body: bytes, secret: str, message_id: str, now: int) -> dict[str, str]:
    """The headers that sign a body both ways; `now` is in ms. Refused if the secret is empty."""
    key = next(iter(_standard_keys(secret)), b"")
    if not key:
        raise Refused("the secret is empty", code="SECRET_EMPTY", hint="openssl rand -hex 32")
    at = str(now // 1000)
    return {
        "X-Webhook-Signature": f"sha256={_hex(body, secret)}",
        ID: message_id,
        TIMESTAMP: at,
        STANDARD: f"v1,{_standard(body, key, message_id, at)}",
    }


def verify(headers: Mapping[str, str], body: bytes, secrets: Sequence[str], now: int) -> Verdict:
    """Whether one of the secrets has signed these very bytes; `now` is in ms.

    Where a Standard Webhooks signature is given it decides: a stale one is refused, whatever
    else stands beside it. No signature is a wrong one, and so is any if there is no secret.
    """
    given = {name.lower(): value for name, value in headers.items()}
    usable = [secret for secret in secrets if any(_standard_keys(secret))]
    if not usable:
        return Verdict(ok=False, why="there is no secret to check with")
    if STANDARD in given:
        return _verify_standard(given, body, usable, now)
    if PLAIN in given:
        return _verify_plain(given[PLAIN], body, usable)
    return Verdict(ok=False, why="there is no signature")


def _verify_plain(given: str, body: bytes, secrets: Sequence[str]) -> Verdict:
    text = given.strip().lower().removeprefix("sha256=")
    if _meet([_hex(body, secret) for secret in secrets], [text]):
        return Verdict(ok=True, way="plain")
    return Verdict(ok=False, way="plain", why="no secret gives this signature")


def _verify_standard(
    given: Mapping[str, str], body: bytes, secrets: Sequence[str], now: int
) -> Verdict:
    message_id, at = given.get(ID, ""), given.get(TIMESTAMP, "").strip()
    wrong = _wrong_envelope(message_id, at, now)
    if wrong is not None:
        return Verdict(ok=False, way="standard", why=wrong)
    marks = [mark.partition(",") for mark in given[STANDARD].split()[:_MOST]]
    signatures = [value for version, _, value in marks if version == "v1"]
    keys = [key for secret in secrets for key in _standard_keys(secret)]
    if _meet([_standard(body, key, message_id, at) for key in keys], signatures):
        return Verdict(ok=True, way="standard", message_id=message_id)
    return Verdict(ok=False, way="standard", why="no secret gives this signature")


def _wrong_envelope(message_id: str, at: str, now: int) -> str | None:
    if not message_id:
        return f"{ID} is missing"
    if not (at.isascii() and at.isdigit() and len(at) <= 12):
        return f"{TIMESTAMP} is not a number of seconds"
    off = now // 1000 - int(at)
    if abs(off) > TOLERANCE_S:
        return f"{TIMESTAMP} is {abs(off)} s {'old' if off > 0 else 'ahead'}"
    return None


def _meet(right: Sequence[str], given: Sequence[str]) -> bool:
    """Whether one is in both; all are compared, so that the time tells nothing."""
    found = False
    for one in right:
        for mark in given:
            found |= hmac.compare_digest(one.encode(), mark.encode())
    return found


def _hex(body: bytes, secret: str) -> str:
    return hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()


def _standard(body: bytes, key: bytes, message_id: str, at: str) -> str:
    signed = f"{message_id}.{at}.".encode() + body
    return base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()


def _standard_keys(secret: str) -> list[bytes]:
    """What a secret may mean as a key: `whsec_` is base64; other text is itself.

    Libraries of Standard Webhooks read any text as base64, so that is taken too, on arrival.
    """
    decoded = _decoded(secret.removeprefix(_PREFIX))
    if secret.startswith(_PREFIX) and decoded is not None:
        return [decoded] if decoded else []
    return [secret.encode()] + ([decoded] if decoded else [])


def _decoded(text: str) -> bytes | None:
    try:
        return base64.b64decode(text.encode(), validate=True)
    except (binascii.Error, ValueError):
        return None
