"""The tools of the demo. Each notes that it ran, and what it did to the world, in a file."""

import json
import os
import time
from pathlib import Path
from typing import Any

from perdure import Context, PendingCall, tool

HERE = Path(__file__).parent


def _note(file: str, **what: Any) -> None:
    what |= {"process": os.getpid(), "at": time.time()}
    with (HERE / file).open("a", encoding="utf-8") as log:
        log.write(json.dumps(what) + "\n")


def _world() -> list[dict[str, Any]]:
    file = HERE / "world.log"
    return [json.loads(text) for text in file.read_text().splitlines()] if file.exists() else []


@tool
def lookup_order(order_id: int, ctx: Context) -> dict[str, Any]:
    """Look an order up."""
    _note("runs.log", tool="lookup_order", effect=ctx.effect_id)
    return {"order_id": order_id, "item": "teapot", "cents": 4200, "complaint": "broken lid"}


@tool(requires_approval=True, idempotent=True)
def refund(order_id: int, cents: int, ctx: Context) -> str:
    """Pay money back. The bank takes each effect id once, so a repeat does no harm."""
    _note("runs.log", tool="refund", effect=ctx.effect_id)
    if any(done["effect"] == ctx.effect_id for done in _world()):
        return f"the bank had already paid {cents} cents for order {order_id}"
    _note("world.log", tool="refund", effect=ctx.effect_id, cents=cents)
    time.sleep(8)  # the bank is slow to confirm
    return f"paid {cents} cents for order {order_id}"


@tool(deferred=True, timeout="24h")
def ask_warehouse(item: str, call: PendingCall) -> str:
    """Ask the warehouse whether it can send another one; somebody there answers, later."""
    _note("runs.log", tool="ask_warehouse", effect=call.effect_id)
    _note("world.log", tool="ask_warehouse", effect=call.effect_id)
    return f"ticket-{item}-7"


@tool
def notify_customer(text: str, ctx: Context) -> str:
    """Send the customer a message."""
    _note("runs.log", tool="notify_customer", effect=ctx.effect_id)
    _note("world.log", tool="notify_customer", effect=ctx.effect_id)
    return f"sent: {text}"
