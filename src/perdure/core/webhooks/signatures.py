"""Signatures of webhooks, in two schemes: created for deliveries, verified on arrival.

The plain scheme is `X-Webhook-Signature: sha256=` and the hex HMAC-SHA256 of the raw body. The
other is Standard Webhooks, which also signs an id and an instant, so that a replayed copy expires.
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
BAD_SIGNATURE: Final = "bad signature"  # the only reason that a client sees, whatever was wrong

_PLAIN_IN_URLS: Final = frozenset(
    b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~"
)
_PREFIX: Final = "whsec_"
_MAX_SIGNATURES: Final = 20  # in one header; a key rotation needs fewer


@dataclass(frozen=True, slots=True)
class SignatureCheck:
    """Result of a verification. `reason` is for logs: a client sees only BAD_SIGNATURE.

    `message_id` is the signed id of a Standard Webhooks message, the same at each attempt.
    """

    ok: bool
    scheme: Literal["plain", "standard"] | None = None
    reason: str = ""
    message_id: str | None = None


def derive_secret(secret: str, pending_id: str) -> str:
    """Return the secret of one call, derived from the server's: it signs only its results."""
    return hmac.new(secret.encode(), pending_id.encode(), hashlib.sha256).hexdigest()


def callback_url(public_url: str | None, pending_id: str) -> str | None:
    """Return the URL for the result of a call, without a secret; None without a public URL."""
    if public_url is None:
        return None
    quoted = "".join(chr(b) if b in _PLAIN_IN_URLS else f"%{b:02X}" for b in pending_id.encode())
    return f"{public_url.rstrip('/')}/async-tool/webhook/{quoted}"


def sign(body: bytes, secret: str, message_id: str, now: int) -> dict[str, str]:
    """Return headers with both signatures; `now` is in ms. Raises Refused for an empty secret."""
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


def verify(
    headers: Mapping[str, str], body: bytes, secrets: Sequence[str], now: int
) -> SignatureCheck:
    """Check that one of the secrets signed exactly these bytes; `now` is in ms.

    A Standard Webhooks signature takes precedence: a stale one is refused even next to a valid
    plain one. A missing signature is a wrong one, and without a secret every signature is.
    """
    check = StreamedCheck(headers, secrets, now)
    check.update(body)
    return check.result()


class StreamedCheck:
    """Check of a body that arrives in pieces, by the rules of `verify`."""

    def __init__(self, headers: Mapping[str, str], secrets: Sequence[str], now: int) -> None:
        by_name = {name.lower(): value for name, value in headers.items()}
        usable = [secret for secret in secrets if any(_standard_keys(secret))]
        self.problem: str | None = None  # known before the body
        self._scheme: Literal["plain", "standard"] | None = None
        self._message_id: str | None = None
        self._received: list[str] = []
        self._macs: list[hmac.HMAC] = []
        if not usable:
            self.problem = "there is no secret to check with"
        elif STANDARD in by_name:
            self._expect_standard(by_name, usable, now)
        elif PLAIN in by_name:
            self._expect_plain(by_name[PLAIN], usable)
        else:
            self.problem = "there is no signature"

    def _expect_plain(self, signature: str, secrets: Sequence[str]) -> None:
        self._scheme = "plain"
        self._received = [signature.strip().lower().removeprefix("sha256=")]
        self._macs = [hmac.new(secret.encode(), digestmod=hashlib.sha256) for secret in secrets]

    def _expect_standard(
        self, headers: Mapping[str, str], secrets: Sequence[str], now: int
    ) -> None:
        self._scheme = "standard"
        message_id, timestamp = headers.get(ID, ""), headers.get(TIMESTAMP, "").strip()
        self.problem = _envelope_problem(message_id, timestamp, now)
        if self.problem is not None:
            return
        self._message_id = message_id
        signed_parts = [part.partition(",") for part in headers[STANDARD].split()[:_MAX_SIGNATURES]]
        self._received = [value for version, _, value in signed_parts if version == "v1"]
        keys = [key for secret in secrets for key in _standard_keys(secret)]
        self._macs = [_standard_mac(key, message_id, timestamp) for key in keys]

    def update(self, piece: bytes) -> None:
        """Add the next piece of the body."""
        for mac in self._macs:
            mac.update(piece)

    def result(self) -> SignatureCheck:
        """Return the result for the pieces so far."""
        if self.problem is not None:
            return SignatureCheck(ok=False, scheme=self._scheme, reason=self.problem)
        is_plain = self._scheme == "plain"
        expected = [mac.hexdigest() if is_plain else _base64(mac) for mac in self._macs]
        if _has_common(expected, self._received):
            return SignatureCheck(ok=True, scheme=self._scheme, message_id=self._message_id)
        reason = "no secret gives this signature"
        return SignatureCheck(ok=False, scheme=self._scheme, reason=reason)


def _envelope_problem(message_id: str, timestamp: str, now: int) -> str | None:
    if not message_id:
        return f"{ID} is missing"
    if not (timestamp.isascii() and timestamp.isdigit() and len(timestamp) <= 12):
        return f"{TIMESTAMP} is not a number of seconds"
    age_s = now // 1000 - int(timestamp)
    if abs(age_s) > TOLERANCE_S:
        return f"{TIMESTAMP} is {abs(age_s)} s {'old' if age_s > 0 else 'ahead'}"
    return None


def _has_common(expected: Sequence[str], received: Sequence[str]) -> bool:
    """Return True if a signature is in both; all are compared, so that timing leaks nothing."""
    is_equal = False
    for right in expected:
        for signature in received:
            is_equal |= hmac.compare_digest(right.encode(), signature.encode())
    return is_equal


def _hex(body: bytes, secret: str) -> str:
    return hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()


def _standard(body: bytes, key: bytes, message_id: str, at: str) -> str:
    mac = _standard_mac(key, message_id, at)
    mac.update(body)
    return _base64(mac)


def _standard_mac(key: bytes, message_id: str, at: str) -> hmac.HMAC:
    return hmac.new(key, f"{message_id}.{at}.".encode(), hashlib.sha256)


def _base64(mac: hmac.HMAC) -> str:
    return base64.b64encode(mac.digest()).decode()


def _standard_keys(secret: str) -> list[bytes]:
    """Return the keys that a secret may stand for: `whsec_` is base64; other text is itself.

    Libraries of Standard Webhooks decode any text as base64, so that is accepted too, on arrival.
    """
    decoded = _decode_base64(secret.removeprefix(_PREFIX))
    if secret.startswith(_PREFIX) and decoded is not None:
        return [decoded] if decoded else []
    return [secret.encode()] + ([decoded] if decoded else [])


def _decode_base64(text: str) -> bytes | None:
    try:
        return base64.b64decode(text.encode(), validate=True)
    except (binascii.Error, ValueError):
        return None
