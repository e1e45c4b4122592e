"""Tools in a module whose annotations are all text."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Annotated

from pydantic import BaseModel, Field

from perdure.runtime.tools.invoke import invoke
from perdure.runtime.tools.tool import as_tool, tool
from perdure.runtime.values import Context as Ctx

if TYPE_CHECKING:
    from decimal import Decimal

    from perdure.runtime.values import Context
    from perdure.views.calls import PendingCall


class Order(BaseModel):
    id: int


class Deps:
    name = "deps"


@tool
async def buy(
    order: Order, ctx: Ctx[Deps], many: Annotated[int, Field(ge=1)] = 1
) -> Decimal | tuple[int, int, str]:
    return order.id, many, ctx.deps.name


async def test_hints_as_text_are_resolved() -> None:
    assert list(buy.parameters["properties"]) == ["order", "many"]
    assert buy.deps_type is Deps
    ctx = Ctx(deps=Deps(), args={"order": {"id": 5}})
    assert await invoke(buy, ctx) == (5, 1, "deps")


def test_our_own_types_may_be_imported_for_type_checkers_only() -> None:
    @tool(deferred=True)
    def start(branch: str, ctx: Context, call: PendingCall) -> str:
        return branch

    assert list(start.parameters["properties"]) == ["branch"]


def test_methods_and_partials_of_local_types() -> None:
    class Local(BaseModel):
        x: int

    class Box:
        @tool
        def put(self, local: Local) -> int:
            return local.x

    made = Box().put
    assert made.typed_values({"local": {"x": 1}}) == {"local": Local(x=1)}
    partial = tool(functools.partial(Box.put.run, Box()), name="put")
    assert list(as_tool(partial).parameters["properties"]) == ["local"]
