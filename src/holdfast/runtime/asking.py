"""Asking a model for a turn or a summary, and what it says as the log can keep it."""

import asyncio
import logging
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace as vary
from functools import partial

from msgspec import Struct

from holdfast.core.conversation.compaction import Cut
from holdfast.core.conversation.messages import Answer, Message, UserMessage
from holdfast.core.conversation.repair import Growing
from holdfast.core.driver.cut_answers import NOT_RUN, cut_off
from holdfast.core.driver.verdicts import Reject
from holdfast.core.log.stop_reasons import is_cut
from holdfast.core.session.state import State
from holdfast.errors import HoldfastError, ModelError
from holdfast.runtime.answers import storable, storable_text
from holdfast.runtime.bus import Attempt
from holdfast.runtime.content import find_bytes
from holdfast.runtime.deeds import ModelAsked, tell
from holdfast.runtime.invoke import is_called_off, named
from holdfast.runtime.models.base import Delta, Model, Request
from holdfast.runtime.outcomes import Answered, ModelFailed, Summarised
from holdfast.runtime.verdicts import Verdicts
from holdfast.runtime.workplace import Workplace

logger = logging.getLogger("holdfast")


class Asking(Struct, frozen=True):
    """One session's way to its model; it may be interrupted at any await without harm."""

    place: Workplace
    verdicts: Verdicts
    growing: Growing

    async def turn(
        self, messages: list[Message], state: State, attempt: Attempt = (0, 0)
    ) -> Answered | ModelFailed:
        """Request one turn and judge its calls."""
        turn, head = state.turn + 1, state.head
        asked = await self._said_to(partial(self._request, messages, state, turn), state, attempt)
        if isinstance(asked, HoldfastError):
            return ModelFailed(turn, head, asked)
        answer, wrong = storable(asked)
        if is_cut(answer.stop):
            wrong = {call.id: NOT_RUN for call in answer.calls}
        verdicts = tuple(
            [
                Reject(wrong[call.id]) if call.id in wrong else await self.verdicts.on(call, state)
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
        if isinstance(asked, HoldfastError):
            return ModelFailed(turn, head, asked, cut)
        return Summarised(turn, head, cut, storable(asked)[0])

    async def _said_to(
        self,
        make: Callable[[], Request],
        state: State,
        attempt: Attempt | None = None,
        up_to: int = 0,
    ) -> Answer | HoldfastError:
        """What the model says to a request, or why it says nothing."""
        try:
            return await self._answer(make(), self.place.agent.model_of(state.run), attempt, up_to)
        except HoldfastError as error:
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
        tell(ModelAsked, self.place.tenant, self.place.session_id, request.turn, up_to)
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
