"""Inbox: what waits for people, what waits for machines, and what was decided recently."""

from collections.abc import Sequence
from typing import Final

from starlette.responses import Response

from perdure.errors import NotFound, Refused
from perdure.runtime.sessions.pending_pages import PendingFilter
from perdure.serve.ui.calls import CallView, view_call
from perdure.serve.ui.view import PageView
from perdure.views.calls import PendingCall
from perdure.views.literals import Audience

MOST: Final = 50  # calls on a page
MOST_READ: Final = 2_000  # entries for one page, however few of them match
WITH_WORDS: Final = 20  # of them with the words of the model
RECENT: Final = 8
FILTERS: Final = ("tool", "agent", "q", "tenant")


async def show_inbox(view: PageView) -> Response:
    """Show what waits for people, soonest to expire first."""
    after = view.query("after") or None
    people, following = await _open_calls(view, "people", after)
    machines, more_machines = await _open_calls(view, "machines")
    count = await _count(view, people, following, after)
    logs = view.verbs.logs
    cards = [
        view_call(view, call, await logs.words(call) if n < WITH_WORDS else ("", ""))
        for n, call in enumerate(people)
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
        machines=[view_call(view, call) for call in machines],
        recent=[view_call(view, call) for call in await _recent_calls(view)],
        groups=_groups(cards),
        done=await _done(view),
        filters={name: view.query(name) for name in FILTERS},
        tools=sorted({call.tool for call in (*people, *machines)}),
        agents=sorted({call.agent for call in (*people, *machines)}),
        tenants=_tenants(view, [*people, *machines]),
        now=view.scope.service.now(),
    )


def _tenants(view: PageView, calls: list[PendingCall]) -> list[str]:
    """Return the tenants to choose from; none for a person who sees one only."""
    if view.scope.is_scoped:
        return []
    return sorted({call.tenant for call in calls if call.tenant})


def _kept(view: PageView) -> dict[str, str]:
    return {name: view.query(name) for name in FILTERS if view.query(name)}


def _filter(view: PageView, audience: Audience) -> PendingFilter:
    return PendingFilter(
        tool=view.query("tool") or None,
        audience=audience,
        agent=view.query("agent") or None,
        search=view.query("q") or None,
    )


async def _open_calls(
    view: PageView, audience: Audience, after: str | None = None
) -> tuple[Sequence[PendingCall], str | None]:
    """Return the calls that expire first, and the cursor after them if more may match."""
    try:
        return await view.verbs.calls.page(
            _filter(view, audience), after, MOST, "expires", MOST_READ
        )
    except ValueError as error:
        raise Refused("the address of this page is not valid", hint="open /") from error


async def _count(
    view: PageView, people: Sequence[PendingCall], following: str | None, after: str | None
) -> str:
    """Return how many calls wait for people; `50+` where only reading all of them could tell."""
    if following is None and after is None:
        return str(len(people))
    calls, chosen = view.verbs.calls, _filter(view, "people")
    if calls.visible(chosen).is_by_listing:
        return str(await calls.count(chosen))
    return f"{len(people)}+"


async def _recent_calls(view: PageView) -> Sequence[PendingCall]:
    """Return the calls that were settled last."""
    chosen = PendingFilter(status="settled")
    return (await view.verbs.calls.page(chosen, None, RECENT, "newest"))[0]


def _groups(cards: list[CallView]) -> list[tuple[str, list[CallView]]]:
    """Return tools of which several calls can be approved at once."""
    by_tool: dict[str, list[CallView]] = {}
    for card in cards:
        if "approve" in card.record.can:
            by_tool.setdefault(card.record.tool, []).append(card)
    return [(tool, group) for tool, group in by_tool.items() if len(group) > 1]


async def _done(view: PageView) -> CallView | None:
    """Return the call that this person has just decided."""
    pending_id = view.query("done")
    if not pending_id:
        return None
    try:
        return view_call(view, await view.verbs.calls.get(pending_id))
    except NotFound:
        return None
