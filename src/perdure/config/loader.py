"""Loading of a configuration file: read YAML, and build the Config."""

import os
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import yaml
import yaml.reader
from pydantic import ValidationError

from perdure.config.blocks import problems_in
from perdure.config.links import Linker
from perdure.config.paths import ConfigFolder
from perdure.config.problems import ConfigProblem, config_error
from perdure.config.reader import ConfigReader, YamlBlock
from perdure.config.settings import Config, ConfigFile
from perdure.errors import ConfigError

_NAMED: Final = ("session_stores", "llms", "prices", "mcp_servers", "agents")
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
    reader = ConfigReader(environ)
    data = reader.read(read_nodes(path))
    source = ConfigFile(path, path.absolute().parent, reader.lines)
    blocks = data if isinstance(data, YamlBlock) else {}
    names = {block: tuple(value) for block, value in blocks.items() if isinstance(value, YamlBlock)}
    config = _config(data, source, reader.problems)
    linker = Linker(config, defaultdict(tuple, names), source, reader.problems)
    linker.link()
    if reader.problems:
        raise config_error(str(path), reader.problems)
    return config


def _config(data: Any, source: ConfigFile, problems: list[ConfigProblem]) -> Config:
    """Return what is valid of a configuration, and collect the problems of the rest."""
    context = ConfigFolder(source.base_dir)
    try:
        return Config.model_validate(data, context=context)
    except ValidationError as error:
        refusals = list(problems_in(error, source.lines))
    problems += refusals
    if not isinstance(data, YamlBlock):
        return Config()
    for problem in refusals:
        block, *inside = map(str, problem.key)
        entry = data.get(block)
        if block in _NAMED and inside and isinstance(entry, YamlBlock):
            entry.pop(inside[0], None)
        else:
            data.pop(block, None)
    return Config.model_validate(data, context=context)
