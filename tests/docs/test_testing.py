"""The page about testing tells the truth: its example runs, and it names every kind of fault."""

import re

from tests.support.paths import DOCS, ROOT

from perdure import Runtime
from perdure.testing import simulate
from perdure.testing.simulation.faults import KINDS

PAGE = (DOCS / "testing.md").read_text("utf-8")


def test_its_example_runs() -> None:
    (text,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    names: dict[str, object] = {"Runtime": Runtime}
    exec(text.replace("seeds=200", "seeds=100"), names)  # noqa: S102 - the example of the page
    names["test_refunds_survive_a_fleet"]()  # type: ignore[operator]
    assert names["simulate"] is simulate


def test_it_names_every_kind_of_fault() -> None:
    (line,) = [line for line in PAGE.splitlines() if line.startswith("- `faults=")]
    assert set(re.findall(r"`(\w+)`", line)) == set(KINDS)


def test_the_readme_leads_to_it() -> None:
    assert "(docs/testing.md)" in (ROOT / "README.md").read_text()
