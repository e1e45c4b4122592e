"""Requests to a person that a tool raises while it runs: for an approval, or for an answer."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from perdure.core.json_depth import encode_value
from perdure.core.pending.answers import check_question
from perdure.core.pending.record import APPROVER_KINDS
from perdure.core.text import is_visible
from perdure.errors import PerdureError, Refused
from perdure.views.sessions import Result

PAUSED: Final = "input required - task paused for user approval"


class ApprovalRequired(PerdureError):
    """Raise it in a tool: its call waits until an approver approves it, then the tool runs again.

    Everything in the tool before the raise runs again too, with the same `ctx.effect_id`; the
    decision is then `ctx.decision`, and all that the tool has asked for are `ctx.decisions`. If
    the approver denies, the tool is not called again. `details` are shown to the approver.
    """

    code = "APPROVAL_REQUIRED"
    exit_code = 8

    def __init__(self, prompt: str, *, details: Mapping[str, Any] | None = None) -> None:
        super().__init__(_checked_text("prompt", prompt))
        self.request_details = None if details is None else _checked_details(details)


class InputRequired(PerdureError):
    """Raise it in a tool: its call waits until a person answers, then the tool runs again.

    Everything in the tool before the raise runs again too, with the same `ctx.effect_id`; the
    answer is then `ctx.answer`, and all answers so far are `ctx.answers`, in the order of the
    questions. An answer must be one of `choices` and fit `schema`, a JSON schema. If the person
    declines, the tool is not called again.

    Raised by `check`, outside of a tool, it says that a run is paused; `result` is then the run.
    """

    code = "INPUT_REQUIRED"
    exit_code = 8

    def __init__(
        self,
        question: str,
        *,
        schema: Mapping[str, Any] | None = None,
        choices: Sequence[Any] | None = None,
    ) -> None:
        super().__init__(_checked_text("question", question))
        check_question(schema, choices)
        self.schema = None if schema is None else dict(schema)
        self.choices = None if choices is None else list(choices)
        self.result: Result[Any] | None = None

    @classmethod
    def check(cls, result: Result[Any]) -> Result[Any]:
        """Return the result. Raises InputRequired if the run waits for an approver."""
        if result.state == "waiting" and any(
            call.kind in APPROVER_KINDS for call in result.pending
        ):
            raise cls.of_run(result)
        return result

    @classmethod
    def of_run(cls, result: Result[Any]) -> "InputRequired":
        """Return the error that reports a paused run."""
        error = cls(PAUSED)
        error.hint = f"perdure sessions state {result.session_id}"
        error.add_note(f"hint: {error.hint}")
        error.details = {"taskID": result.task_id, "pending": [call.id for call in result.pending]}
        error.result = result
        return error


ToolRequest = ApprovalRequired | InputRequired


def raised_request(error: BaseException) -> ToolRequest | None:
    """Return the request that a tool raised, also one from its task group; None for a failure."""
    if isinstance(error, BaseExceptionGroup):
        requests = [raised_request(item) for item in error.exceptions]
        return requests[0] if requests and all(requests) else None
    if isinstance(error, InputRequired):
        return error if error.result is None else None  # it reports another run
    return error if isinstance(error, ApprovalRequired) else None


def _checked_text(name: str, text: object) -> str:
    if not isinstance(text, str) or not is_visible(text):
        raise Refused(
            f"{name} must be a text, not {text!r}",
            code="QUESTION_INVALID",
            hint="say in a sentence what the person decides or answers",
        )
    return text


def _checked_details(details: Mapping[str, Any]) -> dict[str, Any]:
    try:
        plain: dict[str, Any] = msgspec.json.decode(encode_value(dict(details), "details"))
    except (TypeError, ValueError, msgspec.MsgspecError) as error:
        raise Refused(
            f"details must be JSON: {error}",
            code="QUESTION_INVALID",
            hint="use text, numbers, lists and objects",
        ) from error
    return plain
