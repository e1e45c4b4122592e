"""make_context: a tool alone, without a runtime."""

from perdure import Context, tool
from perdure.testing import make_context


@tool
def greet(name: str, ctx: Context[str]) -> str:
    return f"{ctx.deps}, {name} ({ctx.effect_id}, {ctx.attempt})"


def test_a_tool_is_called_with_a_context_of_ones_own() -> None:
    assert greet("Ana", make_context(deps="Hello")) == "Hello, Ana (e_test, 1)"
    assert make_context(tool="greet", attempt=2).attempt == 2


async def test_progress_goes_nowhere() -> None:
    await make_context().progress("half", 50)
