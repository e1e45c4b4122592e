"""Execution states: the state of a paused run as a value, as JSON, and without its secrets."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import msgspec

from perdure.core.log.redaction import MASK, mask_arguments
from perdure.core.session.naming import check_id
from perdure.errors import Refused

Message = dict[str, Any]  # {"role", "parts": […]}, as `messages` writes them

VERSION: Final = 1
# Upgrades of states that an older perdure has written: from a version to the next one.
UPGRADES: Final[dict[int, Callable[[dict[str, Any]], dict[str, Any]]]] = {}

SecretNames = Callable[[str, str], Collection[str]]  # (call id, tool) → its secret arguments


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that the model requested."""

    id: str
    name: str
    args: Mapping[str, Any] = field(default_factory=dict, hash=False)
    redact: tuple[str, ...] = ()  # names of its secret arguments


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningStateSnapshot:
    """Position of a run: the messages before it and in it, and its usage."""

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
    """Everything needed to continue a paused run. Five of its fields are its snapshot's."""

    task_id: str
    context_id: str
    query: str = ""
    reasoning_state: ReasoningStateSnapshot = field(default_factory=ReasoningStateSnapshot)
    pending_tool_call: ToolCall | None = None
    expired: bool = False  # nobody decided in time, and the run continued without the call
    started_by: tuple[str, ...] = ()  # authors of the run, for tools with not_by_starter

    @property
    def history(self) -> tuple[Message, ...]:
        """The messages before the run."""
        return self.reasoning_state.history

    @property
    def current_turn(self) -> tuple[Message, ...]:
        """The messages of the run."""
        return self.reasoning_state.current_turn

    @property
    def iteration(self) -> int:
        """The number of model responses in the run."""
        return self.reasoning_state.iteration

    @property
    def total_tokens(self) -> int:
        """The number of tokens that the run has used."""
        return self.reasoning_state.total_tokens

    @property
    def assistant_response(self) -> str:
        """The text of the model responses in the run."""
        return self.reasoning_state.assistant_response


def capture_execution_state(
    task_id: str,
    context_id: str,
    query: str,
    reasoning_state: ReasoningStateSnapshot,
    pending_tool_call: ToolCall | None = None,
) -> ExecutionState:
    """Return the state of a run, with the call that it is paused for."""
    return ExecutionState(
        task_id=check_id(task_id, "task id"),
        context_id=check_session_id(context_id),
        query=query,
        reasoning_state=reasoning_state,
        pending_tool_call=pending_tool_call,
    )


def check_session_id(session_id: str) -> str:
    """Return the session id. Raises Refused: without one, nothing outlives the process."""
    if not session_id:
        raise Refused(
            "session ID required for async HITL",
            code="SESSION_ID_NEEDED",
            hint="pass the id of the session whose run is paused",
        )
    return check_id(session_id)


def serialize_execution_state(state: ExecutionState) -> bytes:
    """Return the state as JSON; the fields of the snapshot are written only inside it."""
    try:
        return msgspec.json.encode({"version": VERSION, **_plain_state(state)})
    except (TypeError, ValueError, RecursionError) as error:
        raise Refused(
            f"the execution state is not JSON: {error}",
            code="VALUE_INVALID",
            hint="use text, numbers, lists and objects in its messages and arguments",
        ) from error


def _plain_state(state: ExecutionState) -> dict[str, Any]:
    data: dict[str, Any] = msgspec.to_builtins(state)
    for call in (data["pending_tool_call"], *data["reasoning_state"]["first_iteration_tool_calls"]):
        if call is not None and not call["redact"]:
            del call["redact"]
    for name in ("expired", "started_by"):
        if not data[name]:
            del data[name]
    return data


def deserialize_execution_state(data: bytes | str) -> ExecutionState:
    """Return the state of some JSON. Raises Refused if it is damaged, or newer than this code."""
    try:
        value = msgspec.json.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, TypeError) as error:
        raise _broken(str(error)) from error
    return parse_state(value)


def parse_state(value: Any) -> ExecutionState:
    """Return the same from a JSON value; fields beside the snapshot count where it lacks them."""
    if not isinstance(value, Mapping):
        raise _broken("it is not an object")
    data = _without_nulls(_upgrade(dict(value)))
    snapshot = data.get("reasoning_state", {})
    if not isinstance(snapshot, Mapping):
        raise _broken("its reasoning_state is not an object")
    snapshot = _without_nulls(snapshot)
    for name in ("history", "current_turn", "iteration", "total_tokens", "assistant_response"):
        if name in data:
            snapshot.setdefault(name, data[name])
    try:
        state = msgspec.convert({**data, "reasoning_state": snapshot}, ExecutionState)
        check_id(state.task_id, "task id")
        check_id(state.context_id, "context id")
    except (msgspec.ValidationError, RecursionError, Refused) as error:
        raise _broken(str(error)) from error
    return state


