"""What stands behind a Runtime, for the doors that are not its own methods."""

from holdfast.app.runtime import Runtime
from holdfast.runtime.service import Service


def service_of(rt: Runtime) -> Service:
    """What every door works with."""
    return rt._service  # noqa: SLF001 - the one place where doors look behind a runtime


def tenant_of(rt: Runtime) -> str | None:
    """The tenant that a runtime is scoped to; None sees all."""
    return rt._tenant  # noqa: SLF001


def is_open(rt: Runtime) -> bool:
    """Whether it was entered and not left."""
    return rt._stack is not None  # noqa: SLF001
