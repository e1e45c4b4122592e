"""A session with those that it has started: what they used together."""

from holdfast.core.session.state import State
from holdfast.core.session.usage import Usage, summed
from holdfast.errors import Corrupt, NotFound
from holdfast.runtime.desk import Desk
from holdfast.runtime.entries import Address, Known, still_there
from holdfast.runtime.log import Log


async def tree_usage(desk: Desk, known: Known, folded: State) -> Usage | None:
    """The usage of a session with its children, and theirs; None if it has started nobody.

    Children are named by its log, so that no list of all sessions must be read.
    """
    if not folded.children:
        return None
    usages, seen = [folded.usage], {known.record.id}
    left = [(known.record.id, child) for child in folded.children]
    while left:
        parent, name = left.pop()
        if name in seen:
            continue
        seen.add(name)
        state = await _child(desk, Address(known.record.tenant, name), parent)
        if state is not None:
            usages.append(state.usage)
            left += [(name, child) for child in state.children]
    return summed(usages)


async def _child(desk: Desk, address: Address, parent: str) -> State | None:
    """The session of that name as it stands; None if it is not there, or somebody else's."""
    try:
        known = await desk.outside.known(address)
        if known.record.parent != parent:
            return None
        log = Log(desk.store, known.stream)
        with still_there(known.record.id):
            await log.catch_up()
    except (NotFound, Corrupt):  # of a child; `doctor` tells of it
        return None
    return log.state
