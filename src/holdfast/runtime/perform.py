"""Running a tool whose intent is recorded; whatever it does is an outcome."""

import asyncio
import logging
from typing import Any

from msgspec import Struct

from holdfast.core.log import events
from holdfast.core.pending.record import PendingRecord
from holdfast.core.session.calls import Call
from holdfast.core.session.state import State
from holdfast.errors import HoldfastError
from holdfast.runtime.answers import storable_text
from holdfast.runtime.content import check_size, stored_content
from holdfast.runtime.deeds import ToolRun, tell
from holdfast.runtime.invoke import invoke, is_called_off, named
from holdfast.runtime.outcomes import StartReturned, ToolReturned
from holdfast.runtime.outputs import Deferred, parse_deferred, render_result
from holdfast.runtime.tools import Tool
from holdfast.runtime.values import Context
from holdfast.runtime.verdicts import Verdicts
from holdfast.runtime.workplace import Workplace

logger = logging.getLogger("holdfast")


class Performer(Struct, frozen=True):
    """One session's hands: everything here may be interrupted at any await without harm."""

    place: Workplace
    verdicts: Verdicts

    async def run(
        self, call: Call, state: State, opened: PendingRecord | None = None
    ) -> ToolReturned | StartReturned:
        """Run one call whose intent is recorded. Never raises: a failure is an outcome.

        `opened` is the record of a deferred call, where it need not be looked up.
        """
        tool = self.place.agent.tool(call.tool)
        if tool is None:  # it was there when the call was begun, in this very drive
            return ToolReturned(call.id, f"There is no tool {call.tool!r}.", is_error=True)
        try:
            if tool.deferred and call.wait is not None:
                record = opened or await self.place.desk.settling.pending(call.wait)
                return await self._start_deferred(tool, call, state, record)
            ctx = self.place.context(state, call=call, args=self.verdicts.args(tool, call))
            return ToolReturned(call.id, await self._rendered(await self._invoke(tool, call, ctx)))
        except HoldfastError as error:
            return ToolReturned(call.id, storable_text(error.message), is_error=True)
        except (Exception, asyncio.CancelledError) as error:
            if is_called_off(error):
                raise
            logger.exception("tool %s failed (call %s)", call.tool, call.id)
            return ToolReturned(call.id, named(error), is_error=True)

    async def _start_deferred(
        self, tool: Tool[..., Any], call: Call, state: State, record: PendingRecord
    ) -> StartReturned:
        desk = self.place.desk
        own = await desk.outbox.own_secrets(record.hooks) if record.hooks else ()
        pending = desk.pending_call(record, inside=True, own=own)
        args = self.verdicts.args(tool, call)
        ctx = self.place.context(state, call=call, args=args, pending=pending)
        said = parse_deferred(await self._invoke(tool, call, ctx), record.id)
        news = events.Progress(
            pending_id=record.id,
            call_id=call.id,
            returned=True,
            external_ref=said.external_ref,
            output=said.output,
            estimated_duration=said.estimated_duration_ms,
            expires_at=_deadline(said, desk.store.now()),
        )
        return StartReturned(call.id, news)

    async def _invoke(self, tool: Tool[..., Any], call: Call, ctx: Context[Any]) -> Any:
        may_repeat = tool.crash_policy != "tell"
        run = (call.turn, call.id, call.effect_id, tool.name, may_repeat)
        tell(ToolRun, ctx.tenant, ctx.session_id, *run)
        desk = self.place.desk
        with desk.telemetry.tool(tool, call.id, ctx.session_id, ctx.args) as returned:
            value = await invoke(tool, ctx, limiter=desk.threads)
            returned(value)
        return value

    async def _rendered(self, value: Any) -> events.Content:
        shown = render_result(value)
        if isinstance(shown, str):
            check_size(shown, "the tool's result")
            return shown
        return await stored_content(self.place.desk.store, shown)


def _deadline(said: Deferred, now: int) -> int | None:
    """None: nothing was said, the tool's own stays; 0: there is none."""
    if said.timeout_ms is ...:
        return None
    return 0 if not said.timeout_ms else now + said.timeout_ms
