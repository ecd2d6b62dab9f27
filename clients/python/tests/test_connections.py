"""Connections under pressure: a bound, a queue for it, and nothing counted twice."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import threading
import time
from typing import Callable, Iterator, List

import pytest

import tollgate
from tollgate import _attempt as bounds
from tollgate._async_connections import _Places
from tollgate._wire import Request

PATIENCE = 30
GRANTED = b'{"granted": true, "waited": 0}'
FULL = b'{"error": "QueueFull", "message": "too many wait", "hint": "try again"}'


class Fake:
    """A server whose connections are served by ``handle``; it counts them and the bodies."""

    def __init__(self, handle: Callable[["Fake", socket.socket, int], None]):
        self.handle = handle
        self.accepted = self.open = self.most = 0
        self.bodies: List[bytes] = []
        self.paths: List[str] = []
        self.lock = threading.Lock()
        self.server = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self.url = f"127.0.0.1:{self.server.getsockname()[1]}"
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self.server.accept()
                with self.lock:
                    self.accepted += 1
                    self.open += 1
                    self.most = max(self.most, self.open)
                    number = self.accepted
                threading.Thread(target=self.serve, args=(connection, number), daemon=True).start()

    def serve(self, connection: socket.socket, number: int) -> None:
        connection.settimeout(PATIENCE)
        try:
            with contextlib.suppress(OSError, EOFError):
                self.handle(self, connection, number)
        finally:
            with self.lock:
                self.open -= 1
            connection.close()

    def body_of(self, connection: socket.socket) -> bytes:
        """Reads a whole request, and asks for its body as HTTP does."""
        data = b""
        while b"\r\n\r\n" not in data:
            data += _some(connection)
        head, _, body = data.partition(b"\r\n\r\n")
        if b"100-continue" in head:
            connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        length = 0
        for line in head.split(b"\r\n"):
            name, _, value = line.partition(b":")
            length = int(value) if name.lower() == b"content-length" else length
        while len(body) < length:
            body += _some(connection)
        with self.lock:
            self.bodies.append(body)
            self.paths.append(head.split(b" ")[1].decode())
        return body


def _some(connection: socket.socket) -> bytes:
    data = connection.recv(65536)
    if not data:
        raise EOFError
    return data


def respond(connection: socket.socket, body: bytes, status: bytes = b"200 OK") -> None:
    head = b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n" % (status, len(body))
    connection.sendall(head + body)


def answer(fake: Fake, connection: socket.socket, number: int) -> None:
    while True:
        fake.body_of(connection)
        respond(connection, GRANTED)


def closes_first(count: int) -> Callable[[Fake, socket.socket, int], None]:
    """As a server whose places are taken: the first connections are closed without a word."""

    def handle(fake: Fake, connection: socket.socket, number: int) -> None:
        if number > count:
            answer(fake, connection, number)

    return handle


def full(fake: Fake, connection: socket.socket, number: int) -> None:
    fake.body_of(connection)
    respond(connection, FULL, b"503 Service Unavailable")


class GrantsLate:
    """Grants only once the caller has left: the grant and the end of the request pass each other."""

    def __init__(self, reply: bytes = b'{"granted": true, "permit": "p1"}') -> None:
        self.reply = reply
        self.leave: Callable[[], None] = lambda: None

    def __call__(self, fake: Fake, connection: socket.socket, number: int) -> None:
        fake.body_of(connection)
        if fake.paths[-1].endswith("/v1/release"):
            respond(connection, b"{}")
            return
        self.leave()
        with contextlib.suppress(EOFError):
            while True:
                _some(connection)
        respond(connection, self.reply)


def dies(fake: Fake, connection: socket.socket, number: int) -> None:
    """Ends after the second request of a connection has arrived."""
    fake.body_of(connection)
    respond(connection, GRANTED)
    fake.body_of(connection)


@pytest.fixture
def fake() -> Iterator[Callable[..., Fake]]:
    made: List[Fake] = []

    def make(handle: Callable[[Fake, socket.socket, int], None]) -> Fake:
        made.append(Fake(handle))
        return made[-1]

    yield make
    for one in made:
        with contextlib.suppress(OSError):
            one.server.shutdown(socket.SHUT_RDWR)
        one.server.close()


def acquire(kind: str, url: str, times: int = 1, **options) -> list:
    """So many acquires at once, blocking or with asyncio; results or errors."""
    if kind == "async":

        async def main() -> list:
            async with tollgate.AsyncClient(url) as client:
                asked = (client.acquire("a", guard="g", **options) for _ in range(times))
                return await asyncio.gather(*asked, return_exceptions=True)

        return asyncio.run(asyncio.wait_for(main(), 2 * PATIENCE))
    client, results = tollgate.Client(url), []

    def one() -> None:
        try:
            results.append(client.acquire("a", guard="g", **options))
        except tollgate.TollgateError as error:
            results.append(error)

    threads = [threading.Thread(target=one, daemon=True) for _ in range(times)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    client.close()
    return results


KINDS = pytest.mark.parametrize("kind", ["blocking", "async"])


@KINDS
def test_many_requests_queue_for_few_connections(kind, fake):
    server = fake(answer)
    results = acquire(kind, server.url, 200, wait=False)
    assert len(results) == 200 and not [r for r in results if isinstance(r, Exception)]
    assert server.most <= bounds.PROMPT_MAX and len(server.bodies) == 200


@KINDS
def test_waiting_requests_leave_connections_for_the_others(kind, fake, monkeypatch):
    monkeypatch.setattr(bounds, "WAITING_MAX", 4)
    server = fake(answer)
    results = acquire(kind, server.url, 50, wait=True, timeout=PATIENCE)
    assert len(results) == 50 and not [r for r in results if isinstance(r, Exception)]
    assert server.most <= 4


@KINDS
def test_a_connection_that_is_closed_at_once_is_tried_again_and_counted_once(kind, fake):
    server = fake(closes_first(3))
    (granted,) = acquire(kind, server.url, wait=False)
    assert not isinstance(granted, Exception), granted
    assert server.accepted == 4 and len(server.bodies) == 1


@KINDS
def test_a_server_that_closes_everything_is_busy_and_not_away(kind, fake, monkeypatch):
    monkeypatch.setattr(bounds, "PAUSES", (0.0, 0.0))
    (busy,) = acquire(kind, fake(closes_first(1_000)).url, wait=False)
    assert isinstance(busy, tollgate.QueueFull) and busy.retry_in == 1.0
    assert not isinstance(busy, tollgate.TollgateUnavailable)


@KINDS
def test_queue_full_is_an_error_of_its_own(kind, fake):
    (busy,) = acquire(kind, fake(full).url, wait=False)
    assert type(busy) is tollgate.QueueFull and busy.code == "QueueFull"


class Interrupted(Exception):
    """As Celery's time limit: raised by a signal handler, wherever the program is."""


