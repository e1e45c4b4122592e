"""Where the tools, predicates and instructions of one session run, and what they get to know."""

from collections.abc import Awaitable, Callable
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from holdfast.core.conversation.messages import AskedCall
from holdfast.core.session.calls import Call
from holdfast.core.session.state import State
from holdfast.runtime.agents import ReadyAgent
from holdfast.runtime.desk import Desk
from holdfast.runtime.models.base import Delta
from holdfast.runtime.results import instant
from holdfast.runtime.values import Context, Decision, PendingCall


class Workplace(Struct, frozen=True):
    """One session with its agent, as this process has it."""

    desk: Desk
    agent: ReadyAgent
    tenant: str
    session_id: str

    def context(
        self,
        state: State,
        *,
        call: AskedCall | Call | None = None,
        args: dict[str, Any] | None = None,
        pending: PendingCall | None = None,
    ) -> Context[Any]:
        """Where a tool, predicate or instruction runs."""
        running = call if isinstance(call, Call) else None
        return Context(
            deps=self.desk.deps,
            session_id=self.session_id,
            tenant=self.tenant,
            agent=self.agent.name,
            metadata=dict(state.metadata),
            tool=call.tool if call is not None else "",
            args=args or {},
            call_id=call.id if call is not None else "",
            effect_id=running.effect_id if running is not None else "",
            attempt=running.attempt if running is not None else 1,
            decision=self._decision(running),
            pending=pending,
            _progress=None if running is None else self._progress(running, state.turn),
        )

    def _decision(self, call: Call | None) -> Decision | None:
        if call is None or call.decision is None:
            return None
        made = call.decision
        at = instant(call.decided_at)
        told = (made.args, made.reason, made.note, made.remember)
        return Decision(made.kind, made.by, made.via, at, *told)

    def _progress(self, call: Call, turn: int) -> Callable[[str, float | None], Awaitable[None]]:
        async def tell(message: str, percent: float | None) -> None:
            text = message if percent is None else f"{message} ({percent:g} %)"
            self.desk.bus.say_alone(
                self.tenant, Delta(self.session_id, turn, "progress", text, call.id)
            )
            if call.wait is not None:
                news = {"message": message, "percent": percent, "at": self.desk.store.now()}
                await self.desk.settling.update(
                    call.wait, lambda record: replace(record, progress=news)
                )

        return tell
