"""Inbox: what waits for people, what waits for machines, and what was decided recently."""

from collections.abc import Callable
from functools import partial
from typing import Final

from starlette.responses import Response

from perdure.core.pending.record import PendingRecord
from perdure.core.roles import Permit
from perdure.errors import NotFound, Refused
from perdure.runtime.records.listings import Audience
from perdure.runtime.sessions.pending_pages import PendingFilter
from perdure.serve.http.settlement import may_read, readable_call
from perdure.serve.ui.calls import CallView, last_words, view_call
from perdure.serve.ui.view import View

MOST: Final = 50  # calls on a page
MOST_READ: Final = 2_000  # entries for one page, however few of them match
WITH_WORDS: Final = 20  # of them with the words of the model
RECENT: Final = 8
FILTERS: Final = ("tool", "agent", "q", "tenant")


async def show_inbox(view: View) -> Response:
    """Show what waits for people, soonest to expire first."""
    after = view.query("after") or None
    people, following = await _open_calls(view, "people", after)
    machines, more_machines = await _open_calls(view, "machines")
    count = await _count(view, people, following, after)
    cards = [
        view_call(view, record, await last_words(view, record) if n < WITH_WORDS else ("", ""))
        for n, record in enumerate(people)
    ]
    return view.page(
        "inbox.html",
        section="inbox",
        count=count,
        cards=cards,
        first_url=None if after is None else view.url(**_kept(view)),
        is_cut=following is not None and len(people) < MOST,
        most_read=MOST_READ,
        next_url=None if following is None else view.url(**_kept(view), after=following),
        has_more_machines=more_machines is not None,
        machines=[view_call(view, record) for record in machines],
        recent=[view_call(view, record) for record in await _recent_calls(view)],
        groups=_groups(cards),
        done=await _done(view),
        filters={name: view.query(name) for name in FILTERS},
        tools=sorted({record.tool for record in (*people, *machines)}),
        agents=sorted({record.agent for record in (*people, *machines)}),
        tenants=_tenants(view, [*people, *machines]),
        now=view.scope.service.now(),
    )


def _tenants(view: View, records: list[PendingRecord]) -> list[str]:
    """Return the tenants to choose from; none for a person who sees one only."""
    if view.scope.is_scoped:
        return []
    return sorted({record.tenant for record in records if record.tenant})


def _may_read(view: View) -> Callable[[PendingRecord], bool] | None:
    """Return the filter of what the viewer may read; None: everything, which an index can count."""
    return None if view.scope.has_permit(Permit.READ) else partial(may_read, view.scope)


def _kept(view: View) -> dict[str, str]:
    return {name: view.query(name) for name in FILTERS if view.query(name)}


def _filter(view: View, audience: Audience) -> PendingFilter:
    return PendingFilter(
        tenant=view.scope.tenant,
        tool=view.query("tool") or None,
        may_read=_may_read(view),
        audience=audience,
        agent=view.query("agent") or None,
        search=view.query("q") or None,
    )


async def _open_calls(
    view: View, audience: Audience, after: str | None = None
) -> tuple[list[PendingRecord], str | None]:
    """Return the calls that expire first, and the cursor after them if more may match."""
    calls, chosen = view.scope.service.calls, _filter(view, audience)
    try:
        return await calls.page(chosen, after, MOST, "expires", MOST_READ)
    except ValueError as error:
        raise Refused("the address of this page is not valid", hint="open /") from error


async def _count(
    view: View, people: list[PendingRecord], following: str | None, after: str | None
) -> str:
    """Return how many calls wait for people; `50+` where only reading all of them could tell."""
    chosen = _filter(view, "people")
    if following is None and after is None:
        return str(len(people))
    if chosen.is_by_listing:
        return str(await view.scope.service.calls.count(chosen))
    return f"{len(people)}+"


async def _recent_calls(view: View) -> list[PendingRecord]:
    """Return the calls that were settled last."""
    pending_filter = PendingFilter(
        status="settled", tenant=view.scope.tenant, may_read=_may_read(view)
    )
    records, _ = await view.scope.service.calls.page(pending_filter, None, RECENT, "newest")
    return records


def _groups(cards: list[CallView]) -> list[tuple[str, list[CallView]]]:
    """Return tools of which several calls can be approved at once."""
    by_tool: dict[str, list[CallView]] = {}
    for card in cards:
        if "approve" in card.allowed:
            by_tool.setdefault(card.record.tool, []).append(card)
    return [(tool, group) for tool, group in by_tool.items() if len(group) > 1]


async def _done(view: View) -> CallView | None:
    """Return the call that this person has just decided."""
    pending_id = view.query("done")
    if not pending_id:
        return None
    try:
        return view_call(view, await readable_call(view.scope, pending_id))
    except NotFound:
        return None
