"""What agents name: stores, modes, models, files."""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from perdure import Tool
from perdure.app.configured import agents_from
from perdure.config import ToolRef, describe, load, token_warnings
from perdure.config.agents import BUILT_IN
from perdure.errors import ConfigError
from perdure.runtime.tools.builtin import BUILTINS

Refusal = Callable[[str], ConfigError]
Write = Callable[[str], str]

STORES = """
session_stores:
  main-db: {backend: sql, sql: {driver: sqlite, database: ./sessions.db}}
  other: {backend: sql, sql: {driver: sqlite, database: data/../other.db}}
  same: {backend: sql, sql: {driver: sqlite, database: sessions.db}}
  mem: {backend: memory}
"""
MAIN = "session_stores:\n  main-db: {backend: sql, sql: {driver: sqlite, database: ./s.db}}\n"


def agent(name: str, *keys: str) -> str:
    return f"\n  {name}: {{llm: 'scripted:turns.json', {', '.join(keys)}}}"


def test_without_a_store_it_is_a_file_beside_the_yaml(write: Write, folder: Path) -> None:
    config = load(write(f"agents:{agent('a')}"))
    assert config.store_url == f"sqlite:///{folder}/perdure.db"
    assert "the default: no durable store is configured" in describe(config)[1]


def test_the_only_durable_store_is_the_default(write: Write, folder: Path) -> None:
    config = load(write(f"{MAIN}  mem: {{backend: memory}}\nagents:{agent('a')}"))
    assert config.store_url == f"sqlite:///{folder}/s.db"
    assert describe(config)[1].endswith("(session_stores.main-db, the only durable one)")
    assert describe(config)[-1] == "note: no agent uses session_stores.mem"


def test_two_durable_stores_need_a_choice(refusal: Refusal) -> None:
    error = refusal(f"{STORES}agents:{agent('a')}")
    assert error.message.startswith("perdure.yaml:1: session_stores: has several durable stores")


@pytest.mark.parametrize("second", ["other", "mem"])
def test_a_process_has_one_store(second: str, refusal: Refusal) -> None:
    """S4.41"""
    one, two = agent("a", "session_store: main-db"), agent("b", f"session_store: {second}")
    assert refusal(f"{STORES}agents:{one}{two}").message == (
        "perdure.yaml:8: agents.b.session_store: is not 'main-db', the store of agent 'a'; "
        "a process has one store"
    )


def test_two_names_of_one_file_are_one_store(write: Write, folder: Path) -> None:
    one, two = agent("a", "session_store: main-db"), agent("b", "session_store: same")
    config = load(write(f"{STORES}agents:{one}{two}{agent('c')}"))
    assert config.store_url == f"sqlite:///{folder}/sessions.db"


def test_a_memory_store_is_warned_of(write: Write) -> None:
    """S4.64"""
    config = load(write(f"{STORES}agents:{agent('a', 'session_store: mem')}"))
    assert config.store_url == "memory:"
    assert any(
        line.startswith("warning: the store is in memory") and "driver: sqlite" in line
        for line in describe(config)
    )


def test_an_unknown_store_is_told(refusal: Refusal) -> None:
    """S4.41"""
    error = refusal(f"{MAIN}agents:{agent('a', 'session_store: main')}")
    assert error.message == (
        "perdure.yaml:4: agents.a.session_store: there is no session store 'main'; "
        "did you mean 'main-db'?"
    )


@pytest.mark.parametrize(
    "store, told",
    [
        (
            "{backend: sqll}",
            ".backend: invalid backend: sqll (must be 'sql', 'memory', or 'files')",
        ),
        ("{backend: sql}", ": backend sql needs sql: {driver, database}"),
        ("{backend: memory, index: 'http://x'}", ".index: must be a URL that begins with redis://"),
        ("{backend: files}", ": backend files needs files: {path}"),
        (
            "{backend: memory, sql: {driver: sqlite, database: x}}",
            ": backend memory does not take 'sql'",
        ),
        ("{backend: sql, sql: {driver: mysql, database: x}}", ".sql.driver: invalid driver: mysql"),
        ("{backend: sql, sql: {driver: sqlite}}", ".sql.database: is missing"),
        ("{backend: sql, sql: {driver: sqlite, database: ':memory:'}}", ": the database of driver"),
        ("{backend: sql, sql: {driver: sqlite, database: 'sqlite:///x'}}", ": the database of"),
        ("{backend: sql, sql: {driver: postgres, database: x}}", ": the database of driver"),
    ],
)
def test_a_wrong_store_is_told(store: str, told: str, refusal: Refusal) -> None:
    """S4.41"""
    error = refusal(f"session_stores:\n  main: {store}")
    assert error.message.startswith(f"perdure.yaml:2: session_stores.main{told}")


