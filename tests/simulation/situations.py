"""Named situations of a campaign: each must occur, or a check proves nothing."""

from collections import Counter
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tests.simulation.campaign import Campaign

# Records, faults, counts and acts of callers that must occur within the seeds of `make test`.
RECORDS: Final = (
    *("user", "assistant", "tool_call", "tool_started", "tool_result", "pending", "decision"),
    *("vote", "settled", "progress", "cancelled", "delegation", "delegation_complete", "launched"),
    *("agent_start", "agent_complete", "retry", "compacted", "forked"),
)
FAULTS: Final = (
    *("crash before an operation", "crash before a result is recorded", "crash after a commit"),
    *(
        "crash at an effect",
        "crash at some time",
        "freeze at an operation",
        "freeze after a commit",
    ),
    *("freeze at an effect", "lost reply", "lost reply to a claim", "unavailable", "outage"),
    *("stall", "lost signal", "doubled signal", "late signal", "clock step", "skewed clock"),
)
COUNTS: Final = (
    *("claims by commits", "claims undone", "did settle: ALREADY_DECIDED", "did settle approval"),
    *("did settle tool", "did settle question", "did delete", "did fork", "did cancel"),
    *("did read a task", "did resume a task", "did launch", "did settle again"),
)
DETAILS: Final = (
    *("a call expired", "a call was interrupted", "an approval was edited", "a call was retried"),
    *("a queued message", "a session was created again", "mail was delivered"),
    *("a budget was asked", "a timer ended"),
)


def situations_of(campaign: "Campaign") -> Counter[str]:
    """Return which situations have occurred in one seed."""
    oracle = campaign.fleet.oracle
    counts: Counter[str] = Counter()
    for stream, log in oracle.logs.items():
        counts.update(f"record {record.type}" for record in log)
        counts["a session was created again"] += "#" in stream
        timers = {data["pendingID"] for data in log.of("pending") if data["kind"] == "timer"}
        for data in log.of("settled"):
            counts["a call expired"] += data["status"] == "expired"
            counts["a timer ended"] += data["status"] == "completed" and data["pendingID"] in timers
        for data in log.of("tool_result", "user"):
            counts["a call was interrupted"] += bool(data.get("interrupted"))
            counts["mail was delivered"] += bool(data.get("mail"))
            counts["invalid arguments"] += str(data.get("result")).startswith("Invalid arguments")
        for data in log.of("decision"):
            counts["an approval was edited"] += data["kind"] == "edit"
        for data in log.of("tool_started"):
            counts["a call was retried"] += data["attempt"] > 1
        for data in log.of("pending"):
            counts["a budget was asked"] += data.get("reason") == "budget"
        counts["a queued message"] += any(log.of("follow_up_queued"))
    return counts


def missing_situations(counts: Counter[str]) -> list[str]:
    """Return the situations that have not occurred."""
    names = [*(f"record {name}" for name in RECORDS), *FAULTS, *COUNTS, *DETAILS]
    return [name for name in names if not counts[name]]
