"""List of sessions, the last changed first; no log is read for it."""

from typing import Final, get_args

from starlette.responses import Response

from perdure.core.roles import Permit
from perdure.errors import Refused
from perdure.runtime.sessions.listing import SessionFilter
from perdure.serve.ui.view import PageView
from perdure.views.literals import RunState

PAGE: Final = 50
MOST_READ: Final = 2_000  # entries for one page, however few of them match


async def show_sessions(view: PageView) -> Response:
    """Show sessions that match the filters of the address."""
    names = ("state", "agent", "parent", "q")
    filters = {name: view.query(name) for name in names}
    state = filters["state"] if filters["state"] in get_args(RunState) else None
    chosen = SessionFilter(
        None,
        state,
        filters["agent"] or None,
        filters["parent"] or None,
        search=filters["q"] or None,
    )
    try:
        after = view.query("after") or None
        summaries, last = await view.verbs.recent(chosen, after, PAGE, MOST_READ)
    except ValueError as error:
        raise Refused("the address of this page is not valid", hint="open /sessions") from error
    agents = view.scope.service.agents.all()
    return view.page(
        "sessions.html",
        sessions=[summary.to_json() for summary in summaries],
        filters=filters,
        states=get_args(RunState),
        agents=sorted(agent.name for agent in agents),
        next_url=None if last is None else view.url("sessions", **_kept(filters), after=last),
        is_first=after is None,
        is_cut=last is not None and len(summaries) < PAGE,
        most_read=MOST_READ,
        may_start=view.may(Permit.OPERATE) and bool(agents),
        now=view.scope.service.now(),
        section="sessions",
    )


def _kept(filters: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in filters.items() if value}
