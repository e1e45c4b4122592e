"""`perdure init`: a new project with a configuration, tools, a scripted model and a test."""

from pathlib import Path
from typing import Final

import click

from perdure.cli.settings import Settings, with_settings
from perdure.cli.terminal.terminal import Terminal
from perdure.errors import Conflict, Refused

_YAML: Final = """\
# To check this file: perdure config validate. For completion in editors: perdure config schema
session_stores:
  main-db: {backend: sql, sql: {driver: sqlite, database: ./perdure.db}}
llms:
  main: {provider: scripted, script: turns.json}   # offline: the responses are in turns.json
agents:
  shop:
    llm: main
    instructions: You help with orders. Look an order up before you refund it.
    session_store: main-db           # sessions are saved here and survive a restart
    tools:
      - shop:lookup_order
      - {use: shop:refund, requires_approval: true, approval_prompt: "Refund {input}?"}
    permissions:
      deny: ["refund:reason=test*"]  # no approval can override this; see also allow and ask
"""
_TOOLS: Final = '''\
"""The tools of the shop. The model sees their type hints and docstrings."""

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
  {"text": "It was paid twice. I suggest refunding one payment.",
   "calls": [{"tool": "refund", "args": {"order_id": 991, "cents": 4200, "reason": "paid twice"}}]},
  {"text": "Done: order 991 was refunded."}
]
"""
_TEST: Final = '''\
"""A refund waits for approval, and runs exactly as approved. Run with: pytest"""

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
        results = [event.data for event in await session.events() if event.type == "tool_result"]
        assert results[-1]["result"] == "refunded 4000 cents of order 991"

    Runtime.from_config(CONFIG, store="memory:").run_sync(story)
'''
FILES: Final = {
    "perdure.yaml": _YAML,
    "shop.py": _TOOLS,
    "turns.json": _TURNS,
    "test_shop.py": _TEST,
    ".gitignore": "perdure.db*\n__pycache__/\n",
}


@click.command()
@click.argument("folder", metavar="[DIR]", default=".", type=click.Path(file_okay=False))
@with_settings
def init(settings: Settings, folder: str) -> int:
    """Create a project that runs at once, offline, and has a test."""
    directory = Path(folder)
    existing = [name for name in FILES if (directory / name).exists() and name != ".gitignore"]
    if existing:
        raise Conflict(
            f"{directory / existing[0]} already exists; nothing was written",
            code="FILE_EXISTS",
            hint="name another directory: perdure init DIR",
        )
    try:
        created = _create_files(directory)
    except OSError as error:
        raise Refused(
            f"{error.filename or directory} cannot be written: {error.strerror}",
            code="FILE_NOT_WRITABLE",
            hint="name another directory: perdure init DIR",
        ) from error
    terminal = Terminal(settings)
    terminal.print_either(
        {"folder": str(directory), "created": created},
        lambda: _print_created(terminal, directory, created),
    )
    return 0


def _create_files(directory: Path) -> list[str]:
    directory.mkdir(parents=True, exist_ok=True)
    created = [name for name in FILES if not (directory / name).exists()]
    for name in created:
        (directory / name).write_text(FILES[name], "utf-8")
    return created


def _print_created(terminal: Terminal, directory: Path, created: list[str]) -> None:
    place = "" if directory == Path() else f" in {directory}"
    terminal.print(f"✓ created {', '.join(created)}{place}")
    terminal.print()
    if directory != Path():
        terminal.print(f"  cd {directory}")
    terminal.print('  perdure run shop "Refund order 991"    pauses for an approval')
    terminal.print("  perdure approve @last                  continues it, today or next week")
    terminal.print("  perdure chat shop                      does the same in a chat")
    terminal.print("  pytest                                 tests it; everything runs offline")
