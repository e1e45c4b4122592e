"""The page of promises: every behavior of the specification, and the tests that show it."""

import ast
import re
import tomllib
from collections import defaultdict
from pathlib import Path

from scripts.docs.python import NOTE

INTRO = """\
Each behavior has a stable id, and the docstrings of tests name the ids that they show.
The sentences are in [promises.toml](promises.toml)."""
ID = re.compile(r"\b(?:S[0-4X]\.\d+|G(?:[1-9]|1[0-2]))\b")


def page(root: Path) -> str:
    """The table of promises, section by section, and the ids that no test names."""
    sections = tomllib.loads((root / "docs" / "promises.toml").read_text("utf-8"))
    tests = find_tests(root / "tests")
    parts = [NOTE, "# Promises", INTRO]
    for section in sections.values():
        parts.append(f"## {section['title']}")
        rows = [
            f"| {i} | {text} | {_tests(tests.get(i, []))} |"
            for i, text in section["promises"].items()
        ]
        parts.append("\n".join(("| id | promise | shown by |", "|---|---|---|", *rows)))
    every = [i for section in sections.values() for i in section["promises"]]
    missing = [i for i in every if i not in tests]
    parts.append(
        f"## Without a test\n\n{len(missing)} of {len(every)}: {', '.join(missing) or 'none'}."
    )
    return "\n\n".join(parts) + "\n"


def find_tests(folder: Path) -> dict[str, list[tuple[Path, str]]]:
    """For each id, the tests whose docstring names it, or the modules that mention it elsewhere."""
    named: defaultdict[str, list[tuple[Path, str]]] = defaultdict(list)
    for path in sorted(folder.rglob("*.py")):
        tree = ast.parse(path.read_text("utf-8"))
        where = path.relative_to(folder.parent)
        in_tests: set[str] = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                idents = dict.fromkeys(ID.findall(ast.get_docstring(node) or ""))
                in_tests.update(idents)
                for ident in idents:
                    named[ident].append((where, node.name))
        for ident in sorted(_mentioned(tree) - in_tests):
            named[ident].append((where, ""))
    return dict(named)


def _mentioned(tree: ast.Module) -> set[str]:
    """The ids in the module's strings: its docstring, and tables of parametrized tests."""
    strings = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant))
    return {ident for text in strings if isinstance(text, str) for ident in ID.findall(text)}


def _tests(tests: list[tuple[Path, str]]) -> str:
    """The first test, linked, and how many more there are."""
    if not tests:
        return "none"
    path, name = next((t for t in tests if t[1]), tests[0])
    more = f" and {len(tests) - 1} more" if len(tests) > 1 else ""
    return f"[{name.replace('_', ' ').removeprefix('test ') or path.name}](../{path}){more}"
