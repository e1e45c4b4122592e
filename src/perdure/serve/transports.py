"""Transport of a connection: when it sends, how long its client may take, and how it closes."""

import asyncio
from collections.abc import Callable
from typing import Any, Final

SEND_S: Final = 60.0  # for a client that receives nothing of what was written
LINGER_S: Final = 10.0  # for a client that still sends when its response is complete
LINGER_BYTES: Final = 64 * 2**20
_HEAD: Final = b"HTTP/1.1 "  # how the head of a response begins


class BoundedTransport:
    """Transport that ends a client which receives nothing, and closes in two steps.

    The head of a response waits for the first part of its body, and both are sent at once: each
    piece by itself is a call of the system, and wakes the client. A body that is not there by the
    end of the present round of the event loop, as that of a stream, comes by itself.

    Before it closes, it reads what its client still sends, within limits. To close a socket with
    unread data resets the connection, and the client would lose the response: a refusal of a body
    that is too large never arrived at clients that send all of it.
    """

    def __init__(
        self,
        transport: asyncio.Transport,
        loop: asyncio.AbstractEventLoop,
        has_unread: Callable[[], bool],
    ) -> None:
        self._transport = transport
        self._loop = loop
        self._has_unread = has_unread
        self._head = b""  # of a response, which waits for its body
        self._written = 0
        self._sent = 0  # of what was written, when the timer of sending began
        self._send_timer: asyncio.TimerHandle | None = None
        self._remaining = LINGER_BYTES
        self._linger_timer: asyncio.TimerHandle | None = None
        self.is_lingering = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def is_closing(self) -> bool:
        """Return whether it closes, now or once the client has sent everything."""
        return self.is_lingering or self._transport.is_closing()

    def write(self, data: bytes) -> None:
        """Send data, or drop it if the connection is closing: asyncio would log every write."""
        if not data or self.is_closing():
            return
        if not self._head and data.startswith(_HEAD):
            self._head = data
            self._loop.call_soon(self._send_head)
            return
        data, self._head = self._head + data, b""
        self._send(data)

    def _send_head(self) -> None:
        """Send a head whose body has not begun."""
        head, self._head = self._head, b""
        if head and not self.is_closing():
            self._send(head)

    def _send(self, data: bytes) -> None:
        self._transport.write(data)
        self._written += len(data)
        if self._send_timer is None and self._transport.get_write_buffer_size():
            self._watch_sending()

    def _watch_sending(self) -> None:
        self._sent = self._written - self._transport.get_write_buffer_size()
        self._send_timer = self._loop.call_later(SEND_S, self._check_sending)

    def _check_sending(self) -> None:
        """End the connection if its client has received nothing since the last check."""
        self._send_timer = None
        size = self._transport.get_write_buffer_size()
        if size and self._written - size == self._sent:
            self._transport.abort()
        elif size:
            self._watch_sending()

    def close(self) -> None:
        """Close after what was written; if the client still sends, say so and wait for it."""
        self._send_head()
        if self.is_lingering or self._transport.is_closing() or not self._has_unread():
            if not self.is_lingering:
                self._transport.close()
            return
        try:
            self._transport.write_eof()
        except OSError:  # the client has reset the connection
            self._transport.abort()
            return
        self.is_lingering = True
        self._transport.resume_reading()
        self._linger_timer = self._loop.call_later(LINGER_S, self._transport.abort)

    def close_at_once(self) -> None:
        """Close after what was written."""
        self._send_head()
        self.is_lingering = False
        self._transport.close()

    def discard(self, size: int) -> None:
        """Count data that is not used any more."""
        self._remaining -= size
        if self._remaining < 0:
            self._transport.abort()

    def end(self) -> None:
        """End the timers: the connection is closed."""
        for timer in (self._send_timer, self._linger_timer):
            if timer is not None:
                timer.cancel()
