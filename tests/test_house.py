"""The rules of the source tree: sizes, names, docstrings, import cycles and public import paths."""

import ast
import importlib
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent
from typing import Final

import pytest
from tests.support.paths import ROOT

SRC: Final = ROOT / "src"
MOST_MODULES: Final = 20

# Classes that may share a name, each with its reason.
SHARED_CLASS_NAMES: Final = {
    "Decision": "the event of that type, and the public value in `perdure`",
    "Hook": "a receiver of webhooks, and the seed's record of a task hook in `perdure.tasks`",
    "ToolCall": "the event of that type, and the public value in `perdure.hitl`",
    "Unknown": "the event of a type that is not known, and the error of the store contract",
}
MOST_SHARED_NAMES: Final = 5

SHORTCUTS: Final = {  # imports upward, for type checkers: the type of `ctx.runtime`
    "perdure.runtime.values": {"perdure.app.runtime"},
}

GERUNDS: Final = {
    *("streaming", "naming", "listing", "paging", "binding", "pending"),  # nouns of the field
    "testing",  # a public import path
}
BANNED_NAMES: Final = {
    *("one", "found", "said", "told", "asked", "known", "given", "made", "wanted", "heard", "seen"),
    *("taken", "brought", "meant", "who", "whom", "what", "whose", "why", "how"),
}
DOCSTRING_START: Final = re.compile(r"(What|How|Which|Who|Where|Whether|Why)\b")

PUBLIC: Final = {
    "perdure": "Agent Approval ApprovalRequired BackgroundTask Conflict Context Decision Delta "
    "Event File InputRequired NotFound PendingCall PendingResult PerdureError Principal Refused "
    "Result Runtime Session Tool ToolError asgi tool",
    "perdure.errors": "PerdureError Conflict NotFound Refused ToolError ModelError ConfigError",
    "perdure.app": "Runtime",
    "perdure.sessions": "AgentSystem AgentSystemBuilder EventLogger FilesystemStorage "
    "InMemoryStorage NoOpStorage SessionStorage SimpleSessionManager TodoManager "
    "sanitize_recovered_messages validate_message_structure",
    "perdure.pending": "AsyncTool AsyncToolRegistry DEFAULT_ASYNC_TIMEOUT PendingToolCall "
    "SessionResumer check_expired_calls recover_pending_sessions",
    "perdure.hitl": "ExecutionState ReasoningStateSnapshot capture_execution_state "
    "serialize_execution_state deserialize_execution_state restore_reasoning_state "
    "save_execution_state_to_session load_execution_state_from_session",
    "perdure.tasks": "AgentDecision Checkpoint Hook LockInfo LockManager LockMode LogEntry "
    "LogOptions MultiLayerPersistence OpenCodeError Task TaskConfig TaskFilters TaskLifecycle "
    "TaskLifecycleHooks TaskRegistry TaskResult TaskState TaskStatus",
    "perdure.background": "BackgroundManager",
    "perdure.mcp": "MCPServer MCPTools",
    "perdure.client": "Client",
    "perdure.testing": "Crashed End ManualClock ScriptedModel Simulated Survived crash_after "
    "make_context simulate survives",
    "perdure.testing.endpoint": "Endpoint Failure Script Turn fake_endpoint",
    "perdure.testing.endpoint.samples": "HARD",
    "perdure.testing.endpoint.__main__": "",
    "perdure.testing.provider_rules": "RULES SAMPLES Violation check",
    "perdure.testing.contract": "CONTRACT Harness run",
    "perdure.runtime.models": "Model",
    "perdure.store.base": "Store",
    "perdure.store.memory": "MemoryStore",
    "perdure.store.sqlite": "SqliteStore",
    "perdure.store.postgres": "PostgresStore",
    "perdure.store.files": "files_store",
    "perdure.store.redis": "IndexedStore",
    "perdure.serve.http": "asgi",
    "perdure.cli": "main",
    "perdure.cli.__main__": "",
}

# Packages whose processes, files and connections are real ones. Every other package runs in a
# simulated fleet too, and so has its time, chance and threads from `host`.
BESIDE_THE_ENGINE: Final = frozenset(
    {"cli", "client", "sandbox", "serve", "sessions", "store", "testing"}
)
# Modules that measure what is outside of the runtime, or are the machine itself.
NEAR_THE_MACHINE: Final = re.compile(
    r"/host\.py|/engine/watchdog\.py|/tasks/(.+/)?locks\.py"
    r"|/tasks/(checkpoints|executions|files|hooks|service|workspace_files)\b"
)
MACHINE_MODULES: Final = {"random", "secrets", "time", "uuid"}
MACHINE_FUNCTIONS: Final = {"getpid", "gethostname", "run_in_executor", "to_thread", "urandom"}
LOOPS: Final = {"loop", "get_running_loop", "get_event_loop"}  # whose time is not elapsed time

