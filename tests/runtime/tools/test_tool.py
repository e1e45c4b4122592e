"""Tools: what a function becomes, and which ones are refused."""

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Annotated, Any, Literal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, Field, SecretStr

from perdure.errors import ConfigError, Refused
from perdure.runtime.tools.binding import bind
from perdure.runtime.tools.schema import FunctionArguments
from perdure.runtime.tools.tool import ASYNCHRONOUS, EXTERNAL, Tool, as_tool, tool
from perdure.runtime.values import Context
from perdure.views.calls import PendingCall


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Address(BaseModel):
    street: str
    title: str = "Ms"


@dataclass
class Size:
    width: int
    height: int = 1


@tool
def refund(order_id: int, cents: int = 100, *, why: Literal["late", "broken"] = "late") -> str:
    """Pay back an order,
    or a part of it.

    Longer text that the model need not read.

    Args:
        order_id: Which order.
        cents (int): How much,
            in cents.
        why: The reason.

    Returns:
        order_id: not a parameter.
    """
    return f"{order_id}:{cents}:{why}"


def test_type_hints_and_docstring_are_the_schema() -> None:
    assert (refund.name, refund.description) == ("refund", "Pay back an order, or a part of it.")
    assert refund.parameters == {
        "type": "object",
        "properties": {
            "order_id": {"type": "integer", "description": "Which order."},
            "cents": {"type": "integer", "description": "How much, in cents.", "default": 100},
            "why": {
                "type": "string",
                "enum": ["late", "broken"],
                "description": "The reason.",
                "default": "late",
            },
        },
        "required": ["order_id"],
        "additionalProperties": False,
    }


def test_a_tool_is_still_the_function_it_was() -> None:
    assert refund(7, cents=5) == "7:5:late"


def numpy_style(a: int, b: int = 2) -> None:
    """Add.

    Parameters
    ----------
    a : int
        The first.
    b
        The second.

    Returns
    -------
    a : int
        Not this.
    """


def rest_style(a: int, b: int = 2) -> None:
    """Add.

    :param int a: The first.
    :param b: The
        second.
    :returns: nothing
    """


def terse(a: int, b: int = 2) -> None:
    """Add.
    Args:
        a: The first.
        b: The second.
    """


@pytest.mark.parametrize("function", [numpy_style, rest_style, terse])
def test_each_style_of_docstring_describes_the_parameters(function: Callable[..., None]) -> None:
    made = as_tool(function)
    assert made.description == "Add."
    told = {name: one["description"] for name, one in made.parameters["properties"].items()}
    assert {name: text.rstrip(".").split()[-1] for name, text in told.items()} == {
        "a": "first",
        "b": "second",
    }


def test_rich_types_have_schemas_and_no_titles() -> None:
    @tool
    def order(
        colour: Colour,
        address: Address,
        size: Size,
        count: Annotated[int, Field(gt=0, description="How many")] = 1,
    ) -> None: ...

    properties = order.parameters["properties"]
    assert properties["colour"] == {"$ref": "#/$defs/Colour"}
    assert properties["count"] == {
        "type": "integer",
        "exclusiveMinimum": 0,
        "description": "How many",
        "default": 1,
    }
    # A property that is called title is no title.
    assert set(order.parameters["$defs"]["Address"]["properties"]) == {"street", "title"}
    assert "title" not in order.parameters
    assert "title" not in order.parameters["$defs"]["Colour"]


def test_a_field_of_ones_own_wins_over_the_docstring() -> None:
    @tool
    def one(a: Annotated[int, Field(description="mine")], b: int = Field(3, le=5)) -> int:
        """One.

        Args:
            a: theirs
            b: theirs
        """
        return a + b

    assert one.parameters["properties"]["a"]["description"] == "mine"
    assert one.parameters["properties"]["b"]["description"] == "theirs"
    assert one.parameters["required"] == ["a"]
    assert one.typed_values({"a": 1}) == {"a": 1, "b": 3}


def test_hints_as_text_may_name_what_stands_around_the_tool() -> None:
    class Local(BaseModel):
        x: int

    @tool
    def take(local: "Local", ctx: "Context[int]") -> "Undefined":  # type: ignore[name-defined]  # noqa: F821
        ...

    assert take.typed_values({"local": {"x": "1"}}) == {"local": Local(x=1)}
    assert take.deps_type is int


def test_a_hint_that_means_nothing_is_named() -> None:
    def take(x: "Nowhere") -> None: ...  # type: ignore[name-defined]  # noqa: F821

    with pytest.raises(ConfigError, match=r"tool 'take': its type hints.*'Nowhere'"):
        tool(take)


