"""Reference of error codes, from the error tree and from every place that raises with a code."""

import ast
import importlib
from collections import defaultdict
from pathlib import Path

from scripts.docs.python import NOTE

from perdure.errors import PerdureError

INTRO = """\
Every error has a stable code, one line of text, and usually a hint that says what to do
next. Over HTTP and with `--json` it is `{"error", "code", "hint", "details"}`. The exit
code is the command line's."""
CLASS_HEAD = ("| class | default code | HTTP | exit code | |", "|---|---|---|---|---|")
CODE_HEAD = ("| code | class | text, for example |", "|---|---|---|")


def page(package: Path) -> str:
    """Every class of errors, then every code with an example of its text."""
    classes = _classes()
    names = {error.__name__ for error in classes}
    rows = [
        f"| `{code}` | {', '.join(f'`{name}`' for name in sorted(raised))} | {text} |"
        for code, (raised, text) in sorted(_codes(package, names).items())
    ]
    lines = (NOTE, "", "# Errors", "", INTRO, "", "## Classes", "", *CLASS_HEAD)
    return "\n".join((*lines, *map(_class_row, classes), "", "## Codes", "", *CODE_HEAD, *rows, ""))


def _classes() -> list[type[PerdureError]]:
    values = vars(importlib.import_module("perdure.errors")).values()
    return [
        value for value in values if isinstance(value, type) and issubclass(value, PerdureError)
    ]


def _class_row(error: type[PerdureError]) -> str:
    summary = (error.__doc__ or "").strip().splitlines()[0]
    status, exit_code = error.http_status, error.exit_code
    return f"| `{error.__name__}` | `{error.code}` | {status} | {exit_code} | {summary} |"


def _codes(package: Path, classes: set[str]) -> dict[str, tuple[set[str], str]]:
    raised: defaultdict[str, set[str]] = defaultdict(set)
    texts: dict[str, str] = {}
    for path in sorted(package.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute)):
                continue
            name = node.func.id if isinstance(node.func, ast.Name) else node.func.attr
            code = next((k.value for k in node.keywords if k.arg == "code"), None)
            if name in classes and isinstance(code, ast.Constant) and isinstance(code.value, str):
                raised[code.value].add(name)
                text = _text(node.args[0]) if node.args else ""
                texts.setdefault(code.value, text)
                texts[code.value] = texts[code.value] or text
    return {code: (raised[code], texts[code]) for code in raised}


def _text(node: ast.expr) -> str:
    """The message as a reader sees it, with … for each value in it."""
    if isinstance(node, ast.Constant):
        text = str(node.value)
    elif isinstance(node, ast.JoinedStr):
        text = "".join(str(p.value) if isinstance(p, ast.Constant) else "…" for p in node.values)
    else:
        return ""
    return " ".join(text.split()).replace("|", "\\|")
