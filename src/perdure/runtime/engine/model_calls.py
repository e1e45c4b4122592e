"""Asking a model for a turn or a summary, and what it says as the log can keep it."""

import asyncio
import logging
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace as vary
from functools import partial
from typing import Final

from msgspec import Struct

from perdure.core.conversation import compaction
from perdure.core.conversation.compaction import Cut
from perdure.core.conversation.messages import Answer, Message, UserMessage
from perdure.core.conversation.repair import IncrementalCanonical
from perdure.core.driver.model_failures import ELSEWHERE, NOT_RUN, cut_off
from perdure.core.driver.verdicts import GiveUp, Reject
from perdure.core.log.stop_reasons import is_cut
from perdure.core.session.state import State
from perdure.errors import ModelError, PerdureError
from perdure.runtime.agents.prices import window
from perdure.runtime.engine.in_flight import Answered, ModelFailed, Summarised
from perdure.runtime.engine.tool_calls import CallContext, Verdicts
from perdure.runtime.models.base import Delta, Model, Request
from perdure.runtime.probes import ModelAsked, notify
from perdure.runtime.records.content import find_bytes
from perdure.runtime.records.log import Log
from perdure.runtime.storable import storable, storable_text
from perdure.runtime.streaming import Attempt
from perdure.runtime.tools.invoke import is_called_off, named

logger = logging.getLogger("perdure")


class ModelCalls(Struct, frozen=True):
    """One session's way to its model; it may be interrupted at any await without harm."""

    place: CallContext
    verdicts: Verdicts
    growing: IncrementalCanonical

    async def turn(
        self, messages: list[Message], state: State, attempt: Attempt = (0, 0)
    ) -> Answered | ModelFailed:
        """Request one turn and judge its calls."""
        turn, head = state.turn + 1, state.head
        asked = await self._said_to(partial(self._request, messages, state, turn), state, attempt)
        if isinstance(asked, PerdureError):
            return ModelFailed(turn, head, asked)
        answer, wrong = storable(asked)
        if is_cut(answer.stop):
            wrong = {call.id: NOT_RUN for call in answer.calls}
        verdicts = tuple(
            [
                Reject(wrong[call.id])
                if call.id in wrong
                else await self.verdicts.judge(call, state)
                for call in answer.calls
            ]
        )
        return Answered(turn, head, answer, verdicts, self._hidden(answer, wrong))

    async def summary(
        self, cut: Cut, covered: list[Message], state: State, instructions: str
    ) -> Summarised | ModelFailed:
        """Request a summary of what was said before a cut."""
        turn, head = state.turn + 1, state.head
        messages = [*covered, UserMessage(instructions)]

        def request() -> Request:
            made = self._request(messages, state, turn)
            return vary(made, output_schema=None, purpose="summary", growing=None)

        asked = await self._said_to(request, state, up_to=cut.up_to)
        if isinstance(asked, Answer) and not asked.text.strip():
            asked = ModelError(f"{self.place.agent.model_of(state.run).name} gave no summary")
        if isinstance(asked, Answer) and is_cut(asked.stop):  # what it does not say would be lost
            why = cut_off(asked, "in the middle of a summary")
            asked = ModelError(why.error, code=why.code, hint=why.hint)
        if isinstance(asked, PerdureError):
            return ModelFailed(turn, head, asked, cut)
        return Summarised(turn, head, cut, storable(asked)[0])

    async def _said_to(
        self,
        make: Callable[[], Request],
        state: State,
        attempt: Attempt | None = None,
        up_to: int = 0,
    ) -> Answer | PerdureError:
        """What the model says to a request, or why it says nothing."""
        try:
            return await self._answer(make(), self.place.agent.model_of(state.run), attempt, up_to)
        except PerdureError as error:
            error.message = storable_text(error.message)
            return error
        except (Exception, asyncio.CancelledError) as error:
            if is_called_off(error):
                raise
            logger.exception("the model of agent %s failed", self.place.agent.name)
            return ModelError(named(error))

    def _hidden(self, answer: Answer, wrong: Collection[str]) -> dict[str, tuple[str, ...]]:
        """The names of the arguments that are not shown, of each call that has some.

        Where the model misspelled a name, or wrote no object, a secret may stand anywhere.
        """
        hidden: dict[str, tuple[str, ...]] = {}
        for call in answer.calls:
            tool = self.place.agent.tool(call.tool)
            names = self.place.agent.hidden if tool is None else tool.hidden
            is_clear = tool is not None and call.id not in wrong
            known = tool.parameters.get("properties", {}) if tool and is_clear else {}
            if names:
                hidden[call.id] = tuple(sorted(names | (call.params.keys() - known.keys())))
        return hidden

    def _request(self, messages: list[Message], state: State, turn: int) -> Request:
        return Request(
            session_id=self.place.session_id,
            agent=self.place.agent.name,
            turn=turn,
            instructions=self._instructions(state),
            messages=messages,
            growing=self.growing,
            tools=self.place.agent.specs,
            settings=self.place.agent.agent.model_settings,
            output_schema=self.place.agent.output.schema,
            read_file=partial(find_bytes, self.place.desk.store),
        )

    def _instructions(self, state: State) -> str:
        said = self.place.agent.agent.instructions
        return said if isinstance(said, str) else said(self.place.context(state))

    async def _answer(
        self, request: Request, model: Model, attempt: Attempt | None, up_to: int
    ) -> Answer:
        whole: Answer | None = None
        hides = bool(self.place.agent.hidden)
        notify(ModelAsked, self.place.tenant, self.place.session_id, request.turn, up_to)
        with (
            self.place.desk.telemetry.chat(model.name, request, hides=hides) as answered,
            self._speaking(request, attempt) as say,
        ):
            async for piece in model.answer(request):
                if isinstance(piece, Answer):
                    whole = piece
                elif piece.kind != "args" or not hides:
                    say(piece)
            if whole is None:
                raise ModelError(f"{model.name} ended its answer without one")
            answered(whole)
        return self._priced(whole, model)

    def _speaking(
        self, request: Request, attempt: Attempt | None
    ) -> AbstractContextManager[Callable[[Delta], None]]:
        """How its pieces are said to people; a summary is for the model alone."""
        if attempt is None:
            return nullcontext(lambda _: None)
        return self.place.desk.bus.speaking(
            (self.place.tenant, self.place.session_id), request.turn, attempt
        )

    def _priced(self, answer: Answer, model: Model) -> Answer:
        """What the answer cost at today's price is part of it."""
        if not answer.usage:
            return answer
        names = (f"{answer.provider}:{answer.model}", model.name)
        return vary(answer, usage=self.place.desk.prices.priced(answer.usage, *names))


