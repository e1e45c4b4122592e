"""Types of values in a configuration: each with its parser and its JSON schema."""

import ipaddress
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from math import inf
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar, cast, get_args
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, GetCoreSchemaHandler, ValidationInfo, WithJsonSchema
from pydantic_core import CoreSchema, core_schema

from perdure.config.paths import ConfigFolder
from perdure.config.problems import InvalidValue, quoted_list
from perdure.config.reader import Scalar, YamlBlock
from perdure.core.host_names import host_name_of
from perdure.core.session.permissions import parse_rule
from perdure.core.sizes import parse_size
from perdure.core.text import NAME, did_you_mean
from perdure.errors import Refused
from perdure.views.durations import duration_ms

T = TypeVar("T")

_MODEL_NAME: Final = re.compile(r"[^\s:]+:\S+")  # provider:model
_OBJECT: Final = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*")
_HOST: Final = re.compile(r"(?=.*[A-Za-z])[A-Za-z0-9][A-Za-z0-9.-]*")
_RATE: Final = re.compile(r"([0-9]+)\s*/\s*(s|m|h)")
_VARIABLE: Final = {"type": "string", "pattern": r"\$\{"}


def checked(node: Any) -> Any:
    """Return a node of the file. Raises the InvalidValue that its reader left in its place."""
    if isinstance(node, InvalidValue):
        raise node
    return node


def kind(node: Any) -> str:
    """Return what a node of the file is, as messages name it."""
    if isinstance(node, YamlBlock):
        return "a block of keys"
    return "a list" if isinstance(node, list) else "a single value"


