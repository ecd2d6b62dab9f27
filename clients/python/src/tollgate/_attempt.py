"""One request on one connection, without a socket: what both kinds of connections do, so that they
cannot differ.

Promises: only a request that the server cannot have counted, or that does not count twice, is sent
again; every end of a connection has one meaning.
Never: does I/O.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from typing import Optional

from ._address import Address
from ._wire import ConnectionClosed, Reply, ReplyParser, Request, WireError
from .errors import QueueFull, ReplyLost, TollgateUnavailable

#: Connections for requests that are answered at once. A decision takes microseconds, so more of
#: them would not be faster; a daemon with few descriptors accepts 64, those of four processes.
PROMPT_MAX = 16
#: Connections for requests that wait for permits; apart, so that reports and guards never queue
#: behind them.
WAITING_MAX = 128
#: Idle connections that are kept.
IDLE_MAX = PROMPT_MAX
#: Beyond the time that the server may hold a request: its way there and back on a busy machine.
GRACE = 10.0
#: A server that does not say ``100 Continue`` gets the body after this time all the same.
CONTINUE_WITHIN = 1.0
#: Before the next try, if a connection was closed without a response: about 1.5 seconds in all.
PAUSES = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.8)
#: For the rest of a response that nobody waits for: the server ends a request whose caller has left
#: at once, so this is its way here on a busy machine.
TAKE_BACK_WITHIN = 1.0
READ_SIZE = 64 * 1024

#: This machine has no descriptor, port or memory for another connection; the daemon may be well.
SHORTAGES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL)
#: The other side has closed the connection; the last two are how TLS says it.
CLOSED = (ConnectionError, ConnectionClosed, ssl.SSLEOFError, ssl.SSLZeroReturnError)
#: Three names for one thing, up to Python 3.10.
TIMEOUTS = (socket.timeout, asyncio.TimeoutError, TimeoutError)


class Unanswered(Exception):
    """Closed before a response, and the request may be sent again."""


class Attempt:
    """What goes out, what has come in, and what the end of the connection means.

    On a new connection the server is asked before a request that counts: it may close the
    connection for want of a place.
    """

    def __init__(self, address: Address, request: Request, *, is_new: bool):
        self.asks_first = is_new and not request.is_repeatable
        #: what is sent at once
        self.first, self._rest = request.encode(
            address.head, address.prefix, asks_first=self.asks_first
        )
        #: the server may have the whole request
        self.is_sent = False
        #: the time for the response is over
        self.is_late = False
        self.reply: Optional[Reply] = None
        #: nothing more comes on this connection
        self._is_over = False
        self._address = address
        self._request = request
        self._parser = ReplyParser()

    @property
    def is_awaited(self) -> bool:
        """The server has asked for the body."""
        return self._parser.is_continued

    def rest(self) -> bytes:
        """What is sent once the server has asked for it."""
        rest, self._rest = self._rest, b""
        return rest

    def feed(self, data: bytes) -> None:
        """``b""`` means that the connection was closed."""
        self.reply = self._parser.feed(data)

    @property
    def may_keep(self) -> bool:
        """The connection can serve another request."""
        is_kept = self.reply is not None and self.reply.keep_alive
        return is_kept and self.is_sent and not self.is_late

    def failed(self, error: Exception) -> Exception:
        """What it means that this happened before the response was whole; ``error`` itself, if it
        says all there is to say."""
        is_timeout = isinstance(error, TIMEOUTS)
        is_closed = isinstance(error, CLOSED)
        self._is_over = not is_timeout
        if isinstance(error, WireError) and not is_closed:
            return error
        if not self._request.is_repeatable and self.is_sent:
            return self._reply_lost(error, is_timeout, is_closed)
        return Unanswered(error) if is_closed and self._parser.is_empty else error

    def _reply_lost(self, error: Exception, is_timeout: bool, is_closed: bool) -> ReplyLost:
        what = f"cannot be reached any more ({type(error).__name__})"
        if is_timeout:
            what = "did not respond in time"
        elif is_closed:
            what = "closed the connection before it responded"
        lost = ReplyLost(
            f"Tollgate at {self._address.shown} {what}",
            hint="the request may have been counted; ask again if that does no harm",
        )
        lost.is_timeout = is_timeout
        return lost

    @property
    def can_undo(self) -> bool:
        """The response may have to be taken back, if nobody is there to receive it."""
        return self._request.undo is not None and not self._is_over

    def undo(self) -> Optional[Request]:
        """The request that takes back what the response has given."""
        if self.reply is None or self._request.undo is None:
            return None
        return self._request.undo(self.reply)


def not_connected(error: OSError) -> Exception:
    """Why there is no connection: only a daemon that cannot be reached is away."""
    is_closed = isinstance(error, (ConnectionResetError, BrokenPipeError))
    return Unanswered(error) if is_closed or error.errno in SHORTAGES else error


def unavailable(address: Address, error: BaseException) -> TollgateUnavailable:
    """The error of a request that got no response."""
    if isinstance(error, TIMEOUTS):
        what = "did not respond in time"
        hint = "the machine is overloaded, or something else listens there"
    elif isinstance(error, WireError):
        what, hint = f"is not understood: {error}", "is this the address of Tollgate?"
    else:
        what = f"cannot be reached ({type(error).__name__})"
        hint = "start it with `tollgate serve`, or set TOLLGATE_ADMIN to its admin address"
    return TollgateUnavailable(f"Tollgate at {address.shown} {what}", hint=hint)


def busy(address: Address) -> QueueFull:
    """The error of a request for which there was no connection."""
    return QueueFull(
        f"Tollgate at {address.shown} accepts no further connection at the moment",
        hint="too many requests at once, or too few file descriptors; is it the right address?",
        retry_in=1.0,
    )
