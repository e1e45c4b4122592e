"""HTTP POST of a webhook to a checked address: no redirects, no proxy, no cookies."""

import asyncio
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from importlib.metadata import version
from typing import Any, Final

from perdure.address_filter import AddressFilter, ParsedURL, parse_url
from perdure.core.webhooks.deliveries import FORBIDDEN, DeliveryResponse
from perdure.errors import Refused

TIMEOUT_S: Final = 15.0
MAX_ADDRESSES: Final = 3  # of one name, tried in turn


@dataclass(slots=True)
class Post:
    """Sender of HTTP POSTs. Neither secret nor body nor response text reaches a log."""

    address_filter: AddressFilter
    verify: ssl.SSLContext | None = None
    timeout_s: float = TIMEOUT_S
    _transport: Any = None  # of httpx2, imported only by processes that send

    async def send(
        self, url: str, headers: Mapping[str, str], body: bytes, now: int
    ) -> DeliveryResponse:
        """Post once and return the response; a failed attempt is a response, too."""
        try:
            async with asyncio.timeout(self.timeout_s):
                url_parts = parse_url(url)
                addresses = await self.address_filter.addresses(url_parts)
                return await self._post_to_first(
                    url_parts, addresses[:MAX_ADDRESSES], headers, body, now
                )
        except Refused:
            return DeliveryResponse(error=FORBIDDEN)
        except TimeoutError:
            return DeliveryResponse(error="it did not answer in time")
        except OSError:
            return DeliveryResponse(error="its name could not be resolved")

    async def _post_to_first(
        self,
        url_parts: ParsedURL,
        addresses: Sequence[str],
        headers: Mapping[str, str],
        body: bytes,
        now: int,
    ) -> DeliveryResponse:
        response = DeliveryResponse(error="it has no address")
        for address in addresses:
            request = _request(url_parts, address, headers, body)
            response, connected = await self._post(request, now)
            if connected:
                break
        return response

    async def _post(self, request: Any, now: int) -> tuple[DeliveryResponse, bool]:
        import httpx2

        try:
            response = await self._open_transport().handle_async_request(request)
            await response.aclose()  # unread: the body does not matter
        except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
            return DeliveryResponse(error=_connect_problem(error)), False
        except httpx2.TimeoutException:
            return DeliveryResponse(error="it did not answer in time"), True
        except httpx2.HTTPError:
            return DeliveryResponse(error="the connection broke"), True
        wait = _retry_after(response.headers.get("retry-after"), now)
        return DeliveryResponse(response.status_code, retry_after_ms=wait), True

    def _open_transport(self) -> Any:
        """Return the bare transport: a client would keep cookies, follow redirects and use proxies.

        Connections are not reused: one to the same address may belong to another host name.
        """
        import httpx2

        if self._transport is None:
            limits = httpx2.Limits(max_keepalive_connections=0)
            verify: Any = True if self.verify is None else self.verify
            self._transport = httpx2.AsyncHTTPTransport(
                verify=verify, trust_env=False, limits=limits
            )
        return self._transport


def _request(url_parts: ParsedURL, address: str, headers: Mapping[str, str], body: bytes) -> Any:
    import httpx2

    host = f"[{address}]" if ":" in address else address
    extensions: dict[str, Any] = {
        "timeout": dict.fromkeys(("connect", "read", "write", "pool"), TIMEOUT_S)
    }
    if url_parts.host != address:
        extensions["sni_hostname"] = url_parts.host  # the certificate must be for this name
    return httpx2.Request(
        "POST",
        f"{url_parts.scheme}://{host}:{url_parts.port}{url_parts.path}",
        headers={
            "Host": url_parts.host_header,
            "Content-Type": "application/json",
            "User-Agent": f"perdure/{version('perdure')}",
            **headers,
        },
        content=body,
        extensions=extensions,
    )


def _connect_problem(error: Exception) -> str:
    inner: BaseException | None = error
    while inner is not None:
        if isinstance(inner, ssl.SSLError):
            return "its certificate was not accepted"
        inner = inner.__cause__ or inner.__context__
    return "it could not be reached"


def _retry_after(text: str | None, now: int) -> int | None:
    """Return the milliseconds of a Retry-After header: seconds, or a date."""
    if text is None:
        return None
    if text.isascii() and text.isdigit():
        return min(int(text[:9]), 10**9) * 1000
    try:
        return max(0, int(parsedate_to_datetime(text).timestamp() * 1000) - now)
    except (ValueError, OverflowError):
        return None
