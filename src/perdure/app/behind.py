"""What stands behind a Runtime, for the doors that are not its own methods."""

from perdure.app.runtime import Runtime
from perdure.runtime.sessions.service import Service


def service_of(rt: Runtime) -> Service:
    """What every door works with."""
    return rt._service  # noqa: SLF001 - the one place where doors look behind a runtime


def tenant_of(rt: Runtime) -> str | None:
    """The tenant that a runtime is scoped to; None sees all."""
    return rt._tenant  # noqa: SLF001


def is_open(rt: Runtime) -> bool:
    """Whether it was entered and not left."""
    return rt._stack is not None  # noqa: SLF001


def reachable_at(rt: Runtime, url: str, webhook_secret: str | None = None) -> None:
    """Where others reach a runtime that was not told so, and what signs what they send."""
    desk = rt._service.desk  # noqa: SLF001
    desk.public_url = desk.outbox.public_url = desk.public_url or url
    desk.webhook_secret = desk.outbox.webhook_secret = desk.webhook_secret or webhook_secret


def leave_driving(rt: Runtime) -> None:
    """Let a runtime that is not open yet drive nothing by itself: whoever opens it does."""
    rt._with_worker = False  # noqa: SLF001
