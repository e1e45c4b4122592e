"""Policies of decisions: allowed kinds, approvers and votes; a refusal leaves a call unchanged."""

from typing import Any

import pytest
from msgspec.structs import replace
from tests.core.pending.test_settlement import NOW, record

from perdure.core.log import events
from perdure.core.log.events import ApprovalPolicy
from perdure.core.pending.commands import Approve, Deny, Expire, Respond
from perdure.core.pending.policy import is_approver, possible_decisions
from perdure.core.pending.record import PendingRecord
from perdure.core.pending.settlement import settle
from perdure.errors import Conflict, NotAllowed, PerdureError, Refused


def gated(**policy: Any) -> PendingRecord:
    return record(policy=ApprovalPolicy(**policy), started_by=("ana",))


@pytest.mark.parametrize(
    "command, kind",
    [
        (Approve("ana", "ui", {"cents": 1}), "edit"),
        (Respond("ana", "ui", "x"), "respond"),
    ],
)
def test_a_decision_that_the_tool_does_not_allow_is_refused(command: Any, kind: str) -> None:
    call = gated(allowed_decisions=("approve", "deny"))
    assert call.allowed_decisions == ("approve", "deny")
    with pytest.raises(Refused, match=f"does not take the decision '{kind}'") as caught:
        settle(call, command, NOW)
    assert caught.value.code == "DECISION_NOT_ALLOWED"
    assert not settle(call, Approve("ana", "ui"), NOW).record.is_open


def test_without_a_policy_a_call_takes_every_decision_of_its_kind() -> None:
    assert record("approval").allowed_decisions == ("approve", "edit", "deny", "respond")
    assert record("question").allowed_decisions == ("respond", "deny")
    assert record("tool").allowed_decisions == ()


@pytest.mark.parametrize(
    "approvers, by, role, expected",
    [
        (("ana",), "ana", None, True),
        (("ana",), "ben", "admin", False),
        (("operator",), "ben", "operator", True),
        (("operator",), "ben", "admin", True),  # it may do what an operator may
        (("operator",), "ben", "approver", False),
        (("admin",), "admin", None, False),  # a role, even if somebody has this name
        (("ana", "admin"), "ben", "admin", True),
    ],
)
def test_approvers_are_names_and_roles(
    approvers: tuple[str, ...], by: str, role: Any, expected: bool
) -> None:
    assert is_approver(approvers, by, role) is expected


@pytest.mark.parametrize("command", [Approve("ben", "ui"), Deny("ben", "ui")])
def test_only_the_approvers_of_a_tool_decide(command: Any) -> None:
    call = gated(approvers=("cleo",))
    with pytest.raises(NotAllowed, match="its approvers are cleo") as caught:
        settle(call, command, NOW)
    assert caught.value.code == "NOT_AN_APPROVER"
    assert not settle(call, Approve("cleo", "ui"), NOW).record.is_open


def test_the_starter_of_a_run_may_deny_but_not_approve() -> None:
    call = gated(not_by_starter=True)
    for command in (Approve("ana", "ui"), Approve("ana", "ui", {"cents": 1})):
        with pytest.raises(NotAllowed) as caught:
            settle(call, command, NOW)
        assert caught.value.code == "NOT_BY_STARTER"
    assert settle(call, Deny("ana", "ui"), NOW).record.decision is not None
    assert settle(call, Approve("ben", "ui"), NOW).record.decision is not None


def test_each_approval_is_an_event_and_the_last_one_settles_the_call() -> None:
    call = gated(min_approvals=2)
    assert (call.missing_approvals, call.allowed_decisions) == (2, ("approve", "edit", "deny"))
    first = settle(call, Approve("ana", "ui", note="fine"), NOW)
    (vote,) = first.facts
    assert isinstance(vote, events.Vote)
    assert (vote.by, vote.note, vote.missing) == ("ana", "fine", 1)
    assert first.voted
    assert first.record.is_open
    assert first.record.missing_approvals == 1
    last = settle(first.record, Approve("ben", "http:ben"), NOW + 1)
    assert [type(fact) for fact in last.facts] == [events.Vote, events.Decision]
    assert [(item.by, item.at) for item in last.record.votes] == [("ana", NOW), ("ben", NOW + 1)]
    assert (last.record.is_open, last.record.missing_approvals) == (False, 0)


def test_nobody_votes_twice_and_repeating_a_vote_changes_nothing() -> None:
    once = settle(gated(min_approvals=2), Approve("ana", "ui"), NOW).record
    assert settle(once, Approve("ana", "cli"), NOW).duplicate
    with pytest.raises(Conflict) as caught:
        settle(once, Approve("ana", "ui", {"cents": 1}), NOW)
    assert caught.value.code == "ALREADY_VOTED"
    done = settle(once, Approve("ben", "ui"), NOW).record
    assert settle(done, Approve("ana", "ui"), NOW).duplicate
    with pytest.raises(Conflict):
        settle(done, Approve("cleo", "ui"), NOW)


