"""Project whose store is damaged: sessions that wait for an approval, and their effects outside."""

import json
import re
import shlex
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result
from tests.support.findings import advice_of, code_of

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
_FIX = re.compile(r"perdure doctor (\S+ )?--fix")
_PROGRAM_FILE, _EFFECTS = "clerk.py", "effects.log"


@dataclass(frozen=True, slots=True)
class DamageShop:
    """Project in the current folder, whose commands run in this process."""

    folder: Path
    url: str

    @classmethod
    def create(cls, folder: Path, url: str, sessions: Sequence[str] = SESSIONS) -> "DamageShop":
        """Write the program; each session has paid, and waits for the approval of a refund."""
        shop = cls(folder, url)
        shop._write_program()
        for session in sessions:
            result = shop.run("run", "clerk", "Go", "-s", session)
            assert "is paused and saved" in result.output, result.output
        return shop

    def copied(self, folder: Path, url: str | None = None) -> "DamageShop":
        """Return a copy in another folder, of which the store has another URL."""
        for path in self.folder.iterdir():
            if path.is_file():
                shutil.copy(path, folder / path.name)
        shop = DamageShop(folder, url or self.url)
        shop._write_program()
        return shop

    def _write_program(self) -> None:
        (self.folder / _PROGRAM_FILE).write_text(PROGRAM.replace("STORE", repr(self.url)))

    def run(self, *words: str, app: bool = True) -> Result:
        """Run a command, with the program unless it has another store."""
        sys.modules.pop("clerk", None)  # as in a new process
        return CliRunner().invoke(cli, [*words, *(("--app", "clerk:rt") if app else ())])

    def json(self, *words: str) -> Any:
        """Return what a command prints as JSON."""
        result = self.run(*words, "--json")
        assert result.stdout, result.stderr
        return json.loads(result.stdout)

    def effects(self) -> list[str]:
        """Return everything that the tools did, in order."""
        file = self.folder / _EFFECTS
        return file.read_text().splitlines() if file.exists() else []

    def findings(self, *words: str) -> tuple[int, list[dict[str, Any]]]:
        """Return the exit code and the findings of doctor, of a session or of the store."""
        result = self.run("doctor", *words, "--json")
        assert result.stdout, result.stderr
        findings = json.loads(result.stdout)["findings"]
        return result.exit_code, [item for item in findings if item["severity"] != "ok"]

    def fix(self) -> int:
        """Run the commands that doctor names until it names none; return their number."""
        count = 0
        while commands := {
            match[0] for item in self.findings()[1] if (match := _FIX.search(advice_of(item)))
        }:
            assert count < 2 * len(SESSIONS), commands
            for command in sorted(commands):
                count += 1
                result = self.run(*shlex.split(command)[1:])
                assert "Traceback" not in result.output
                assert result.exit_code in (0, 1, 7), result.output
        return count

    def states(self) -> dict[str, str]:
        """Return the sessions of the list by their ids: the state, or that it is corrupt."""
        states: dict[str, str] = {}
        for item in self.json("sessions", "list")["sessions"]:
            code = code_of(item)
            states[item["sessionID"]] = code if code == "STORE_CORRUPT" else item["state"]
        return states

    def pending(self, session: str) -> str | None:
        """Return the id of the open call of a session."""
        listed = self.json("pending", "list")["pending"]
        ids: list[str] = [item["id"] for item in listed if item["sessionID"] == session]
        return ids[0] if ids else None
