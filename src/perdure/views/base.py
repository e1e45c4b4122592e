"""Base of the views: one spelling of names on the wire, milliseconds there, datetimes in Python."""

from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar, get_args

import msgspec
from msgspec import Meta, Struct, field, structs
from msgspec.structs import force_setattr

from perdure.errors import PerdureError, Refused

V = TypeVar("V", bound="View")
W = TypeVar("W", bound=str)

OWNER: Final = "_owner"  # the runtime or client that a view with verbs is bound to
OUTPUT: Final = "_output"  # the output of a run, as a value of the agent's output type

Number = int | float  # a whole number is one again when a client has read it

if TYPE_CHECKING:
    Word = Annotated[W, "of a view"]
else:

    class Word:
        """One word of a `Literal` in a view: documented as such, read as any text.

        A client reads the words that a newer server has added to the ones it knows.
        """

        def __class_getitem__(cls, words: Any) -> Any:
            return Annotated[str, Meta(extra_json_schema={"enum": sorted(get_args(words))})]


_WORDS: Final[Mapping[str, str]] = {"id": "ID", "ids": "IDs", "ok": "OK", "url": "URL"}


def wire_name(name: str) -> str:
    """Return the name of a field on the wire: `session_id` is `sessionID` there.

    A number of milliseconds has the name of its instant: `created_at_ms` is `createdAt`.
    """
    first, *rest = name.removesuffix("_ms").split("_")
    return first + "".join(_WORDS.get(word) or word.capitalize() for word in rest)


def instant(ms: int) -> datetime:
    """Return an instant as an aware datetime in UTC."""
    return datetime.fromtimestamp(ms / 1000, UTC)


@lru_cache(64)  # the lines of a batch have the same instant
def iso(ms: int) -> str:
    """Return an instant as ISO 8601 with milliseconds, in UTC."""
    return iso_text(instant(ms))


def iso_text(moment: datetime) -> str:
    """Return an aware datetime as ISO 8601 with milliseconds, in UTC."""
    text = moment.astimezone(UTC).isoformat(timespec="milliseconds")
    return text.removesuffix("+00:00") + "Z"


class View(Struct, frozen=True, kw_only=True, rename=wire_name, dict=True):
    """Public value of something, the same in Python and JSON, where every field is present."""

    def to_json(self) -> dict[str, Any]:
        """Return the value as plain JSON values, as HTTP and `--json` show it."""
        shown: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(self))
        return shown


def view_of(kind: type[V], value: object) -> V:
    """Return a view with what a value has under the names of its fields."""
    return msgspec.convert(value, kind, from_attributes=True)


def view_as(kind: type[V], view: View, **more: Any) -> V:
    """Return a view as one of a kind that has more fields."""
    return kind(**structs.asdict(view), **more)


def bind(view: V, **values: Any) -> V:
    """Return the view with values that only this process has: not encoded, compared or copied."""
    for name, value in values.items():
        force_setattr(view, name, value)
    return view


def bound(view: View, name: str) -> Any:
    """Return a value that was bound to a view; None if it has none."""
    return view.__dict__.get(name)


def replace(view: V, **changes: Any) -> V:
    """Return the view with other values in some fields, and without verbs, as a copy has none."""
    varied = structs.replace(view, **changes)
    if "output_json" in changes or OUTPUT not in view.__dict__:
        return varied
    return bind(varied, **{OUTPUT: view.__dict__[OUTPUT]})


def bound_verbs(view: View, name: str, hint: str) -> Any:
    """Return the runtime or client that a view came from. Raises Refused NOT_BOUND."""
    verbs = bound(view, OWNER)
    if verbs is None:
        raise Refused(
            f"{name} has no verbs here: it was copied, decoded, or passed to a tool",
            code="NOT_BOUND",
            hint=hint,
        )
    return verbs


class Error(View, frozen=True, kw_only=True):
    """Error with a stable code, and a hint that says what to do next."""

    message: str = field(name="error")
    code: str
    hint: str = ""
    details: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.message

    @classmethod
    def of(cls, error: PerdureError | None) -> "Error | None":
        """Return the view of an error; None without one."""
        if error is None:
            return None
        text = error.message
        return cls(message=text, code=error.code, hint=error.hint or "", details=error.details)

    def to_exception(self) -> PerdureError:
        """Return the error as an exception, to raise."""
        return PerdureError(
            self.message, code=self.code, hint=self.hint or None, details=self.details
        )
