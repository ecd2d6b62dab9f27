"""Keep-alive connections to one daemon, for threads. ``_async_connections`` has those of asyncio.

Promises: each wait has a bound; there are at most so many connections, and requests queue for one;
a connection is used by one request at a time; a forked process starts with none (two processes on
one connection would read each other's responses); a permit that arrives while its caller is
interrupted, or too late for it, is given back.
Never: uses a proxy of the environment: a decision is a call to the user's own machine.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
import time
import weakref
from time import monotonic
from typing import Iterator, List, Optional

from . import _attempt as bounds
from . import _forks
from ._address import Address
from ._attempt import Attempt, Unanswered, busy, not_connected, unavailable
from ._wire import Reply, Request, WireError
from .errors import TollgateError


class Pool:
    """Blocking connections, for any number of threads."""

    def __init__(self, address: Address, connect_timeout: float):
        self.address = address
        self._connect_timeout = connect_timeout
        #: also those that serve a request now
        self._open: "weakref.WeakSet[socket.socket]" = weakref.WeakSet()
        self._start()
        _forks.register(self)

    def after_fork(self) -> None:
        """Leaves every connection to the parent, also those on which its threads wait: an end that
        only the parent sees would not reach the daemon."""
        inherited, self._open = self._open, weakref.WeakSet()
        self._start()
        for connection in list(inherited):
            _forks.cut(connection.fileno())

    def _start(self) -> None:
        self._lock = threading.Lock()
        self._idle: List[socket.socket] = []
        self._prompt = threading.Semaphore(bounds.PROMPT_MAX)
        self._waiting = threading.Semaphore(bounds.WAITING_MAX)

    def close(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def send(self, request: Request, received: Optional[List[Reply]] = None) -> Reply:
        """One exchange, once there is a connection for it. ``received`` has the reply as soon as it
        is whole, for a caller that an interruption keeps from getting it."""
        started = monotonic()
        slots = self._waiting if request.wait else self._prompt
        if not slots.acquire(timeout=request.wait or bounds.GRACE):
            raise busy(self.address)
        try:
            return self._send(request, started, received)
        except (OSError, WireError) as error:
            raise unavailable(self.address, error) from error
        finally:
            slots.release()

    def give_back(self, request: Request, received: List[Reply]) -> None:
        """Takes back what ``request`` was given, for a caller that was interrupted meanwhile."""
        for reply in received:
            undo = request.undo(reply) if request.undo is not None else None
            if undo is not None:
                with contextlib.suppress(TollgateError):  # the daemon settles it by itself
                    self.send(undo)

    def _send(
        self, request: Request, started: float, received: Optional[List[Reply]] = None
    ) -> Reply:
        pauses: Iterator[float] = iter(bounds.PAUSES)
        while True:
            try:
                return self._exchange(request.later(monotonic() - started), received)
            except Unanswered as error:
                pause = next(pauses, None)
                if pause is None:
                    raise busy(self.address) from error
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

    @staticmethod
    def _is_usable(connection: socket.socket) -> bool:
        """TLS reads its own messages here: a session ticket means nothing, a `close_notify` is the
        end. Anything else that comes unasked is no response to the next request."""
        try:
            connection.settimeout(0)
            connection.recv(1)
        except (BlockingIOError, ssl.SSLWantReadError):
            return True
        except OSError:
            pass
        return False

    def _connect(self) -> socket.socket:
        at = (self.address.host, self.address.port)
        try:
            connection = socket.create_connection(at, timeout=self._connect_timeout)
        except OSError as error:
            raise not_connected(error) from error
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self.address.tls is not None:
                connection = self.address.tls.wrap_socket(
                    connection, server_hostname=self.address.host
                )
        except OSError as error:
            connection.close()
            raise not_connected(error) from error
        except BaseException:
            connection.close()
            raise
        self._open.add(connection)
        return connection

    def _exchange(self, request: Request, received: Optional[List[Reply]]) -> Reply:
        """Over an idle connection, or a new one."""
        connection = self._pop()
        is_new = connection is None
        if connection is None:
            connection = self._connect()
        try:
            attempt = Attempt(self.address, request, is_new=is_new)
            try:
                reply = self._carry_out(connection, attempt, request.wait)
                if received is not None:
                    received.append(reply)
            except BaseException:
                # Ctrl-C, or what a signal handler raises, such as Celery's time limit; or no
                # response in time.
                self._take_back(connection, attempt)
                raise
        except BaseException:
            connection.close()  # ends the wait in the server
            raise
        if attempt.may_keep:
            self._push(connection)
        else:
            connection.close()
        return reply

    def _carry_out(self, connection: socket.socket, attempt: Attempt, wait: float) -> Reply:
        until = monotonic() + wait + bounds.GRACE
        try:
            connection.settimeout(bounds.GRACE)
            connection.sendall(attempt.first)
            if attempt.asks_first:
                self._await_continue(connection, attempt)
            if attempt.reply is None:
                connection.sendall(attempt.rest())
                attempt.is_sent = True
            while attempt.reply is None:
                self._receive(connection, attempt, until)
        except (OSError, WireError) as error:
            meaning = attempt.failed(error)
            if meaning is error:
                raise
            raise meaning from error
        return attempt.reply

    def _await_continue(self, connection: socket.socket, attempt: Attempt) -> None:
        """Until the body may be sent; a response that needs no body is one already."""
        until = monotonic() + bounds.CONTINUE_WITHIN
        try:
            while attempt.reply is None and not attempt.is_awaited:
                self._receive(connection, attempt, until)
        except socket.timeout:
            pass
        connection.settimeout(bounds.GRACE)

    @staticmethod
    def _receive(connection: socket.socket, attempt: Attempt, until: float) -> None:
        connection.settimeout(max(until - monotonic(), 0.001))
        attempt.feed(connection.recv(bounds.READ_SIZE))

    def _take_back(self, connection: socket.socket, attempt: Attempt) -> None:
        """Gives back what arrives although nobody waits for it. The server reads the end of our
        side, which ends its wait; a grant that it had sent before that is still read here."""
        if not attempt.can_undo:
            return
        until = monotonic() + bounds.TAKE_BACK_WITHIN
        try:
            socket.socket.shutdown(connection, socket.SHUT_WR)  # below TLS, which goes on reading
            while attempt.reply is None:
                self._receive(connection, attempt, until)
            undo = attempt.undo()
            if undo is not None:
                self._send(undo, monotonic())
        except (OSError, WireError, TollgateError):
            pass  # the daemon is gone, or had nothing to give

    def _push(self, connection: socket.socket) -> None:
        with self._lock:
            if len(self._idle) < bounds.IDLE_MAX:
                self._idle.append(connection)
                return
        connection.close()
