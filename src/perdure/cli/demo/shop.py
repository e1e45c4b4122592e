"""The tools of the demo. Each records in files that it ran and which effect it had."""

import json
import os
import time
from pathlib import Path
from typing import Any

from perdure import Context, PendingCall, tool

HERE = Path(__file__).parent


def _append(file: str, **fields: Any) -> None:
    fields |= {"process": os.getpid(), "at": time.time()}
    with (HERE / file).open("a", encoding="utf-8") as log:
        log.write(json.dumps(fields) + "\n")


def _world_log() -> list[dict[str, Any]]:
    file = HERE / "world.log"
    return [json.loads(text) for text in file.read_text().splitlines()] if file.exists() else []


@tool
def lookup_order(order_id: int, ctx: Context) -> dict[str, Any]:
    """Look an order up."""
    _append("runs.log", tool="lookup_order", effect=ctx.effect_id)
    return {"order_id": order_id, "item": "teapot", "cents": 4200, "complaint": "broken lid"}


@tool(requires_approval=True, idempotent=True)
def refund(order_id: int, cents: int, ctx: Context) -> str:
    """Pay money back. The bank accepts each effect id once, so a repeat is harmless."""
    _append("runs.log", tool="refund", effect=ctx.effect_id)
    if any(done["effect"] == ctx.effect_id for done in _world_log()):
        return f"the bank has already paid {cents} cents for order {order_id}"
    _append("world.log", tool="refund", effect=ctx.effect_id, cents=cents)
    time.sleep(8)  # the bank is slow to confirm
    return f"paid {cents} cents for order {order_id}"


@tool(deferred=True, timeout="24h")
def ask_warehouse(item: str, call: PendingCall) -> str:
    """Ask the warehouse whether it can send another one. The answer comes later."""
    _append("runs.log", tool="ask_warehouse", effect=call.effect_id)
    _append("world.log", tool="ask_warehouse", effect=call.effect_id)
    return f"ticket-{item}-7"


@tool
def notify_customer(text: str, ctx: Context) -> str:
    """Send the customer a message."""
    _append("runs.log", tool="notify_customer", effect=ctx.effect_id)
    _append("world.log", tool="notify_customer", effect=ctx.effect_id)
    return f"sent: {text}"
