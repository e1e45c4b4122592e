"""A new project: a configuration, tools, a model that plays a script, and a test that passes."""

from pathlib import Path
from typing import Final

from perdure.cli.settings import Settings
from perdure.cli.terminal.terminal import Terminal
from perdure.errors import Conflict

_YAML: Final = """\
# Checked by: perdure config validate. Completed by editors that know: perdure config schema
session_stores:
  main-db: {backend: sql, sql: {driver: sqlite, database: ./perdure.db}}
llms:
  main: {provider: scripted, script: turns.json}   # offline: it plays turns.json, nothing is sent
agents:
  shop:
    llm: main
    instructions: You help with orders. Look an order up before you refund it.
    session_store: main-db          # what waits for a person is saved, and outlives the process
    tools:
      - shop:lookup_order
      - {use: shop:refund, requires_approval: true, approval_prompt: "Refund {input}?"}
    permissions:
      deny: ["refund:reason=test*"]  # whoever approves; see also allow and ask
"""
_TOOLS: Final = '''\
"""The tools of the shop: plain functions, whose hints and docstrings are what the model sees."""

from perdure import tool

ORDERS = {991: {"item": "kettle", "cents": 4200, "paid_twice": True}}


@tool
def lookup_order(order_id: int) -> dict:
    """Look an order up."""
    return ORDERS.get(order_id, {"error": "there is no such order"})


@tool
def refund(order_id: int, cents: int, reason: str = "") -> str:
    """Pay money back to the customer."""
    return f"refunded {cents} cents of order {order_id}"
'''
_TURNS: Final = """\
[
  {"text": "Let me look at the order.",
   "calls": [{"tool": "lookup_order", "args": {"order_id": 991}}]},
  {"text": "It was paid twice. I would pay one back.",
   "calls": [{"tool": "refund", "args": {"order_id": 991, "cents": 4200, "reason": "paid twice"}}]},
  {"text": "Done: order 991 was refunded."}
]
"""
_TEST: Final = '''\
"""The refund waits for a person, and runs exactly as it was approved. Run with: pytest"""

from pathlib import Path

from perdure import Runtime

CONFIG = Path(__file__).with_name("perdure.yaml")


def test_a_refund_waits_for_an_approval() -> None:
    async def story(rt: Runtime) -> None:
        session = rt.session("order-991", agent="shop")
        result = await session.run("Refund order 991")
        assert result.state == "waiting"
        (call,) = result.pending
        assert (call.tool, call.args["cents"]) == ("refund", 4200)

        await rt.approve(call.id, by="ana", args={"cents": 4000})
        result = await session.run()
        assert result.unwrap() == "Done: order 991 was refunded."
        told = [event.data for event in await session.events() if event.type == "tool_result"]
        assert told[-1]["result"] == "refunded 4000 cents of order 991"

    Runtime.from_config(CONFIG, store="memory:").run_sync(story)
'''
FILES: Final = {
    "perdure.yaml": _YAML,
    "shop.py": _TOOLS,
    "turns.json": _TURNS,
    "test_shop.py": _TEST,
    ".gitignore": "perdure.db*\n__pycache__/\n",
}


def init(settings: Settings, folder: str) -> int:
    """Write the project; a file that is there already is never changed."""
    place = Path(folder)
    there = [name for name in FILES if (place / name).exists() and name != ".gitignore"]
    if there:
        raise Conflict(
            f"{place / there[0]} exists already, and nothing was written",
            code="FILE_EXISTS",
            hint="name another directory: perdure init DIR",
        )
    place.mkdir(parents=True, exist_ok=True)
    made = [name for name in FILES if not (place / name).exists()]
    for name in made:
        (place / name).write_text(FILES[name], "utf-8")
    terminal = Terminal(settings)
    terminal.either({"folder": str(place), "created": made}, lambda: _told(terminal, place, made))
    return 0


def _told(terminal: Terminal, place: Path, made: list[str]) -> None:
    terminal.say(f"✓ made {', '.join(made)}" + ("" if place == Path() else f" in {place}"))
    terminal.say()
    if place != Path():
        terminal.say(f"  cd {place}")
    terminal.say('  perdure run shop "Refund order 991"    pauses for an approval')
    terminal.say("  perdure approve @last                  lets it go on, today or next week")
    terminal.say("  perdure chat shop                      the same, talking")
    terminal.say("  pytest                                  offline, as all of this")
