"""Project whose store is damaged: sessions that wait for an approval, and their effects outside."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from perdure.cli.root import cli

PROGRAM = '''
from pathlib import Path
from perdure import Agent, Runtime, tool
from perdure.testing import ScriptedModel

@tool
def pay(cents: int) -> str:
    """Pay."""
    return _effect(f"pay {cents}")

@tool(requires_approval=True)
def refund(cents: int) -> str:
    """Pay money back."""
    return _effect(f"refund {cents}")

def _effect(text: str) -> str:
    with Path("effects.log").open("a") as log:
        log.write(text + "\\n")
    return "done"

TURNS = [
    {"text": "I pay.", "calls": [{"tool": "pay", "args": {"cents": 1}}]},
    {"text": "I would refund.", "calls": [{"tool": "refund", "args": {"cents": 2}}]},
    {"text": "All done."},
]
clerk = Agent("clerk", model=ScriptedModel(TURNS), tools=[pay, refund])
rt = Runtime(STORE, agents=[clerk])
'''
SESSIONS = ("u", "v", "w")


@dataclass(frozen=True, slots=True)
class DamageShop:
    """Project in the current folder, whose commands run in this process."""

    folder: Path
    url: str

    @classmethod
    def create(cls, folder: Path, url: str, sessions: Sequence[str] = SESSIONS) -> "DamageShop":
        """Write the program; each session has paid, and waits for the approval of a refund."""
        (folder / "clerk.py").write_text(PROGRAM.replace("STORE", repr(url)))
        shop = cls(folder, url)
        for session in sessions:
            result = shop.run("run", "clerk", "Go", "-s", session)
            assert "is paused and saved" in result.output, result.output
        return shop

    def run(self, *words: str, stdin: str | None = None) -> Result:
        """Run a command with the program."""
        sys.modules.pop("clerk", None)  # as in a new process
        return CliRunner().invoke(cli, [*words, "--app", "clerk:rt"], input=stdin)

    def effects(self) -> list[str]:
        """Return everything that the tools did, in order."""
        file = self.folder / "effects.log"
        return file.read_text().splitlines() if file.exists() else []

    def json(self, *words: str) -> Any:
        """Return what a command prints as JSON."""
        import json

        return json.loads(self.run(*words, "--json").stdout)
