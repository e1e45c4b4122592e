"""Public signatures name types that the reference documents, and no others."""

import importlib
import inspect
from collections.abc import Iterator
from typing import Any, Final, Literal, ParamSpec, TypeVar, get_args, get_origin, get_type_hints

import pytest
from scripts.docs.python import HANDLES, PAGES

from perdure import Runtime
from perdure.runtime.sessions.task_verbs import AnyTaskVerbs
from perdure.tasks import TaskVerbs
from perdure.views.findings import Finding
from perdure.views.sessions import SessionPage

MODULES: Final = [module for _, modules in PAGES.values() for module in modules]
SPECIFICATION: Final = ("background", "hitl", "pending", "sessions", "tasks")
# Types in signatures that are imported when they are used.
LATE: Final = {"AnyTaskVerbs": AnyTaskVerbs, "Runtime": Runtime, "TaskVerbs": TaskVerbs}
# Verbs that only the surfaces of this repository use.
FOR_SURFACES: Final = {"AnyTaskVerbs.session", "ExecutionVerbs.last"}


def public(module: str) -> dict[str, Any]:
    """Return the public values of a module by name."""
    home = importlib.import_module(module)
    return {name: getattr(home, name) for name in home.__all__}


DOCUMENTED: Final = {id(value) for module in MODULES for value in public(module).values()}


def annotated(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield what has annotations that users read: a function, or a class with its methods."""
    if inspect.isfunction(value):
        yield value.__name__, value
    if not inspect.isclass(value):
        return
    yield value.__name__, value
    for name, member in inspect.getmembers_static(value):
        function = getattr(member, "fget", None) or getattr(member, "__func__", member)
        is_shown = not name.startswith("_") or (
            name == "__init__" and value.__name__ not in HANDLES
        )
        if is_shown and inspect.isfunction(function):
            yield f"{value.__name__}.{name}", function


def classes_in(hint: Any) -> Iterator[type]:
    """Yield the classes of perdure that a type hint names."""
    origin = get_origin(hint)
    if isinstance(hint, type) and hint.__module__.split(".")[0] == "perdure":
        yield hint
    if isinstance(origin, type) and origin.__module__.split(".")[0] == "perdure":
        yield origin
    if origin is Literal or isinstance(hint, TypeVar | ParamSpec):
        return
    for part in hint if isinstance(hint, list) else get_args(hint):
        yield from classes_in(part)


def undocumented(value: Any) -> list[str]:
    """Return the undocumented types in the signatures of a public class or function."""
    faults: list[str] = []
    for name, item in annotated(value):
        is_own = item.__module__.split(".")[0] == "perdure"
        if not is_own or name in FOR_SURFACES:
            continue
        for field, hint in get_type_hints(item, localns=LATE).items():
            if not field.startswith("_"):
                kinds = {kind for kind in classes_in(hint) if id(kind) not in DOCUMENTED}
                faults += [f"{name} {field}: {kind.__qualname__}" for kind in kinds]
    return faults


@pytest.mark.parametrize("module", MODULES)
def test_public_signatures_name_documented_types_only(module: str) -> None:
    faults = [fault for value in public(module).values() for fault in undocumented(value)]
    assert faults == []


def test_an_undocumented_type_in_a_signature_is_found() -> None:
    def lists(after: Finding) -> list[SessionPage | None]:
        raise NotImplementedError

    lists.__module__ = "perdure.example"
    assert undocumented(lists) == ["lists return: SessionPage"]


@pytest.mark.parametrize("name", SPECIFICATION)
def test_an_api_of_the_specification_says_that_new_programs_use_runtime(name: str) -> None:
    doc = importlib.import_module(f"perdure.{name}").__doc__
    assert doc is not None
    assert doc.splitlines()[0] == "API of the specification; new programs use Runtime."
