"""Whether what comes back is what was sent."""

import json
from collections.abc import Collection, Mapping
from typing import Any, Final

_FREE: Final = frozenset({"input"})  # the tool's own, where order and every digit count


def same(posted: Any, sent: Any) -> bool:
    """Whether two JSON values are one to the last digit: key order too, and 1.0 is not 1."""
    return _dumps(posted) == _dumps(sent)


def same_block(posted: Any, sent: Any, *, may_lack: Collection[str] = ()) -> bool:
    """Whether two blocks of the provider's own making say the same.

    The provider reads its own keys in any order, takes null for absence, and lets the client
    leave out some; a tool's arguments must be as they were.
    """
    if not isinstance(posted, Mapping) or not isinstance(sent, Mapping):
        return same(posted, sent)
    left_out = {key for key in may_lack if posted.get(key) is None}
    wanted = {key: value for key, value in sent.items() if key not in left_out}
    return _dumps(_settled(posted)) == _dumps(_settled(wanted))


def _settled(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {
            key: value[key] if key in _FREE else _settled(value[key])
            for key in sorted(value)
            if value[key] is not None
        }
    return [_settled(one) for one in value] if isinstance(value, list) else value


def _dumps(value: Any) -> str:
    return json.dumps(value)
