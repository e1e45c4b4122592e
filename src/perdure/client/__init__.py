"""A client of a perdure server: the verbs of a Runtime, over HTTP.

    async with Client("https://agents.example", token) as client:
        session = await client.session("order-991", agent="support").run("Refund order 991")

It returns the same views as a Runtime (`perdure.views`), with verbs, and raises its errors as
`perdure.errors`. It does not depend on agents, stores or the runtime.
"""

from perdure.client.client import Client
from perdure.client.executions import RemoteExecutions
from perdure.client.sandbox_tasks import RemoteSandboxTasks
from perdure.client.session import RemoteSession
from perdure.client.tasks import RemoteTasks

__all__ = ["Client", "RemoteExecutions", "RemoteSandboxTasks", "RemoteSession", "RemoteTasks"]
