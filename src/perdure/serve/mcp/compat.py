"""The raw form of the published API: answers directly under `result`, codes as text.

It is not MCP, whose results have a form of their own and whose codes are numbers; programs that
were written after the published samples use it. A response has the layout of those samples.
"""

import json
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

import anyio
import msgspec
from starlette.requests import Request
from starlette.responses import Response

from perdure.errors import PerdureError, Refused
from perdure.runtime.sessions.background import Gone
from perdure.runtime.sessions.service import Service
from perdure.runtime.sessions.verbs.caller import Caller
from perdure.serve.http.errors import http_status
from perdure.serve.mcp.calls.callers import waiting_caller
from perdure.serve.mcp.toolbox import (
    Json,
    LongAnswer,
    McpOptions,
    Toolbox,
    WaitTime,
    error_fields,
)
from perdure.serve.mcp.tools.catalog import toolbox_of
from perdure.serve.mcp.work import WaitLimits, Works, WorkState, wait_in_steps

_STATUS: Final = {"TOOL_NOT_FOUND": 404, "INVALID_REQUEST": 400, "EXECUTION_FAILED": 500}
_STEP_S: Final = 5.0
_NO_ID: Final = object()


class CompatForm:
    """Calls in the raw form."""

    def __init__(self, service: Service, options: McpOptions, closing: anyio.Event) -> None:
        self.service = service
        self._toolbox: Toolbox = toolbox_of(service.agents.all(), options)
        self._works = Works(service)
        self._options = options
        self._closing = closing

    async def respond(self, caller: Caller, request: Request) -> Response:
        """Return the response to one request; a notification gets none."""
        request_id: Any = None
        try:
            body = _decode(await request.body())
            request_id = body.get("id", _NO_ID)
            result = await self._call(caller, body, partial(_disconnected, request))
        except Exception as error:  # noqa: BLE001 - the edge of a call: everything is answered
            fields = error_fields(error)
            return _response(request_id, {"error": fields}, _status(error, fields["code"]))
        return _response(request_id, {"result": result}, 200)

    async def _call(self, caller: Caller, body: Mapping[str, Any], gone: Gone) -> Json:
        if body.get("jsonrpc") != "2.0":
            raise _invalid('jsonrpc must be "2.0"')
        if isinstance(body.get("id"), bool | list | dict):
            raise _invalid("id must be text, a number or null")
        method, params = body.get("method"), body.get("params", {})
        if method == "tools/list":
            return {"tools": self._toolbox.descriptions}
        if method != "tools/call":
            raise _invalid(f"{str(method)[:60]!a} is not a method: use tools/call or tools/list")
        if not isinstance(params, Mapping) or not isinstance(params.get("name"), str):
            raise _invalid("params must have the name of a tool, and its arguments")
        name = params["name"]
        args = self._toolbox.check(caller, name, params.get("arguments"))
        answer = await self._toolbox.run(self.service, caller, name, args)
        if isinstance(answer, LongAnswer):
            time = self._toolbox.find(name).wait_time(args)
            async with waiting_caller(self.service, answer.reserved, gone) as waiting:
                state = await self._wait(caller, answer, time)
                if state.has_ended and waiting is not None:
                    await waiting.take(caller.name)
            answer = state.answer
        return {name: value for name, value in answer.fields.items() if name != "execution"}

    async def _wait(self, caller: Caller, long: LongAnswer, time: WaitTime) -> WorkState:
        """Wait for work; a program of this form cannot be asked anything."""

        def is_enough(state: WorkState) -> bool:
            return state.is_left_to_people and not time.is_given

        limits = WaitLimits(time.seconds(self._options), _STEP_S, self._closing)
        steps = wait_in_steps(self._works, caller.home_tenant, long.work, limits, is_enough)
        *_, state = [state async for state in steps]
        return state


async def _disconnected(request: Request) -> None:
    """Return when the client has disconnected; its request was read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _decode(raw: bytes) -> Mapping[str, Any]:
    try:
        body = msgspec.json.decode(raw)  # unlike json, it refuses NaN and lone surrogates
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise _invalid("the body is not JSON") from None
    if not isinstance(body, dict):
        raise _invalid("the body must be one JSON-RPC request; batches are not supported")
    return body


def _invalid(text: str) -> Refused:
    return Refused(text, code="INVALID_REQUEST", hint="send {jsonrpc, id, method, params}")


def _status(error: Exception, code: str) -> int:
    if code in _STATUS:
        return _STATUS[code]
    return http_status(error) if isinstance(error, PerdureError) else 500


def _response(request_id: Any, outcome: Json, status: int) -> Response:
    if request_id is _NO_ID:
        return Response(status_code=204)
    text = rendered({"jsonrpc": "2.0", "id": request_id, **outcome})
    return Response(text, status, media_type="application/json")


def rendered(value: Any, indent: str = "") -> str:
    """Return JSON in the layout of the published samples: lists of plain values on one line."""
    inner = indent + "  "
    if isinstance(value, Mapping) and value:
        lines = [f"{inner}{_text(str(key))}: {rendered(v, inner)}" for key, v in value.items()]
        return "{\n" + ",\n".join(lines) + f"\n{indent}}}"
    if isinstance(value, list) and any(isinstance(item, Mapping | list) for item in value):
        lines = [f"{inner}{rendered(item, inner)}" for item in value]
        return "[\n" + ",\n".join(lines) + f"\n{indent}]"
    if isinstance(value, list):
        return "[" + ", ".join(_text(item) for item in value) + "]"
    return _text(value)


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
