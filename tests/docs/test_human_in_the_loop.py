"""The page about people in the loop tells the truth: its examples load and run."""

import re
from pathlib import Path
from typing import Any

import pytest
from tests.support.paths import DOCS
from tests.support.shop import agent, ran, refunds

from perdure import Agent, Runtime, tool
from perdure.config import describe, load
from perdure.config.agents import AgentTaskConfig
from perdure.config.links import wait_mode
from perdure.testing import ScriptedModel

PAGE = (DOCS / "human-in-the-loop.md").read_text("utf-8")
YAML = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
PYTHON = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "turns.json").write_text("[]", "utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def loaded(folder: Path, text: str) -> Any:
    file = folder / "perdure.yaml"
    file.write_text(text, "utf-8")
    return load(file)


def test_its_examples_load_and_mean_what_it_says(folder: Path) -> None:
    """S4.45 S4.63: before and after are one line and its store apart."""
    first, before, after = (loaded(folder, text) for text in YAML)
    assert first.agents["assistant"].waits == "async"
    assert before.agents["assistant"].waits == "blocking"
    assert after.agents["assistant"].waits == "async"
    assert any("session_store: main-db" in line for line in describe(before))
    added = set(YAML[2].splitlines()) - set(YAML[1].splitlines())
    assert [line.strip() for line in added if line.startswith("    ")] == ["session_store: main-db"]


def test_its_matrix_is_that_of_the_loader() -> None:
    """S4.40 S4.63"""
    rows = re.findall(r"^\| (none|durable) \| `(\w+)`.*? \| (.*?) \|$", PAGE, re.MULTILINE)
    assert len(rows) == 6
    for store, mode, told in rows:
        named = None if store == "none" else "main-db"
        if "refused" in told:
            assert (named, mode) == (None, "async")
            continue
        waits = wait_mode(mode, named, is_durable=True)
        assert waits == ("async" if told.startswith("saved") else "blocking")


def test_it_names_only_keys_that_there_are() -> None:
    """S4.39"""
    section = PAGE.split("## How long")[1].split("\n## ")[0]
    named = re.findall(r"^\| `(\w+)` \| ", section, re.MULTILINE)
    assert len(named) == 5
    assert set(named) <= set(AgentTaskConfig.model_fields)


@tool(requires_approval=True)
def shell(cmd: str) -> str:
    """Run a command."""
    return cmd


async def lines_of(text: str, **names: Any) -> dict[str, Any]:
    """Run the lines of an example, which may await."""
    body = "".join(f"    {line}\n" for line in text.splitlines())
    exec(f"async def example():\n{body}    return locals()\n", names)  # noqa: S102 - our own page
    found: dict[str, Any] = await names["example"]()
    return found


async def test_what_it_says_about_remembering_runs() -> None:
    once, rule = PYTHON[0].splitlines()
    turns = [{"calls": [{"tool": "shell", "args": {"cmd": cmd}}]} for cmd in ("ls -l", "ls", "rm")]
    for line, then in ((once, "ls"), (rule, "rm")):
        one = Agent("ops", model=ScriptedModel(turns), tools=[shell])
        async with Runtime("memory:", agents=[one]) as rt:
            (call,) = (await rt.session("s", agent=one).run("Go")).pending
            await lines_of(line, rt=rt, call=call)
            (asked,) = (await rt.session("s").run()).pending
            assert asked.args["cmd"] == then


async def test_what_it_says_about_the_state_runs() -> None:
    """S4.63"""
    ran.clear()
    one = agent(refunds(5), {"text": "Done."})
    async with (
        Runtime("memory:", agents=[one]) as rt,
        Runtime("memory:", agents=[agent(refunds(5), {"text": "Done."})]) as other,
    ):
        result = await rt.session("order-991", agent=one).run("Refund it")
        found = await lines_of(PYTHON[-1], rt=rt, other=other, result=result)
        (call,) = (await found["session"].get()).pending
        await other.approve(call.id, by="ana")
        assert (await found["session"].run()).output == "Done."
    assert ran == [("refund", 1, 5)]