def left_by_a_task(url: str, server: GrantsLate, **target) -> None:
    """A task that is cancelled while it waits for its permit."""

    async def main() -> None:
        async with tollgate.AsyncClient(url) as client:
            loop = asyncio.get_running_loop()
            task = asyncio.ensure_future(client.acquire(timeout=PATIENCE, **target))
            server.leave = lambda: loop.call_soon_threadsafe(task.cancel)
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(asyncio.wait_for(main(), PATIENCE))


def left_by_a_signal(url: str, server: GrantsLate, **target) -> None:
    def interrupt(*_: object) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGUSR1, interrupt)
    server.leave = lambda: signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)
    try:
        with tollgate.Client(url) as client, pytest.raises(Interrupted):
            client.acquire(timeout=PATIENCE, **target)
    finally:
        signal.signal(signal.SIGUSR1, before)


LEFT = pytest.mark.parametrize("leave", [left_by_a_task, left_by_a_signal])


@LEFT
@pytest.mark.parametrize("prefix", ["", "/-"])
def test_a_grant_that_nobody_receives_is_given_back(leave, prefix, fake):
    """The permit was lost: it counted as sent, and held its slot until it expired."""
    grants = GrantsLate()
    server = fake(grants)
    leave(server.url + prefix, grants, provider="x")
    assert server.paths == [prefix + "/v1/acquire", prefix + "/v1/release"]
    assert server.bodies[1] == b'{"permit":"p1"}'


@LEFT
@pytest.mark.parametrize("reply", [b"nonsense", b'{"granted": false}', b"[]", b'{"permit": 5}'])
def test_a_reply_that_is_no_grant_is_not_given_back(leave, reply, fake):
    grants = GrantsLate(reply)
    server = fake(grants)
    leave(server.url, grants, provider="x")
    assert server.paths == ["/v1/acquire"]


