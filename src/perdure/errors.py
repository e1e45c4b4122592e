"""Errors of perdure: one tree, with stable codes for the wire.

    PerdureError
    ├─ NotFound      there is no such object
    ├─ Conflict      another caller was first, or the object is in another state; see `.winner`
    ├─ Refused       the request itself is wrong; repeating it will not help
    ├─ NotAllowed    the caller may not do this
    ├─ ConfigError   the configuration or the code it names is wrong
    ├─ ModelError    the model provider failed
    │  └─ ModelUnavailable  it may respond later: the same request is retried
    ├─ ToolError     a tool failed; raise it in a tool, its text goes to the model
    ├─ SandboxUnavailable  commands cannot run confined on this host
    └─ StoreError    the store cannot be used now
       ├─ Corrupt       stored data cannot be read
       └─ SchemaNewer   the database was written by a newer perdure

Each has `code` (stable), `hint` (what to do next) and `details`.
"""

from collections.abc import Mapping
from typing import Any


class PerdureError(Exception):
    """Base of all errors that perdure raises; the text says what is wrong, the hint what to do."""

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
            self.add_note(f"hint: {hint}")  # Python prints it below the traceback
        self.details: dict[str, Any] = dict(details or {})
        if code is not None:
            self.code = code

    def to_json(self) -> dict[str, Any]:
        """Return the error as plain JSON values, as HTTP and `--json` show it."""
        return {
            "error": self.message,
            "code": self.code,
            "hint": self.hint or "",
            "details": self.details,
        }


class NotFound(PerdureError):
    """There is no such object."""

    code = "NOT_FOUND"
    exit_code = 3
    http_status = 404


class Conflict(PerdureError):
    """Another caller was first, or the object is in another state."""

    code = "CONFLICT"
    exit_code = 5
    http_status = 409

    @property
    def winner(self) -> Any:
        """The decision or result that settled the call first; None for other conflicts."""
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
    """The model provider does not respond now and may do so later; the request is retried."""

    code = "MODEL_UNAVAILABLE"

    def __init__(
        self, message: str, *, retry_after_ms: int | None = None, hint: str | None = None
    ) -> None:
        super().__init__(message, hint=hint)
        self.retry_after_ms = retry_after_ms  # as the provider requested, if it did


class ToolError(PerdureError):
    """A tool failed. Raise it in a tool: its text is the tool's error for the model."""

    code = "TOOL_ERROR"


class SandboxUnavailable(PerdureError):
    """Commands cannot run confined on this host; the hint says what to install or to change."""

    code = "SANDBOX_UNAVAILABLE"
    http_status = 503


class StoreError(PerdureError):
    """The store cannot be used now."""

    code = "STORE_ERROR"
    http_status = 503


class Corrupt(StoreError):
    """Stored data cannot be read."""

    code = "STORE_CORRUPT"
    exit_code = 7


class SchemaNewer(StoreError):
    """The database was written by a newer perdure."""

    code = "SCHEMA_NEWER"
