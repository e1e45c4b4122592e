"""Process that sends webhooks to a receiver, and may be killed while it does.

python -m tests.crash.delivery_program STORE URL POINT
"""

import os
import signal
import sys
from typing import Any

import anyio

from perdure import Agent, Runtime, tool
from perdure.address_filter import AddressFilter
from perdure.core.webhooks.deliveries import DeliveryResponse
from perdure.runtime.webhooks.outbox import Receiver
from perdure.runtime.webhooks.post import Post
from perdure.runtime.worker.sender import DeliverySender
from perdure.testing import ScriptedModel

SESSIONS = 3
FACTS = 3 * SESSIONS  # each requests approval, is decided, and completes

TURNS: list[dict[str, Any]] = [{"calls": [{"tool": "refund"}]}, {"text": "Done."}]


@tool(requires_approval=True)
def refund() -> str:
    """Pay back."""
    return "paid"


def die(point: str, here: str) -> None:
    if point == here:
        os.kill(os.getpid(), signal.SIGKILL)


def runtime(store: str, url: str) -> Runtime:
    agent = Agent("shop", model=ScriptedModel(TURNS), tools=[refund])
    rt = Runtime(store, agents=[agent])
    outbox = rt._resources.outbox
    outbox.address_filter = AddressFilter.from_allow_list(["127.0.0.1"])
    outbox.targets, outbox.is_configured = (Receiver(url, "hush"),), True
    return rt


class Fragile(Post):
    """Sender that dies before or after a delivery."""

    point = ""

    async def send(self, url: str, headers: Any, body: bytes, now: int) -> DeliveryResponse:
        die(self.point, "sending")
        answer = await super().send(url, headers, body, now)
        die(self.point, "sent")
        return answer


async def main(store: str, url: str, point: str) -> None:
    async with runtime(store, url) as rt:
        for name in range(SESSIONS):
            session = rt.session(f"s{name}", agent="shop")
            result = await session.run("Go", key="go")
            for call in result.pending:
                await rt.approve(call.id, by="ana")
            await session.run()
        die(point, "made")
        post = Fragile(rt._resources.outbox.address_filter)
        post.point = point
        courier = DeliverySender(rt._resources.outbox, rt._service.drives, post)
        await courier.start_due()
        while courier.active:
            await rt._resources.store.changed(0.1)
        die(point, "recorded")


if __name__ == "__main__":
    anyio.run(main, sys.argv[1], sys.argv[2], sys.argv[3])
