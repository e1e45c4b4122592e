"""Records of background agents, as the store has them."""

from perdure import BackgroundTask, Runtime
from perdure.app import service_of, tenant_of
from perdure.core.session.child_tasks import ChildTask


async def child_task(rt: Runtime, task: BackgroundTask | str) -> ChildTask:
    """Return the record of a background agent. Raises NotFound."""
    task_id = task if isinstance(task, str) else task.id
    return await service_of(rt).background.get(tenant_of(rt), task_id)
