"""Visit of a browser: the cookie that says who it is, and the token that its forms carry.

A cookie has a name, an expiry, a random part and a signature. It is signed with the token that
its person signed in with, so every server with that token accepts it, and removing the token ends
it. Where no token is needed, the cookie only says a name and is not signed.
"""

import base64
import binascii
import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass
from typing import Final

COOKIE: Final = "perdure"
LIFETIME_S: Final = 14 * 24 * 3600
_PART: Final = r"[A-Za-z0-9_-]"
_COOKIE: Final = re.compile(
    rf"({_PART}{{0,400}})\.(\d{{1,12}})\.({_PART}{{22}})\.({_PART}{{0,43}})"
)


@dataclass(frozen=True, slots=True)
class Visit:
    """Content of a cookie."""

    name: str
    expires_at: int  # seconds since 1970
    nonce: str
    signature: str = ""

    @classmethod
    def begin(cls, name: str, now_s: int, token: str | None = None) -> "Visit":
        """Return a new visit, signed with a token if there is one."""
        visit = cls(name, now_s + LIFETIME_S, secrets.token_urlsafe(16))
        if token is None:
            return visit
        return cls(visit.name, visit.expires_at, visit.nonce, visit.signature_with(token))

    @classmethod
    def decode(cls, cookie: str) -> "Visit | None":
        """Return the visit in a cookie; None if it is malformed."""
        match = _COOKIE.fullmatch(cookie)
        if match is None:
            return None
        try:
            name = base64.urlsafe_b64decode(match[1] + "=" * (-len(match[1]) % 4)).decode()
        except (binascii.Error, UnicodeDecodeError):
            return None
        return cls(name, int(match[2]), match[3], match[4])

    def encode(self) -> str:
        """Return the value of the cookie."""
        return f"{self._signed_part}.{self.signature}"

    @property
    def _signed_part(self) -> str:
        return f"{_base64(self.name.encode())}.{self.expires_at}.{self.nonce}"

    def signature_with(self, token: str) -> str:
        """Return the signature that a token gives this visit."""
        key = hashlib.sha256(b"perdure visit\n" + token.encode()).digest()
        return _base64(hmac.digest(key, self._signed_part.encode(), "sha256"))

    def is_signed_with(self, token: str) -> bool:
        """Return whether a token signed this visit; the duration of a check reveals nothing."""
        return hmac.compare_digest(self.signature.encode(), self.signature_with(token).encode())

    @property
    def form_token(self) -> str:
        """The token that every form of this visit carries: other sites cannot know it."""
        return _base64(hmac.digest(self.encode().encode(), b"perdure form", "sha256"))

    def accepts_form(self, form_token: str) -> bool:
        """Return whether a form was sent from a page of this visit."""
        return hmac.compare_digest(form_token.encode(), self.form_token.encode())


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
