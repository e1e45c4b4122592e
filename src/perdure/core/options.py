"""Check of options that a program passes as a mapping, against the type that documents them."""

from collections.abc import Mapping
from typing import Any

from perdure.core.text import did_you_mean
from perdure.errors import ConfigError


def check_options(value: object, kind: Any, label: str, code: str = ConfigError.code) -> None:
    """Check that a value is a mapping with keys of a TypedDict. Raises ConfigError."""
    names = ", ".join(kind.__annotations__)
    if not isinstance(value, Mapping):
        raise ConfigError(
            f"{label} is {value!r:.100} and must be a mapping",
            code=code,
            hint=f"it may have {names}",
        )
    for name in value:
        if name not in kind.__annotations__:
            similar = did_you_mean(str(name), kind.__annotations__)
            text = f"{label} has an unknown key {name!r:.100}{similar}"
            hint = "correct the key, or remove it"
            raise ConfigError(f"{text}; it may have {names}", code=code, hint=hint)
    for name in sorted(kind.__required_keys__ - value.keys()):
        text = f"{label} has no {name!r}, which it needs"
        raise ConfigError(text, code=code, hint=f"it may have {names}")
