"""Invocation of one tool: its approval predicate, its approval prompt, and the call itself."""

import functools
import inspect
import json
import logging
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

import anyio

from perdure import host
from perdure.core.log.redaction import mask_arguments
from perdure.core.pending.record import PendingResult
from perdure.errors import ToolError
from perdure.runtime.tools.signature import Signature
from perdure.runtime.tools.tool import Tool, signature_of
from perdure.runtime.values import Context
from perdure.user_code import CONTAINED, UserCode, error_line
from perdure.views.durations import format_ms

logger = logging.getLogger("perdure")

_PLACEHOLDER: Final = re.compile(r"\{(tool|input(?:\.[A-Za-z_]\w*)?)\}")
_PROMPT: Final = "Run {tool} with {input}?"
_PROMPT_BARE: Final = "Run {tool}?"


async def is_approval_required(tool: Tool[..., Any], ctx: Context) -> bool:
    """Return True if an approver must decide first; also if a predicate raises or returns None."""
    if isinstance(tool.approval.when, bool):
        return tool.approval.when
    try:
        with UserCode("approval predicate", tool.name, ctx.tenant, ctx.session_id):
            answer: Any = tool.approval.when(ctx)
            if inspect.isawaitable(answer):
                answer = await answer
            return answer is None or bool(answer)
    except Exception as error:  # noqa: BLE001 - the user's predicate: require approval
        text = "the approval predicate of %s failed, so that the call requires approval: %s"
        logger.warning(text, tool.name, error_line(error))
        return True


def render_prompt(tool: Tool[..., Any], args: Mapping[str, Any]) -> str:
    """Return the prompt with `{tool}` and `{input}` filled in; for a question, its text.

    `{input.NAME}` is one argument: text as it is, everything else as JSON.
    """
    if tool.kind == "question":
        return str(args.get("question", ""))
    visible = mask_arguments(args, tool.hidden_arguments)
    values = {f"input.{name}": _shown(value) for name, value in visible.items()}
    values |= {"tool": tool.name, "input": _shown(visible)}
    template = tool.approval_prompt or (_PROMPT if args else _PROMPT_BARE)
    # One pass, so that braces in the input are not replaced.
    return _PLACEHOLDER.sub(lambda match: values.get(match[1], match[0]), template)


def _shown(value: Any) -> str:
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, default=str)


async def is_valid_result(tool: Tool[..., Any], result: PendingResult) -> bool:
    """Return True if the tool's validator accepts a submitted result; raising refuses it."""
    if tool.validate_result is None:
        return True
    try:
        with CONTAINED:
            verdict = tool.validate_result(result)
            return bool(await verdict if inspect.isawaitable(verdict) else verdict)
    except Exception:  # noqa: BLE001 - the user's validator
        return False


async def invoke(
    tool: Tool[..., Any],
    ctx: Context,
    *,
    limiter: anyio.CapacityLimiter | None = None,
    before: Callable[[], None] | None = None,
) -> Any:
    """Run a tool on `ctx.args` and return its value.

    A plain function runs in a worker thread, which is abandoned when the call is cancelled; the
    thread calls `before` first, since it may have waited for its turn.
    Raises what the tool raises, ToolError TOOL_TIMEOUT, Refused ARGS_INVALID.
    """
    with UserCode("tool", tool.name, ctx.tenant, ctx.session_id):
        call = _bind_arguments(tool, ctx)
        # The timeout of a deferred tool limits its result, not its start.
        limit = None if tool.deferred else tool.timeout_ms
        if limit is None:
            return await _run_call(call, limiter, before)
        with anyio.move_on_after(limit / 1_000):
            return await _run_call(call, limiter, before)
    raise ToolError(f"{tool.name} timed out after {format_ms(limit)}", code="TOOL_TIMEOUT")


def _bind_arguments(tool: Tool[..., Any], ctx: Context) -> Callable[[], Any]:
    signature = signature_of(tool)
    if signature is None:
        return functools.partial(tool.run, ctx)
    positional, keywords = _call_arguments(signature, tool.typed_values(ctx.args), ctx)
    return functools.partial(tool.run, *positional, **keywords)


def _call_arguments(
    signature: Signature, values: dict[str, Any], ctx: Context
) -> tuple[list[Any], dict[str, Any]]:
    contexts = {parameter.name: ctx for parameter in signature.with_role("context")}
    pending = {parameter.name: ctx.pending for parameter in signature.with_role("pending")}
    keywords = {**values, **contexts, **pending}
    positional = [keywords.pop(item.name) for item in signature.parameters if item.positional]
    return positional, keywords


async def _run_call(
    call: Callable[[], Any],
    limiter: anyio.CapacityLimiter | None,
    before: Callable[[], None] | None,
) -> Any:
    if is_async_function(call):
        return await call()
    contained = functools.partial(_call_contained, call, before)
    result = await host.run_in_thread(contained, abandon_on_cancel=True, limiter=limiter)
    return await result if inspect.isawaitable(result) else result


def _call_contained(call: Callable[[], Any], before: Callable[[], None] | None) -> Any:
    """Call a function in its thread; a GeneratorExit from there would close our coroutines."""
    with CONTAINED:
        if before is not None:
            before()
        return call()


def is_async_function(call: Any) -> bool:
    """Return True if calling it returns a coroutine, also for a partial and a callable object."""
    while isinstance(call, functools.partial):
        call = call.func
    return inspect.iscoroutinefunction(call) or inspect.iscoroutinefunction(
        getattr(type(call), "__call__", None)  # noqa: B004 - we need the method itself, not whether it exists
    )
