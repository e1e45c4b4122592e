"""The README tells the truth: its programs are the examples, and its commands work when pasted."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.servers.ports import free_port
from tests.support.paths import ROOT

README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```sh\n(.*?)```", README, re.DOTALL)
PAGES = [
    ROOT / "README.md",
    ROOT / "ARCHITECTURE.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "SECURITY.md",
]
PAGES += sorted((ROOT / "docs").rglob("*.md"))


def paste(folder: Path, script: str) -> str:
    """Run a block as a shell would when a reader pastes it; return what it printed."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=folder,
        env={**os.environ, "PATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the programs, saved from the README as a reader would."""
    for name, text in re.findall(
        r"<!-- examples/(\S+) -->\n```python\n(.*?)```", README, re.DOTALL
    ):
        (tmp_path / name).write_text(text)
    return tmp_path


def block(first_words: str) -> str:
    """The one block whose first line begins like that."""
    (found,) = [text for text in BLOCKS if text.startswith(first_words)]
    return str(found)


def test_the_programs_in_the_readme_are_the_examples() -> None:
    programs = re.findall(r"<!-- (\S+) -->\n```python\n(.*?)```", README, re.DOTALL)
    assert len(programs) == 2
    for name, text in programs:
        assert (ROOT / name).read_text() == text


def test_the_first_commands_lead_from_an_empty_folder_to_an_approved_refund(tmp_path: Path) -> None:
    install, _, commands = block("pip install .").partition("\n")
    assert install.startswith("pip install .")
    output = paste(tmp_path, commands)
    assert "needs approval" in output
    assert "refunded 4000 cents of order 991" in output


def test_the_commands_lead_from_waiting_to_completed(folder: Path) -> None:
    output = paste(folder, block("python refund.py"))
    assert output.startswith("waiting")
    assert "\ncompleted Done: the money is on its way" in output
    assert "refunded 4000 cents" in output


def test_the_story_over_http_survives_its_kill(folder: Path) -> None:
    """G11"""
    port = str(free_port())
    script = block("perdure --app refund:rt serve").replace("4747", port)
    script = script.replace(" serve", f" serve --port {port}").replace("&\n", "> log.txt 2>&1 &\n")
    output = paste(folder, f"trap 'kill -9 $(jobs -p)' EXIT\n{script}")
    *_, story = output.splitlines()[-1].partition('{"events":')
    events = json.loads('{"events":' + story)["events"]
    assert [event["type"] for event in events].count("agent_complete") == 1
    assert "collected at 14:02" in story
    assert story.count("refunded 4200 cents") == 1


def test_the_example_test_passes(folder: Path) -> None:
    script = block("pip install pytest").partition("\n")[2]
    (folder / "conftest.py").write_text(
        "import pytest\n\n@pytest.fixture\ndef anyio_backend():\n    return 'asyncio'\n"
    )
    script = script.replace("-m pytest", f"-m pytest -q -p no:cacheprovider -c {os.devnull}")
    assert "2 passed" in paste(folder, script)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_and_named_test_exists(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    targets = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text)
    for target in targets:
        assert (page.parent / target).exists(), target
    for test in re.findall(r"`(tests/[^`*]+)`", text):
        assert (ROOT / test).exists(), test


def test_every_page_is_linked_from_the_index_of_the_readme() -> None:
    pages = sorted((ROOT / "docs").glob("*.md")) + sorted(
        (ROOT / "docs" / "reference").glob("*.md")
    )
    linked = set(re.findall(r"\]\(([^)#:]+)\)", README))
    assert [str(p.relative_to(ROOT)) for p in pages if str(p.relative_to(ROOT)) not in linked] == []
