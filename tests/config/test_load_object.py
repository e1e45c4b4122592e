"""What a configuration names as module:name: found, or told why not."""

import importlib
from collections.abc import Callable
from pathlib import Path

import pytest

from perdure.config import ToolRef, load
from perdure.config.load_object import load_object
from perdure.errors import ConfigError

Write = Callable[[str], str]


def module(folder: Path, text: str, name: str = "shop_of_tests") -> None:
    (folder / f"{name}.py").write_text(text, "utf-8")


def test_a_module_beside_the_file_is_found_from_anywhere(
    folder: Path, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    module(folder, "class Shop:\n    till = 7\ndeps = Shop()\n")
    write("deps: shop_of_tests:deps.till")
    (folder / "elsewhere").mkdir()
    monkeypatch.chdir(folder / "elsewhere")
    assert load("../perdure.yaml").build_deps() == 7


def test_without_deps_there_are_none(write: Write) -> None:
    assert load(write("agents: {}")).build_deps() is None


def test_an_installed_module_is_found(folder: Path) -> None:
    import json

    assert load_object("json:dumps", folder) is json.dumps
    assert load_object("json.decoder:JSONDecoder", folder) is json.JSONDecoder


def test_a_package_beside_the_file_is_found(folder: Path) -> None:
    (folder / "pack_of_tests").mkdir()
    (folder / "pack_of_tests" / "__init__.py").touch()
    (folder / "pack_of_tests" / "inner.py").write_text("x = 1", "utf-8")
    (folder / "spaces_of_tests").mkdir()
    (folder / "spaces_of_tests" / "inner.py").write_text("x = 2", "utf-8")
    assert load_object("pack_of_tests.inner:x", folder) == 1
    assert load_object("spaces_of_tests.inner:x", folder) == 2


def test_a_function_may_import_its_neighbour_when_it_runs(folder: Path) -> None:
    module(folder, "till = 7", "till_of_tests")
    module(folder, "def pay():\n    from till_of_tests import till\n    return till\n")
    assert load_object("shop_of_tests:pay", folder)() == 7


def test_a_namesake_from_another_directory_does_not_answer(folder: Path) -> None:
    for name in ("one", "two"):
        (folder / name).mkdir()
        module(folder / name, f"deps = {name!r}")
    assert load_object("shop_of_tests:deps", folder / "one") == "one"
    assert load_object("shop_of_tests:deps", folder / "two") == "two"
    assert load_object("shop_of_tests:deps", folder / "one") == "one"


def test_a_folder_that_a_test_runner_has_imported_as_a_package_does_not_answer(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pytest with `--import-mode=importlib` does so with the project of `perdure init`"""
    (folder / "shop_of_tests").mkdir()
    monkeypatch.syspath_prepend(str(folder))
    package = importlib.import_module("shop_of_tests")
    assert package.__file__ is None
    module(folder / "shop_of_tests", "deps = 7")
    assert load_object("shop_of_tests:deps", folder / "shop_of_tests") == 7


def test_the_same_module_is_imported_once(folder: Path) -> None:
    module(folder, "deps = object()")
    first = load_object("shop_of_tests:deps", folder)
    assert load_object("shop_of_tests:deps", folder) is first


@pytest.mark.parametrize(
    "text, code, told",
    [
        ("1 / 0", "MODULE_RAISES", "ZeroDivisionError: division by zero"),
        ("def x(:", "MODULE_RAISES", "SyntaxError: invalid syntax"),
        ("import sys\nsys.exit(3)", "MODULE_RAISES", "SystemExit: 3"),
        ("import stripe_of_tests", "MODULE_RAISES", "ModuleNotFoundError: No module named"),
        ("raise ValueError('a\\nb')", "MODULE_RAISES", "ValueError: a b"),
        ("depz = 1", "OBJECT_NOT_FOUND", "has no 'deps'; did you mean 'depz'?"),
    ],
)
def test_why_it_cannot_be_had_is_one_line(
    text: str, code: str, told: str, folder: Path, write: Write
) -> None:
    """S4.41"""
    module(folder, text)
    config = load(write("# shop\ndeps: shop_of_tests:deps"))
    with pytest.raises(ConfigError) as caught:
        config.build_deps()
    assert caught.value.code == code
    assert caught.value.message.startswith("perdure.yaml:2: deps: ")
    assert told in caught.value.message
    assert "\n" not in caught.value.message
    if code == "MODULE_RAISES":
        assert f"({folder}/shop_of_tests.py:{text.count(chr(10)) + 1})" in caught.value.message


def test_a_tool_is_told_at_its_own_key(folder: Path, write: Write) -> None:
    """S4.41"""
    tools = "[wait, {use: 'nothing_of_tests:x'}, 'nothing_of_tests:y']"
    config = load(write(f"agents:\n  a:\n    llm: scripted:turns.json\n    tools: {tools}"))
    _, one, two = config.agents["a"].tools
    for tool, key in ((one, "agents.a.tools[1].use"), (two, "agents.a.tools[2]")):
        assert isinstance(tool, ToolRef)
        with pytest.raises(ConfigError) as caught:
            config.import_object(tool.target, tool.target_key)
        assert caught.value.message.startswith(f"perdure.yaml:4: {key}: there is no module")
        assert caught.value.details["key"] == key


def test_an_error_that_says_where_it_is_is_left_as_it_is(write: Write) -> None:
    config = load(write("agents: {}"))
    first = config.with_location(ConfigError("is wrong", code="X"), ("agents", "a", "llm"))
    assert first.message == "perdure.yaml:1: agents.a.llm: is wrong"
    assert config.with_location(first, ("agents",)) is first


def test_a_missing_module_is_told_with_the_one_that_was_meant(folder: Path, write: Write) -> None:
    module(folder, "deps = 1")
    config = load(write("deps: shop_of_test:deps"))
    with pytest.raises(ConfigError) as caught:
        config.build_deps()
    assert caught.value.message == (
        "perdure.yaml:1: deps: there is no module 'shop_of_test'; did you mean 'shop_of_tests'?"
    )
