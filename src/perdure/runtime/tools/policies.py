"""Approval policy of a tool, from its options."""

from collections.abc import Sequence
from typing import Any, get_args

from perdure.core.log.events import ApprovalPolicy
from perdure.errors import ConfigError
from perdure.views.literals import DecisionKind, Role


def approval_policy(
    label: str,
    *,
    allowed_decisions: Sequence[DecisionKind] | None,
    approvers: Sequence[str] | None,
    min_approvals: int,
    not_by_starter: bool,
) -> ApprovalPolicy | None:
    """Return the policy of these options; None if they are the defaults. Raises ConfigError."""
    for name, value in (("allowed_decisions", allowed_decisions), ("approvers", approvers)):
        _check_words(label, name, value)
    words = get_args(DecisionKind)
    if unknown := [kind for kind in allowed_decisions or () if kind not in words]:
        raise ConfigError(
            f"{label}: allowed_decisions has {unknown[0]!r}, which is not a decision",
            hint=f"one of: {', '.join(words)}",
        )
    if isinstance(min_approvals, bool) or not isinstance(min_approvals, int) or min_approvals < 1:
        raise ConfigError(f"{label}: min_approvals is {min_approvals!r} and must be 1 or more")
    if not isinstance(not_by_starter, bool):
        raise ConfigError(
            f"{label}: not_by_starter is {not_by_starter!r} and must be True or False"
        )
    _check_enough(label, approvers or (), min_approvals)
    policy = ApprovalPolicy(
        allowed_decisions=tuple(allowed_decisions or ()),
        approvers=tuple(approvers or ()),
        min_approvals=min_approvals,
        not_by_starter=not_by_starter,
    )
    return None if policy == ApprovalPolicy() else policy


def _check_words(label: str, name: str, words: Sequence[Any] | None) -> None:
    """Raise ConfigError for what is not a list of words. An empty one would permit everything."""
    if words is None:
        return
    if isinstance(words, str) or any(not isinstance(item, str) or not item for item in words):
        raise ConfigError(f"{label}: {name} must be a list of words")
    if not words:
        raise ConfigError(
            f"{label}: {name} is an empty list", hint=f"leave {name} out, or list what it permits"
        )


def _check_enough(label: str, approvers: Sequence[Any], min_approvals: int) -> None:
    """Raise ConfigError if only names are listed, and fewer of them than must approve."""
    names = {name for name in approvers if name not in get_args(Role)}
    has_roles = len(names) < len(set(approvers))
    if approvers and not has_roles and len(names) < min_approvals:
        raise ConfigError(
            f"{label}: min_approvals is {min_approvals}, and approvers names only {len(names)}",
            hint="name more approvers, or a role",
        )
