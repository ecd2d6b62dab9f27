"""Connections under pressure: a bound, a queue for it, and nothing counted twice; and what is read
from them."""

from __future__ import annotations

import asyncio
import linecache
import pickle
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import tollgate
from tollgate import _attempt as bounds
from tollgate import _replies as replies
from tollgate._async_connections import _Slots
from tollgate._wire import Reply, ReplyParser, Request
from fake_server import Fake, GrantsLate, answer, closes_first, closes_idle, dies, full, respond, silent

PATIENCE = 30


def acquire(kind: str, url: str, times: int = 1, **options) -> list:
    """So many acquires at once, blocking or with asyncio; results or errors."""
    if "provider" not in options:
        options = {"identifier": "a", "guard": "g", **options}
    if kind == "async":

        async def main() -> list:
            async with tollgate.AsyncClient(url) as client:
                asked = (client.acquire(**options) for _ in range(times))
                return await asyncio.gather(*asked, return_exceptions=True)

        return asyncio.run(asyncio.wait_for(main(), 2 * PATIENCE))
    client, results = tollgate.Client(url), []

    def one() -> None:
        try:
            results.append(client.acquire(**options))
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

    def keeps_silent(fake: Fake, connection: socket.socket, number: int) -> None:
        fake.body_of(connection)
        grants.leave()
        is_over.wait(PATIENCE)

    began = time.monotonic()
    try:
        leave(fake(keeps_silent).url, grants, provider="x")
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
        slots = _Slots(1)
        assert await slots.take(PATIENCE)
        assert not await slots.take(0.0)
        first = asyncio.ensure_future(slots.take(PATIENCE))
        second = asyncio.ensure_future(slots.take(PATIENCE))
        await asyncio.sleep(0)
        slots.give()
        first.cancel()  # the place was given to it, and goes on
        assert await asyncio.wait_for(second, PATIENCE)
        slots.give()
        assert slots._free == 1

    asyncio.run(main())


def granting(fake: Fake, connection: socket.socket, number: int) -> None:
    while True:
        fake.body_of(connection)
        respond(connection, b'{"granted": true, "permit": "p1"}')


class InterruptsAfterTheResponse:
    """Raises at the line ``number`` of this library that runs once the response has been read."""

    def __init__(self, number: int) -> None:
        self.remaining = number
        self.has_arrived = False

    def __call__(self, frame, event: str, argument: object):
        if "/tollgate/" not in frame.f_code.co_filename:
            return None
        if event == "return" and frame.f_code.co_name == "feed":
            self.has_arrived |= getattr(frame.f_locals["self"], "reply", None) is not None
        # Python runs no signal handler between a block and the release of its lock; a trace does.
        line = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
        if event == "line" and self.has_arrived and not line.startswith("with "):
            self.remaining -= 1
            if self.remaining == 0:
                raise Interrupted
        return self


def test_an_interruption_after_the_response_loses_no_permit(fake):
    """As Ctrl-C, wherever the program is until `acquire` returns: nobody gave the permit back."""
    server = fake(granting)
    number = 0
    is_interrupted = True
    while is_interrupted:
        number += 1
        server.paths.clear()
        with tollgate.Client(server.url) as client:
            sys.settrace(InterruptsAfterTheResponse(number))
            try:
                client.acquire("x")
                is_interrupted = False
            except Interrupted:
                pass
            finally:
                sys.settrace(None)
        assert ("/v1/release" in server.paths) == is_interrupted, number
    assert number > 20, "lines between the response and the return of `acquire`"


@KINDS
def test_a_grant_that_comes_too_late_is_given_back(kind, fake, monkeypatch):
    """It was `TollgateUnavailable`, as if nothing had been counted, and the permit held its slot."""
    monkeypatch.setattr(bounds, "GRACE", 0.2)
    server = fake(GrantsLate())
    (lost,) = acquire(kind, server.url, wait=False, provider="x")
    assert type(lost) is tollgate.ReplyLost and lost.is_timeout, lost
    assert "in time" in str(lost) and pickle.loads(pickle.dumps(lost)).is_timeout
    assert server.paths == ["/v1/acquire", "/v1/release"]
    assert server.bodies[1] == b'{"permit":"p1"}'


