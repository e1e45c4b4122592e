"""Imports what a configuration names as `module:name`; every failure is one clear line."""

import importlib
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from perdure.config.problems import did_you_mean
from perdure.errors import ConfigError, PerdureError


def load_object(ref: str, base_dir: Path) -> Any:
    """The object of a `module:name`, the module beside the configuration or else importable.

    ConfigError if there is no such module, it raises when imported, or has no such name.
    """
    module_name, _, attribute = ref.partition(":")
    found: Any = _module(module_name, base_dir)
    for name in attribute.split("."):
        if not hasattr(found, name):
            public = [known for known in dir(found) if not known.startswith("_")]
            raise ConfigError(
                f"{module_name!r} has no {attribute!r}{did_you_mean(name, public)}",
                code="OBJECT_NOT_FOUND",
            )
        found = getattr(found, name)
    return found


def _module(name: str, base_dir: Path) -> ModuleType:
    try:
        with _beside(name, base_dir):
            return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise _raised(name, error) from error
        near = did_you_mean(error.name, (path.stem for path in base_dir.glob("*.py")))
        raise ConfigError(
            f"there is no module {error.name!r}{near}",
            code="MODULE_NOT_FOUND",
            hint=f"put {error.name}.py into {base_dir}, or install it",
        ) from error
    except (Exception, SystemExit) as error:
        raise _raised(name, error) from error


@contextmanager
def _beside(name: str, base_dir: Path) -> Iterator[None]:
    """Look into the directory first, as Python does for a script; afterwards, last.

    It stays on the path because functions may import their neighbours when they run.
    """
    folder = str(base_dir)
    top = name.partition(".")[0]
    places = (base_dir / f"{top}.py", base_dir / top / "__init__.py")
    file = next((place for place in places if place.is_file()), None)
    if file is None and (top in sys.modules or not (base_dir / top).is_dir()):
        yield
        return
    _forget_namesake(top, file)
    importlib.invalidate_caches()
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.path.remove(folder)
        if folder not in sys.path:
            sys.path.append(folder)


def _forget_namesake(top: str, file: Path | None) -> None:
    """Another directory's module of the same name must not answer for this one."""
    loaded = getattr(sys.modules.get(top), "__file__", None)
    if file is None or loaded is None or (Path(loaded).exists() and file.samefile(loaded)):
        return
    for known in [name for name in sys.modules if f"{name}.".startswith(f"{top}.")]:
        del sys.modules[known]


def _raised(name: str, error: BaseException) -> ConfigError:
    """Where in the user's code it happened, and what."""
    if isinstance(error, SyntaxError) and error.filename:
        where = f"{error.filename}:{error.lineno}"
    else:
        frames = traceback.extract_tb(error.__traceback__)
        frame = next((one for one in reversed(frames) if not _is_import(one.filename)), None)
        where = f"{frame.filename}:{frame.lineno}" if frame else name
    text = " ".join(str(error.msg if isinstance(error, SyntaxError) else error).split())
    if isinstance(error, PerdureError):  # it says itself what to do
        return ConfigError(f"{text} ({where})", code=error.code, hint=error.hint)
    return ConfigError(
        f"the module {name!r} cannot be imported: {type(error).__name__}: {text} ({where})",
        code="MODULE_RAISES",
        hint=f"see it whole with: python -c 'import {name}'",
    )


def _is_import(filename: str) -> bool:
    ours = str(Path(__file__).parents[1])
    return filename.startswith(("<frozen importlib", ours)) or filename == importlib.__file__
