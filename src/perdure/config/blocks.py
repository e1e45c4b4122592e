"""Blocks of keys, lists and names as pydantic models, and the problems that pydantic finds."""

from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, ClassVar, Final, Self, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    ModelWrapValidatorHandler,
    PlainValidator,
    PrivateAttr,
    Tag,
    ValidationError,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import ErrorDetails, InitErrorDetails

from perdure.config.problems import ConfigProblem, InvalidValue, Key, quoted_list
from perdure.config.reader import Scalar, YamlBlock
from perdure.config.values import Name, Text, checked, kind
from perdure.core.text import did_you_mean

S = TypeVar("S")
T = TypeVar("T")
_STEPS: Final = ("<single>", "<other>", "<use>", "<mcp>", "[key]")


class Block(BaseModel):
    """Block of fixed keys, of which at most one of `either` may be present."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)
    either: ClassVar[tuple[str, ...]] = ()
    _key: Key = PrivateAttr(default=())

    @property
    def key(self) -> Key:
        """Place in the file."""
        return self._key

    def present(self, *without: str) -> dict[str, Any]:
        """Return the keys that the file has, except `without`, as keyword arguments."""
        fields = type(self).model_fields
        values = {name: getattr(self, name) for name in fields if name in self.model_fields_set}
        return {
            name: value.present() if isinstance(value, Block) else value
            for name, value in values.items()
            if name not in without
        }

    @model_validator(mode="wrap")
    @classmethod
    def _read(cls, data: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        block = as_block(data)
        problems = list(cls._exclusive(block))
        model = None
        try:
            model = handler(block)
        except ValidationError as error:
            problems = [*map(cls._problem, error.errors(include_url=False)), *problems]
        if model is None or problems:
            raise ValidationError.from_exception_data(cls.__name__, problems)
        if isinstance(block, YamlBlock):
            model._key = block.key  # noqa: SLF001 - its own
        return model

    @classmethod
    def _exclusive(cls, block: Any) -> Iterator[InitErrorDetails]:
        present = [name for name in cls.either if isinstance(block, dict) and name in block]
        if len(present) > 1:
            text = f"has both {quoted_list(present, 'and')}; only one is allowed"
            line = getattr(block, "line", None)
            yield _details((), block, InvalidValue(text, line=line))

    @classmethod
    def _problem(cls, error: ErrorDetails) -> InitErrorDetails:
        """Return an error of pydantic in our words, if it is one of this block's keys."""
        loc, kind_ = error["loc"], error["type"]
        if kind_ == "missing" and len(loc) == 1:
            line = getattr(error["input"], "line", None)
            return _details(loc, error["input"], InvalidValue("is missing", line=line))
        if kind_ == "extra_forbidden" and len(loc) == 1:
            return _details(loc, error["input"], cls._unknown(str(loc[0])))
        return InitErrorDetails(type=kind_, loc=loc, input=error["input"], ctx=error.get("ctx", {}))

    @classmethod
    def _unknown(cls, name: str) -> InvalidValue:
        if name == "<<":
            return InvalidValue("merge keys are not supported", "write the keys out")
        keys = [field.alias or key for key, field in cls.model_fields.items()]
        text = f"is not a known key{did_you_mean(name, keys)}"
        return InvalidValue(text, f"known keys: {', '.join(keys)}")


class NamedBlock(Block):
    """Block under a name that the user chose."""

    @property
    def name(self) -> str:
        """Name that the user chose; empty if the block is not from a file."""
        return str(self._key[-1]) if self._key else ""


def problems_in(error: ValidationError, lines: Mapping[Key, int]) -> Iterator[ConfigProblem]:
    """Yield the problems that pydantic found, each with its line."""
    details = error.errors(include_url=False)
    refused = {detail["loc"][:-1] for detail in details if detail["loc"][-1:] == ("[key]",)}
    for detail in details:
        loc = detail["loc"]
        if loc[-1:] != ("[key]",) and any(loc[:size] in refused for size in range(len(loc) + 1)):
            continue  # in a block whose name is refused
        cause = detail.get("ctx", {}).get("error")
        problem = cause if isinstance(cause, InvalidValue) else InvalidValue(detail["msg"])
        yield located(problem, _key_of(loc), lines)


def located(problem: InvalidValue, key: Key, lines: Mapping[Key, int]) -> ConfigProblem:
    """Return a problem with the line of its key, or of the innermost block around it."""
    key = problem.key or key
    blocks = (key[:size] for size in range(len(key), -1, -1))
    line = problem.line or lines[next(block for block in blocks if block in lines)]
    return ConfigProblem(line, key, problem.text, problem.hint)


def _key_of(loc: Key) -> Key:
    """Return a place without the steps that only pydantic knows: branches, and keys as values."""
    return tuple(part for part in loc if part not in _STEPS)


def _details(loc: Key, value: Any, error: InvalidValue) -> InitErrorDetails:
    return InitErrorDetails(type="value_error", loc=loc, input=value, ctx={"error": error})


def as_block(node: Any) -> Any:
    """Return a block of keys; an empty value is one without keys."""
    if isinstance(checked(node), Scalar) and node.is_empty:
        return YamlBlock(node.key, node.line)
    if isinstance(node, Scalar | list):
        raise InvalidValue(f"must be a block of keys, not {kind(node)}")
    return node


def _items(node: Any) -> Any:
    if isinstance(checked(node), Scalar) and node.is_empty:
        return []
    if isinstance(node, Scalar | YamlBlock):
        raise InvalidValue(f"must be a list, not {kind(node)}")
    return node


def _free(node: Any) -> Any:
    match checked(node):
        case YamlBlock():
            return {name: _free(value) for name, value in node.items()}
        case list():
            return [_free(item) for item in node]
        case Scalar():
            return node.text if node.is_quoted else node.value
        case _:
            return node


def _branch(shape: type) -> Callable[[Any], str]:
    return lambda node: "<other>" if isinstance(node, shape) else "<single>"


Many = Annotated[tuple[T, ...], BeforeValidator(_items)]
Named = Annotated[Mapping[Name, T], BeforeValidator(as_block)]
Names = Annotated[Mapping[str, Text], BeforeValidator(as_block)]  # any text is a name
Free = Annotated[
    Mapping[str, Any],
    PlainValidator(lambda node: _free(as_block(node))),
    WithJsonSchema({"type": ["object", "null"]}),
]
OrMany = Annotated[
    Annotated[S, Tag("<single>")] | Annotated[Many[T], Tag("<other>")],
    Discriminator(_branch(list)),
]
OrBlock = Annotated[
    Annotated[S, Tag("<single>")] | Annotated[T, Tag("<other>")],
    Discriminator(_branch(YamlBlock)),
]