def test_parameters_may_have_names_that_pydantic_does_not_like() -> None:
    @tool
    def odd(json: str, _private: int, model_config: int = 1, copy: bool = False) -> None: ...

    assert list(odd.parameters["properties"]) == ["json", "_private", "model_config", "copy"]
    assert odd.typed_values({"json": "x", "_private": 1})["model_config"] == 1


def test_context_and_pending_call_are_not_in_the_schema() -> None:
    """S0.82"""

    @tool
    def look(
        ctx: Context[dict[str, int]], x: int, call: PendingCall | None = None, y: Any = None
    ) -> None: ...

    assert list(look.parameters["properties"]) == ["x", "y"]
    assert look.deps_type == dict[str, int]
    assert refund.deps_type is None


def test_a_pending_call_in_a_tool_that_is_not_deferred_may_be_missing() -> None:
    def start(call: PendingCall) -> None: ...

    with pytest.raises(ConfigError, match="'start' is not deferred: call needs the default None"):
        tool(start)
    made = tool(start, deferred=True)
    assert made.parameters["properties"] == {}
    with pytest.raises(ConfigError, match="not deferred"):
        replace(made, deferred=False)


class Shop:
    """Sells."""

    def __init__(self, name: str) -> None:
        self.name = name

    def sell(self, what: str) -> str:
        """Sell something."""
        return f"{self.name} sells {what}"

    @tool(requires_approval=True)
    def close(self, when: str) -> str:
        """Close the shop."""
        return f"{self.name} closes {when}"

    def __call__(self, what: str) -> str:
        return self.sell(what)


async def later(x: int) -> int:
    """Later."""
    return x


def test_methods_partials_and_objects_are_tools() -> None:
    shop = Shop("Ana")
    sell, close, called = as_tool(shop.sell), as_tool(shop.close), as_tool(shop)
    assert (sell.name, sell.description, sell("tea")) == (
        "sell",
        "Sell something.",
        "Ana sells tea",
    )
    assert (close.name, close("now"), close.requires_approval) == ("close", "Ana closes now", True)
    assert (called.name, called.description) == ("Shop", "Sells.")
    for made in (sell, called):
        assert list(made.parameters["properties"]) == ["what"]
    assert list(close.parameters["properties"]) == ["when"]
    with pytest.raises(ConfigError, match="method that is not bound to an object"):
        as_tool(Shop.close)
    assert as_tool(functools.partial(later, 1)).parameters["properties"] == {}


def test_what_a_partial_has_given_the_model_cannot_give() -> None:
    def fetch(path: str, key: str, **more: str) -> str:
        return key

    made = as_tool(functools.partial(fetch, key="hunter2"))
    assert list(made.parameters["properties"]) == ["path"]
    with pytest.raises(Refused, match="key: is not a known argument"):
        made.validate({"path": "x", "key": "theirs"})


def test_keyword_arguments_are_open_and_checked() -> None:
    @tool
    def count(ctx: Context, **each: int) -> None: ...

    assert count.parameters["additionalProperties"] == {"type": "integer"}
    assert count.typed_values({"a": "5"}) == {"a": 5}
    with pytest.raises(Refused, match="a: Input should be a valid integer"):
        count.validate({"a": "x"})
    with pytest.raises(Refused, match="ctx: is not a known argument"):
        count.validate({"ctx": 1})


def starred(*things: str) -> None: ...


def generates() -> Any:
    yield 1


@pytest.mark.parametrize(
    "item, why",
    [
        (lambda x: x, "a lambda has no name"),
        (Shop, "is not a function"),
        (7, "7 is not a function"),
        (starred, r"\*things has no name for the model"),
        (generates, "'generates' is a generator"),
    ],
    ids=["lambda", "class", "number", "starred", "generator"],
)
def test_what_cannot_be_a_tool_is_told_in_one_line(item: Any, why: str) -> None:
    with pytest.raises(ConfigError, match=why) as caught:
        as_tool(item)
    assert "\n" not in str(caught.value)


def test_a_lambda_with_a_name_is_a_tool() -> None:
    made = tool(lambda x: x, name="echo")
    assert made.name == "echo"
    assert as_tool(made) is made
    with pytest.raises(ConfigError, match="is already a tool"):
        tool(made)


def test_a_type_without_schema_is_told_in_one_line() -> None:
    def take(x: Callable[[], None], y: Shop) -> None: ...

    with pytest.raises(ConfigError, match="tool 'take': no JSON schema") as caught:
        tool(take)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["", "with space", "x" * 65, "dot.ted", "ümlaut"])
