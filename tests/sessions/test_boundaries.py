"""The session API is doors: files and lines are the store's, repair is the core's."""

import ast
from pathlib import Path

import pytest

import perdure.sessions

ROOM = Path(str(perdure.sessions.__file__)).parent
OPENS = {"open", "read_text", "read_bytes", "write_text", "write_bytes", "mkdir", "unlink"}


@pytest.mark.parametrize("module", sorted(ROOM.glob("*.py")), ids=lambda path: path.stem)
def test_no_module_opens_a_file(module: Path) -> None:
    """S2.1: `open` on a store is the store's own."""
    called = set()
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            called.add(node.func.id)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            owner = node.func.value
            if ast.unparse(owner).split(".")[-1] != "store":
                called.add(node.func.attr)
    assert not called & OPENS
