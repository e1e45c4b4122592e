"""Kinds of values in a configuration: the parser and the JSON schema of each."""

import ipaddress
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from math import inf
from typing import Any, Final
from urllib.parse import urlsplit

from perdure.config.problems import quoted_list
from perdure.core.host_names import host_name_of
from perdure.core.session.permissions import parse_rule
from perdure.core.sizes import parse_size
from perdure.core.text import NAME, did_you_mean
from perdure.errors import Refused
from perdure.views.durations import duration_ms

MODEL_NAME: Final = re.compile(r"[^\s:]+:\S+")  # provider:model
_OBJECT: Final = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*")
_HOST: Final = re.compile(r"(?=.*[A-Za-z])[A-Za-z0-9][A-Za-z0-9.-]*")
_RATE: Final = re.compile(r"([0-9]+)\s*/\s*(s|m|h)")


class InvalidValue(Exception):
    """A value is not valid; the text is the part of the message that follows the key."""

    def __init__(self, text: str, hint: str | None = None) -> None:
        super().__init__(text)
        self.text = text
        self.hint = hint


@dataclass(frozen=True, slots=True)
class Scalar:
    """Single value of the file: its text, and its YAML value."""

    text: str
    value: str | float | bool | None
    is_expanded: bool = False  # from the environment: never shown in messages


@dataclass(frozen=True, slots=True)
class Plain:
    """A single value."""

    parse: Callable[[Scalar], Any]
    schema: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Many:
    """A list."""

    item: "Spec"


@dataclass(frozen=True, slots=True)
class Named:
    """Mapping from names that the user chooses; with `names` None any text is a name."""

    item: "Spec"
    names: re.Pattern[str] | None = NAME
    hint: str = "letters, digits, '_', '-' and '.' are allowed, 64 at most"


@dataclass(frozen=True, slots=True)
class Block:
    """Mapping with fixed keys, of which at most one of `either` may be present."""

    keys: Mapping[str, "Spec"]
    required: tuple[str, ...] = ()
    either: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Either:
    """Single value, list, or block: the one of `blocks` whose key is present, or `block`."""

    plain: Plain
    many: Many | None = None
    blocks: Mapping[str, Block] = field(default_factory=dict)
    block: Block | None = None


@dataclass(frozen=True, slots=True)
class Free:
    """Mapping of JSON values, passed on unchanged."""


Spec = Plain | Many | Named | Block | Either | Free


def choice(label: str, *words: str, empty: str | None = None) -> Plain:
    """Return the kind that takes one of the words; `empty` is the meaning of an empty value."""

    def parse(scalar: Scalar) -> str:
        is_null = scalar.value is None and not scalar.is_expanded
        if empty is not None and (is_null or not scalar.text):
            return empty
        if scalar.text in words:
            return scalar.text
        value = "" if scalar.is_expanded else f": {scalar.text}"
        suggestion = "" if scalar.is_expanded else did_you_mean(scalar.text, words)
        text = f"invalid {label}{value} (must be {quoted_list(words)})"
        raise InvalidValue(text, hint=suggestion.removeprefix("; ") or None)

    return Plain(parse, {"enum": list(words)})


def integer(low: int, high: int | None = None) -> Plain:
    """Return the kind that takes a whole number within bounds."""
    bounds = f"{low} or more" if high is None else f"from {low} to {high}"

    def parse(scalar: Scalar) -> int:
        value = scalar.value
        is_integer = isinstance(value, int) and not isinstance(value, bool)
        if not is_integer or value < low or (high is not None and value > high):  # type: ignore[operator]
            raise InvalidValue(f"must be a whole number, {bounds}")
        return value  # type: ignore[return-value]

    limits = {"minimum": low} if high is None else {"minimum": low, "maximum": high}
    return Plain(parse, {"type": "integer", **limits})


def _text(scalar: Scalar) -> str:
    if not scalar.text or (scalar.value is None and not scalar.is_expanded):
        raise InvalidValue("is empty")
    if not isinstance(scalar.value, str) and not scalar.is_expanded:
        raise InvalidValue("must be text", hint="put it in quotes")
    return scalar.text


def _boolean(scalar: Scalar) -> bool:
    if not isinstance(scalar.value, bool):
        raise InvalidValue("must be true or false")
    return scalar.value


def _positive(scalar: Scalar) -> float:
    value = scalar.value
    if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
        raise InvalidValue("must be a number above 0")
    return value


def _amount(scalar: Scalar) -> float:
    value = scalar.value
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < inf:
        raise InvalidValue("must be a number, 0 or more")
    return value


def _duration(scalar: Scalar) -> timedelta:
    value = scalar.value
    try:
        if value is None or isinstance(value, bool):
            raise InvalidValue("must be a duration", hint='such as 90, "90s", "1h30m" or "7d"')
        return timedelta(milliseconds=duration_ms(value))
    except Refused as error:
        raise InvalidValue("must be a duration", hint=error.hint) from error