# session_store, task: and what the mode is, or with which error it is refused.
MATRIX = [
    (None, "", "blocking"),
    (None, "{hitl: {mode: auto}}", "blocking"),
    (None, "{hitl: }", "blocking"),
    (None, "{hitl: {mode: }}", "blocking"),
    (None, "{hitl: {mode: ''}}", "blocking"),
    (None, "{hitl: {mode: blocking}}", "blocking"),
    (None, "{hitl: {mode: async}}", "async HITL requires session_store to be configured"),
    ("main-db", "", "async"),
    ("main-db", "{hitl: {mode: auto}}", "async"),
    ("main-db", "{hitl: {mode: blocking}}", "blocking"),
    ("main-db", "{hitl: {mode: async}}", "async"),
    ("mem", "{hitl: {mode: auto}}", "blocking"),
    (
        "mem",
        "{hitl: {mode: async}}",
        "async HITL requires a durable session_store ('mem' is memory)",
    ),
    *((None, f"{{hitl: {{mode: {empty}}}}}", "blocking") for empty in ("null", "~")),
    ("main-db", "{hitl: {mode: null}}", "async"),
    (
        None,
        "{hitl: {mode: sync}}",
        "invalid hitl.mode: sync (must be 'auto', 'blocking', or 'async')",
    ),
]


@pytest.mark.parametrize("store, task, outcome", MATRIX)
def test_the_mode_follows_the_matrix(
    store: str | None, task: str, outcome: str, write: Write
) -> None:
    """S4.40 S4.43 S4.48"""
    keys = [f"session_store: {store}"] * bool(store) + [f"task: {task}"] * bool(task)
    file = write(f"{MAIN}  mem: {{backend: memory}}\nagents:{agent('a', *keys)}")
    if outcome in ("blocking", "async"):
        assert load(file).agents["a"].waits == outcome
        return
    with pytest.raises(ConfigError) as caught:
        load(file)
    where = "perdure.yaml:5: agents.a.task.hitl.mode: "
    assert caught.value.message.startswith(where + outcome)


def test_tasks_are_kept_in_the_session_store(write: Write) -> None:
    """S4.39: task.backend and task.sql are taken, and it is said what becomes of them."""
    sql = "{driver: sqlite, database: ./s.db}"
    task = f"task: {{backend: sql, sql: {sql}}}"
    config = load(write(f"{MAIN}agents:{agent('a', 'session_store: main-db', task)}"))
    assert config.agents["a"].task.backend == "sql"
    note = "note: the session store also stores tasks; task.backend has no effect"
    assert note in describe(config)


def test_tasks_in_a_second_database_are_refused(refusal: Refusal) -> None:
    """S4.39: one durable store per process."""
    sql = "{driver: sqlite, database: tasks.db}"
    error = refusal(f"{MAIN}agents:{agent('a', 'session_store: main-db', f'task: {{sql: {sql}}}')}")
    assert error.message == (
        "perdure.yaml:4: agents.a.task.sql: is not the database of the session "
        "store, which also stores tasks"
    )


def test_permissions_are_understood(write: Write) -> None:
    rules = "permissions: {deny: ['shell:cmd=rm*'], ask: [refund]}"
    assert load(write(f"agents:{agent('a', rules)}")).agents["a"].permissions.present() == {
        "deny": ("shell:cmd=rm*",),
        "ask": ("refund",),
    }


def test_a_wrong_permission_is_told(refusal: Refusal) -> None:
    """S4.41"""
    error = refusal(f"agents:{agent('a', 'permissions: {deny: [a b]}')}")
    assert error.message == (
        "perdure.yaml:2: agents.a.permissions.deny[0]: 'a b' is not a permission rule"
    )


def test_the_policy_of_expiry_is_understood(write: Write) -> None:
    """S4.66"""
    task = "task: {input_timeout: 1h, on_expire: cancel, expire_grace: 5m}"
    found = load(write(f"agents:{agent('a', task)}")).agents["a"].task
    assert (found.on_expire, found.expire_grace) == ("cancel", timedelta(minutes=5))
    assert found.input_timeout == timedelta(hours=1)


EXAMPLE_STORE = """\
session_stores:
  main-db:
    backend: sql
    sql:
      driver: sqlite
      database: ./sessions.db

"""
EXAMPLE = """\
agents:
  assistant:
    llm: "gpt-4o"
"""
EXAMPLE_TASK = """\
    task:
      backend: "memory"
      input_timeout: 600
"""
EXAMPLE_TOOLS = """\
    tools:
      - execute_command  # requires_approval: true
"""
USES = '    session_store: "main-db"  # enables async HITL automatically\n'


