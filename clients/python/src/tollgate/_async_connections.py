"""Keep-alive connections to one daemon, for asyncio; as ``_connections``.

Promises: each event loop has connections and slots of its own, so that several threads with a loop
each can share a client; a cancelled request ends in the server too, and a permit that arrives
although its task is cancelled, or too late for it, is given back.
Never: touches a connection of another loop, or of the process that forked this one.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import weakref
from collections import deque
from time import monotonic
from typing import Any, Coroutine, Deque, Dict, Iterator, List, Optional, Set, Tuple, TypeVar

from . import _attempt as bounds
from . import _forks
from ._address import Address
from ._attempt import Attempt, Unanswered, busy, not_connected, unavailable
from ._wire import Reply, Request, WireError
from .errors import ReplyLost, TollgateError

#: For work under way when a client is closed, and for its connections to close.
CLOSE_WITHIN = 2.0

Result = TypeVar("Result")
_Streams = Tuple[asyncio.StreamReader, asyncio.StreamWriter]


class _Slots:
    """So many at a time; the others queue, first come, first served. For one event loop."""

    def __init__(self, count: int):
        self._free = count
        self._queue: Deque["asyncio.Future[bool]"] = deque()

    async def take(self, patience: float) -> bool:
        """Whether there was a slot in time."""
        if self._free > 0:
            self._free -= 1
            return True
        loop = asyncio.get_running_loop()
        slot: "asyncio.Future[bool]" = loop.create_future()
        self._queue.append(slot)
        timer = loop.call_later(patience, self._give_up, slot)
        try:
            return await slot
        except asyncio.CancelledError:
            if slot.done() and not slot.cancelled() and slot.result():
                self.give()
            else:
                with contextlib.suppress(ValueError):  # given up before
                    self._queue.remove(slot)
            raise
        finally:
            timer.cancel()

    def _give_up(self, slot: "asyncio.Future[bool]") -> None:
        if not slot.done():
            self._queue.remove(slot)
            slot.set_result(False)

    def give(self) -> None:
        while self._queue:
            slot = self._queue.popleft()
            if not slot.done():
                slot.set_result(True)
                return
        self._free += 1


class _LoopState:
    """What belongs to one event loop."""

    def __init__(self) -> None:
        self.idle: List[_Streams] = []
        self.prompt = _Slots(bounds.PROMPT_MAX)
        self.waiting = _Slots(bounds.WAITING_MAX)
        #: tasks that go on if their caller is cancelled
        self.shielded: Set["asyncio.Task[Any]"] = set()
        #: also those that serve a request now
        self.writers: "weakref.WeakSet[asyncio.StreamWriter]" = weakref.WeakSet()


class AsyncPool:
    """Connections for asyncio, for any number of event loops."""

    def __init__(self, address: Address, connect_timeout: float):
        self.address = address
        self._connect_timeout = connect_timeout
        self._lock = threading.Lock()
        self._states: Dict[asyncio.AbstractEventLoop, _LoopState] = {}
        #: of the parent's loops, in a forked process: never used, and never finalized
        self._inherited: List[_LoopState] = []
        _forks.register(self)

    def after_fork(self) -> None:
        """Leaves every connection to the parent."""
        self._lock = threading.Lock()
        inherited = list(self._states.values())
        self._states = {}
        self._inherited += inherited
        for state in inherited:
            for writer in list(state.writers):
                transport_socket = writer.get_extra_info("socket")
                if transport_socket is not None:
                    _forks.cut(transport_socket.fileno())

    def _state(self) -> _LoopState:
        loop = asyncio.get_running_loop()
        state = self._states.get(loop)
        if state is None:
            with self._lock:
                # A state holds its loop by its connections: those of loops that are over go here.
                self._states = {of: kept for of, kept in self._states.items() if not of.is_closed()}
                state = self._states[loop] = _LoopState()
        return state

    async def close(self) -> None:
        """Waits for shielded work under way, and closes the idle connections of this loop."""
        state = self._state()
        if state.shielded:
            await asyncio.wait(list(state.shielded), timeout=CLOSE_WITHIN)
        idle, state.idle = state.idle, []
        for _, writer in idle:
            writer.close()
        if idle:  # together: one bound for all of them
            closing = [asyncio.ensure_future(writer.wait_closed()) for _, writer in idle]
            await asyncio.wait(closing, timeout=CLOSE_WITHIN)
            for one in closing:
                one.cancel()
            await asyncio.gather(*closing, return_exceptions=True)

    async def shielded(self, work: "Coroutine[Any, Any, Result]") -> Result:
        """Carries ``work`` out to its end, also if the caller is cancelled meanwhile."""
        tasks = self._state().shielded
        task = asyncio.ensure_future(work)
        tasks.add(task)

        def done(task: "asyncio.Task[Result]") -> None:
            tasks.discard(task)
            if not task.cancelled():
                task.exception()  # retrieved: asyncio would print it otherwise

        task.add_done_callback(done)
        return await asyncio.shield(task)

    async def send(self, request: Request) -> Reply:
        """One exchange, once there is a connection for it."""
        started = monotonic()
        state = self._state()
        slots = state.waiting if request.wait else state.prompt
        if not await slots.take(request.wait or bounds.GRACE):
            raise busy(self.address)
        try:
            return await self._send(state, request, started)
        except (OSError, WireError, asyncio.TimeoutError) as error:
            raise unavailable(self.address, error) from error
        finally:
            slots.give()

    async def _send(self, state: _LoopState, request: Request, started: float) -> Reply:
        pauses: Iterator[float] = iter(bounds.PAUSES)
        while True:
            try:
                return await self._exchange(state, request.later(monotonic() - started))
            except Unanswered as error:
                pause = next(pauses, None)
                if pause is None:
                    raise busy(self.address) from error
            await asyncio.sleep(pause)

    def _pop(self, state: _LoopState) -> Optional[_Streams]:
        """An idle connection that the server has not closed, as far as the loop has seen."""
        while state.idle:
            reader, writer = state.idle.pop()
            if not reader.at_eof() and reader.exception() is None and not writer.is_closing():
                return reader, writer
            writer.close()
        return None

    async def _connect(self, state: _LoopState) -> _Streams:
        opened = asyncio.open_connection(
            self.address.host, self.address.port, ssl=self.address.tls, limit=bounds.READ_SIZE
        )
        try:
            streams = await _within(opened, self._connect_timeout)
        except OSError as error:
            raise not_connected(error) from error
        state.writers.add(streams[1])
        return streams

    async def _exchange(self, state: _LoopState, request: Request) -> Reply:
        """Over an idle connection, or a new one."""
        streams = self._pop(state)
        is_new = streams is None
        if streams is None:
            streams = await self._connect(state)
        must_close = True
        try:
            attempt = Attempt(self.address, request, is_new=is_new)
            reply = await self._carry_out(streams, attempt, request.wait)
            if attempt.may_keep and len(state.idle) < bounds.IDLE_MAX:
                state.idle.append(streams)
                must_close = False
            return reply
        except (asyncio.CancelledError, ReplyLost):
            if attempt.can_undo and attempt.is_sent:
                # Before the cancellation goes on; a second one does not stop it.
                must_close = False
                await self.shielded(self._take_back(state, streams, attempt))
            raise
        finally:
            if must_close:
                streams[1].close()

    async def _carry_out(self, streams: _Streams, attempt: Attempt, wait: float) -> Reply:
        reader, writer = streams
        loop = asyncio.get_running_loop()

        def send_rest() -> None:
            if not attempt.is_sent:
                attempt.is_sent = True
                writer.write(attempt.rest())

        def give_up() -> None:
            attempt.is_late = True
            if attempt.is_sent and attempt.can_undo:
                # As on a cancellation: a grant that was sent before the server reads this still comes.
                _end_sending(writer)
                timers.append(loop.call_later(bounds.TAKE_BACK_WITHIN, writer.transport.abort))
            else:
                writer.transport.abort()

        # Timers, not `wait_for`: up to Python 3.11 that needs a task for each request, and loses a
        # cancellation that comes together with the response.
        until = loop.time() + wait + bounds.GRACE
        timers = [loop.call_at(until, give_up)]
        try:
            writer.write(attempt.first)
            if attempt.asks_first:
                timers.append(loop.call_later(bounds.CONTINUE_WITHIN, send_rest))
            else:
                attempt.is_sent = True
            while attempt.reply is None:
                attempt.feed(await reader.read(bounds.READ_SIZE))
                if attempt.is_awaited:
                    send_rest()
            if attempt.is_late and attempt.can_undo:
                raise asyncio.TimeoutError
        except (OSError, WireError, asyncio.TimeoutError) as error:
            meaning = attempt.failed(asyncio.TimeoutError() if attempt.is_late else error)
            if meaning is error:
                raise
            raise meaning from error
        finally:
            for timer in timers:
                timer.cancel()
        return attempt.reply

    async def _take_back(
        self, state: _LoopState, streams: _Streams, attempt: Attempt
    ) -> None:
        """As :meth:`Pool._take_back`."""
        reader, writer = streams
        timer = asyncio.get_running_loop().call_later(
            bounds.TAKE_BACK_WITHIN, writer.transport.abort
        )
        try:
            _end_sending(writer)
            while attempt.reply is None:
                attempt.feed(await reader.read(bounds.READ_SIZE))
            writer.close()
            undo = attempt.undo()
            if undo is not None:
                await self._send(state, undo, monotonic())
        except (OSError, WireError, TollgateError, asyncio.TimeoutError):
            pass  # the daemon is gone, or had nothing to give
        finally:
            timer.cancel()
            writer.close()


async def _within(
    opened: "Coroutine[Any, Any, _Streams]", seconds: float
) -> _Streams:
    """As ``wait_for``, which up to Python 3.11 loses a cancellation that comes with the result."""
    task = asyncio.ensure_future(opened)
    try:
        await asyncio.wait([task], timeout=seconds)
        if not task.done():
            raise asyncio.TimeoutError
        return task.result()
    except BaseException:
        task.add_done_callback(_close_unused)
        task.cancel()
        raise


def _close_unused(task: "asyncio.Task[_Streams]") -> None:
    if not task.cancelled() and task.exception() is None:
        task.result()[1].close()


def _end_sending(writer: asyncio.StreamWriter) -> None:
    """The server reads the end of our side; its side stays open."""
    if writer.is_closing():
        return
    if writer.can_write_eof():
        writer.write_eof()
        return
    # TLS cannot say it. The socket below can, if the loop shows it.
    try:
        writer.get_extra_info("socket").shutdown(socket.SHUT_WR)
    except (AttributeError, NotImplementedError, TypeError, OSError):
        pass  # the bound in time ends the wait
