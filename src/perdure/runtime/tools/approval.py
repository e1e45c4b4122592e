"""Approval of a tool's calls: when it is required, who gives it, and how long they have."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, get_args

from perdure.core.log.events import ApprovalPolicy
from perdure.errors import ConfigError, Refused
from perdure.runtime.values import Context
from perdure.views.literals import DecisionKind, Role
from perdure.views.values import Duration, parse_duration

ApprovalPredicate = Callable[[Context[Any]], bool | Awaitable[bool]]

_PERMITTED: Final = "leave it out, or list what it permits"


@dataclass(frozen=True)
class Approval:
    """Conditions under which the calls of a tool run; vary it with `dataclasses.replace`.

    `when`: True, False, or a predicate on the Context, called once; if it raises, approval is
    required. The rest also applies if a rule or the tool itself requires it. `by`: names and
    roles that may decide; empty is everyone who may decide. `votes`: approvals of different people
    that are needed. `allow`: of approve, edit, deny and respond; None is all. `timeout`: None is
    the agent's `input_timeout`, 0 is no deadline. `not_by_starter`: the authors of the run may not
    approve.
    """

    when: bool | ApprovalPredicate = True
    by: Sequence[str] = ()
    votes: int = 1
    allow: Sequence[DecisionKind] | None = None
    timeout: Duration | None = None
    not_by_starter: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.when, bool) and not callable(self.when):
            raise _invalid(f"when is {self.when!r} and must be a bool or a function")
        _check_words("by", self.by, is_optional=isinstance(self.by, tuple))
        if self.allow is not None:
            _check_words("allow", self.allow)
        kinds = get_args(DecisionKind)
        if unknown := [kind for kind in self.allow or () if kind not in kinds]:
            text = f"allow has {unknown[0]!r}, which is not a decision"
            raise _invalid(text, f"one of: {', '.join(kinds)}")
        if isinstance(self.votes, bool) or not isinstance(self.votes, int) or self.votes < 1:
            raise _invalid(f"votes is {self.votes!r} and must be 1 or more")
        if not isinstance(self.not_by_starter, bool):
            raise _invalid(f"not_by_starter is {self.not_by_starter!r} and must be True or False")
        self._check_enough()
        try:
            _ = self.timeout_ms
        except Refused as error:
            raise _invalid(f"timeout: {error.message}", error.hint) from error
        object.__setattr__(self, "by", tuple(self.by))
        object.__setattr__(self, "allow", None if self.allow is None else tuple(self.allow))

    def _check_enough(self) -> None:
        """Raise ConfigError if only names are listed, and fewer of them than must approve."""
        names = {name for name in self.by if name not in get_args(Role)}
        has_roles = len(names) < len(set(self.by))
        if self.by and not has_roles and len(names) < self.votes:
            text = f"votes is {self.votes}, and by names only {len(names)}"
            raise _invalid(text, "name more approvers, or a role")

    @property
    def timeout_ms(self) -> int | None:
        """Time until a call expires that waits for its approval; None is no deadline."""
        return None if self.timeout is None else parse_duration(self.timeout) or None

    @cached_property
    def policy(self) -> ApprovalPolicy | None:
        """Conditions of a decision, as they are recorded with a call; None if it has none."""
        policy = ApprovalPolicy(
            allowed_decisions=tuple(self.allow or ()),
            approvers=tuple(self.by),
            min_approvals=self.votes,
            not_by_starter=self.not_by_starter,
        )
        return None if policy == ApprovalPolicy() else policy


def _check_words(name: str, words: Any, *, is_optional: bool = False) -> None:
    """Raise ConfigError for what is not a list of words.

    An empty list permits nobody, but an empty `by` would permit everyone: only its default does.
    """
    is_list = isinstance(words, Sequence) and not isinstance(words, str)
    if not is_list or not all(isinstance(word, str) and word for word in words):
        raise _invalid(f"{name} must be a list of words")
    if not words and not is_optional:
        raise _invalid(f"{name} is an empty list", _PERMITTED)


def _invalid(problem: str, hint: str | None = None) -> ConfigError:
    return ConfigError(f"Approval: {problem}", hint=hint)
