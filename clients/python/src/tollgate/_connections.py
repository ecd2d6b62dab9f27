"""Keep-alive connections to one daemon, for threads and for asyncio.

Promises: each wait has a bound; a connection is used by one request at a time; a forked process
starts with none (two processes on one connection would read each other's responses).
Never: uses a proxy of the environment: a decision is a call to the user's own machine.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import weakref
from time import monotonic
from typing import List, Optional, Tuple

from ._address import Address
from ._wire import Reply, ReplyParser, Request, WireError
from .errors import TollgateUnavailable

#: Idle connections that are kept: more threads than this at one moment open further ones.
IDLE_MAX = 32
#: Beyond the time that the server may hold a request: its way there and back on a busy machine.
GRACE = 10.0
READ_SIZE = 64 * 1024

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

    def close(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def send(self, request: Request) -> Reply:
        """One exchange. A connection that the server closed while idle is replaced once."""
        data = request.encode(self.address.head)
        try:
            connection = self._pop()
            if connection is not None:
                reply = self._exchange(connection, data, request.wait, is_reused=True)
                if reply is not None:
                    return reply
            reply = self._exchange(self._connect(), data, request.wait, is_reused=False)
        except (OSError, WireError) as error:
            raise unavailable(self.address, error) from error
        assert reply is not None  # only a reused connection gives none
        return reply

    def _pop(self) -> Optional[socket.socket]:
        with self._lock:
            return self._idle.pop() if self._idle else None

    def _connect(self) -> socket.socket:
        at = (self.address.host, self.address.port)
        connection = socket.create_connection(at, timeout=self._connect_timeout)
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self.address.tls is not None:
                connection = self.address.tls.wrap_socket(
                    connection, server_hostname=self.address.host
                )
        except BaseException:
            connection.close()
            raise
        return connection

    def _exchange(
        self, connection: socket.socket, data: bytes, wait: float, *, is_reused: bool
    ) -> Optional[Reply]:
        """``None``: the reused connection was closed before anything arrived."""
        parser, reply = ReplyParser(), None
        until = monotonic() + wait + GRACE
        try:
            connection.settimeout(GRACE)
            connection.sendall(data)
            while reply is None:
                connection.settimeout(max(until - monotonic(), 0.001))
                reply = parser.feed(connection.recv(READ_SIZE))
        except (ConnectionError, WireError):
            if is_reused and parser.is_empty:
                return None
            raise
        finally:
            # Also on KeyboardInterrupt: a closed connection ends the wait in the server.
            if reply is None or not reply.keep_alive:
                connection.close()
        if reply.keep_alive:
            self._push(connection)
        return reply

    def _push(self, connection: socket.socket) -> None:
        with self._lock:
            if len(self._idle) < IDLE_MAX:
                self._idle.append(connection)
                return
        connection.close()


_Streams = Tuple[asyncio.StreamReader, asyncio.StreamWriter]


class AsyncPool:
    """Connections of one event loop; another loop or process starts with none."""

    def __init__(self, address: Address, connect_timeout: float):
        self.address = address
        self._connect_timeout = connect_timeout
        self._idle: List[_Streams] = []
        self._owner: Tuple[int, Optional[asyncio.AbstractEventLoop]] = (os.getpid(), None)

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
        data = request.encode(self.address.head)
        self._own()
        try:
            if self._idle:
                reply = await self._exchange(self._idle.pop(), data, request.wait, is_reused=True)
                if reply is not None:
                    return reply
            reply = await self._exchange(await self._connect(), data, request.wait, is_reused=False)
        except (OSError, WireError, asyncio.TimeoutError) as error:
            raise unavailable(self.address, error) from error
        assert reply is not None  # only a reused connection gives none
        return reply

    def _own(self) -> None:
        owner = (os.getpid(), asyncio.get_running_loop())
        if self._owner != owner:
            self._idle, self._owner = [], owner

    async def _connect(self) -> _Streams:
        opened = asyncio.open_connection(
            self.address.host, self.address.port, ssl=self.address.tls, limit=READ_SIZE
        )
        return await asyncio.wait_for(opened, self._connect_timeout)

    async def _exchange(
        self, streams: _Streams, data: bytes, wait: float, *, is_reused: bool
    ) -> Optional[Reply]:
        reader, writer = streams
        parser, reply = ReplyParser(), None
        try:
            writer.write(data)
            reply = await asyncio.wait_for(self._read(reader, parser), wait + GRACE)
        except (ConnectionError, WireError):
            if is_reused and parser.is_empty:
                return None
            raise
        finally:
            # Also if this task is cancelled.
            if reply is None or not reply.keep_alive or len(self._idle) >= IDLE_MAX:
                writer.close()
            else:
                self._idle.append(streams)
        return reply

    @staticmethod
    async def _read(reader: asyncio.StreamReader, parser: ReplyParser) -> Reply:
        while True:
            reply = parser.feed(await reader.read(READ_SIZE))
            if reply is not None:
                return reply
