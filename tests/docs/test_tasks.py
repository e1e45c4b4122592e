"""docs/tasks.md: its program runs, its configuration loads, its codes and routes exist."""

import re
import subprocess
import sys
from pathlib import Path

from tests.support.paths import DOCS, ROOT
from tests.support.server import around

from perdure.config import load
from perdure.serve.http.routes import checkpoints, executions, tasks
from perdure.tasks.executions.options import execution_options

PAGE = (DOCS / "tasks.md").read_text()


def test_the_program_runs_and_goes_back_to_the_checkpoint(tmp_path: Path) -> None:
    program = ROOT / "examples/shared_task.py"
    assert program.read_text() in PAGE
    done = subprocess.run(
        [sys.executable, str(program)],
        cwd=tmp_path,
        env=around(),
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert "'changed': ['parser.py']" in done.stdout
    assert "('completed', ('coder', 'reviewer')) def parse(): ..." in done.stdout
    folder = tmp_path / "tasks/parser"
    files = re.findall(r"^\| `([\w.]+)/?` \|", PAGE, re.MULTILINE)
    assert sorted(path.name for path in folder.iterdir()) == sorted(files)
    assert "Rewrite it" in (folder / "decisions.md").read_text()


def test_the_configuration_is_right(tmp_path: Path) -> None:
    commands, hooks = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "perdure.yaml").write_text(commands)
    options = execution_options(load(tmp_path / "perdure.yaml").tasks.commands)
    assert (options.sandbox, options.network.mode) == ("bwrap", "allow")
    assert options.require_sandbox
    (tmp_path / "perdure.yaml").write_text(hooks)
    config = load(tmp_path / "perdure.yaml")
    assert config.tasks.root == tmp_path / "tasks"
    assert [hook.use for hook in config.tasks.hooks] == ["policy:check"]


def test_every_route_is_on_the_page() -> None:
    for route in (*tasks.ROUTES, *checkpoints.ROUTES, *executions.ROUTES):
        name = route.path.replace("{task_id}", "{id}")
        name = name.replace("{execution_id}", "{execution}")
        name = name.replace("{checkpoint_id}", "{checkpoint}")
        assert name in PAGE or f"/{name.rsplit('/', 1)[1]}`" in PAGE, name