def _without_nulls(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return an object without its null fields, as Go writes empty lists, also of its calls."""
    kept = {name: value for name, value in data.items() if value is not None}
    call, calls = kept.get("pending_tool_call"), kept.get("first_iteration_tool_calls")
    if isinstance(call, Mapping):
        kept["pending_tool_call"] = _without_nulls(call)
    if isinstance(calls, list):
        kept["first_iteration_tool_calls"] = [
            _without_nulls(item) if isinstance(item, Mapping) else item for item in calls
        ]
    return kept


def _upgrade(data: dict[str, Any]) -> dict[str, Any]:
    version = data.pop("version", VERSION)
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise _broken(f"{version!r} is not a version")
    if version > VERSION:
        raise Refused(
            "failed to load execution state: "
            f"version {version} is newer than this perdure reads ({VERSION})",
            code="STATE_CORRUPT",
            hint="load it with the perdure that wrote it, or a newer one",
        )
    for step in range(version, VERSION):
        data = UPGRADES[step](data)
    return data


def _broken(reason: str) -> Refused:
    return Refused(
        f"failed to load execution state: {reason}",
        code="STATE_CORRUPT",
        hint="pass what hitl.serialize_execution_state returned, unchanged",
    )


# --- secrets --------------------------------------------------------------------------------------


def _no_secret_names(_id: str, _tool: str) -> Collection[str]:
    return ()


def redact_state(
    state: ExecutionState, secret_names: SecretNames = _no_secret_names
) -> ExecutionState:
    """Return the state without secret arguments: those it names itself, and the given ones.

    Their names stay beside the arguments (`redact`), so that a restored run redacts them again.
    """
    snapshot, call = state.reasoning_state, state.pending_tool_call
    first = tuple(_redact_call(item, secret_names) for item in snapshot.first_iteration_tool_calls)
    return replace(
        state,
        pending_tool_call=None if call is None else _redact_call(call, secret_names),
        reasoning_state=replace(
            snapshot,
            history=tuple(_redact_message(item, secret_names) for item in snapshot.history),
            current_turn=tuple(
                _redact_message(item, secret_names) for item in snapshot.current_turn
            ),
            first_iteration_tool_calls=first,
        ),
    )


def check_unredacted(calls: Sequence[ToolCall]) -> None:
    """Raise Refused if one of the calls could not run because its secrets were left out."""
    for call in calls:
        if missing := [name for name in call.redact if call.args.get(name) == MASK]:
            raise Refused(
                f"the state was saved without the secret {missing[0]!r} of {call.name!r}, "
                "and the call could not run",
                code="STATE_REDACTED",
                hint="load it where it was paused, with secrets=True",
            )


def _redact_call(call: ToolCall, secret_names: SecretNames) -> ToolCall:
    names = _present(call.args, call.redact, secret_names(call.id, call.name))
    return replace(call, args=mask_arguments(call.args, names), redact=names) if names else call


def _redact_message(message: Message, secret_names: SecretNames) -> Message:
    parts = message.get("parts")
    redacted = (
        [_redact_part(part, secret_names) for part in parts] if isinstance(parts, list) else parts
    )
    if redacted == parts and not _has_secrets(parts):
        return message
    # The native response contains the arguments once more.
    return {**{key: value for key, value in message.items() if key != "native"}, "parts": redacted}


def _redact_part(part: Any, secret_names: SecretNames) -> Any:
    args = part.get("input") if isinstance(part, dict) else None
    if not isinstance(args, Mapping) or part.get("type") != "tool_use":
        return part
    secret = secret_names(str(part.get("id")), str(part.get("name")))
    names = _present(args, part.get("redact") or (), secret)
    return {**part, "input": mask_arguments(args, names), "redact": list(names)} if names else part


def _has_secrets(parts: Any) -> bool:
    items = parts if isinstance(parts, list) else []
    return any(isinstance(part, dict) and bool(part.get("redact")) for part in items)


def _present(args: Mapping[str, Any], *names: Collection[str]) -> tuple[str, ...]:
    """Return those of the names that are arguments."""
    return tuple(sorted({name for group in names for name in group if name in args}))
