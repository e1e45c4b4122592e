"""What becomes of a call: refused, put to a person, begun; by rules, tools and people's words."""

import logging
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from holdfast.core.conversation.messages import AskedCall
from holdfast.core.driver.verdicts import Defer, Gate, Reject, Start, Verdict, Wait
from holdfast.core.session.calls import NOT_THIS_CALL, Call
from holdfast.core.session.permissions import NOT_TRACKED, denial
from holdfast.core.session.state import State
from holdfast.errors import Refused
from holdfast.runtime.builtins import wait_ms
from holdfast.runtime.ids import secret_id
from holdfast.runtime.invoke import needs_approval, prompt_for
from holdfast.runtime.tools import Tool
from holdfast.runtime.values import Context
from holdfast.runtime.workplace import Workplace

logger = logging.getLogger("holdfast")

Checked = tuple[Tool[..., Any], Mapping[str, Any], dict[str, Any]]  # tool, as given, as it takes it


class Verdicts(Struct, frozen=True):
    """Judges the calls of one session by the code that is here now."""

    place: Workplace
    checked: dict[str, Checked] = {}  # arguments, by call

    def args(self, tool: Tool[..., Any], call: Call) -> dict[str, Any]:
        """The arguments of a call as its tool takes them. Raises Refused."""
        known = self.checked.pop(call.id, None)
        if known is not None and known[0] is tool and known[1] == call.params:
            return known[2]  # as the verdict on it found them
        return tool.validate(call.params)

    async def on(self, call: AskedCall, state: State) -> Verdict:
        """What to do about a call that the model just asked for."""
        tool = self.place.agent.tool(call.tool)
        if tool is None:
            known = ", ".join(self.place.agent.tools) or "none"
            return Reject(f"There is no tool {call.tool!r}. Tools: {known}.")
        try:
            args = tool.validate(call.params)
        except Refused as error:
            return Reject(error.message)
        self.checked[call.id] = (tool, call.params, args)
        ctx = self.place.context(state, call=call, args=args)
        if tool.kind in ("question", "timer"):
            rule = self.place.agent.permissions.denies((tool.name,), args)
            return self._waits(tool, args) if rule is None else Reject(denial(tool.name, rule))
        return await self._allowed(tool, call, ctx, state)

    async def _allowed(
        self, tool: Tool[..., Any], call: AskedCall, ctx: Context[Any], state: State
    ) -> Verdict:
        """Rules first, then what was remembered, then what the tool says of itself."""
        names = {tool.name, call.tool}
        said = self.place.agent.permissions.judge(names, ctx.args)
        effect, rule = said if said is not None else (None, None)
        if effect == "deny" and rule is not None:
            return Reject(denial(call.tool, rule))
        if effect == "allow" or any(
            one.covers(names, call.params, ctx.args) for one in state.allowed
        ):
            return self.begin(tool)
        if effect == "ask" or await needs_approval(tool, ctx):
            return self._asked(tool, call)
        return self.begin(tool)

    def _waits(self, tool: Tool[..., Any], args: dict[str, Any]) -> Wait:
        ids = (secret_id("p"), secret_id("e"))
        if tool.kind == "timer":
            return Wait(*ids, "timer", until=self.place.desk.store.now() + wait_ms(args))
        prompt = prompt_for(tool, args)
        return Wait(*ids, "question", prompt, self._deadline_for_people(None))

    def _asked(self, tool: Tool[..., Any], call: AskedCall) -> Gate | Reject:
        if self.place.desk.tracked:
            return self.gate(tool, dict(call.params))
        logger.warning("%s: %s", call.tool, NOT_TRACKED)
        return Reject(NOT_TRACKED)

    def gate(self, tool: Tool[..., Any] | None, params: dict[str, Any]) -> Gate:
        """A person must decide; without a deadline unless the tool or the agent states one."""
        if tool is None:
            return Gate(secret_id("p"), secret_id("e"), "")
        expires_at = self._deadline_for_people(tool)
        return Gate(secret_id("p"), secret_id("e"), prompt_for(tool, params), expires_at)

    def _deadline_for_people(self, tool: Tool[..., Any] | None) -> int | None:
        limit = self.place.agent.input_timeout_ms
        if tool is not None and tool.approval_timeout is not None:
            limit = tool.approval_timeout_ms
        return None if limit is None else self.place.desk.store.now() + limit

    def begin(self, tool: Tool[..., Any]) -> Start | Defer:
        """It may run now."""
        if not tool.deferred:
            return Start(secret_id("e"))
        limit = tool.timeout_ms
        expires_at = None if limit is None else self.place.desk.store.now() + limit
        return Defer(secret_id("p"), secret_id("e"), expires_at)

    def ready(self, call: Call) -> Start | Defer | Reject | Refused:
        """Whether a recorded call can run with the code that is here now."""
        if call.problem == NOT_THIS_CALL:
            return Reject(
                "The approval was given for other arguments than those of this call; "
                "it was not run."
            )
        tool = self.place.agent.tool(call.tool)
        if tool is None:
            return Refused(
                f"agent {self.place.agent.name!r} has no tool {call.tool!r} here",
                code="TOOL_MISSING",
                hint="start a worker that has it, or cancel the session",
            )
        try:
            tool.validate(call.params)
        except Refused as error:
            return error
        return self.begin(tool)
