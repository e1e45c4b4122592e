"""A client of a perdure server: the verbs of a Runtime, over HTTP.

    async with Client("https://agents.example", token) as client:
        session = await client.session("order-991", agent="support").run("Refund order 991")

It answers what the server says, as plain dicts in the documented JSON shapes, and raises what the
server refuses as `perdure.errors`. It knows nothing of agents, stores or the runtime.
"""

from perdure.client.client import Client
from perdure.client.session import RemoteSession

__all__ = ["Client", "RemoteSession"]
