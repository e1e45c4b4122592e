"""View of usage: what model requests used, which models report and results sum up."""

from collections.abc import Mapping
from typing import Final

import msgspec

from perdure.views.base import Number, View


class Usage(View, frozen=True, kw_only=True):
    """Model requests with their tokens, and their cost in US dollars if it is known.

    A model reports tokens, and a cost if its provider states one; perdure counts the requests.
    """

    requests: Number = 0
    input_tokens: Number = 0  # with cache reads and writes
    output_tokens: Number = 0  # with reasoning
    cache_read_tokens: Number = 0
    cache_write_tokens: Number = 0
    reasoning_tokens: Number = 0
    cost: Number | None = None
    unpriced_requests: Number | None = None  # that are not in the cost; None without a cost

    @classmethod
    def of(cls, amounts: Mapping[str, float]) -> "Usage":
        """Return the view of a recorded total."""
        fields = {_NAMES[key]: amount for key, amount in amounts.items() if key in _NAMES}
        unpriced = fields.pop("unpriced_requests", 0)
        return cls(**fields, unpriced_requests=unpriced if "cost" in fields else None)


_NAMES: Final[Mapping[str, str]] = {
    item.encode_name: item.name for item in msgspec.structs.fields(Usage)
}
