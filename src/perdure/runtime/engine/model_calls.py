"""Model requests of a drive: the next turn, or a summary.

Each may be cancelled at any await without harm.
"""

import logging
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace as vary
from functools import partial

from perdure.core.conversation.compaction import Cut
from perdure.core.conversation.messages import Answer, Message, UserMessage
from perdure.core.driver.model_failures import cut_off_response
from perdure.core.driver.texts import CALLS_CUT_OFF
from perdure.core.driver.verdicts import Reject
from perdure.core.log.stop_reasons import is_cut
from perdure.core.session.state import State
from perdure.core.session.usage import check_usage
from perdure.errors import ModelError, PerdureError
from perdure.runtime.engine.contexts import tool_context
from perdure.runtime.engine.in_flight import Answered, ModelFailed, Summarized
from perdure.runtime.engine.verdicts import CheckedArguments, judge
from perdure.runtime.engine.writer import LeasedWriter
from perdure.runtime.models.base import Model, Request
from perdure.runtime.probes import ModelAsked, notify
from perdure.runtime.records.content import find_bytes
from perdure.runtime.storable import storable_answer
from perdure.runtime.streaming import Attempt
from perdure.user_code import Kind, UserCode, bounded_text, error_line, loggable
from perdure.views.events import Delta

logger = logging.getLogger("perdure")


async def request_turn(
    drive: LeasedWriter,
    messages: list[Message],
    state: State,
    attempt: Attempt,
    checked: dict[str, CheckedArguments],
) -> Answered | ModelFailed:
    """Request one turn and judge its calls."""
    turn, head = state.turn + 1, state.head
    response = await _ask(drive, partial(_request, drive, messages, state, turn), state, attempt)
    if isinstance(response, PerdureError):
        return ModelFailed(turn, head, response)
    answer, problems = storable_answer(response)
    if not answer.calls:
        return Answered(turn, head, answer, ())
    if is_cut(answer.stop_reason):
        problems = {call.id: CALLS_CUT_OFF for call in answer.calls}
    verdicts = [
        Reject(problems[call.id])
        if call.id in problems
        else await judge(drive, call, state, checked)
        for call in answer.calls
    ]
    hidden = _hidden_arguments(drive, answer, problems)
    return Answered(turn, head, answer, tuple(verdicts), hidden)


async def request_summary(
    drive: LeasedWriter, cut: Cut, covered: list[Message], state: State, instructions: str
) -> Summarized | ModelFailed:
    """Request a summary of the messages before a cut."""
    turn, head = state.turn + 1, state.head
    messages = [*covered, UserMessage(instructions)]

    def build() -> Request:
        request = _request(drive, messages, state, turn)
        return vary(request, output_schema=None, purpose="summary", _canonical=None)

    response = await _ask(drive, build, state, up_to=cut.up_to)
    if isinstance(response, Answer) and not response.text.strip():
        response = ModelError(f"{drive.agent.model_for(state.run).name} returned no summary")
    if isinstance(response, Answer) and is_cut(response.stop_reason):  # a part would be missing
        cut_off = cut_off_response(response, "in the middle of a summary")
        response = ModelError(cut_off.error, code=cut_off.code, hint=cut_off.hint)
    if isinstance(response, PerdureError):
        return ModelFailed(turn, head, response, cut)
    return Summarized(turn, head, cut, storable_answer(response)[0])


async def _ask(
    drive: LeasedWriter,
    build: Callable[[], Request],
    state: State,
    attempt: Attempt | None = None,
    up_to: int = 0,
) -> Answer | PerdureError:
    """Return the model's answer to a request, or the error of the request."""
    try:
        return await _stream_answer(
            drive, build(), drive.agent.model_for(state.run), attempt, up_to
        )
    except PerdureError as error:
        error.message = bounded_text(error.message)
        return error
    except Exception as error:
        line, text = error_line(error), "the model of agent %s failed: %.1000s"
        logger.exception(text, drive.agent.name, line, exc_info=loggable(error))
        return ModelError(line)


def _hidden_arguments(
    drive: LeasedWriter, answer: Answer, invalid: Collection[str]
) -> dict[str, tuple[str, ...]]:
    """Return the names of redacted arguments, for each call that has some.

    If the model misspelled a name or did not write an object, a secret may be anywhere.
    """
    hidden: dict[str, tuple[str, ...]] = {}
    for call in answer.calls:
        tool = drive.agent.tool(call.tool)
        names = drive.agent.hidden_arguments if tool is None else tool.hidden_arguments
        is_valid = tool is not None and call.id not in invalid
        properties = tool.parameters.get("properties", {}) if tool and is_valid else {}
        if names:
            hidden[call.id] = tuple(sorted(names | (call.params.keys() - properties.keys())))
    return hidden


def _request(drive: LeasedWriter, messages: list[Message], state: State, turn: int) -> Request:
    agent = drive.agent
    return Request(
        session_id=drive.entry.record.id,
        agent=agent.name,
        turn=turn,
        instructions=_instructions(drive, state),
        messages=messages,
        _canonical=drive.log.canonical,
        tools=agent.specs,
        settings=agent.agent.model_settings,
        output_schema=agent.output.schema,
        read_file=partial(find_bytes, drive.resources.store),
    )


def _instructions(drive: LeasedWriter, state: State) -> str:
    instructions = drive.agent.agent.instructions
    if isinstance(instructions, str):
        return instructions
    with _user_code(drive, "instructions", drive.agent.name):
        return instructions(tool_context(drive, state))


def _user_code(drive: LeasedWriter, kind: Kind, name: str) -> UserCode:
    return UserCode(kind, name, drive.entry.record.tenant, drive.entry.record.id)


async def _stream_answer(
    drive: LeasedWriter, request: Request, model: Model, attempt: Attempt | None, up_to: int
) -> Answer:
    answer: Answer | None = None
    hides = bool(drive.agent.hidden_arguments)
    notify(ModelAsked, drive.entry.record.tenant, request.session_id, request.turn, up_to)
    with (
        drive.resources.telemetry.chat(model.name, request, hides=hides) as record,
        _delta_writer(drive, request, attempt) as publish,
        _user_code(drive, "model", model.name),
    ):
        async for delta in model.answer(request):
            if isinstance(delta, Answer):
                answer = delta
            elif delta.kind != "args" or not hides:
                publish(delta)
        if answer is None:
            raise ModelError(f"{model.name} ended its stream without an answer")
        check_usage(answer.usage, model.name)
        record(answer)
    return _with_cost(drive, answer, model)


def _delta_writer(
    drive: LeasedWriter, request: Request, attempt: Attempt | None
) -> AbstractContextManager[Callable[[Delta], None]]:
    """Return a context that publishes deltas; a summary is only for the model."""
    if attempt is None:
        return nullcontext(lambda _: None)
    return drive.resources.bus.stream_response(
        (drive.entry.record.tenant, request.session_id), request.turn, attempt
    )


def _with_cost(drive: LeasedWriter, answer: Answer, model: Model) -> Answer:
    """Return the answer with its cost at present prices in its usage."""
    if answer.usage is None:
        return answer
    names = (f"{answer.provider}:{answer.model}", model.name)
    return vary(answer, usage=drive.resources.prices.with_cost(answer.usage, *names))
