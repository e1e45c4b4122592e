"""Every error perdure raises on purpose: one tree, with stable codes for the wire.

    PerdureError
    ├─ NotFound      there is no such thing
    ├─ Conflict      somebody else was first, or the thing is in another state; `.winner` says who
    ├─ Refused       the request itself is wrong; repeating it will not help
    ├─ NotAllowed    the caller may not do this
    ├─ ConfigError   the configuration or the code it names is wrong
    ├─ ModelError    the model provider failed
    │  └─ ModelUnavailable  it may answer later: the same request is sent again
    ├─ ToolError     a tool failed; raise it in a tool to tell the model why
    └─ StoreError    the store cannot be used now
       ├─ Corrupt       what is stored cannot be read
       └─ SchemaNewer   the database was written by a newer perdure

Each has `code` (stable), `hint` (what to do next) and `details`.
"""

from collections.abc import Mapping
from typing import Any


class PerdureError(Exception):
    """Something perdure foresaw went wrong; the text says what, the hint what to do."""

    code = "ERROR"
    exit_code = 1
    http_status = 500

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        hint: str | None = None,
        details: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        if hint:
            self.add_note(f"hint: {hint}")  # where nobody catches it, Python prints it below
        self.details: dict[str, Any] = dict(details or {})
        if code is not None:
            self.code = code

    def to_json(self) -> dict[str, Any]:
        """The error as every door shows it."""
        return {
            "error": self.message,
            "code": self.code,
            "hint": self.hint or "",
            "details": self.details,
        }


class NotFound(PerdureError):
    """There is no such thing."""

    code = "NOT_FOUND"
    exit_code = 3
    http_status = 404


class Conflict(PerdureError):
    """Somebody else was first, or the thing is in another state."""

    code = "CONFLICT"
    exit_code = 5
    http_status = 409

    @property
    def winner(self) -> Any:
        """What was accepted instead, when, and by whom; None where that is not the reason."""
        return self.details.get("winner")


class Refused(PerdureError):
    """The request itself is wrong; repeating it will not help."""

    code = "REFUSED"
    exit_code = 2
    http_status = 400


class NotAllowed(PerdureError):
    """The caller may not do this."""

    code = "NOT_ALLOWED"
    exit_code = 4
    http_status = 403


class ConfigError(PerdureError):
    """The configuration, or the code that it names, is wrong."""

    code = "CONFIG_INVALID"
    exit_code = 2


class ModelError(PerdureError):
    """The model provider failed."""

    code = "MODEL_ERROR"


class ModelUnavailable(ModelError):
    """The model provider does not answer now and may do so later; the request is sent again."""

    code = "MODEL_UNAVAILABLE"

    def __init__(
        self, message: str, *, retry_after_ms: int | None = None, hint: str | None = None
    ) -> None:
        super().__init__(message, hint=hint)
        self.retry_after_ms = retry_after_ms  # as the provider asked; None: it did not say


class ToolError(PerdureError):
    """A tool failed. Raise it in a tool: its text is the tool's error for the model."""

    code = "TOOL_ERROR"


class StoreError(PerdureError):
    """The store cannot be used now."""

    code = "STORE_ERROR"
    http_status = 503


class Corrupt(StoreError):
    """What is stored cannot be read."""

    code = "STORE_CORRUPT"
    exit_code = 7


class SchemaNewer(StoreError):
    """The database was written by a newer perdure."""

    code = "SCHEMA_NEWER"
