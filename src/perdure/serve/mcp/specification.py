"""Views in the words of the specification: `taskId`, `success`, and instants in ISO 8601."""

from typing import Any, Final

from msgspec import structs

from perdure.views.base import View, iso
from perdure.views.tasks import Execution, SandboxTask

_UNAVAILABLE: Final = ("available", "sandbox", "reason", "remedy")
_WORDS: Final = {
    "taskID": "taskId",
    "agentID": "agentId",
    "executionID": "executionId",
    "checkpointID": "checkpointId",
}


def specified(view: View) -> dict[str, Any]:
    """Return a view in the words of the specification."""
    config = view.__struct_config__
    fields = {} if config.tag_field is None else {config.tag_field: config.tag}
    for item in structs.fields(view):
        name = _WORDS.get(item.encode_name, item.encode_name)
        fields[name] = _value(item.name, getattr(view, item.name))
    return fields


def _value(name: str, value: Any) -> Any:
    if name.endswith("_ms") and value is not None:
        return iso(value)
    if isinstance(value, View):
        return specified(value)
    return [_value("", item) for item in value] if isinstance(value, tuple) else value


def task_fields(task: SandboxTask) -> dict[str, Any]:
    """Return the fields of a task."""
    fields = specified(task)
    del fields["execution"], fields["findings"]  # the first is a field of the answer
    return fields


def task_answer(task: SandboxTask, /, **more: Any) -> dict[str, Any]:
    """Return the answer about a task that was read or changed.

    Whether commands can run in it is worth a model's attention only if they cannot.
    """
    answer = {"success": True, "taskId": task.id, **more}
    if task.execution is not None and not task.execution.available:
        fields = task.execution.to_json()
        answer["execution"] = {name: fields[name] for name in _UNAVAILABLE}
    return answer


def execution_fields(execution: Execution) -> dict[str, Any]:
    """Return the fields of a command, with its output where that is known."""
    fields = specified(execution)
    if execution.stdout is None:
        del fields["stdout"], fields["stderr"]
    return fields
