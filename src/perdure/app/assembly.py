"""Assembly of a runtime's resources, and checks of its agents against them."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from perdure.app.options import RuntimeOptions
from perdure.app.stores import is_in_memory
from perdure.errors import ConfigError
from perdure.runtime.agents.agent import Agent
from perdure.runtime.agents.ready_agent import ReadyAgent
from perdure.runtime.inbox.children import ChildInbox
from perdure.runtime.inbox.commits import Commits
from perdure.runtime.inbox.pending import PendingInbox
from perdure.runtime.inbox.sessions import SessionInbox
from perdure.runtime.records.cache import SessionCache
from perdure.runtime.records.verification import LogVerifier
from perdure.runtime.resources import Deps, Resources
from perdure.runtime.streaming import Bus
from perdure.runtime.webhooks.outbox import Outbox
from perdure.store.base import Store

if TYPE_CHECKING:
    from perdure.tasks.session_shell import SessionShell


def assemble_resources(
    store: Store,
    options: RuntimeOptions,
    shell: "Callable[[], SessionShell]",
    runtime: Callable[[str], Any],
) -> Resources:
    """Return the objects that all drives of a runtime share."""
    outbox = Outbox(
        store,
        options.address,
        options.address_filter,
        options.targets or (),
        is_configured=options.targets is not None,
        warning_share=options.warning_share,
    )
    cache = SessionCache()
    commits = Commits(store, outbox, cache)
    verifier = LogVerifier(store, cache, commits.commit)
    session_inbox = SessionInbox(store, outbox, commits, cache, verifier)
    return Resources(
        store,
        session_inbox,
        PendingInbox(store, commits, cache, verifier),
        ChildInbox(store, session_inbox, cache),
        commits,
        Bus(store),
        outbox,
        cache,
        verifier,
        options.address,
        Deps(options.deps),
        options.telemetry,
        options.prices,
        shell,
        runtime,
        options.poison_after,
        not options.resumes_running,
        options.is_tracked,
    )


def check_mode(agent: Agent[Any], store: str | Store) -> None:
    """Raise ConfigError if the agent waits for approvers on a store that the process loses."""
    if agent.hitl == "async" and is_in_memory(store):
        raise ConfigError(
            f"agent {agent.name!r}: async HITL requires a durable session_store "
            "('memory:' is memory)",
            hint="use sqlite:///perdure.db, or leave hitl out",
        )


def check_deps(agent: ReadyAgent, deps: Any) -> None:
    """Raise ConfigError if the deps do not have the type that a tool of the agent declares."""
    for tool in agent.tools.values():
        deps_type = tool.deps_type
        if isinstance(deps_type, type) and not _is_instance(deps, deps_type):
            raise ConfigError(
                f"tool {tool.name!r} needs deps of type {deps_type.__name__}, "
                f"and Runtime(deps=) is {type(deps).__name__}",
                code="DEPS_INVALID",
            )


def _is_instance(deps: Any, deps_type: type) -> bool:
    try:
        return deps_type is Any or isinstance(deps, deps_type)
    except TypeError:  # a protocol that cannot be checked at run time
        return True