@KINDS
@pytest.mark.parametrize("target", [{"provider": "x"}, {"identifier": "a", "guard": "g"}])
def test_a_silent_server_may_have_counted(kind, target, fake, monkeypatch):
    monkeypatch.setattr(bounds, "CONTINUE_WITHIN", 0.05)
    monkeypatch.setattr(bounds, "GRACE", 0.2)
    monkeypatch.setattr(bounds, "TAKE_BACK_WITHIN", 0.2)
    began = time.monotonic()
    (lost,) = acquire(kind, fake(silent).url, wait=False, **target)
    assert type(lost) is tollgate.ReplyLost and lost.is_timeout, lost
    assert time.monotonic() - began < PATIENCE / 2


@KINDS
def test_a_request_that_counts_nothing_and_gets_no_response_is_unavailable(kind, fake, monkeypatch):
    monkeypatch.setattr(bounds, "GRACE", 0.2)
    url = fake(silent).url

    async def main() -> None:
        async with tollgate.AsyncClient(url) as client:
            await client.release("p1")

    with pytest.raises(tollgate.TollgateUnavailable) as away:
        tollgate.Client(url).release("p1") if kind == "blocking" else asyncio.run(main())
    assert type(away.value) is tollgate.TollgateUnavailable and "in time" in str(away.value)
    assert away.value.__cause__ is not away.value


@pytest.mark.parametrize("parts", [b"HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\n{"])
def test_no_error_is_its_own_cause(parts, fake):
    """Printing the chain of such an error has no end."""

    def breaks_off(fake: Fake, connection: socket.socket, number: int) -> None:
        fake.body_of(connection)
        connection.sendall(parts)

    with pytest.raises(tollgate.TollgateUnavailable) as away:
        tollgate.Client(fake(breaks_off).url).release("p1")
    error = away.value
    chain = []
    while error is not None and len(chain) < 10:
        chain.append(error)
        error = error.__cause__
    assert len(set(map(id, chain))) == len(chain) == 2


