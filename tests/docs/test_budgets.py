"""The page about budgets tells the truth: its examples load and run."""

import re
import textwrap
from pathlib import Path
from typing import Any

import pytest
from tests.support.paths import DOCS, ROOT

from perdure import Agent, Runtime
from perdure.config import load
from perdure.core.session.budgets import LIMITS
from perdure.store.memory import MemoryStore
from perdure.testing import ScriptedModel

PAGE = (DOCS / "budgets.md").read_text("utf-8")


def test_its_configuration_loads_with_every_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (text,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "perdure.yaml").write_text(text, "utf-8")
    budget = load(tmp_path / "perdure.yaml").agents["lead"].budget.present()
    assert set(budget) == set(LIMITS)
    assert set(re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE)) == set(LIMITS)


async def test_its_program_continues_a_run_that_waits() -> None:
    (text,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    turns: list[dict[str, Any]] = [
        {"calls": [{"tool": "todo_write", "args": {"todos": []}}]},
        {"text": "Done."},
    ]
    lead = Agent("lead", model=ScriptedModel(turns), tools=["todo_write"], budget={"turns": 1})
    program = "async def program(rt, lead):\n" + textwrap.indent(text, "    ")
    names: dict[str, object] = {}
    exec(f"{program}    return result\n", names)  # noqa: S102 - the example of the page
    async with Runtime(MemoryStore(), agents=[lead]) as rt:
        result = await names["program"](rt, lead)  # type: ignore[operator]
    assert (result.state, result.output) == ("completed", "Done.")


def test_the_readme_leads_to_it() -> None:
    assert "(docs/budgets.md)" in (ROOT / "README.md").read_text()