@LEFT
def test_a_server_that_keeps_silent_delays_an_interruption_by_a_bound(leave, fake, monkeypatch):
    monkeypatch.setattr(bounds, "TAKE_BACK_WITHIN", 0.2)
    is_over = threading.Event()
    grants = GrantsLate()

    def silent(fake: Fake, connection: socket.socket, number: int) -> None:
        fake.body_of(connection)
        grants.leave()
        is_over.wait(PATIENCE)

    began = time.monotonic()
    try:
        leave(fake(silent).url, grants, provider="x")
    finally:
        is_over.set()
    assert time.monotonic() - began < PATIENCE / 2


def test_a_second_cancellation_does_not_stop_the_first_ones_work(fake):
    grants = GrantsLate()
    server = fake(grants)

    async def main() -> None:
        async with tollgate.AsyncClient(server.url) as client:
            loop = asyncio.get_running_loop()
            task = asyncio.ensure_future(client.acquire("x", timeout=PATIENCE))

            def twice() -> None:
                task.cancel()
                loop.call_soon(task.cancel)

            grants.leave = lambda: loop.call_soon_threadsafe(twice)
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(asyncio.wait_for(main(), PATIENCE))
    assert server.paths == ["/v1/acquire", "/v1/release"]


def test_an_acquire_whose_reply_is_lost_is_not_sent_again(fake):
    server = fake(dies)
    with tollgate.Client(server.url) as client:
        client.acquire("a", guard="g", wait=False)
        with pytest.raises(tollgate.ReplyLost):
            client.acquire("a", guard="g", wait=False)
    assert len(server.bodies) == 2

    async def main() -> None:
        async with tollgate.AsyncClient(server.url) as client:
            await client.acquire("a", guard="g", wait=False)
            with pytest.raises(tollgate.ReplyLost):
                await client.acquire("a", guard="g", wait=False)

    asyncio.run(asyncio.wait_for(main(), PATIENCE))
    assert len(server.bodies) == 4


def test_a_report_is_sent_again(fake):
    """The first one counts, so a second one does no harm."""
    server = fake(dies)
    with tollgate.Client(server.url) as client:
        client.release("p1")
        client.release("p2")
    assert len(server.bodies) == 3


def test_time_in_the_queue_is_part_of_the_timeout():
    request = Request("POST", "/v1/acquire", {"timeout": 5.0}, wait=5.0)
    later = request.later(2.0)
    assert later.wait == 3.0 and later.body == {"timeout": 3.0}
    assert request.later(9.0).wait == 0.001


def test_a_cancelled_request_leaves_its_place_in_the_queue():
    async def main() -> None:
        places = _Places(1)
        assert await places.take(PATIENCE)
        assert not await places.take(0.0)
        first = asyncio.ensure_future(places.take(PATIENCE))
        second = asyncio.ensure_future(places.take(PATIENCE))
        await asyncio.sleep(0)
        places.give()
        first.cancel()  # the place was given to it, and goes on
        assert await asyncio.wait_for(second, PATIENCE)
        places.give()
        assert places._free == 1

    asyncio.run(main())


async def _app(scope, receive, send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b""})


def statuses(url: str, times: int) -> List[int]:
    """So many requests at once through the middleware in its default mode, which is open."""

    async def main() -> List[int]:
        async with tollgate.AsyncClient(url) as client:
            middleware = tollgate.RateLimitMiddleware(_app, client)
            seen: List[int] = []

            async def send(message) -> None:
                if message["type"] == "http.response.start":
                    seen.append(message["status"])

            async def one() -> None:
                scope = {"type": "http", "path": "/x", "headers": [], "client": ("10.0.0.1", 1)}
                await middleware(scope, None, send)

            await asyncio.gather(*(one() for _ in range(times)))
            return seen

    return asyncio.run(asyncio.wait_for(main(), 2 * PATIENCE))


@pytest.mark.parametrize("handle", [full, closes_first(100_000)])
def test_a_busy_daemon_never_opens_the_middleware(handle, fake, monkeypatch, caplog):
    monkeypatch.setattr(bounds, "PAUSES", (0.0, 0.0))
    began = time.monotonic()
    assert statuses(fake(handle).url, 100) == [503] * 100
    lines = [record for record in caplog.records if record.name == "tollgate"]
    assert 1 <= len(lines) <= 1 + time.monotonic() - began


def test_a_flood_is_limited_as_a_few_requests_are(daemon):
    began = time.monotonic()
    seen = statuses(daemon.admin, 600)
    refilled = (time.monotonic() - began) / 6  # 10 a minute
    assert len(seen) == 600 and 5 <= seen.count(200) <= 6 + refilled
    assert set(seen) == {200, 429}
