"""The state of a paused run as a value: captured, written as JSON, read back."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from perdure.core.session.naming import check_id
from perdure.errors import Refused

Message = dict[str, Any]  # {"role", "parts": […]}, as `perdure.hitl.messages` writes them

VERSION: Final = 1
# From a version to the next one, for what an older perdure has written.
UPGRADES: Final[dict[int, Callable[[dict[str, Any]], dict[str, Any]]]] = {}


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that the model asked for."""

    id: str
    name: str
    args: Mapping[str, Any] = field(default_factory=dict, hash=False)
    redact: tuple[str, ...] = ()  # names of arguments that are shown to nobody


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningStateSnapshot:
    """Where a run stands: what was said before it, what in it, and what it has used."""

    iteration: int = 0
    total_tokens: int = 0
    history: tuple[Message, ...] = field(default=(), hash=False)
    current_turn: tuple[Message, ...] = field(default=(), hash=False)
    assistant_response: str = ""
    first_iteration_tool_calls: tuple[ToolCall, ...] = ()
    final_response_added: bool = False
    query: str = ""
    agent_name: str = ""
    sub_agents: tuple[str, ...] = ()
    show_thinking: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionState:
    """What is needed to go on with a paused run. Five of its fields are its snapshot's."""

    task_id: str
    context_id: str
    query: str = ""
    reasoning_state: ReasoningStateSnapshot = field(default_factory=ReasoningStateSnapshot)
    pending_tool_call: ToolCall | None = None

    @property
    def history(self) -> tuple[Message, ...]:
        """What was said before the run."""
        return self.reasoning_state.history

    @property
    def current_turn(self) -> tuple[Message, ...]:
        """What was said in the run."""
        return self.reasoning_state.current_turn

    @property
    def iteration(self) -> int:
        """How many answers the model has given in the run."""
        return self.reasoning_state.iteration

    @property
    def total_tokens(self) -> int:
        """How many tokens the run has used."""
        return self.reasoning_state.total_tokens

    @property
    def assistant_response(self) -> str:
        """What the model has said in the run."""
        return self.reasoning_state.assistant_response


def capture_execution_state(
    task_id: str,
    context_id: str,
    query: str,
    reasoning_state: ReasoningStateSnapshot,
    pending_tool_call: ToolCall | None = None,
) -> ExecutionState:
    """The state of a run, with the call that it is paused for."""
    return ExecutionState(
        task_id=check_id(task_id, "task id"),
        context_id=checked_session(context_id),
        query=query,
        reasoning_state=reasoning_state,
        pending_tool_call=pending_tool_call,
    )


def checked_session(session_id: str) -> str:
    """The session id; without one there is nothing that could outlive the process."""
    if not session_id:
        raise Refused("session ID required for async HITL", code="SESSION_ID_NEEDED")
    return check_id(session_id)


def serialize_execution_state(state: ExecutionState) -> bytes:
    """The state as JSON; what the snapshot holds is written once, inside it."""
    said = msgspec.to_builtins(state)
    for call in (said["pending_tool_call"], *said["reasoning_state"]["first_iteration_tool_calls"]):
        if call is not None and not call["redact"]:
            del call["redact"]
    return msgspec.json.encode({"version": VERSION, **said})


def deserialize_execution_state(data: bytes | str) -> ExecutionState:
    """The state that some JSON says. Refused where it is damaged, or newer than this code."""
    try:
        said = msgspec.json.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise _broken(str(error)) from error
    return state_from(said)


def state_from(said: Any) -> ExecutionState:
    """The same, from JSON values; fields beside the snapshot count where it lacks them."""
    if not isinstance(said, Mapping):
        raise _broken("it is no object")
    said = _upgraded(dict(said))
    snapshot = dict(said.get("reasoning_state") or {})
    for name in ("history", "current_turn", "iteration", "total_tokens", "assistant_response"):
        if name in said:
            snapshot.setdefault(name, said[name])
    try:
        return msgspec.convert({**said, "reasoning_state": snapshot}, ExecutionState)
    except msgspec.ValidationError as error:
        raise _broken(str(error)) from error


def _upgraded(said: dict[str, Any]) -> dict[str, Any]:
    version = said.pop("version", VERSION)
    if not isinstance(version, int) or version < 1:
        raise _broken(f"version {version!r} is none")
    if version > VERSION:
        raise _broken(f"version {version} is newer than this perdure reads ({VERSION})")
    for step in range(version, VERSION):
        said = UPGRADES[step](said)
    return said


def _broken(why: str) -> Refused:
    return Refused(f"failed to load execution state: {why}", code="STATE_CORRUPT")