Rule = Callable[[Path], list[str]]
_Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def modules(tree: Path) -> Iterator[tuple[Path, ast.Module]]:
    """Yield every module below `tree`, parsed, under its path relative to `tree`."""
    for path in sorted(tree.rglob("*.py")):
        yield path.relative_to(tree), ast.parse(path.read_text("utf-8"))


def full_folders(tree: Path) -> list[str]:
    """Report folders with more modules than fit on a screen."""
    sizes: dict[Path, int] = defaultdict(int)
    for path, _ in modules(tree):
        sizes[path.parent] += path.name != "__init__.py"
    return [f"{folder}: {size} modules" for folder, size in sizes.items() if size > MOST_MODULES]


def gerund_modules(tree: Path) -> list[str]:
    """Report modules and packages that are named after an activity."""
    return [
        str(path)
        for path, _ in modules(tree)
        for name in [path.parent.name if path.name == "__init__.py" else path.stem]
        if name.endswith("ing") and name not in GERUNDS
    ]


def undescribed_packages(tree: Path) -> list[str]:
    """Report packages whose `__init__.py` does not say what belongs in them."""
    return [
        str(path)
        for path, module in modules(tree)
        if path.name == "__init__.py" and not ast.get_docstring(module)
    ]


def question_docstrings(tree: Path) -> list[str]:
    """Report docstrings that begin with a question word instead of a noun or an imperative."""
    return [
        f"{path}:{getattr(node, 'lineno', 1)}: {text.splitlines()[0]}"
        for path, module in modules(tree)
        for node in ast.walk(module)
        if isinstance(node, _Documented)
        and (text := ast.get_docstring(node))
        and DOCSTRING_START.match(text)
    ]


def banned_names(tree: Path) -> list[str]:
    """Report variables, parameters, fields and functions named after nothing."""
    return [
        f"{path}:{line}: {name}"
        for path, module in modules(tree)
        for line, name in bound_names(module)
        if name.strip("_") in BANNED_NAMES
    ]


