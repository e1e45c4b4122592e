"""From a file to YAML nodes that know their lines; broken YAML is told in one line."""

from pathlib import Path
from typing import Final

import yaml
import yaml.reader

from perdure.config.problems import Problem, error_of
from perdure.errors import ConfigError

_TAB: Final = "found character '\\t'"


class _Loader(yaml.SafeLoader):
    """Nodes only."""


# Without resolvers `on` stays the text that it is; the reader gives plain text its type.
_Loader.yaml_implicit_resolvers = {}


def read_nodes(path: Path) -> yaml.Node:
    """The root node of a YAML file. ConfigError if it cannot be read, is no YAML, or is empty."""
    text = _text(path)
    loader = None
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise _broken(path, line, "has a character that YAML does not allow") from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise _broken(path, 1 if mark is None else mark.line + 1, _said(error)) from error
    except RecursionError as error:
        raise _broken(path, 1, "is nested too deeply") from error
    finally:
        if loader is not None:
            loader.dispose()
    if node is None:
        raise _broken(path, 1, "the file is empty")
    return node


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8-sig")
    except FileNotFoundError as error:
        raise ConfigError(
            f"{path}: there is no such file",
            code="CONFIG_NOT_FOUND",
            hint="name the configuration with --config FILE",
            details={"file": str(path)},
        ) from error
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot be read: {error.strerror}", details={"file": str(path)}
        ) from error
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise _broken(path, line, "is not UTF-8") from error


def _said(error: yaml.MarkedYAMLError) -> str:
    problem = (error.problem or "is not YAML").replace("\n", " ")
    if _TAB in problem:
        return "a tab cannot indent YAML; use spaces"
    if error.context and error.context_mark:
        return f"{problem}, {error.context} that begins on line {error.context_mark.line + 1}"
    return problem


def _broken(path: Path, line: int, text: str) -> ConfigError:
    return error_of(str(path), [Problem(line, (), text, code="CONFIG_SYNTAX")])