@pytest.mark.parametrize(
    "text, waits",
    [
        (EXAMPLE + EXAMPLE_TASK + EXAMPLE_TOOLS, "blocking"),
        (EXAMPLE_STORE + EXAMPLE + USES + EXAMPLE_TASK + EXAMPLE_TOOLS, "async"),
        (
            EXAMPLE_STORE
            + EXAMPLE
            + USES
            + EXAMPLE_TASK
            + '      hitl:\n        mode: "async"  # Explicit async\n'
            + EXAMPLE_TOOLS,
            "async",
        ),
        (
            EXAMPLE_STORE
            + EXAMPLE
            + USES
            + EXAMPLE_TASK
            + '      hitl:\n        mode: "blocking"  # Force blocking mode\n'
            + EXAMPLE_TOOLS,
            "blocking",
        ),
    ],
)
def test_the_four_good_examples_load_unchanged(text: str, waits: str, write: Write) -> None:
    """S4.65"""
    config = load(write(text))
    (agent_config,) = config.agents.values()
    assert agent_config.waits == waits
    (tool,) = agent_config.tools
    assert isinstance(tool, ToolRef)
    assert (tool.target, tool.is_built_in) == ("execute_command", True)
    assert BUILTINS[tool.target].requires_approval is True


@pytest.mark.parametrize(
    "keys, line",
    [
        ((), "to keep them, add to the agent: session_store: main-db"),
        (("session_store: mem",), "to keep them, add to the agent: session_store: main-db"),
        (
            ("session_store: main-db", "task: {hitl: {mode: blocking}}"),
            "to keep them, remove task.hitl.mode: blocking",
        ),
    ],
)
def test_a_blocking_agent_is_warned_of_with_the_line_that_helps(
    keys: tuple[str, ...], line: str, write: Write
) -> None:
    """S4.45 S4.64"""
    config = load(write(f"{MAIN}  mem: {{backend: memory}}\nagents:{agent('a', *keys)}"))
    warning = "warning: agent a waits in place, and a restart loses its pending calls"
    assert f"{warning}; {line}" in describe(config)


def test_a_blocking_agent_without_any_store_is_told_the_whole_line(write: Write) -> None:
    """S4.45 S4.64"""
    (warning,) = [one for one in describe(load(write(f"agents:{agent('a')}"))) if "warning" in one]
    said = warning.split("at the top: ")[1]
    durable = load(write(f"{said}\nagents:{agent('a', 'session_store: main-db')}"))
    assert durable.agents["a"].waits == "async"
    assert not any("warning" in one for one in describe(durable))


def test_the_fifth_example_is_refused_with_its_error(refusal: Refusal) -> None:
    """S4.40 S4.65"""
    task = '    task:\n      backend: "memory"\n      hitl:\n        mode: "async"\n'
    assert refusal(f"{EXAMPLE}    # No session_store configured\n{task}").message == (
        "perdure.yaml:8: agents.assistant.task.hitl.mode: "
        "async HITL requires session_store to be configured"
    )


@pytest.mark.parametrize(
    "llm, told",
    [
        (
            "mian",
            "'mian' is not a key of llms and not of the form provider:model; did you mean 'main'?",
        ),
        ("antropic:claude", "unknown provider 'antropic'; did you mean 'anthropic'?"),
        ("scripted:nowhere.json", ""),
    ],
)
def test_an_unknown_model_is_told(llm: str, told: str, refusal: Refusal) -> None:
    llms = "llms: {main: {provider: scripted, script: turns.json}}"
    error = refusal(f"{llms}\nagents:\n  a:\n    llm: {llm}")
    assert error.message.startswith(f"perdure.yaml:4: agents.a.llm: {told}")


@pytest.mark.parametrize(
    "llm, told",
    [
        ("{provider: scripted}", ": provider scripted needs script: FILE"),
        ("{provider: scripted, script: x.json}", ".script: "),
        (
            "{provider: scripted, script: turns.json, model: x, api_key: y}",
            ": provider scripted does not take 'model' or 'api_key'",
        ),
        ("{provider: openai}", ": provider openai needs model: NAME"),
        (
            "{provider: openai, model: x, script: turns.json}",
            ": provider openai does not take 'script'",
        ),
        ("{model: x}", ".provider: is missing"),
        ("{provider: openai, model: x, settings: 5}", ".settings: must be a block of keys"),
        ("{provider: openai, model: x, base_url: y}", ".base_url: must be a URL"),
    ],
)
def test_a_wrong_llm_is_told(llm: str, told: str, refusal: Refusal) -> None:
    assert refusal(f"llms:\n  m: {llm}").message.startswith(f"perdure.yaml:2: llms.m{told}")


