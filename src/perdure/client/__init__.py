"""A client of a perdure server: the verbs of a Runtime, over HTTP.

    async with Client("https://agents.example", token) as client:
        session = await client.session("order-991", agent="support").run("Refund order 991")

It returns the server's responses as dicts in the documented JSON shapes, and raises its errors as
`perdure.errors`. It does not depend on agents, stores or the runtime.
"""

from perdure.client.client import Client
from perdure.client.session import RemoteSession

__all__ = ["Client", "RemoteSession"]