def test_names_that_providers_refuse_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="cannot be the name of a tool"):
        replace(refund, name=name)
    with pytest.raises(ConfigError, match="cannot be the name of a tool"):
        replace(refund, aliases=[name])


def test_retry_after_a_crash_needs_a_tool_that_may_be_repeated() -> None:
    with pytest.raises(ConfigError, match="on_crash='retry' needs idempotent=True"):
        replace(refund, on_crash="retry")
    assert refund.crash_policy == "tell"
    assert replace(refund, idempotent=True).crash_policy == "retry"
    assert replace(refund, idempotent=True, on_crash="tell").crash_policy == "tell"
    assert replace(refund, on_crash="ask").crash_policy == "ask"


@pytest.mark.parametrize(
    "options, why",
    [
        ({"on_crash": "hope"}, "on_crash is 'hope'"),
        ({"timeout": "soon"}, "tool 'refund': 'soon' is not a duration"),
        ({"aliases": "old"}, "aliases must be a list"),
        ({"requires_approval": "yes"}, "requires_approval must be"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_wrong_options_are_told(options: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        replace(refund, **options)


def test_a_deferred_result_is_due_in_a_day_unless_told_otherwise() -> None:
    """S0.20"""
    assert refund.timeout_ms is None
    assert replace(refund, timeout="90s").timeout_ms == 90_000
    assert replace(refund, deferred=True).timeout_ms == 86_400_000
    assert replace(refund, deferred=True, timeout="7d").timeout_ms == 604_800_000
    assert replace(refund, deferred=True, timeout=None).timeout_ms is None
    assert replace(refund, deferred=True, timeout=0).timeout_ms is None


def test_the_model_is_told_that_a_deferred_tool_is_asynchronous() -> None:
    """S0.22"""
    deferred = replace(refund, deferred=True)
    assert deferred.description == f"{refund.description} {ASYNCHRONOUS}"
    assert replace(deferred, timeout=5).description == deferred.description
    assert replace(deferred, deferred=False).description == refund.description


def test_an_external_tool_is_a_deferred_one_that_describes_itself() -> None:
    """S0.22"""
    external = replace(refund, external=True)
    assert (external.external, external.deferred, external.timeout_ms) == (True, True, 86_400_000)
    assert external.description == f"{refund.description} {EXTERNAL}"
    assert replace(external, timeout=5).description == external.description
    assert external(1) == "1:100:late"  # called directly, it is the function
    deferred = replace(external, external=False)
    assert (deferred.deferred, deferred.external) == (True, False)
    assert deferred.description == f"{refund.description} {ASYNCHRONOUS}"
    assert replace(deferred, deferred=False).description == refund.description
    assert len({refund.digest, external.digest, deferred.digest}) == 3
    assert Tool(refund.run, "x", "X.", external=True).deferred


@pytest.mark.parametrize(
    "options, why",
    [
        ({"idempotent": True}, "'refund' is external: idempotent has no meaning"),
        ({"on_crash": "ask"}, "'refund' is external: on_crash has no meaning"),
        ({"on_crash": "retry"}, "'refund' is external: on_crash has no meaning"),
    ],
)
def test_an_external_tool_has_no_start_that_could_be_repeated(
    options: dict[str, Any], why: str
) -> None:
    with pytest.raises(ConfigError, match=why) as refused:
        replace(refund, external=True, **options)
    assert "deferred=True" in str(refused.value.hint)


@pytest.mark.parametrize("hint", [Context, Context[int], PendingCall | None], ids=str)
def test_the_function_of_an_external_tool_gets_nothing_from_perdure(hint: Any) -> None:
    def ask(ctx: Any = None) -> None: ...

    ask.__annotations__["ctx"] = hint
    with pytest.raises(ConfigError, match="'ask' is external: ctx would never be passed"):
        tool(ask, external=True)
    assert tool(ask, deferred=True).parameters["properties"] == {}


def test_options_do_not_change_what_the_model_sees() -> None:
    assert replace(refund, timeout=5, requires_approval=True).digest == refund.digest
    changed = [
        replace(refund, description="Other."),
        replace(refund, name="pay_back"),
        replace(refund, deferred=True),
        replace(refund, parameters={"type": "object"}),
    ]
    assert len({refund.digest, *(one.digest for one in changed)}) == 5


def test_a_tool_can_be_varied_and_compared() -> None:
    @functools.wraps(refund.run)
    def logged(*args: Any, **kwargs: Any) -> str:
        return "logged " + refund.run(*args, **kwargs)

    varied = replace(refund, run=logged)
    assert varied(1) == "logged 1:100:late"
    assert varied.typed_values({"order_id": 1})["cents"] == 100
    assert replace(refund) == refund
    assert len({refund, replace(refund), varied}) == 2


def test_valid_arguments_come_back_as_the_function_understands_them() -> None:
    """S0.12"""
    assert refund.validate({"order_id": "7"}) == {"order_id": 7, "cents": 100, "why": "late"}


def test_every_wrong_argument_is_named_in_one_line() -> None:
    """S0.12"""
    with pytest.raises(Refused) as caught:
        refund.validate({"cents": "many", "why": "no", "x": 1})
    assert caught.value.code == "ARGS_INVALID"
    told = str(caught.value)
    assert told.startswith("Invalid arguments: order_id: is missing; cents: Input should be")
    assert told.endswith("why: Input should be 'late' or 'broken'; x: is not a known argument")
    assert [one["name"] for one in caught.value.details["arguments"]] == [
        *("order_id", "cents", "why", "x"),
    ]


def test_a_nested_wrong_argument_has_a_path() -> None:
    @tool
    def ship(to: list[Address]) -> None: ...

    with pytest.raises(Refused, match=r"(?m)^Invalid arguments: to\[0\].street: is missing$"):
        ship.validate({"to": [{}]})


@pytest.mark.parametrize(
    "args",
    [[], "text", None, {"order_id": object()}, {"order_id": float("nan")}, {1: {2}}],
)
def test_arguments_that_are_not_a_json_object_are_refused(args: Any) -> None:
    """S0.8"""
    for made in (refund, Tool(len, name="raw")):
        with pytest.raises(Refused, match="JSON") as caught:
            made.validate(args)
        assert caught.value.code == "ARGS_INVALID"


def test_a_validator_that_breaks_refuses() -> None:
    class Odd(BaseModel):
        def model_post_init(self, context: Any, /) -> None:
            raise KeyError("oops")

    @tool
    def take(odd: Odd) -> None: ...

    with pytest.raises(Refused, match="KeyError"):
        take.validate({"odd": {}})


def test_a_value_that_json_would_change_stays_as_it_was_given() -> None:
    @tool
    def login(password: SecretStr, tries: int = 1, marker: Any = object) -> None: ...

    assert login.validate({"password": "hunter2"}) == {"password": "hunter2", "tries": 1}


def test_null_is_fine_where_the_default_is_none() -> None:
    @tool
    def find(limit: int = None) -> None: ...  # type: ignore[assignment]  # noqa: RUF013

    assert find.validate({"limit": None}) == {"limit": None}
    assert find.validate({}) == {"limit": None}


def test_a_schema_of_ones_own_is_checked_too() -> None:
    schema = {
        "properties": {"path": {"type": "string"}},
        "required": ["path"],
        "additionalProperties": False,
    }
    raw = Tool(lambda ctx: ctx.args["path"], name="read", description="Read.", parameters=schema)
    assert raw.parameters["type"] == "object"
    assert raw.validate({"path": "a"}) == {"path": "a"}
    with pytest.raises(
        Refused, match=r"^Invalid arguments: path: must be string; x: is not a known"
    ):
        raw.validate({"path": 1, "x": 2})
    with pytest.raises(ConfigError, match="JSON schema of an object"):
        replace(raw, parameters={"type": "string"})


def test_an_unknown_option_of_a_tool_is_named_with_a_similar_one() -> None:
    wrong: Any = {"requires_aproval": True}
    with pytest.raises(TypeError, match="no option 'requires_aproval'; did you mean 'requires_app"):
        tool(**wrong)
    kind: Any = {"kind": "question"}
    with pytest.raises(TypeError, match="no option 'kind'"):
        tool(print, **kind)


PLAIN_VALUES = st.text() | st.integers() | st.booleans() | st.none() | st.floats()


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(st.sampled_from(["name", "count", "is_new", "other"]), PLAIN_VALUES))
def test_plain_arguments_are_what_pydantic_would_make_of_them(args: dict[str, Any]) -> None:
    def add(name: str, count: int, is_new: bool = False) -> None:
        """Add."""

    def outcome(arguments: FunctionArguments) -> Any:
        try:
            return arguments.typed_values(args), arguments.json_values(args)
        except Refused as error:
            return error.message

    arguments = bind(add, "add").arguments
    assert isinstance(arguments, FunctionArguments)
    assert outcome(arguments) == outcome(replace(arguments, plain_types=None))


def test_constrained_arguments_are_validated() -> None:
    @tool
    def add(name: Annotated[str, Field(min_length=3)], count: int = Field(gt=0)) -> None:
        """Add."""

    for args in ({"name": "a", "count": 1}, {"name": "abc", "count": 0}):
        with pytest.raises(Refused):
            add.validate(args)
