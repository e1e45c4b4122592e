"""Output of a run: text, or a value of the agent's output type."""

from collections.abc import Mapping
from functools import cached_property
from typing import Any, Final

import msgspec

from perdure.core.conversation.messages import Answer
from perdure.core.driver.model_failures import cut_off_response
from perdure.core.driver.verdicts import Correct, Ending, Finish, GiveUp
from perdure.core.json_depth import MAX_DEPTH, is_deeper, too_deep
from perdure.core.json_values import schema_problems
from perdure.core.log.stop_reasons import is_cut
from perdure.errors import ConfigError, Refused
from perdure.user_code import CONTAINED, bounded_text, error_line

MAX_CORRECTIONS: Final = 2
_OUTPUT_HINT: Final = "the output must fit the agent's output_type"


class OutputShape:
    """Validator of outputs; the type adapter is created at first use."""

    def __init__(self, output_type: Any, agent: str) -> None:
        self._type = output_type
        self._agent = agent

    @property
    def is_text(self) -> bool:
        return self._type is str

    @cached_property
    def schema(self) -> Mapping[str, Any] | None:
        """JSON schema for the model; None for text."""
        if self.is_text:
            return None
        if isinstance(self._type, Mapping):
            return self._type
        return self._adapter.json_schema()  # type: ignore[no-any-return]

    @cached_property
    def _adapter(self) -> Any:
        from pydantic import TypeAdapter  # late: loads slowly
        from pydantic.errors import PydanticUserError

        try:
            return TypeAdapter(self._type)
        except (PydanticUserError, TypeError) as error:
            raise ConfigError(
                f"agent {self._agent!r}: {self._type!r} cannot be an output type",
                code="AGENT_INVALID",
                hint="use a pydantic model, a dataclass or a JSON type",
            ) from error

    def ending(self, answer: Answer, corrections: int) -> Ending:
        """Return how a response without calls ends the run, or asks the model to correct it."""
        if self.is_text:
            return Finish(msgspec.json.encode(answer.text))
        data = answer.output if answer.output is not None else answer.text.strip().encode()
        try:
            if is_deeper(data, MAX_DEPTH):
                raise too_deep("it")
            value = msgspec.json.decode(data)
            self.load(value)
            return Finish(msgspec.json.encode(value))
        except (msgspec.MsgspecError, Refused) as error:
            problem = error.message if isinstance(error, Refused) else f"not JSON: {error}"
        if is_cut(answer.stop_reason):
            return cut_off_response(answer, "before the required output was complete")
        if corrections < MAX_CORRECTIONS:
            return Correct(
                f"Your answer does not fit the required output: {problem}. Give it again."
            )
        return GiveUp(
            f"the model did not give the required output: {problem}",
            "OUTPUT_INVALID",
            "resume the session to ask it again",
        )

    def load(self, value: Any) -> Any:
        """Return a JSON value as the output type. Raises Refused."""
        if self.is_text:
            return value
        if isinstance(self._type, Mapping):
            problems = schema_problems(value, self._type)
            if problems:
                raise Refused(
                    "; ".join(f"{path}: {problem}" for path, problem in problems),
                    code="OUTPUT_INVALID",
                    hint=_OUTPUT_HINT,
                )
            return value
        from pydantic import ValidationError

        try:
            with CONTAINED:
                return self._adapter.validate_python(value)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            path = ".".join(str(part) for part in first["loc"]) or "the output"
            problem = bounded_text(f"{path}: {first['msg']}")
            raise Refused(problem, code="OUTPUT_INVALID", hint=_OUTPUT_HINT) from error
        except Exception as error:  # a validator of the user's own type
            raise Refused(error_line(error), code="OUTPUT_INVALID", hint=_OUTPUT_HINT) from error