@dataclass(frozen=True, slots=True, eq=False)
class Single:
    """A single value. A value that does not come from a file is taken as it is."""

    parse: Callable[[Scalar], Any]
    schema: Mapping[str, Any]

    def __get_pydantic_core_schema__(self, _: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Return the validator for pydantic."""
        return core_schema.no_info_plain_validator_function(
            self._read, metadata={"pydantic_js_functions": [lambda *_: self.json_schema()]}
        )

    def json_schema(self) -> dict[str, Any]:
        """Return the JSON schema: text may contain a variable, other types may be one."""
        takes_any_text = "string" in self.schema.get("type", ()) and "pattern" not in self.schema
        return dict(self.schema) if takes_any_text else {"anyOf": [dict(self.schema), _VARIABLE]}

    def _read(self, node: Any) -> Any:
        if isinstance(checked(node), list | YamlBlock):
            raise InvalidValue(f"must be a single value, not {kind(node)}")
        return self.parse(node) if isinstance(node, Scalar) else node


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    """One of the words of a Literal, or of `words`; `empty` is the meaning of an empty value."""

    label: str
    words: tuple[str, ...] = ()
    empty: str | None = None

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        """Return the validator for pydantic."""
        words = self.words or get_args(source)
        single = Single(lambda scalar: self._word(scalar, words), {"enum": list(words)})
        return single.__get_pydantic_core_schema__(source, handler)

    def _word(self, scalar: Scalar, words: tuple[str, ...]) -> str:
        if self.empty is not None and (scalar.is_empty or not scalar.text):
            return self.empty
        if scalar.text in words:
            return scalar.text
        value = "" if scalar.is_expanded else f": {scalar.text}"
        suggestion = "" if scalar.is_expanded else did_you_mean(scalar.text, words)
        text = f"invalid {self.label}{value} (must be {quoted_list(words)})"
        raise InvalidValue(text, hint=suggestion.removeprefix("; ") or None)


def integer(low: int, high: int | None = None) -> Single:
    """Return the kind that takes a whole number within bounds."""
    bounds = f"{low} or more" if high is None else f"from {low} to {high}"

    def parse(scalar: Scalar) -> int:
        value = scalar.value
        is_integer = isinstance(value, int) and not isinstance(value, bool)
        if not is_integer or value < low or (high is not None and value > high):  # type: ignore[operator]
            raise InvalidValue(f"must be a whole number, {bounds}")
        return cast("int", value)

    limits = {"minimum": low} if high is None else {"minimum": low, "maximum": high}
    return Single(parse, {"type": "integer", **limits})


def number(text: str, is_valid: Callable[[float], bool], **limits: float) -> Single:
    """Return the kind that takes a number for which the condition holds."""

    def parse(scalar: Scalar) -> float:
        value = scalar.value
        if isinstance(value, bool) or not isinstance(value, int | float) or not is_valid(value):
            raise InvalidValue(f"must be a number{text}")
        return value

    return Single(parse, {"type": "number", **limits})


def _text(scalar: Scalar) -> str:
    if not scalar.text or scalar.is_empty:
        raise InvalidValue("is empty")
    if not isinstance(scalar.value, str) and not scalar.is_expanded:
        raise InvalidValue("must be text", hint="put it in quotes")
    return scalar.text


def _boolean(scalar: Scalar) -> bool:
    if not isinstance(scalar.value, bool):
        raise InvalidValue("must be true or false")
    return scalar.value


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
    try:
        if ":" not in host:  # else it is an IPv6 address
            host_name_of(host)
    except ValueError:
        raise InvalidValue(
            f"must be a URL with a valid host name, and {host!r} is not one"
        ) from None
    return text.rstrip("/")


def _open_url(scalar: Scalar) -> str:
    text = _url(scalar)
    if "@" in urlsplit(text).netloc:
        raise InvalidValue("must be a URL without user and password: it is shown to users")
    return text


def _network(scalar: Scalar) -> str:
    try:
        return str(ipaddress.ip_network(_text(scalar), strict=False))
    except InvalidValue:
        raise
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


def built_in_or_object(words: tuple[str, ...]) -> Single:
    """Return the kind that takes `module:name` or one of the words."""

    def parse(scalar: Scalar) -> str:
        text = _text(scalar)
        if text in words or _OBJECT.fullmatch(text):
            return text
        suggestion = "" if scalar.is_expanded else did_you_mean(text, words)
        raise InvalidValue(f"must be module:name or a built-in tool{suggestion}")

    return Single(parse, _TEXT)


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


def folder_of(info: ValidationInfo) -> ConfigFolder:
    """Return the folder to which paths are relative."""
    return cast("ConfigFolder", info.context or ConfigFolder(Path.cwd()))


def _path(text: str, info: ValidationInfo) -> Path:
    return folder_of(info).resolve(text)


def _existing_file(text: str, info: ValidationInfo) -> Path:
    return folder_of(info).existing_file(text)


def _file_text(name: str, info: ValidationInfo) -> str:
    return folder_of(info).read_text(name)


def _output_type(text: str, info: ValidationInfo) -> str | Path:
    return folder_of(info).existing_file(text) if text.endswith(".json") else text


def _name(text: str) -> str:
    if not NAME.fullmatch(text):
        hint = "letters, digits, '_', '-' and '.' are allowed, 64 at most"
        raise InvalidValue("is not a name", hint)
    return text


def _model_name(text: str) -> str:
    if not _MODEL_NAME.fullmatch(text):
        raise InvalidValue("is not a name", "name a model as agents do: provider:model")
    return text


_TEXT: Final = {"type": "string"}
_NUMBER_OR_TEXT: Final = {"type": ["number", "string"]}
_URL: Final = {"type": "string", "format": "uri"}

Hidden = Annotated[T, Field(repr=False)]  # never shown
Text = Annotated[str, Single(_text, _TEXT)]
Flag = Annotated[bool, Single(_boolean, {"type": "boolean"})]
Count = Annotated[int, integer(1)]
Amount = Annotated[float, number(", 0 or more", lambda value: 0 <= value < inf, minimum=0)]
Positive = Annotated[float, number(" above 0", lambda value: value > 0, exclusiveMinimum=0)]
Share = Annotated[
    float,
    number(
        " between 0 and 1, such as 0.8",
        lambda value: 0 < value < 1,
        exclusiveMinimum=0,
        exclusiveMaximum=1,
    ),
]
Duration = Annotated[timedelta, Single(_duration, _NUMBER_OR_TEXT)]
DurationOrNone = Annotated[
    timedelta | None, Single(_duration_or_none, {"type": ["number", "string", "null"]})
]
Url = Annotated[str, Single(_url, _URL)]
OpenUrl = Annotated[str, Single(_open_url, _URL)]
RedisUrl = Annotated[str, Single(_redis_url, _TEXT)]
Network = Annotated[str, Single(_network, _TEXT)]
HostOrNetwork = Annotated[str, Single(_host_or_network, _TEXT)]
Size = Annotated[int, Single(_size, _NUMBER_OR_TEXT)]
Rate = Annotated[float, Single(_rate, _TEXT)]
ObjectName = Annotated[str, Single(_object, {**_TEXT, "pattern": f"^{_OBJECT.pattern}$"})]
Rule = Annotated[str, Single(_rule, _TEXT)]
FolderPath = Annotated[Path, Single(_text, _TEXT), AfterValidator(_path)]
ExistingFile = Annotated[Path, Single(_text, _TEXT), AfterValidator(_existing_file)]
FileText = Annotated[str, Single(_text, _TEXT), AfterValidator(_file_text)]
OutputType = Annotated[str | Path, Single(_output, _TEXT), AfterValidator(_output_type)]
Name = Annotated[str, AfterValidator(_name), WithJsonSchema({"pattern": f"^{NAME.pattern}$"})]
ModelName = Annotated[
    str, AfterValidator(_model_name), WithJsonSchema({"pattern": f"^{_MODEL_NAME.pattern}$"})
]