def _duration_or_none(scalar: Scalar) -> timedelta | None:
    return None if scalar.value is None else _duration(scalar)


def _redis_url(scalar: Scalar) -> str:
    text = _text(scalar)
    if not text.startswith(("redis://", "rediss://", "unix://")):
        raise InvalidValue("must be a URL that begins with redis://, rediss:// or unix://")
    return text


def _url(scalar: Scalar) -> str:
    text = _text(scalar)
    host = ""
    try:
        parts = urlsplit(text)
        _ = parts.port
        if parts.scheme in ("http", "https") and not parts.fragment:
            host = parts.hostname or ""
    except ValueError:
        host = ""
    if not host or re.search(r"\s", text):
        raise InvalidValue("must be a URL that begins with http:// or https://")
    _check_host(host)
    return text.rstrip("/")


def _check_host(host: str) -> None:
    try:
        if ":" not in host:  # else it is an IPv6 address
            host_name_of(host)
    except ValueError:
        raise InvalidValue(
            f"must be a URL with a valid host name, and {host!r} is not one"
        ) from None


def _open_url(scalar: Scalar) -> str:
    text = _url(scalar)
    if "@" in urlsplit(text).netloc:
        raise InvalidValue("must be a URL without user and password: it is shown to users")
    return text


def _network(scalar: Scalar) -> str:
    try:
        return str(ipaddress.ip_network(_text(scalar), strict=False))
    except ValueError as error:
        raise InvalidValue("must be an IP address or network, such as 10.0.0.0/8") from error


def _host_or_network(scalar: Scalar) -> str:
    text = _text(scalar)
    if _HOST.fullmatch(text):
        try:
            return host_name_of(text)
        except ValueError as error:
            raise InvalidValue(
                f"must be a host name, an IP address or a network: {error}"
            ) from None
    return _network(scalar)


def _share(scalar: Scalar) -> float:
    value = scalar.value
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1:
        raise InvalidValue("must be a number between 0 and 1, such as 0.8")
    return value


def _size(scalar: Scalar) -> int:
    try:
        return parse_size(scalar.text)
    except ValueError as error:
        raise InvalidValue(str(error)) from error


def _rate(scalar: Scalar) -> float:
    match = _RATE.fullmatch(scalar.text.strip())
    if match is None or int(match[1]) == 0:
        raise InvalidValue("must be a rate, such as 100/s, 20/m or 500/h")
    return int(match[1]) / {"s": 1, "m": 60, "h": 3600}[match[2]]


def _object(scalar: Scalar) -> str:
    text = _text(scalar)
    if not _OBJECT.fullmatch(text):
        raise InvalidValue("must be module:name", hint="such as shop:refund, for refund in shop.py")
    return text


def built_in_or_object(words: tuple[str, ...]) -> Plain:
    """Return the kind that takes `module:name` or one of the words."""

    def parse(scalar: Scalar) -> str:
        text = _text(scalar)
        if text in words or _OBJECT.fullmatch(text):
            return text
        suggestion = "" if scalar.is_expanded else did_you_mean(text, words)
        raise InvalidValue(f"must be module:name or a built-in tool{suggestion}")

    return Plain(parse, {"type": "string"})


def _output(scalar: Scalar) -> str:
    text = _text(scalar)
    if not text.endswith(".json") and not _OBJECT.fullmatch(text):
        raise InvalidValue(
            "must be module:Class, or the name of a JSON schema file, ending in .json"
        )
    return text


def _rule(scalar: Scalar) -> str:
    text = _text(scalar)
    try:
        return parse_rule(text).text
    except Refused as error:
        raise InvalidValue(error.message, hint=error.hint) from error


_TEXT: Final = {"type": "string"}
_NUMBER_OR_TEXT: Final = {"type": ["number", "string"]}
TEXT: Final = Plain(_text, _TEXT)
FLAG: Final = Plain(_boolean, {"type": "boolean"})
AMOUNT: Final = Plain(_amount, {"type": "number", "minimum": 0})
POSITIVE: Final = Plain(_positive, {"type": "number", "exclusiveMinimum": 0})
DURATION: Final = Plain(_duration, _NUMBER_OR_TEXT)
DURATION_OR_NONE: Final = Plain(_duration_or_none, {"type": ["number", "string", "null"]})
URL: Final = Plain(_url, {"type": "string", "format": "uri"})
OPEN_URL: Final = Plain(_open_url, URL.schema)
REDIS_URL: Final = Plain(_redis_url, _TEXT)
NETWORK: Final = Plain(_network, _TEXT)
HOST_OR_NETWORK: Final = Plain(_host_or_network, _TEXT)
SHARE: Final = Plain(_share, {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1})
SIZE: Final = Plain(_size, _NUMBER_OR_TEXT)
RATE: Final = Plain(_rate, _TEXT)
OBJECT: Final = Plain(_object, {"type": "string", "pattern": f"^{_OBJECT.pattern}$"})
OUTPUT: Final = Plain(_output, _TEXT)
RULE: Final = Plain(_rule, _TEXT)