def bound_names(module: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the names that a module binds, with their lines."""
    for node in ast.walk(module):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield node.lineno, name
            case ast.arg(arg=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield node.lineno, name
            case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                yield node.lineno, name
            case ast.ExceptHandler(name=str(name)) | ast.alias(asname=str(name)):
                yield node.lineno, name
            case _:
                pass


def shared_class_names(tree: Path) -> list[str]:
    """Report class names that are defined in several places."""
    places: dict[str, list[str]] = defaultdict(list)
    for path, module in modules(tree):
        for node in ast.walk(module):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(f"{path}:{node.lineno}")
    return [
        f"{name}: {', '.join(lines)}"
        for name, lines in sorted(places.items())
        if len(lines) > 1 and name not in SHARED_CLASS_NAMES
    ]


def import_cycles(tree: Path) -> list[str]:
    """Report modules that import each other, also within functions and under TYPE_CHECKING."""
    parsed = {module_name(path): module for path, module in modules(tree)}
    imports = {
        name: imported_modules(module, set(parsed)) - SHORTCUTS.get(name, set())
        for name, module in parsed.items()
    }
    return [" -> ".join(cycle) for cycle in cycles(imports)]


def refusals_without_hint(tree: Path) -> list[str]:
    """Report refusals that do not say what to do next; at the terminal, their text says it."""
    return [
        f"{path}:{node.lineno}: {ast.unparse(node)[:80]}"
        for path, module in modules(tree)
        if "terminal" not in path.parts
        for node in ast.walk(module)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in ("Refused", "NotFound", "Conflict")
        and not {"hint", None} & {keyword.arg for keyword in node.keywords}
    ]


def uses_of_the_machine(tree: Path) -> list[str]:
    """Report time, chance, threads and names of processes that do not come from `host`."""
    return [
        f"{path}:{line}: {name}; use perdure.host"
        for path, module in modules(tree)
        if path.parts[1] not in BESIDE_THE_ENGINE and not NEAR_THE_MACHINE.search(path.as_posix())
        for line, name in machine_names(module)
    ]


def machine_names(module: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield imports and attributes that reach the machine, with their lines."""
    for node in ast.walk(module):
        match node:
            case ast.Import(names=names):
                for alias in names:
                    root, _, last = alias.name.partition(".")
                    if root in MACHINE_MODULES or last in MACHINE_FUNCTIONS:
                        yield node.lineno, alias.name
            case ast.ImportFrom(module=str(name), names=names, level=0):
                imported = {alias.name for alias in names}
                if name in MACHINE_MODULES or imported & MACHINE_FUNCTIONS:
                    yield node.lineno, name
            case ast.Attribute() if is_of_the_machine(node):
                yield node.lineno, ast.unparse(node)
            case _:
                pass


def is_of_the_machine(node: ast.Attribute) -> bool:
    """Return whether an attribute is a function of the machine, or a clock."""
    match node:
        case ast.Attribute(value=ast.Name(id="date" | "datetime"), attr="now" | "today"):
            return True
        case ast.Attribute(value=value, attr="time"):
            return last_name(value) in LOOPS
        case _:
            return node.attr in MACHINE_FUNCTIONS


def last_name(node: ast.expr) -> str:
    """Return the name of a variable, an attribute, or a function that is called."""
    match node:
        case ast.Call(func=function):
            return last_name(function)
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name.removeprefix("_")
        case _:
            return ""


def module_name(path: Path) -> str:
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported_modules(module: ast.Module, names: set[str]) -> set[str]:
    """Return which of the modules in `names` a module imports anywhere."""
    imported: set[str] = set()
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            paths = {alias.name: f"{node.module}.{alias.name}" for alias in node.names}
            imported |= {path if path in names else node.module for path in paths.values()}
    return imported & names


def cycles(imports: dict[str, set[str]]) -> list[list[str]]:
    """Return one cycle for every import that closes one in a depth-first walk."""
    closed: list[list[str]] = []
    finished: set[str] = set()

    def visit(name: str, path: list[str]) -> None:
        if name in path:
            closed.append([*path[path.index(name) :], name])
        elif name not in finished:
            for target in sorted(imports[name]):
                visit(target, [*path, name])
            finished.add(name)

    for name in sorted(imports):
        visit(name, [])
    return closed


# Every rule with a tree that breaks it.
RULES: Final[dict[Rule, dict[str, str]]] = {
    full_folders: {f"m{n}.py": "" for n in range(MOST_MODULES + 1)},
    gerund_modules: {"p/waiting.py": ""},
    undescribed_packages: {"p/__init__.py": "X = 1"},
    question_docstrings: {"a.py": 'def f():\n    """Whether it is so."""'},
    banned_names: {"a.py": "def f(self, known): self._told = 1"},
    shared_class_names: {"a.py": "class A: ...", "b.py": "class B:\n    class A: ..."},
    refusals_without_hint: {"a.py": 'raise Refused("no", code="NO")'},
    uses_of_the_machine: {"p/runtime/a.py": "from time import monotonic"},
    import_cycles: {
        "p/__init__.py": "",
        "p/a.py": "from p import b",
        "p/b.py": """
            from typing import TYPE_CHECKING
            if TYPE_CHECKING:
                from p.c import C
        """,
        "p/c.py": "def f():\n    import p.a",
    },
}
SOUND: Final = {
    "p/__init__.py": '"""Parts of the whole."""\nfrom p.a import A',
    "p/a.py": 'class A:\n    """A part."""\n    def is_known(self): return True',
    "p/pending.py": "from p.a import A\none_of = A",
    "p/host.py": "import time",
    "p/tasks/files/a.py": "import secrets",
    "p/tasks/locks.py": "from time import time",
    "p/store/a.py": "import time",
    "p/refusals.py": 'raise Refused("no", hint="say yes")',
}


def plant(tree: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text(dedent(text))
    return tree


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_source_follows_the_rule(rule: Rule) -> None:
    violations = rule(SRC)
    assert not violations, "\n".join(["", *violations])


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_a_rule_reports_a_tree_that_breaks_it_and_no_other(rule: Rule, tmp_path: Path) -> None:
    assert len(rule(plant(tmp_path / "broken", RULES[rule]))) == 1 + (rule is banned_names)
    assert rule(plant(tmp_path / "sound", SOUND)) == []


@pytest.mark.parametrize(
    "path, text",
    [
        ("p/tasks/listing.py", "from anyio import to_thread"),
        ("p/later/a.py", "asyncio.get_running_loop().time()"),
        ("p/runtime/mcp/a.py", "self._loop.run_in_executor(None, print)"),
        ("p/b.py", "datetime.now(UTC)"),
    ],
)
def test_a_use_of_the_machine_is_reported_also_in_packages_that_come_later(
    path: str, text: str, tmp_path: Path
) -> None:
    assert len(uses_of_the_machine(plant(tmp_path, {path: text}))) == 1


def test_few_classes_share_a_name_and_each_for_a_reason() -> None:
    assert len(SHARED_CLASS_NAMES) <= MOST_SHARED_NAMES
    assert all(SHARED_CLASS_NAMES.values())


@pytest.mark.parametrize("path", PUBLIC)
def test_a_public_import_path_stays(path: str) -> None:
    module = importlib.import_module(path)
    missing = [name for name in PUBLIC[path].split() if not hasattr(module, name)]
    assert not missing


def test_the_root_exports_its_documented_names() -> None:
    assert sorted(importlib.import_module("perdure").__all__) == sorted(PUBLIC["perdure"].split())
