"""Loading of a configuration file: read YAML, and build the Config."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import yaml
import yaml.reader

from perdure.config.build import build
from perdure.config.problems import ConfigProblem, config_error
from perdure.config.reader import ConfigReader
from perdure.config.settings import Config
from perdure.config.table import TABLE
from perdure.errors import ConfigError

_TAB: Final = "found character '\\t'"


class _Loader(yaml.SafeLoader):
    """Loader that is used for nodes only."""


# Without resolvers `on` stays text; the reader gives plain text its type.
_Loader.yaml_implicit_resolvers = {}


def read_nodes(path: Path) -> yaml.Node:
    """Return the root node of a YAML file. ConfigError if it is unreadable, not YAML, or empty."""
    text = _text(path)
    loader = None
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise _syntax_error(path, line, "has a character that YAML does not allow") from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = 1 if mark is None else mark.line + 1
        raise _syntax_error(path, line, _description(error)) from error
    except RecursionError as error:
        raise _syntax_error(path, 1, "is nested too deeply") from error
    finally:
        if loader is not None:
            loader.dispose()
    if node is None:
        raise _syntax_error(path, 1, "the file is empty")
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
        raise _syntax_error(path, line, "is not UTF-8") from error


def _description(error: yaml.MarkedYAMLError) -> str:
    problem = (error.problem or "is not YAML").replace("\n", " ")
    if _TAB in problem:
        return "a tab cannot indent YAML; use spaces"
    if error.context and error.context_mark:
        return f"{problem}, {error.context} that begins on line {error.context_mark.line + 1}"
    return problem


def _syntax_error(path: Path, line: int, text: str) -> ConfigError:
    return config_error(str(path), [ConfigProblem(line, (), text, code="CONFIG_SYNTAX")])


def load(path: str | os.PathLike[str]) -> Config:
    """Return the validated configuration of a YAML file, without importing the user's code.

    ConfigError names every problem with file, line and key.
    """
    return parse(Path(path), os.environ)


def parse(path: Path, environ: Mapping[str, str]) -> Config:
    """Return the configuration with variables from `environ`. ConfigError if it is invalid."""
    node = read_nodes(path)
    reader = ConfigReader(environ)
    data = reader.read(TABLE, node)
    if reader.problems:
        raise config_error(str(path), reader.problems)
    config, problems = build(data, reader.entries, path)
    if config is None:
        raise config_error(str(path), problems.all)
    return config
