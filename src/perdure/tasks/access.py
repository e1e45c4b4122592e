"""Access to the tasks of a runtime for the classes of this package."""

from perdure.app import Runtime, is_open, service_of, tenant_of
from perdure.errors import PerdureError
from perdure.runtime.tasks.service import Tasks
from perdure.runtime.tasks.values import TaskRef


def open_tasks(rt: Runtime) -> Tasks:
    """Return the tasks of a runtime. Raises PerdureError REGISTRY_NOT_INITIALIZED."""
    if not is_open(rt):
        raise PerdureError(
            "TaskRegistry not initialized: the runtime is not open",
            code="REGISTRY_NOT_INITIALIZED",
            hint="open it first: async with Runtime(…) as rt",
        )
    return service_of(rt).tasks


def task_ref(rt: Runtime, task_id: str) -> TaskRef:
    """Return the reference to a task in the runtime's tenant."""
    return TaskRef(tenant_of(rt) or "", task_id)
