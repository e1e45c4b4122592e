"""Import of the objects that a configuration names as `module:name`."""

import importlib
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from perdure.core.text import did_you_mean
from perdure.errors import ConfigError, PerdureError


def load_object(ref: str, base_dir: Path) -> Any:
    """Import the object `module:name` from a module beside the configuration or on the path.

    ConfigError, in one line, if the module does not exist, raises when imported, or lacks the name.
    """
    module_name, _, attribute = ref.partition(":")
    target: Any = _module(module_name, base_dir)
    for name in attribute.split("."):
        if not hasattr(target, name):
            public = [other for other in dir(target) if not other.startswith("_")]
            raise ConfigError(
                f"{module_name!r} has no {attribute!r}{did_you_mean(name, public)}",
                code="OBJECT_NOT_FOUND",
                hint=f"define it in {module_name}, or correct the name",
            )
        target = getattr(target, name)
    return target


def _module(name: str, base_dir: Path) -> ModuleType:
    try:
        with _on_path(name, base_dir):
            return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise _import_error(name, error) from error
        suggestion = did_you_mean(error.name, (path.stem for path in base_dir.glob("*.py")))
        raise ConfigError(
            f"there is no module {error.name!r}{suggestion}",
            code="MODULE_NOT_FOUND",
            hint=f"create {error.name}.py in {base_dir}, or install the module",
        ) from error
    except (Exception, SystemExit) as error:
        raise _import_error(name, error) from error


@contextmanager
def _on_path(name: str, base_dir: Path) -> Iterator[None]:
    """Search the directory first, as Python does for a script, and last afterwards.

    It stays on the path because functions may import modules beside them when they run.
    """
    folder = str(base_dir)
    top = name.partition(".")[0]
    files = (base_dir / f"{top}.py", base_dir / top / "__init__.py")
    file = next((path for path in files if path.is_file()), None)
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
    """Unload a module of the same name that was imported from another directory.

    A folder without code is one, too: a test runner may have imported the project's own folder.
    """
    if file is None or top not in sys.modules:
        return
    loaded = getattr(sys.modules[top], "__file__", None)
    if loaded is None:
        del sys.modules[top]  # and no module in it, which the test runner is running
        return
    if Path(loaded).exists() and file.samefile(loaded):
        return
    for name in [name for name in sys.modules if f"{name}.".startswith(f"{top}.")]:
        del sys.modules[name]


def _import_error(name: str, error: BaseException) -> ConfigError:
    """Return the error that says where in the user's code the import failed, and how."""
    if isinstance(error, SyntaxError) and error.filename:
        where = f"{error.filename}:{error.lineno}"
    else:
        frames = traceback.extract_tb(error.__traceback__)
        frame = next((frame for frame in reversed(frames) if not _is_import(frame.filename)), None)
        where = f"{frame.filename}:{frame.lineno}" if frame else name
    text = " ".join(str(error.msg if isinstance(error, SyntaxError) else error).split())
    if isinstance(error, PerdureError):  # has its own hint
        return ConfigError(f"{text} ({where})", code=error.code, hint=error.hint)
    return ConfigError(
        f"the module {name!r} cannot be imported: {type(error).__name__}: {text} ({where})",
        code="MODULE_RAISES",
        hint=f"for the traceback, type: python -c 'import {name}'",
    )


def _is_import(filename: str) -> bool:
    package = str(Path(__file__).parents[1])
    return filename.startswith(("<frozen importlib", package)) or filename == importlib.__file__
