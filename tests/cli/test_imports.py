"""`perdure --help` answers without loading what only a command needs."""

import subprocess
import sys
from importlib import import_module
from pkgutil import iter_modules

import click
import pytest

from perdure.cli.groups import LateGroup
from perdure.cli.root import COMMANDS, cli

PROGRAM = """
import sys
from perdure.cli import main
sys.argv = ["perdure", *{args!r}]
try:
    main()
except SystemExit as end:
    assert not end.code, end.code
print("\\nLOADED", *sorted({{name.partition(".")[0] for name in sys.modules}}))
"""

RUNTIME = """
import io, sys
from contextlib import redirect_stdout
from perdure.cli.root import COMMANDS, cli
with redirect_stdout(io.StringIO()):
    for name in ((), *((name,) for name in COMMANDS)):
        try:
            cli.main([*name, "--help"])
        except SystemExit as end:
            assert not end.code, name
        heavy = {"asyncio", "perdure.app", "perdure.client", "perdure.runtime.sessions.service"}
        heavy |= {"anyio", "msgspec", "pydantic", "rich", "perdure.store", "perdure.tasks"}
        loaded = heavy & set(sys.modules)
        assert not loaded, (name, loaded)
        assert name or not any(module.startswith("perdure.cli.commands.") for module in sys.modules)
"""
WEB = {"aiohttp", "fastapi", "flask", "httpx", "hypercorn", "starlette", "uvicorn"}
MODELS = {"anthropic", "google", "mistralai", "openai", "pydantic_ai", "mcp"}
DATABASES = {"sqlite3", "_sqlite3", "pysqlite3", "asyncpg", "psycopg", "redis"}

MOST_MODULES_OF_RUNTIME = 215
RARELY_USED = (
    "perdure.core.execution_states",
    "perdure.core.providers.formats",
    "perdure.core.transfer",
    "perdure.runtime.doctor",
    "perdure.runtime.engine.driver",
    "perdure.runtime.models.pydantic_ai",
    "perdure.runtime.transfer",
    "perdure.runtime.worker",
)


@pytest.mark.parametrize("module", ["perdure", "perdure.serve"])
def test_an_import_loads_nothing_before_a_name_is_used(module: str) -> None:
    program = f"import {module}, sys; print(*sys.modules)"
    command = [sys.executable, "-c", program]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    loaded = {name.partition(".")[0] for name in shown.split()}
    assert not loaded & (WEB | MODELS | DATABASES | {"msgspec", "anyio"})


@pytest.mark.parametrize("args", [["--help"], ["--version"], ["run", "--help"]])
def test_help_loads_no_web_framework_model_library_or_database_driver(args: list[str]) -> None:
    command = [sys.executable, "-c", PROGRAM.format(args=args)]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    loaded = set(shown.rpartition("LOADED")[2].split())
    assert "perdure" in loaded
    assert not loaded & (WEB | MODELS | DATABASES)


@pytest.mark.parametrize(
    "statement",
    [
        "import perdure",
        "import perdure.config",
        "import perdure.config.load_object",
        "import perdure.config.agent_config",
        "import perdure.cli.backend.open",
    ],
)
def test_only_a_configuration_that_is_read_loads_pydantic(statement: str) -> None:
    """The models of the configuration need it, and commands without a file do not pay for it."""
    program = f"{statement}; import sys; print('pydantic' in sys.modules)"
    command = [sys.executable, "-c", program]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert shown.strip() == "False"


@pytest.mark.parametrize("args", [["--help"], ["approve", "--help"], ["config", "--help"]])
def test_help_does_not_load_the_models_of_the_configuration(args: list[str]) -> None:
    command = [sys.executable, "-c", PROGRAM.format(args=args)]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "pydantic" not in shown.rpartition("LOADED")[2].split()


def test_the_import_of_runtime_loads_what_opens_a_session_and_not_what_few_use() -> None:
    """Drivers, workers, transfers and wire formats are loaded by the first that uses them."""
    program = "import sys; from perdure import Runtime; print(*sys.modules)"
    command = [sys.executable, "-c", program]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    modules = {name for name in shown.split() if name.partition(".")[0] == "perdure"}
    assert len(modules) <= MOST_MODULES_OF_RUNTIME, sorted(modules)
    assert not {name for name in modules if name.startswith(RARELY_USED)}


def test_help_of_no_command_or_group_loads_what_only_a_command_that_runs_needs() -> None:
    """The help of `perdure` itself loads no command either."""
    subprocess.run([sys.executable, "-c", RUNTIME], check=True)


def late_groups() -> list[tuple[str, LateGroup]]:
    """Return the root command and its groups whose commands are loaded when they are typed."""
    commands = {name: cli.get_command(click.Context(cli), name) for name in COMMANDS}
    groups = [(name, item) for name, item in commands.items() if isinstance(item, LateGroup)]
    return [("perdure", cli), *groups]


@pytest.mark.parametrize("group", [pytest.param(group, id=name) for name, group in late_groups()])
def test_a_group_lists_each_command_as_the_command_describes_itself(group: LateGroup) -> None:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None, name
        assert (command.name, command.get_short_help_str(1_000)) == (name, group.contents[name][1])


@pytest.mark.parametrize("group", [pytest.param(group, id=name) for name, group in late_groups()])
def test_a_group_lists_every_command_that_its_modules_add(group: LateGroup) -> None:
    package = import_module(group.package)
    for module in iter_modules(package.__path__, f"{group.package}."):
        import_module(module.name)
    assert set(group.commands) <= set(group.contents)


def test_a_group_knows_no_command_that_it_does_not_list() -> None:
    for _, group in late_groups():
        assert group.get_command(click.Context(group), "group") is None