def test_paths_are_relative_to_the_file(
    folder: Path, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(f"""
{MAIN}
llms: {{m: {{provider: scripted, script: ./turns.json}}}}
agents:
  a: {{llm: m, instructions_file: prompt.md}}
  b: {{llm: "scripted:turns.json"}}
""")
    (folder / "prompt.md").write_text("Be kind.", "utf-8")
    (folder / "elsewhere").mkdir()
    monkeypatch.chdir(folder / "elsewhere")
    config = load("../perdure.yaml")
    assert config.agents["a"].instructions_file == "Be kind."
    assert config.agents["a"].models[0].script == folder / "turns.json"
    assert config.agents["b"].models[0].script == folder / "turns.json"
    assert config.store_url == f"sqlite:///{folder}/s.db"


def test_the_options_of_a_tool_are_kept(write: Write) -> None:
    tool = """{use: "shop:deploy", name: deploy, deferred: true, timeout: 2h, idempotent: true,
        approval_timeout: ~, on_crash: retry, aliases: [ship]}"""
    config = load(write(f"agents:{agent('a', f'tools: [{tool}, todo_write]')}"))
    deploy, todo = config.agents["a"].tools
    assert isinstance(deploy, ToolRef)
    assert deploy.options == {
        "name": "deploy",
        "deferred": True,
        "timeout": timedelta(hours=2),
        "idempotent": True,
        "approval_timeout": None,
        "on_crash": "retry",
        "aliases": ("ship",),
    }
    assert isinstance(todo, ToolRef)
    assert todo.is_built_in


def test_a_tool_can_be_made_external(write: Write, folder: Path) -> None:
    source = "def ask(question: str) -> str:\n    raise AssertionError(question)\n"
    (folder / "forms.py").write_text(source, "utf-8")
    tool = '{use: "forms:ask", external: true}'
    (made,) = agents_from(load(write(f"agents:{agent('a', f'tools: [{tool}]')}")))[0].tools
    assert isinstance(made, Tool)
    assert (made.external, made.deferred) == (True, True)
    wrong = '{use: "forms:ask", external: true, idempotent: true}'
    config = load(write(f"agents:{agent('a', f'tools: [{wrong}]')}"))
    with pytest.raises(ConfigError, match="'ask' is external: idempotent has no meaning"):
        agents_from(config)


def test_the_built_in_tools_are_those_of_the_runtime() -> None:
    assert set(BUILT_IN) == set(BUILTINS)


def test_the_queue_of_an_agent_is_understood(write: Write) -> None:
    config = load(write(f"agents:{agent('a', 'queue: gpu')}{agent('b')}"))
    assert [one.queue for one in config.agents.values()] == ["gpu", "default"]
    assert [one.queue for one in agents_from(config)] == ["gpu", "default"]


def test_models_that_stand_in_are_understood(write: Write, folder: Path) -> None:
    (folder / "spare.json").write_text("[]")
    llms = "llms: {spare: {provider: scripted, script: spare.json}}\n"
    keys = ("fallback: [spare, 'scripted:turns.json']", "retries: 0")
    config = load(write(f"{llms}agents:{agent('a', *keys)}{agent('b', 'fallback: spare')}"))
    first, second = config.agents.values()
    scripts = [one.script for one in first.models[1:]]
    assert scripts == [folder / "spare.json", folder / "turns.json"]
    assert (first.retries, second.retries) == (0, 6)
    assert [one.script for one in second.models[1:]] == [folder / "spare.json"]
    assert not any("no agent uses" in line for line in describe(config))


@pytest.mark.parametrize(
    "key, told",
    [
        ("fallback: spar", "agents.a.fallback: 'spar' is not a key of llms"),
        (
            "fallback: ['scripted:turns.json', 'spar:x']",
            "agents.a.fallback[1]: unknown provider 'spar'",
        ),
        ("retries: -1", "agents.a.retries"),
        ("retries: often", "agents.a.retries"),
    ],
)
def test_a_wrong_stand_in_is_told(key: str, told: str, refusal: Refusal) -> None:
    assert told in str(refusal(f"agents:{agent('a', key)}"))


def test_a_token_that_could_be_guessed_is_warned_of() -> None:
    (warning,) = token_warnings({"ana": "x", "ben": "a" * 16})
    assert warning.startswith("warning: the token of ana has only 1 character and could be guessed")
    assert "x" not in warning.removesuffix("openssl rand -hex 32")
