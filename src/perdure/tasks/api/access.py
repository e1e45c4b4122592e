"""Access to the tasks of a runtime for the classes of this package."""

from perdure.errors import PerdureError
from perdure.tasks.first_use import TaskAccess, TaskHost
from perdure.tasks.service import Tasks
from perdure.tasks.values import TaskRef


def access_of(host: TaskHost) -> TaskAccess:
    """Return the access to the tasks of a runtime, open or not."""
    return host._task_access()  # noqa: SLF001 - the one module that calls it


def open_tasks(host: TaskHost) -> Tasks:
    """Return the tasks of a runtime. Raises PerdureError REGISTRY_NOT_INITIALIZED."""
    access = access_of(host)
    if not access.is_open:
        raise PerdureError(
            "TaskRegistry not initialized: the runtime is not open",
            code="REGISTRY_NOT_INITIALIZED",
            hint="open it first: async with Runtime(…) as rt",
        )
    return access.tasks()


def tenant_of(host: TaskHost) -> str | None:
    """Return the tenant that a runtime is scoped to; None if it sees all."""
    return access_of(host).tenant


def task_ref(host: TaskHost, task_id: str) -> TaskRef:
    """Return the reference to a task in the runtime's tenant."""
    return TaskRef(tenant_of(host) or "", task_id)
