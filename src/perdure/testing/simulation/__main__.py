"""Command that repeats one seed of a test that calls `simulate`."""

import argparse
import importlib
import importlib.util
import inspect
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from perdure.testing.simulation.simulate import COMMAND, Repetition, repetition

USAGE = f"{COMMAND} MODULE:FUNCTION --seed N [--trace]"


def main(args: list[str] | None = None) -> int:
    """Run the function with one seed, and return the exit code."""
    parser = argparse.ArgumentParser(prog=COMMAND, usage=USAGE, description=__doc__)
    parser.add_argument("function", help="a module or a file, and the test in it")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--trace", action="store_true", help="print every step")
    options = parser.parse_args(args)
    try:
        function = load(options.function)
    except (ImportError, TypeError, ValueError, OSError) as error:
        print(f"error: {error}; type {USAGE}", file=sys.stderr)  # noqa: T201
        return 2
    token = repetition.set(Repetition(options.seed, options.trace))
    try:
        function()
    except AssertionError as error:
        print(error, file=sys.stderr)  # noqa: T201
        return 1
    finally:
        repetition.reset(token)
    print(f"seed {options.seed} keeps every guarantee")  # noqa: T201
    return 0


def load(name: str) -> Any:
    """Return a function by its name and its module or file. Raises what `main` reports."""
    place, _, function_name = name.rpartition(":")
    if not place:
        raise ValueError(f"{name!r} does not name a module and a function")
    module = (
        _module_of_file(Path(place)) if place.endswith(".py") else importlib.import_module(place)
    )
    function: Any = module
    for part in function_name.split("."):
        owner = function() if isinstance(function, type) else function
        function = getattr(owner, part, None)
    if not callable(function):
        raise TypeError(f"{place} has no function {function_name!r}")
    if needed := list(inspect.signature(function).parameters):
        raise ValueError(f"{name} takes {needed[0]!r}, and the command has no fixtures")
    return function


def _module_of_file(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} cannot be imported")
    sys.path.insert(0, str(path.parent))
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    sys.exit(main())
