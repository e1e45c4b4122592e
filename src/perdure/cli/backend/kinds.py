"""Kinds of backends: a runtime in this process, or a server.

Tasks are views; sessions and calls are in their JSON shapes, those of the HTTP API. So a command is
written once and prints the same.
"""

from typing import TYPE_CHECKING, TypeAlias

from perdure.cli.backend.shapes import Json

if TYPE_CHECKING:
    from perdure.cli.backend.local import LocalBackend, LocalSession
    from perdure.cli.backend.remote import RemoteBackend, ServerSession
    from perdure.client.sandbox_tasks import RemoteSandboxTasks
    from perdure.tasks.verbs import TaskVerbs

# mypy checks a command against both.
Backend: TypeAlias = "LocalBackend | RemoteBackend"
Handle: TypeAlias = "LocalSession | ServerSession"
TaskBackend: TypeAlias = "TaskVerbs | RemoteSandboxTasks"


def session_handle(backend: Backend, session: Json) -> Handle:
    """Return the handle of a session from its JSON."""
    return backend.session(session["sessionID"], tenant=session["tenant"])
