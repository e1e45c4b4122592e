"""One HTTP POST to an address that was looked at: no redirect, no proxy, nothing remembered."""

import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from importlib.metadata import version
from typing import Any, Final

import anyio

from perdure.core.webhooks.deliveries import FORBIDDEN, DeliveryResponse
from perdure.errors import Refused
from perdure.runtime.webhooks.addresses import Place, Screen, parse

TIMEOUT_S: Final = 15.0
MOST_ADDRESSES: Final = 3  # of one name, tried in turn


@dataclass(slots=True)
class Post:
    """Posts bodies. The secret, the body and what is answered are never told to anybody."""

    screen: Screen
    verify: ssl.SSLContext | None = None
    timeout_s: float = TIMEOUT_S
    _transport: Any = None  # of httpx2, which only who sends has to load

    async def send(
        self, url: str, headers: Mapping[str, str], body: bytes, now: int
    ) -> DeliveryResponse:
        """What came of it; an attempt that failed is an answer too."""
        try:
            with anyio.fail_after(self.timeout_s):
                place = parse(url)
                addresses = await self.screen.addresses(place)
                return await self._first(place, addresses[:MOST_ADDRESSES], headers, body, now)
        except Refused:
            return DeliveryResponse(error=FORBIDDEN)
        except TimeoutError:
            return DeliveryResponse(error="it did not answer in time")
        except OSError:
            return DeliveryResponse(error="its name could not be resolved")

    async def _first(
        self,
        place: Place,
        addresses: Sequence[str],
        headers: Mapping[str, str],
        body: bytes,
        now: int,
    ) -> DeliveryResponse:
        answer = DeliveryResponse(error="it has no address")
        for address in addresses:
            request = _request(place, address, headers, body)
            answer, connected = await self._posted(request, now)
            if connected:
                break
        return answer

    async def _posted(self, request: Any, now: int) -> tuple[DeliveryResponse, bool]:
        import httpx2

        try:
            response = await self._open().handle_async_request(request)
            await response.aclose()  # unread: what it says is of no use to us
        except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
            return DeliveryResponse(error=_why(error)), False
        except httpx2.TimeoutException:
            return DeliveryResponse(error="it did not answer in time"), True
        except httpx2.HTTPError:
            return DeliveryResponse(error="the connection broke"), True
        wait = _retry_after(response.headers.get("retry-after"), now)
        return DeliveryResponse(response.status_code, retry_after_ms=wait), True

    def _open(self) -> Any:
        """The transport itself: a client would keep cookies, and may follow or be sent round.

        Connections are not kept: one to the same address may be meant for another name.
        """
        import httpx2

        if self._transport is None:
            limits = httpx2.Limits(max_keepalive_connections=0)
            verify: Any = True if self.verify is None else self.verify
            self._transport = httpx2.AsyncHTTPTransport(
                verify=verify, trust_env=False, limits=limits
            )
        return self._transport


def _request(place: Place, address: str, headers: Mapping[str, str], body: bytes) -> Any:
    import httpx2

    where = f"[{address}]" if ":" in address else address
    extensions: dict[str, Any] = {
        "timeout": dict.fromkeys(("connect", "read", "write", "pool"), TIMEOUT_S)
    }
    if place.host != address:
        extensions["sni_hostname"] = place.host  # whose certificate it must be
    return httpx2.Request(
        "POST",
        f"{place.scheme}://{where}:{place.port}{place.path}",
        headers={
            "Host": place.host_header,
            "Content-Type": "application/json",
            "User-Agent": f"perdure/{version('perdure')}",
            **headers,
        },
        content=body,
        extensions=extensions,
    )


def _why(error: Exception) -> str:
    inner: BaseException | None = error
    while inner is not None:
        if isinstance(inner, ssl.SSLError):
            return "its certificate was not accepted"
        inner = inner.__cause__ or inner.__context__
    return "it could not be reached"


def _retry_after(text: str | None, now: int) -> int | None:
    """How many ms a receiver asks for: it writes seconds, or a date."""
    if text is None:
        return None
    if text.isascii() and text.isdigit():
        return min(int(text[:9]), 10**9) * 1000
    try:
        return max(0, int(parsedate_to_datetime(text).timestamp() * 1000) - now)
    except (ValueError, OverflowError):
        return None
