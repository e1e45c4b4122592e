"""Project in its own directory, and two ways to run commands in it."""

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from perdure.cli.root import cli

SHOP = '''
import os
import time
from pathlib import Path
from perdure import Agent, Approval, ApprovalRequired, Context
from perdure import InputRequired, PendingCall, Runtime, tool
from perdure.testing import ScriptedModel

@tool
def lookup_order(order_id: int) -> dict:
    """Look an order up."""
    return {"id": order_id, "cents": 4200}

@tool(requires_approval=True)
def refund(order_id: int, cents: int) -> str:
    """Pay money back."""
    with Path("effects.log").open("a") as log:
        log.write(f"refund {cents}\\n")
    return f"refunded {cents}"

@tool(deferred=True, timeout="24h")
def deploy(branch: str, call: PendingCall) -> str:
    """Deploy a branch."""
    return "dep_88"

@tool(external=True, timeout="2h")
def upload(name: str) -> str:
    """Ask a person for a file."""

@tool
def slow(seconds: float) -> str:
    """Take time."""
    Path("slow.began").touch()
    time.sleep(seconds)
    return "slept"

@tool(deferred=True)
def dies(call: PendingCall) -> str:
    """Start something elsewhere, unless the process ends first."""
    if os.environ.get("DIE"):
        os._exit(9)
    return "ref"

@tool(requires_approval=Approval(votes=2, allow=["approve", "deny"]))
def payout(cents: int) -> str:
    """Pay out."""
    return f"paid {cents}"

@tool(requires_approval=Approval(votes=2))
def spend(cents: int) -> str:
    """Spend money."""
    return f"spent {cents}"

@tool
def send(cents: int, ctx: Context) -> str:
    """Send money, to an account that a person names, if a person approves."""
    if ctx.answer is None:
        raise InputRequired("Which account?", choices=["a1", "a2"])
    if not ctx.decisions:
        raise ApprovalRequired("Send it?")
    return f"sent {cents} to {ctx.answer}"

REFUND = {"tool": "refund", "args": {"order_id": 991, "cents": 4200}}
SPEND = {"tool": "spend", "args": {"cents": 7}}
mixed = [{"calls": [REFUND, SPEND]}, {"text": "Both done."}]
sends = [{"calls": [{"tool": "send", "args": {"cents": 7}}]}, {"text": "Sent."}]
support = [
    {"text": "Let me look.", "calls": [{"tool": "lookup_order", "args": {"order_id": 991}}]},
    {"text": "I would refund it.", "calls": [REFUND]},
    {"text": "All done."},
]
two = [{"calls": [REFUND, {"tool": "deploy", "args": {"branch": "x"}}]}, {"text": "Both done."}]
uploads = [{"calls": [{"tool": "upload", "args": {"name": "orders.csv"}}]}, {"text": "Read."}]
RED = {"tool": "deploy", "args": {"branch": "\\x1b[31m"}}
evil = [{"text": "\\x1b[2Jgone\\x07", "calls": [RED]}]
slowly = [{"calls": [{"tool": "slow", "args": {"seconds": 1.5}}]}, {"text": "Awake."}]
asks = [{"calls": [{"tool": "ask_user", "args": {"question": "Which?"}}]}, {"text": "Thanks."}]
COLOR = {"question": "Which?", "choices": ["red", "blue"]}
COUNT = {"question": "How many?", "schema": {"type": "integer"}}
chooses = [
    {"calls": [{"tool": "ask_user", "args": COLOR}]},
    {"calls": [{"tool": "ask_user", "args": COUNT}]},
    {"text": "Thanks."},
]
votes = [{"calls": [{"tool": "payout", "args": {"cents": 7}}]}, {"text": "Paid."}]

def agent(name, turns, *tools):
    return Agent(name, model=ScriptedModel(turns), tools=tools)

agents = [
    agent("support", support, lookup_order, refund),
    agent("two", two, refund, deploy),
    agent("uploads", uploads, upload),
    agent("evil", evil, deploy),
    agent("slow", slowly, slow),
    agent("asks", asks, "ask_user"),
    agent("chooses", chooses, "ask_user"),
    agent("votes", votes, payout),
    agent("mixed", mixed, refund, spend),
    agent("sends", sends, send),
    agent("dies", [{"calls": [{"tool": "dies", "args": {}}]}], dies),
    agent("broke", [{"error": "no more credit"}]),
    agent("cut", [{"text": "Half an", "stop": "max_tokens"}]),
    agent("plain", [{"text": "Hello there."}]),
]
rt = Runtime("sqlite:///shop.db", agents=agents)
without_tools = Runtime("sqlite:///shop.db", agents=[agent("support", [])])
strangers = Runtime("sqlite:///shop.db", agents=[agent("stranger", [])])
number = 5
'''


@dataclass
class Shop:
    """Project directory. `run` runs a command in this process, `start` in another one."""

    folder: Path

    def run(
        self, *words: str, app: str | None = "shop:rt", stdin: str | bytes | None = None
    ) -> Result:
        sys.modules.pop("shop", None)  # as in a new process
        chosen = [] if app is None else ["--app", app]
        return CliRunner().invoke(cli, [*words, *chosen], input=stdin)

    def json(self, *words: str, app: str | None = "shop:rt") -> dict[str, Any]:
        result = self.run(*words, "--json", app=app)
        found: dict[str, Any] = json.loads(result.stdout)
        return found

    def command(self, *words: str) -> list[str]:
        """Return the command line of a separate process."""
        return [sys.executable, "-m", "perdure.cli", *words]

    def start(self, *words: str, **environ: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.command(*words),
            cwd=self.folder,
            env={**os.environ, "PYTHONUTF8": "1", **environ},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
        )

    def pending(self, tool: str) -> str:
        """Return the id of the open call of that tool."""
        listed = self.json("pending", "list", "--tool", tool)
        found: str = listed["pending"][0]["id"]
        return found

    def effects(self) -> list[str]:
        file = self.folder / "effects.log"
        return file.read_text().splitlines() if file.exists() else []


def until(file: Path) -> None:
    end = time.monotonic() + 20
    while not file.exists():
        assert time.monotonic() < end, f"{file} did not come"
        time.sleep(0.02)