TOO_LONG: Final = "MODEL_CONTEXT"  # what is said of a request that the model cannot take
_OF_LESS: Final = (TOO_LONG, "MODEL_CUT")  # a summary of less may be had, and shorter
NOTHING: Final = GiveUp("there is nothing to summarise", "NOTHING_TO_COMPACT")
_SMALL: Final = 2_000  # tokens that every model takes: the table of windows is not even loaded


class Summaries:
    """When a summary is asked for instead of the next turn, and what if there is none."""

    def __init__(self, asking: ModelCalls, log: Log) -> None:
        self._asking = asking
        self._agent = asking.place.agent
        self._policy = self._agent.compaction
        self._log = log
        self._too_long: tuple[int, int] | None = None  # turn and summary that were not taken
        self._given_up: int | None = None  # the turn before which there is no summary to be had

    def wanted(self) -> Cut | None:
        """Where to cut before the next turn is asked for; None: it is asked for as it is."""
        turn, log, policy = self._log.state.turn + 1, self._log.events, self._policy
        if policy is None or turn == self._given_up:
            return None
        if self._too_long is not None and self._too_long == (turn, compaction.covered(log)):
            return compaction.cut(log, policy)
        looks = policy.needs_window and compaction.size(log, _SMALL) >= _SMALL
        model = self._agent.model_of(self._log.state.run)
        return compaction.wanted(log, policy, window(model.name) if looks else None)

    def by_hand(self) -> Cut | None:
        """Where to cut because somebody wants it; None: there is nothing to summarise."""
        asked = self._log.state.compaction
        if asked is None:
            return None
        policy = self._policy or compaction.Policy()
        return compaction.by_hand(self._log.events, policy, asked.wanted, asked.seq)

    async def summarise(self, cut: Cut) -> Summarised | ModelFailed:
        """A summary of what stands before the cut, or of less if that is too much for one."""
        state, text = self._log.state, self._instructions(cut)
        while True:
            covered = self._log.covered(cut.up_to)
            outcome = await self._asking.summary(cut, covered, state, text)
            is_too_much = isinstance(outcome, ModelFailed) and outcome.error.code in _OF_LESS
            nearer = compaction.shorter(self._log.events, cut) if is_too_much else None
            if nearer is None:
                return outcome
            cut = nearer

    def _instructions(self, cut: Cut) -> str:
        text = compaction.INSTRUCTIONS if self._policy is None else self._policy.instructions
        asked = self._log.state.compaction if cut.asked else None
        more = None if asked is None else asked.wanted.instructions
        return f"{text}\n\n{more}" if more else text

    def is_recorded(self, outcome: Summarised) -> bool:
        """Whether a summary stands in the log already."""
        return compaction.covered(self._log.events) >= outcome.cut.up_to

    def helps(self, failed: ModelFailed) -> bool:
        """Whether the session can go on after this, with a summary or without one."""
        if failed.cut is not None:
            if failed.error.code in ELSEWHERE:
                return False  # as of any request: it is asked for again, or another model is
            what = "%s: there is no summary, the conversation stays as long as it is: %s"
            logger.warning(what, self._log.stream, failed.error.message)
            self._given_up = failed.turn
            return True
        if failed.error.code != TOO_LONG or failed.turn == self._given_up or self._policy is None:
            return False
        log = self._log.events
        self._too_long = (failed.turn, compaction.covered(log))
        return compaction.cut(log, self._policy) is not None
