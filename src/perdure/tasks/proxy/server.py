"""The proxy server of one sandbox: it checks the host, resolves it, and connects by itself.

Every connection carries one tunnel or one request, so that nothing can follow a request that was
checked. The log has hosts, not contents.
"""

import asyncio
import errno
import ipaddress
import logging
import socket
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from perdure.address_filter import AddressFilter, ParsedURL
from perdure.errors import Refused
from perdure.sandbox.allow_list import AllowList
from perdure.tasks.proxy.head import MAX_HEAD_BYTES, ProxyRequest, parse_head

HEAD_S: Final = 30.0
CONNECT_S: Final = 15.0
LINGER_S: Final = 1.0
MAX_CONNECTIONS: Final = 128
COPY_BYTES: Final = 64 * 1024
REASONS: Final = {400: "Bad Request", 403: "Forbidden", 502: "Bad Gateway"}

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class AllowListProxy:
    """Serves sandboxes on the sockets inside them. Only public addresses are called."""

    addresses: AddressFilter = field(default_factory=AddressFilter)

    async def serve(self, listener: socket.socket, allow: Sequence[str]) -> None:
        """Accept connections until cancelled."""
        allowed = AllowList.parse(allow)
        slots = asyncio.Semaphore(MAX_CONNECTIONS)
        async with asyncio.TaskGroup() as connections:
            while True:
                await slots.acquire()
                client = await _accept(listener)
                connection = connections.create_task(self._handle(client, allowed))
                connection.add_done_callback(lambda _: slots.release())

    async def _handle(self, client: socket.socket, allowed: AllowList) -> None:
        """Serve one connection; whatever happens to it, the others continue."""
        reader, writer = await asyncio.open_connection(sock=client, limit=MAX_HEAD_BYTES)
        try:
            await self._serve(reader, writer, allowed)
        except Refused as refusal:
            status = 400 if refusal.code in ("BAD_PROXY_REQUEST", "URL_INVALID") else 403
            logger.info("sandbox: refused a connection: %s", refusal.message)
            await _reply(writer, status, refusal.message)
        except (OSError, EOFError, TimeoutError, asyncio.LimitOverrunError) as error:
            await _reply(writer, 502, f"the host did not respond: {type(error).__name__}")
        except Exception:  # the edge of a background task: other connections must continue
            logger.exception("sandbox: a connection of the proxy failed")
        finally:
            await _close(reader, writer)

    async def _serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, allowed: AllowList
    ) -> None:
        async with asyncio.timeout(HEAD_S):
            request = parse_head(await reader.readuntil(b"\r\n\r\n"))
        _check_host(request.target, allowed)
        upstream = await self._connect(request.target)
        logger.info("sandbox: connected to %s:%d", request.target.host, request.target.port)
        try:
            if request.is_tunnel:
                writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
                await _tunnel(reader, writer, upstream)
            else:
                await _forward(request, reader, writer, upstream)
        finally:
            upstream[1].close()

    async def _connect(
        self, target: ParsedURL
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect to an address that was checked, never to a name."""
        error: Exception = OSError("no address")
        for address in await self.addresses.addresses(target):
            try:
                async with asyncio.timeout(CONNECT_S):
                    return await asyncio.open_connection(address, target.port)
            except (OSError, TimeoutError) as failure:
                error = failure
        raise error


def _check_host(target: ParsedURL, allowed: AllowList) -> None:
    with suppress(ValueError):
        ipaddress.ip_address(target.host)
        raise _refusal(target, "is an address, and the allow-list has names")
    if not allowed.allows(target.host, target.port):
        raise _refusal(target, "is not on the allow-list")


def _refusal(target: ParsedURL, reason: str) -> Refused:
    return Refused(
        f"{target.host}:{target.port} {reason}",
        code="HOST_NOT_ALLOWED",
        hint="the operator can add it to tasks.network.allow",
    )


async def _tunnel(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    upstream: tuple[asyncio.StreamReader, asyncio.StreamWriter],
) -> None:
    async with asyncio.TaskGroup() as copies:
        copies.create_task(_copy(reader, upstream[1]))
        copies.create_task(_copy(upstream[0], writer))


async def _forward(
    request: ProxyRequest,
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    upstream: tuple[asyncio.StreamReader, asyncio.StreamWriter],
) -> None:
    """Pass on one request with its body, and the response until the server closes."""
    upstream[1].write(request.head)
    body = asyncio.ensure_future(_copy(reader, upstream[1], request.body_size))
    try:
        await _copy(upstream[0], writer)
    finally:
        body.cancel()
        await asyncio.gather(body, return_exceptions=True)


async def _copy(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, size: int | None = None
) -> None:
    """Copy to the end, or `size` bytes; one side that breaks off ends the other."""
    left = size
    with suppress(OSError):
        while left is None or left > 0:
            chunk = await reader.read(COPY_BYTES if left is None else min(left, COPY_BYTES))
            if not chunk:
                break
            writer.write(chunk)
            await writer.drain()
            left = None if left is None else left - len(chunk)
        if size is None and writer.can_write_eof():
            writer.write_eof()


async def _reply(writer: asyncio.StreamWriter, status: int, text: str) -> None:
    body = f"perdure: {text}\n".encode()
    head = f"HTTP/1.1 {status} {REASONS[status]}\r\nContent-Type: text/plain\r\n"
    head += f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    with suppress(OSError):
        writer.write(head.encode() + body)
        await writer.drain()


async def _close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Close a connection after its last bytes were read: unread bytes would cut off the reply."""
    try:
        async with asyncio.timeout(LINGER_S):
            if writer.can_write_eof():
                writer.write_eof()
            while await reader.read(COPY_BYTES):
                pass
    except (OSError, TimeoutError):
        pass
    finally:
        writer.close()


async def _accept(listener: socket.socket) -> socket.socket:
    loop = asyncio.get_running_loop()
    while True:
        try:
            client, _ = await loop.sock_accept(listener)
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE, errno.ECONNABORTED):
                raise
            await asyncio.sleep(0.1)  # until this process has closed other files
        else:
            return client
