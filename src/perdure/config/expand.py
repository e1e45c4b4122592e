"""`${VAR}` and `${VAR:-default}` in the values of a configuration; `$${` is a plain `${`."""

import re
from collections.abc import Mapping
from typing import Final

from perdure.config.kinds import Wrong

_MARK: Final = re.compile(r"\$\$\{|\$\{([^}]*)\}|\$\{")
_INSIDE: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(?::-(.*))?", re.DOTALL)


def expand(text: str, environ: Mapping[str, str]) -> str:
    """The text with its variables filled in; Wrong, naming the variable, if one is not set.

    As in a shell, the default also stands in for a variable that is set but empty.
    """
    return _MARK.sub(lambda mark: _value(mark, environ), text)


def _value(mark: re.Match[str], environ: Mapping[str, str]) -> str:
    if mark[0] == "$${":
        return "${"
    inside = _INSIDE.fullmatch(mark[1] or "")
    if inside is None:
        raise Wrong(
            "has a ${ that is not ${VAR} or ${VAR:-default}",
            hint="write $${ for the characters themselves",
        )
    name, default = inside[1], inside[2]
    found = environ.get(name)
    if default is not None:
        return found or default
    if found is None:
        raise Wrong(
            f"the environment variable {name} is not set",
            hint=f"set it, or write ${{{name}:-default}}",
        )
    return found