def test_one_denial_denies() -> None:
    once = settle(gated(min_approvals=3), Approve("ana", "ui"), NOW).record
    for by in ("ben", "ana"):
        denied = settle(once, Deny(by, "ui"), NOW)
        assert not denied.record.is_open
        assert denied.record.decision is not None
        assert denied.record.decision.kind == "deny"


def test_all_approvals_are_for_the_same_arguments() -> None:
    once = settle(gated(min_approvals=2), Approve("ana", "ui", {"cents": 1}), NOW).record
    with pytest.raises(Conflict) as caught:
        settle(once, Approve("ben", "ui"), NOW)
    assert caught.value.code == "VOTE_FOR_OTHER_ARGUMENTS"
    assert caught.value.details == {"by": "ana", "args": {"cents": 1}}
    assert '"cents": 1' in caught.value.message
    done = settle(once, Approve("ben", "ui", {"cents": 1}), NOW).record
    assert done.decision is not None
    assert (done.decision.kind, done.decision.args) == ("edit", {"cents": 1})


def test_a_ui_that_sends_all_arguments_approves_the_same_call() -> None:
    call = gated(min_approvals=2)
    once = settle(call, Approve("ana", "ui", dict(call.input)), NOW).record
    assert settle(once, Approve("ana", "cli"), NOW).duplicate
    assert not settle(once, Approve("ben", "ui"), NOW).record.is_open


def test_a_conflict_of_votes_shows_no_secret() -> None:
    call = replace(gated(min_approvals=2), redact=("cents",))
    once = settle(call, Approve("ana", "ui", {"cents": 31337}), NOW).record
    with pytest.raises(Conflict) as caught:
        settle(once, Approve("ben", "ui"), NOW)
    assert "31337" not in f"{caught.value.message} {caught.value.details}"


@pytest.mark.parametrize("end", [Deny("ben", "ui"), Expire()])
def test_repeating_a_vote_after_a_denial_or_expiry_is_a_conflict(end: Any) -> None:
    call = replace(gated(min_approvals=2), timeout=NOW + 1)
    once = settle(call, Approve("ana", "ui"), NOW).record
    over = settle(once, end, NOW + isinstance(end, Expire)).record
    assert not over.is_open
    with pytest.raises(Conflict) as caught:
        settle(over, Approve("ana", "ui"), NOW)
    assert caught.value.code == "ALREADY_DECIDED"


@pytest.mark.parametrize(
    "call, command",
    [
        (gated(min_approvals=2), Approve("ana", "ui", remember=True)),
        (record(reason="raised"), Approve("ana", "ui", remember=True)),
        (record("question"), Deny("ana", "ui", remember=True)),
    ],
    ids=["votes", "raised", "question"],
)
def test_what_cannot_be_remembered_is_refused(call: PendingRecord, command: Any) -> None:
    with pytest.raises(PerdureError) as caught:
        settle(call, command, NOW)
    assert caught.value.code == "PERMISSION_INVALID"


def test_secret_arguments_of_votes_are_masked() -> None:
    call = record(redact=("cents",), policy=ApprovalPolicy(min_approvals=2))
    once = settle(call, Approve("ana", "ui", {"cents": 1}), NOW)
    assert once.record.redacted.votes[0].args == {"cents": "***"}
    (vote,) = once.facts
    assert isinstance(vote, events.Vote)
    assert vote.redact == ("cents",)


@pytest.mark.parametrize(
    "policy, by, role, expected",
    [
        ({}, "ana", None, ("approve", "edit", "deny", "respond")),
        ({"allowed_decisions": ("approve",)}, "ana", None, ("approve",)),
        ({"approvers": ("ben",)}, "ana", "admin", ()),
        ({"approvers": ("ben", "admin")}, "ana", "admin", ("approve", "edit", "deny", "respond")),
        ({"not_by_starter": True}, "ana", None, ("deny",)),
        ({"not_by_starter": True, "min_approvals": 2}, "ben", None, ("approve", "edit", "deny")),
    ],
)
def test_a_person_can_make_the_decisions_that_would_not_be_refused(
    policy: dict[str, Any], by: str, role: Any, expected: tuple[str, ...]
) -> None:
    assert possible_decisions(gated(**policy), by, role) == expected


def test_who_has_voted_can_only_deny() -> None:
    voted = settle(gated(min_approvals=2), Approve("ben", "ui"), NOW).record
    assert possible_decisions(voted, "ben", None) == ("deny",)
    assert possible_decisions(voted, "zoe", None) == ("approve", "edit", "deny")
