"""Keep-alive connections to one daemon, for threads and for asyncio.

Promises: each wait has a bound; there are at most so many connections, and requests queue for one;
a connection is used by one request at a time; a forked process starts with none (two processes on
one connection would read each other's responses); only a request that the server cannot have
counted, or that does not count twice, is sent again.
Never: uses a proxy of the environment: a decision is a call to the user's own machine.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import threading
import time
import weakref
from collections import deque
from time import monotonic
from typing import Deque, Iterator, List, Optional, Tuple

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
READ_SIZE = 64 * 1024

#: This machine has no descriptor, port or memory for another connection; the daemon may be well.
SHORTAGES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL)

_pools: "weakref.WeakSet[Pool]" = weakref.WeakSet()


def _forget_in_child() -> None:
    for pool in list(_pools):
        pool.reset()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_child)


def unavailable(address: Address, error: BaseException) -> TollgateUnavailable:
    """The error of a request that got no response."""
    if isinstance(error, (socket.timeout, asyncio.TimeoutError, TimeoutError)):
        what = "did not respond in time"
        hint = "the machine is overloaded, or something else listens there"
    elif isinstance(error, WireError):
        what, hint = f"is not understood: {error}", "is this the address of Tollgate?"
    else:
        what = f"cannot be reached ({type(error).__name__})"
        hint = "start it with `tollgate serve`, or set TOLLGATE_ADMIN to its admin address"
    return TollgateUnavailable(f"Tollgate at {address.shown} {what}", hint=hint)


class _Unanswered(Exception):
    """Closed before a response, and the request may be sent again."""


def _not_connected(error: OSError) -> Exception:
    """Why there is no connection: only a daemon that cannot be reached is away."""
    is_closed = isinstance(error, (ConnectionResetError, BrokenPipeError))
    return _Unanswered(error) if is_closed or error.errno in SHORTAGES else error


def _closed(
    error: Exception, address: Address, request: Request, parser: ReplyParser, is_sent: bool
) -> Exception:
    """What a connection means that was closed within an exchange."""
    if parser.is_empty and (request.is_repeatable or not is_sent):
        return _Unanswered(error)
    if request.is_repeatable or not is_sent:
        return error
    return ReplyLost(
        f"Tollgate at {address.shown} closed the connection before it responded",
        hint="the request may have been counted; ask again if that does no harm",
    )


def _busy(address: Address) -> QueueFull:
    return QueueFull(
        f"Tollgate at {address.shown} accepts no further connection at the moment",
        hint="too many requests at once, or too few file descriptors; is it the right address?",
        retry_in=1.0,
    )


class Pool:
    """Blocking connections, for any number of threads."""

    def __init__(self, address: Address, connect_timeout: float):
        self.address = address
        self._connect_timeout = connect_timeout
        self.reset()
        _pools.add(self)

    def reset(self) -> None:
        """Forgets every connection; the descriptors close here, the other process keeps its own."""
        self._lock = threading.Lock()
        self._idle: List[socket.socket] = []
        self._prompt = threading.Semaphore(PROMPT_MAX)
        self._waiting = threading.Semaphore(WAITING_MAX)

    def close(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def send(self, request: Request) -> Reply:
        """One exchange, once there is a connection for it."""
        started = monotonic()
        places = self._waiting if request.wait else self._prompt
        if not places.acquire(timeout=request.wait or GRACE):
            raise _busy(self.address)
        try:
            return self._send(request, started)
        except (OSError, WireError) as error:
            raise unavailable(self.address, error) from error
        finally:
            places.release()

    def _send(self, request: Request, started: float) -> Reply:
        pauses: Iterator[float] = iter(PAUSES)
        while True:
            try:
                return self._exchange(request.later(monotonic() - started))
            except _Unanswered as error:
                pause = next(pauses, None)
                if pause is None:
                    raise _busy(self.address) from error
            time.sleep(pause)

    def _pop(self) -> Optional[socket.socket]:
        """An idle connection that the server has not closed."""
        while True:
            with self._lock:
                if not self._idle:
                    return None
                connection = self._idle.pop()
            if self._is_usable(connection):
                return connection
            connection.close()

    def _is_usable(self, connection: socket.socket) -> bool:
        try:
            connection.settimeout(0)
            # Below TLS: its messages may be there while nothing was asked.
            data = socket.socket.recv(connection, 1, socket.MSG_PEEK)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return bool(data) and self.address.tls is not None

    def _connect(self) -> socket.socket:
        at = (self.address.host, self.address.port)
        try:
            connection = socket.create_connection(at, timeout=self._connect_timeout)
        except OSError as error:
            raise _not_connected(error) from error
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self.address.tls is not None:
                connection = self.address.tls.wrap_socket(
                    connection, server_hostname=self.address.host
                )
        except OSError as error:
            connection.close()
            raise _not_connected(error) from error
        except BaseException:
            connection.close()
            raise
        return connection

    def _exchange(self, request: Request) -> Reply:
        """Over an idle connection, or a new one, which may be closed for want of a place: there
        the server is asked before a request that counts."""
        connection = self._pop()
        asks_first = connection is None and not request.is_repeatable
        if connection is None:
            connection = self._connect()
        parser, reply, is_sent = ReplyParser(), None, False
        until = monotonic() + request.wait + GRACE
        try:
            first, rest = request.encode(self.address.head, asks_first=asks_first)
            connection.settimeout(GRACE)
            connection.sendall(first)
            if asks_first:
                reply = self._continue(connection, parser)
            if reply is None:
                connection.sendall(rest)
                is_sent = True
            while reply is None:
                connection.settimeout(max(until - monotonic(), 0.001))
                reply = parser.feed(connection.recv(READ_SIZE))
        except (ConnectionError, ConnectionClosed) as error:
            raise _closed(error, self.address, request, parser, is_sent) from error
        finally:
            # Also on KeyboardInterrupt: a closed connection ends the wait in the server.
            if reply is None or not reply.keep_alive or not is_sent:
                connection.close()
        if reply.keep_alive and is_sent:
            self._push(connection)
        return reply

    @staticmethod
    def _continue(connection: socket.socket, parser: ReplyParser) -> Optional[Reply]:
        """Waits until the body may be sent; a response that needs no body is one already."""
        connection.settimeout(CONTINUE_WITHIN)
        while not parser.is_continued:
            try:
                data = connection.recv(READ_SIZE)
            except socket.timeout:
                break
            reply = parser.feed(data)
            if reply is not None:
                return reply
        connection.settimeout(GRACE)
        return None

    def _push(self, connection: socket.socket) -> None:
        with self._lock:
            if len(self._idle) < IDLE_MAX:
                self._idle.append(connection)
                return
        connection.close()


class _Places:
    """So many at a time; the others queue, first come, first served. For one event loop."""

    def __init__(self, count: int):
        self._free = count
        self._queue: Deque["asyncio.Future[bool]"] = deque()

    async def take(self, patience: float) -> bool:
        """Whether there was a place in time."""
        if self._free > 0:
            self._free -= 1
            return True
        loop = asyncio.get_running_loop()
        place: "asyncio.Future[bool]" = loop.create_future()
        self._queue.append(place)
        timer = loop.call_later(patience, self._give_up, place)
        try:
            return await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled() and place.result():
                self.give()
            raise
        finally:
            timer.cancel()

    def _give_up(self, place: "asyncio.Future[bool]") -> None:
        if not place.done():
            self._queue.remove(place)
            place.set_result(False)

    def give(self) -> None:
        while self._queue:
            place = self._queue.popleft()
            if not place.done():
                place.set_result(True)
                return
        self._free += 1


_Streams = Tuple[asyncio.StreamReader, asyncio.StreamWriter]


class AsyncPool:
    """Connections of one event loop; another loop or process starts with none."""

    def __init__(self, address: Address, connect_timeout: float):
        self.address = address
        self._connect_timeout = connect_timeout
        self._owner: Tuple[int, Optional[asyncio.AbstractEventLoop]] = (os.getpid(), None)
        self._reset()

    def _reset(self) -> None:
        self._idle: List[_Streams] = []
        self._prompt = _Places(PROMPT_MAX)
        self._waiting = _Places(WAITING_MAX)

    async def close(self) -> None:
        idle, self._idle = self._idle, []
        if self._owner != (os.getpid(), asyncio.get_running_loop()):
            return
        for _, writer in idle:
            writer.close()
        for _, writer in idle:
            try:
                await asyncio.wait_for(writer.wait_closed(), 1.0)
            except (OSError, asyncio.TimeoutError):
                pass

    async def send(self, request: Request) -> Reply:
        """One exchange, as :meth:`Pool.send`. Cancelled: the wait in the server ends too."""
        self._own()
        started = monotonic()
        places = self._waiting if request.wait else self._prompt
        if not await places.take(request.wait or GRACE):
            raise _busy(self.address)
        try:
            return await self._send(request, started)
        except (OSError, WireError, asyncio.TimeoutError) as error:
            raise unavailable(self.address, error) from error
        finally:
            places.give()

    async def _send(self, request: Request, started: float) -> Reply:
        pauses: Iterator[float] = iter(PAUSES)
        while True:
            try:
                return await self._exchange(request.later(monotonic() - started))
            except _Unanswered as error:
                pause = next(pauses, None)
                if pause is None:
                    raise _busy(self.address) from error
            await asyncio.sleep(pause)

    def _own(self) -> None:
        owner = (os.getpid(), asyncio.get_running_loop())
        if self._owner != owner:
            self._owner = owner
            self._reset()

    def _pop(self) -> Optional[_Streams]:
        """An idle connection that the server has not closed, as far as the loop has seen."""
        while self._idle:
            reader, writer = self._idle.pop()
            if not reader.at_eof() and reader.exception() is None and not writer.is_closing():
                return reader, writer
            writer.close()
        return None

    async def _connect(self) -> _Streams:
        opened = asyncio.open_connection(
            self.address.host, self.address.port, ssl=self.address.tls, limit=READ_SIZE
        )
        try:
            return await asyncio.wait_for(opened, self._connect_timeout)
        except OSError as error:
            raise _not_connected(error) from error

    async def _exchange(self, request: Request) -> Reply:
        streams = self._pop()
        asks_first = streams is None and not request.is_repeatable
        if streams is None:
            streams = await self._connect()
        reader, writer = streams
        parser, reply, is_sent = ReplyParser(), None, False
        try:
            first, rest = request.encode(self.address.head, asks_first=asks_first)
            is_sent = not asks_first
            writer.write(first)
            if asks_first:
                reply = await self._continue(reader, parser)
            if reply is None:
                is_sent = True
                writer.write(rest)
                reply = await asyncio.wait_for(self._read(reader, parser), request.wait + GRACE)
        except (ConnectionError, ConnectionClosed) as error:
            raise _closed(error, self.address, request, parser, is_sent) from error
        finally:
            # Also if this task is cancelled.
            may_keep = reply is not None and reply.keep_alive and is_sent
            if may_keep and len(self._idle) < IDLE_MAX:
                self._idle.append(streams)
            else:
                writer.close()
        assert reply is not None  # `_read` ends with a response
        return reply

    async def _continue(
        self, reader: asyncio.StreamReader, parser: ReplyParser
    ) -> Optional[Reply]:
        """As :meth:`Pool._continue`."""
        try:
            return await asyncio.wait_for(
                self._read(reader, parser, until_continue=True), CONTINUE_WITHIN
            )
        except asyncio.TimeoutError:
            return None

    @staticmethod
    async def _read(
        reader: asyncio.StreamReader, parser: ReplyParser, until_continue: bool = False
    ) -> Optional[Reply]:
        reply = None
        while reply is None and not (until_continue and parser.is_continued):
            reply = parser.feed(await reader.read(READ_SIZE))
        return reply