@pytest.mark.parametrize(
    "response",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi",
        b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\n{",
        b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n-a\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-6\r\n",  # had no end
        b"HTTP/1.1 \xb2\xb2\xb2 OK\r\n\r\n",
        b"HTTP/1.1 " + b"2" * 5000 + b" OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: \xb2\r\n\r\nhi",
        b"HTTP/1.1 200 OK\r\nContent-Length: " + b"0" * 5000 + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n" + b"[" * 100_000,
    ],
)
def test_something_else_on_the_address_is_a_typed_error(response):
    with socket.create_server(("127.0.0.1", 0)) as server:
        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(response)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        with pytest.raises(tollgate.TollgateUnavailable):
            tollgate.Client(f"127.0.0.1:{server.getsockname()[1]}").acquire("x", wait=False)
        thread.join(PATIENCE)


def test_a_response_in_chunks_and_pieces_is_read():
    data = (
        b"HTTP/1.1 103 Early\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
        b'3;x=1\r\n{"a\r\n4\r\n": 1\r\n1\r\n}\r\n0\r\n\r\n'
    )
    for size in (1, 2, 7, len(data)):
        parser, reply = ReplyParser(), None
        for at in range(0, len(data), size):
            assert reply is None
            reply = parser.feed(data[at : at + size])
        assert reply.status == 200 and reply.json() == {"a": 1} and reply.keep_alive


def test_connections_are_kept_and_replaced(make_daemon, provider):
    """A connection that the daemon closed while it was idle costs no error."""
    daemon = make_daemon(f"name: x\nupstream: {provider.url}\nlimits: [5/1h]\n")
    client = daemon.client()
    client.acquire("x")
    assert len(client._pool._idle) == 1
    kept = client._pool._idle[0]
    client.acquire("x")
    assert client._pool._idle == [kept]
    kept.shutdown(socket.SHUT_RDWR)
    client.acquire("x")
    assert len(client._pool._idle) == 1 and client._pool._idle != [kept]
    client.close()
    assert client._pool._idle == []


def test_members_of_another_type_are_left_out():
    """Something else on the address may send anything; the error is typed, or the member absent."""
    address = tollgate.Client("127.0.0.1:1").address
    body = b'{"granted": true, "permit": 5, "waited": "long", "remaining": [], "limit": 7, "decision": {}}'
    grant = replies.grant_of(Reply(200, {}, body, True), address, {"provider": "x"})
    assert (grant.permit, grant.waited, grant.remaining, grant.limit) == (None, 0.0, None, None)
    assert grant.decision == "allow" and grant.provider == "x"
    denied = body.replace(b'"waited"', b'"retry_in"').replace(b"true", b"false")
    with pytest.raises(tollgate.RateLimitExceeded) as error:
        replies.grant_of(Reply(429, {}, denied, True), address, {})
    assert error.value.retry_in is None and error.value.limit is None


@pytest.mark.parametrize(
    ("status", "kind"),
    [(429, tollgate.RateLimitExceeded), (503, tollgate.TollgateUnavailable), (404, tollgate.NotFound), (403, tollgate.NotAllowed)],
)
def test_every_error_has_limit_reason_and_time(status, kind):
    address = tollgate.Client("127.0.0.1:1").address
    code = {404: b"UnknownProvider"}.get(status, b"StoreLost")
    body = b'{"granted": false, "error": "%s", "reason": "store_lost", "limit": {"name": "5/1s"}}' % code
    with pytest.raises(kind) as error:
        replies.checked(Reply(status, {}, body, True), address)
    wrong = pickle.loads(pickle.dumps(error.value))
    assert (wrong.reason, str(wrong.limit), wrong.retry_in) == ("store_lost", "5/1s", None)
    assert tollgate.BadRequest("x").limit is None and tollgate.BadRequest("x").reason is None


@pytest.fixture
def tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ssl.SSLContext:
    """A server's certificate that the clients of this test trust."""
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    subject = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *subject]
        + ["-keyout", str(key), "-out", str(certificate)],
        check=True,
        capture_output=True,
    )
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    return context


@KINDS
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_connection_over_tls_that_was_closed_while_idle_is_replaced(kind, version, tls, fake):
    """The blocking client took the `close_notify` that waited there for a sign of life, and each
    first request after an idle time was `ReplyLost`."""
    tls.maximum_version = version
    server = fake(closes_idle, tls=tls)
    url = f"https://{server.url}"
    results = [acquire_twice(kind, url, server) for _ in range(2)]
    assert results == [None, None] and server.accepted == len(server.bodies) == 4


def acquire_twice(kind: str, url: str, server: Fake) -> None:
    """The second time over what the first has left, once the server has closed it."""
    if kind == "blocking":
        with tollgate.Client(url) as client:
            client.acquire("a", guard="g", wait=False)
            while server.open:
                time.sleep(0.01)
            client.acquire("a", guard="g", wait=False)
        return

    async def main() -> None:
        async with tollgate.AsyncClient(url) as client:
            await client.acquire("a", guard="g", wait=False)
            while server.open or not client._pool._state().idle[0][0].at_eof():
                await asyncio.sleep(0.01)
            await client.acquire("a", guard="g", wait=False)

    asyncio.run(asyncio.wait_for(main(), PATIENCE))


@KINDS
def test_a_connection_over_tls_is_kept(kind, tls, fake):
    """The session tickets of TLS 1.3 wait there too, and end nothing."""
    server = fake(answer, tls=tls)
    url = f"https://{server.url}"
    if kind == "blocking":
        with tollgate.Client(url) as client:
            for _ in range(3):
                client.acquire("a", guard="g", wait=False)
    else:

        async def main() -> None:
            async with tollgate.AsyncClient(url) as client:
                for _ in range(3):
                    await client.acquire("a", guard="g", wait=False)

        asyncio.run(asyncio.wait_for(main(), PATIENCE))
    assert server.accepted == 1 and len(server.bodies) == 3
