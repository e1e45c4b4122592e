"""Asking and running one tool: does it need approval, with which words, and the call itself."""

import asyncio
import functools
import inspect
import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

import anyio
import anyio.to_thread

from perdure.core.durations import format_ms
from perdure.core.log.redaction import masked
from perdure.errors import ToolError
from perdure.runtime.storable import storable_text
from perdure.runtime.tools.signature import Signature
from perdure.runtime.tools.tool import Tool
from perdure.runtime.values import Context

_PLACE: Final = re.compile(r"\{(tool|input)\}")
_PROMPT: Final = "Run {tool} with {input}?"
_PROMPT_BARE: Final = "Run {tool}?"


async def needs_approval(tool: Tool[..., Any], ctx: Context) -> bool:
    """Whether a person must decide first. A predicate that raises, or answers None, means: yes."""
    if isinstance(tool.requires_approval, bool):
        return tool.requires_approval
    try:
        answer: Any = tool.requires_approval(ctx)
        if inspect.isawaitable(answer):
            answer = await answer
        return answer is None or bool(answer)
    except (Exception, asyncio.CancelledError) as error:
        if is_called_off(error):
            raise
        return True  # in doubt a person is asked


def is_called_off(error: BaseException) -> bool:
    """Whether we are cancelled; else the code we called has raised it, as any other error."""
    task = asyncio.current_task()
    is_asked = task is None or task.cancelling() > 0
    return is_asked and isinstance(error, asyncio.CancelledError)


def named(error: BaseException) -> str:
    """An error of code that is not ours, in one line that the log can keep."""
    return storable_text(f"{type(error).__name__}: {error}")


def prompt_for(tool: Tool[..., Any], args: Mapping[str, Any]) -> str:
    """What the person is asked, with `{tool}` and `{input}` filled in; a question is itself."""
    if tool.kind == "question":
        return str(args.get("question", ""))
    shown = masked(args, tool.hidden)
    told = {"tool": tool.name, "input": json.dumps(shown, ensure_ascii=False, default=str)}
    template = tool.approval_prompt or (_PROMPT if args else _PROMPT_BARE)
    # One pass: braces in the input are input.
    return _PLACE.sub(lambda place: told[place[1]], template)


def accepts_result(tool: Tool[..., Any], output: str) -> bool:
    """Whether the tool takes this as its deferred result; a validator that raises refuses it."""
    if tool.validate_result is None:
        return True
    try:
        return bool(tool.validate_result(output))
    except Exception:  # noqa: BLE001 - the user's validator
        return False


async def invoke(
    tool: Tool[..., Any], ctx: Context, *, limiter: anyio.CapacityLimiter | None = None
) -> Any:
    """Run a tool on `ctx.args` and return what it returned.

    A plain function runs in a worker thread, which is left behind when the call is cancelled.
    Raises what the tool raises, ToolError after its running time, Refused ARGS_INVALID.
    """
    call = _prepared(tool, ctx)
    # The timeout of a deferred tool is about its result, not about starting it.
    limit = None if tool.deferred else tool.timeout_ms
    if limit is None:
        return await _awaited(call, limiter)
    with anyio.move_on_after(limit / 1_000):
        return await _awaited(call, limiter)
    raise ToolError(f"{tool.name} timed out after {format_ms(limit)}", code="TOOL_TIMEOUT")


def _prepared(tool: Tool[..., Any], ctx: Context) -> Callable[[], Any]:
    if tool.signature is None:
        return functools.partial(tool.run, ctx)
    positional, named = _call_arguments(tool.signature, tool.typed(ctx.args), ctx)
    return functools.partial(tool.run, *positional, **named)


def _call_arguments(
    signature: Signature, values: dict[str, Any], ctx: Context
) -> tuple[list[Any], dict[str, Any]]:
    injected = {one.name: ctx for one in signature.of("context")}
    pending = {one.name: ctx.pending for one in signature.of("pending")}
    named = {**values, **injected, **pending}
    positional = [named.pop(one.name) for one in signature.taken if one.positional]
    return positional, named


async def _awaited(call: Callable[[], Any], limiter: anyio.CapacityLimiter | None) -> Any:
    if _is_async(call):
        return await call()
    result = await anyio.to_thread.run_sync(call, abandon_on_cancel=True, limiter=limiter)
    return await result if inspect.isawaitable(result) else result


def _is_async(call: Any) -> bool:
    while isinstance(call, functools.partial):
        call = call.func
    return inspect.iscoroutinefunction(call) or inspect.iscoroutinefunction(
        getattr(type(call), "__call__", None)  # noqa: B004 - whether calling it gives a coroutine
    )
