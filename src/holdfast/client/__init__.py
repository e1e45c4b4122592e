"""A client of a holdfast server: the verbs of a Runtime, over HTTP.

    async with Client("https://agents.example", token) as client:
        session = await client.session("order-991", agent="support").run("Refund order 991")

It answers what the server says, as plain dicts in the documented JSON shapes, and raises what the
server refuses as `holdfast.errors`. It knows nothing of agents, stores or the runtime.
"""

from holdfast.client.client import Client
from holdfast.client.session import RemoteSession

__all__ = ["Client", "RemoteSession"]
