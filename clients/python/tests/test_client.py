"""The blocking client: permits, guards, errors, threads, forks."""

from __future__ import annotations

import asyncio
import errno
import json
import multiprocessing
import os
import pickle
import socket
import ssl
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from email.message import Message
from http.client import IncompleteRead
from urllib.error import HTTPError, URLError

import httpx
import pytest
import redis
import requests
import urllib3

import tollgate
from tollgate._replies import Grant
from tollgate._wire import Request
from tollgate._faults import fault_of
from tollgate import BadRequest, NotAllowed, NotFound, NotServed, PermitError, RateLimitExceeded
from fake_server import answer

PATIENCE = 30


def test_a_permit_is_granted_reported_and_counted(client, used):
    with client.acquire("x") as permit:
        assert permit and permit.id and permit.decision == "allow" and permit.provider == "x"
        assert permit.remaining == 4 and str(permit.limit) == "5/1h" and permit.use_within > 0
        reported = permit.report(status=200, headers={"x-a": "1"})
    assert reported.first and permit.is_settled
    assert used(client, "x") == 1
    assert client.capacity("x").remaining == 4 and client.capacity("x")


def test_a_denial_carries_limit_reason_and_time(client, used):
    for _ in range(5):
        client.acquire("x", wait=False)
    with pytest.raises(RateLimitExceeded) as denied:
        client.acquire("x", wait=False)
    error = denied.value
    assert str(error.limit) == "5/1h" and error.limit.limit == 5 and error.reason == "limit"
    assert 3500 < error.retry_in < 3700 and error.provider == "x"
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error) and again.retry_in == error.retry_in
    assert not client.capacity("x")
    assert used(client, "x") == 5


def test_a_known_wait_beyond_the_timeout_is_denied_at_once(client):
    client.acquire("q", guard="slow")
    with pytest.raises(RateLimitExceeded) as denied:
        client.acquire("q", guard="slow", timeout=600)
    assert denied.value.waited < 60 and denied.value.guard == "slow"


def test_a_call_waits_for_its_token(client):
    first = client.acquire("w", guard="fast")
    second = client.acquire("w", guard="fast", timeout=PATIENCE)
    assert first.decision == "allow" and second.decision == "queue" and second.waited > 0


def test_a_released_permit_is_free_again(client, used):
    permit = client.acquire("x")
    permit.release()
    assert used(client, "x") == 0
    with pytest.raises(PermitError):
        permit.report(status=200)
    other = client.acquire("x")
    client.release(other.id)
    client.release(other.id)
    with pytest.raises(PermitError):
        client.report(other.id, status=200)
    assert used(client, "x") == 0


def test_exceptions_settle_the_permit(client, used):
    """A permit whose block fails is closed at once: it counts as sent and blocks nobody."""
    errors = [ConnectionRefusedError(), socket.gaierror(), ValueError(), TimeoutError()]
    for number, error in enumerate([*errors, KeyboardInterrupt()], 1):
        with pytest.raises(type(error)):
            with client.acquire("single", timeout=PATIENCE) as permit:
                raise error
        assert permit.is_settled
        assert used(client, "single") == number, error
        client.send(Request("POST", "/v1/providers/single/reset"))  # failures close the provider
    assert client.get_status("single")["permits"] == {"open": 0, "unreported": 0}


def wrapping(error: BaseException, cause: BaseException) -> BaseException:
    error.__cause__ = cause
    return error


def raised_429s():
    headers = Message()
    headers["Retry-After"] = "60"
    request = httpx.Request("GET", "http://127.0.0.1/")
    plain = requests.Response()
    plain.status_code, plain.headers = 429, requests.structures.CaseInsensitiveDict(headers.items())
    yield HTTPError("http://127.0.0.1/", 429, "Too Many Requests", headers, None)
    yield httpx.HTTPStatusError(
        "429", request=request, response=httpx.Response(429, headers={"Retry-After": "60"})
    )
    yield requests.HTTPError(response=plain)


@pytest.mark.parametrize("by", ["block", "report", "async report"])
@pytest.mark.parametrize("error", list(raised_429s()), ids=lambda error: type(error).__module__)
def test_a_429_that_is_raised_is_reported(client, daemon, error, by):
    """``urlopen`` raises it before ``permit.report(response)`` is reached; it was never learned from."""

    async def report() -> tollgate.Reported:
        async with daemon.async_client() as own:
            return await (await own.acquire("x")).report(error=error)

    if by == "block":
        with pytest.raises(type(error)):
            with client.acquire("x", timeout=PATIENCE):
                raise error
    else:
        reported = client.acquire("x").report(error=error) if by == "report" else asyncio.run(report())
        assert reported.cls == "limited" and 50 < reported.retry_in <= 61
    capacity = client.capacity("x")
    assert not capacity and capacity.reason == "cooldown", capacity
    client.send(Request("POST", "/v1/providers/x/reset"))


@pytest.mark.parametrize(
    "error, word",
    [
        (httpx.ConnectError("x"), "connect"),
        (httpx.ConnectTimeout("x"), "connect"),
        (httpx.ReadTimeout("x"), "timeout"),
        (httpx.ReadError("x"), "reset"),
        (httpx.RemoteProtocolError("x"), "reset"),
        (requests.ConnectTimeout(), "connect"),
        (requests.ReadTimeout(), "timeout"),
        (requests.ConnectionError(), "reset"),
        (requests.ConnectionError(urllib3.exceptions.ReadTimeoutError(None, "/", "x")), "timeout"),
        (requests.exceptions.ChunkedEncodingError(urllib3.exceptions.ProtocolError("x")), "reset"),
        (URLError(socket.gaierror()), "dns"),
        (URLError(ConnectionRefusedError()), "connect"),
        (URLError(socket.timeout()), "timeout"),
        (URLError(OSError(errno.EHOSTUNREACH, "No route to host")), "connect"),
        (URLError(OSError("odd")), "reset"),
        (URLError("unknown url type: x"), None),
        (ssl.SSLCertVerificationError(), "connect"),
        (IncompleteRead(b""), "reset"),
        (type("TimeoutError", (Exception,), {"__module__": "asyncio.exceptions"})(), "timeout"),
        (wrapping(RuntimeError("x"), requests.ConnectTimeout()), "connect"),
        (ConnectionResetError(), "reset"),
        (socket.gaierror(), "dns"),
        (socket.timeout(), "timeout"),
        (ValueError(), None),
        (FileNotFoundError(errno.ENOENT, "x"), None),
        (KeyboardInterrupt(), None),
        # not the provider's
        (wrapping(redis.ConnectionError("x"), ConnectionRefusedError()), None),
        (redis.TimeoutError("x"), None),
        (wrapping(RuntimeError("x"), tollgate.TollgateUnavailable("x")), None),
        (wrapping(tollgate.TollgateUnavailable("x"), ConnectionRefusedError()), None),
    ],
)
def test_errors_of_http_libraries_have_words(error, word):
    assert fault_of(error) == word


@pytest.mark.parametrize("call", [requests.get, urllib.request.urlopen])
@pytest.mark.parametrize("word", ["connect", "dns"])
def test_calls_that_cannot_be_made_have_words(call, word, monkeypatch):
    """Both libraries wrap what happened: it was reported as a call whose end nobody knows."""

    def unknown_host(*arguments: object, **options: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setenv("no_proxy", "*")
    if word == "dns":
        monkeypatch.setattr(socket, "getaddrinfo", unknown_host)
    with pytest.raises(OSError) as failed:
        call("http://127.0.0.1:1/" if word == "connect" else "http://shop.test/")
    assert fault_of(failed.value) == word


def test_a_report_of_an_error_beside_a_response_is_told():
    permit = tollgate.Permit(tollgate.Client("127.0.0.1:1"), Grant("p", 0, None, None, "allow", 30, "x", None))
    with pytest.raises(BadRequest):
        permit.report(httpx.Response(200), error=httpx.ConnectError("x"))


def test_a_report_has_the_latency_of_the_call(client, fake):
    client.acquire("wide").report(status=200, latency=0.25)
    assert client.report(client.acquire("wide").id, status=200, latency=1).first
    server = fake(answer)
    with tollgate.Client(server.url) as own:
        own.report("p1", status=200, latency=0.25)
    assert json.loads(server.bodies[0]) == {"permit": "p1", "status": 200, "latency": 0.25}
    for latency in (-1, float("nan"), "10s"):
        with pytest.raises(BadRequest) as wrong:
            client.report("p1", status=200, latency=latency)
        assert "`latency`" in str(wrong.value)


def test_a_permit_is_renewed_while_it_is_open(client, daemon):
    permit = client.acquire("wide")
    assert 25 < client.renew(permit.id) <= 30
    permit.renew()
    assert 25 < permit.use_within <= 30
    permit.report(status=200)
    with pytest.raises(PermitError):
        permit.renew()
    with pytest.raises(PermitError) as used:
        client.renew(permit.id)
    assert used.value.code == "AlreadyReported"
    with pytest.raises(NotFound) as unknown:
        client.renew("00")
    assert unknown.value.code == "UnknownPermit"
    with pytest.raises(PermitError):
        client.acquire("203.0.113.7", guard="ip").renew()

    async def main() -> None:
        async with daemon.async_client() as own:
            async with await own.acquire("wide") as permit:
                assert 25 < await own.renew(permit.id) <= 30
                await permit.renew()

    asyncio.run(main())


def test_a_429_that_is_reported_teaches_the_daemon(client):
    with client.acquire("wide") as permit:
        reported = permit.report(status=429, headers={"Retry-After": "30", "Set-Cookie": "a=b"})
    assert reported.cls == "limited" and 29 < reported.retry_in <= 31
    with pytest.raises(RateLimitExceeded) as denied:
        client.acquire("wide", wait=False)
    assert denied.value.reason == "cooldown"


def test_c1_c2_a_guard_has_the_documents_interface(client):
    limiter = client.limiter("ip")
    assert [limiter.acquire("203.0.113.7", wait=False) for _ in range(6)] == [True] * 5 + [False]
    status = limiter.get_status("203.0.113.7")
    assert set(status) == {"tokens_available", "tokens_per_minute", "burst_size", "last_refill"}
    assert status["tokens_per_minute"] == 10 and status["burst_size"] == 5
    assert limiter.acquire("203.0.113.8", tokens=5) and status["tokens_available"] < 1


def test_a_client_of_a_guard_takes_identifiers(daemon):
    with tollgate.Client(daemon.admin, guard="ip") as client:
        permit = client.acquire("203.0.113.7", 2, False, 1.0)
        assert permit.id is None and permit.is_settled
        assert 3 <= client.get_status("203.0.113.7")["tokens_available"] < 4
        assert client.acquire(provider="wide").id


def test_c11_several_guards_are_all_or_none(client):
    client.acquire("q", guard="slow")
    asks = [{"guard": "ip", "identifier": "1.2.3.4"}, {"guard": "slow", "identifier": "q"}]
    with pytest.raises(RateLimitExceeded) as denied:
        client.acquire_all(asks, wait=False)
    assert denied.value.guard == "slow"
    assert client.get_status("1.2.3.4", guard="ip")["tokens_available"] == 5
    client.acquire_all(asks[:1], wait=False)
    assert client.get_status("1.2.3.4", guard="ip")["tokens_available"] < 5


@pytest.mark.parametrize(
    "arguments, options",
    [
        ((), {}),
        (("",), {}),
        (("x", 0), {}),
        (("x", -1), {}),
        (("x", True), {}),
        (("x", 1.5), {}),
        (("x", {}), {}),
        (("x", {"tokens": 0}), {}),
        (("x",), {"timeout": -1}),
        (("x",), {"timeout": float("nan")}),
        (("x",), {"timeout": float("inf")}),
        (("x",), {"timeout": None}),
        (("x",), {"provider": "y"}),
        ((), {"provider": "x", "url": "http://h/"}),
        (("x",), {"priority": "urgent!"}),
        (("x",), {"wait": "no"}),
        (("x",), {"wait": 0}),
        (("x",), {"entity": ""}),
        (("x",), {"entity": object()}),
        (("x",), {"caller": 5}),
        (("\ud800",), {}),
        (("x",), {"timeout": True}),
    ],
)
def test_wrong_arguments_are_typed_errors_and_nothing_is_counted(client, used, arguments, options):
    with pytest.raises(BadRequest) as wrong:
        client.acquire(*arguments, **options)
    assert wrong.value.hint
    assert used(client, "x") == 0


def test_unknown_names_are_told(client):
    with pytest.raises(NotFound) as unknown:
        client.acquire("nobody")
    assert unknown.value.code == "UnknownProvider"
    with pytest.raises(NotFound) as unknown:
        client.acquire("a", guard="nobody")
    assert unknown.value.code == "UnknownGuard"
    with pytest.raises(NotFound):
        client.report("no-such-permit", status=200)
    with pytest.raises(BadRequest):
        client.report("p", status=99)


@pytest.mark.parametrize(
    "arguments, options",
    [
        (("",), {}),
        ((None,), {"status": 200}),
        ((5,), {"status": 200}),
        (("p",), {"status": "200"}),
        (("p",), {"status": True}),
        (("p",), {"status": 200, "headers": ["retry-after"]}),
        (("p",), {"status": 200, "body": {"a": 1}}),
        (("p",), {"error": 5}),
        (("p", object()), {}),
        (("p",), {"status": 200, "cost": {"tokens": object()}}),
    ],
)
def test_wrong_reports_are_typed_errors(arguments, options):
    """Nothing is sent: there is no daemon at this address."""
    client = tollgate.Client("127.0.0.1:1")
    with pytest.raises(BadRequest) as wrong:
        client.report(*arguments, **options)
    assert wrong.value.hint
    with pytest.raises(BadRequest):
        client.release(arguments[0] if not isinstance(arguments[0], str) else "")


@pytest.mark.parametrize("asks", [[], "ab", 5, None, iter([{"guard": "ip"}]), ["ip"]])
def test_wrong_asks_are_typed_errors(asks):
    with pytest.raises(BadRequest):
        tollgate.Client("127.0.0.1:1").acquire_all(asks)


def test_a_value_that_json_does_not_have_is_a_typed_error(client):
    with pytest.raises(BadRequest) as wrong:
        client.acquire_all([{"guard": "ip", "identifier": object()}])
    assert "object" in str(wrong.value)


def test_a_capacity_names_what_says_no(client):
    for _ in range(5):
        client.acquire("x", wait=False).report(status=200)
    capacity = client.capacity("x")
    assert not capacity and str(capacity.limit) == "5/1h" and capacity.reason == "limit"
    assert capacity.retry_in > 3000

def test_s11_metrics_and_alerts_of_the_daemon(client):
    with client.acquire("x") as permit:
        permit.report(status=200)
    own = client.metrics("x")["entities"]["x"]
    assert own["total_requests"] == 1 and own["capacity"] == 5 and own["tokens_remaining"] == 4
    assert set(client.metrics()["entities"]) >= {"x", "wide"}
    assert client.alerts() == []
    for arguments in ({"entity": "nobody"}, {"entity": "nobody", "provider": "x"}, {"provider": "nobody"}):
        with pytest.raises(NotFound) as unknown:
            client.metrics(**arguments)
        assert unknown.value.code == "UnknownEntity"
        assert "`nobody`" in unknown.value.message and "metrics()" in unknown.value.hint
    for wrong in (5, ""):
        with pytest.raises(BadRequest):
            client.metrics(wrong)


def test_s11_alerts_say_where_little_remains(make_daemon, provider):
    """With 4 of 10 remaining a warning, with 1 critical: the daemon's words, in both clients."""
    few = f"name: few\nupstream: {provider.url}\nlimits: [10/1h]\nalerts: {{ critical: 2, warning: 5 }}\n"
    daemon = make_daemon(few)

    async def of_async() -> list:
        async with daemon.async_client() as own:
            return list(await own.alerts())

    def call(client, times: int) -> list:
        for _ in range(times):
            client.acquire("few", wait=False).report(status=200)
        assert asyncio.run(of_async()) == client.alerts()
        return client.alerts()

    with daemon.client() as client:
        assert call(client, 5) == []
        (warning,) = call(client, 1)
        assert warning == {
            "entity": "few",
            "level": "warning",
            "message": "Warning: few has 4 requests remaining",
            "remaining": 4,
        }
        (critical,) = call(client, 3)
        assert (critical["level"], critical["remaining"]) == ("critical", 1)
        assert critical["message"] == "Critical: few has 1 requests remaining"


def test_s11_permits_of_one_entity_have_its_limit(make_daemon, provider):
    """One call an hour for each entity: a second one of the same is denied, and named."""
    shared = f"name: shared\nupstream: {provider.url}\nlimits: [{{ limit: 1, period: 1h, per: entity }}]\n"
    with make_daemon(shared).client() as client:
        for entity in ("a", "b"):
            client.acquire("shared", entity=entity, wait=False).report(status=200)
            assert not client.capacity("shared", entity=entity)
            with pytest.raises(RateLimitExceeded) as denied:
                client.acquire("shared", entity=entity, wait=False)
            assert str(denied.value.limit) == "1/1h" and denied.value.retry_in > 3000
        assert client.capacity("shared", entity="c")
        assert {"a", "b"} <= set(client.get_status("shared")["entities"])
        assert client.metrics("a")["entities"]["a"]["tokens_remaining"] == 0


def test_costs_have_every_unit_of_the_server(make_daemon, provider):
    """`capacity` refused units that `acquire` takes; a report could not say that a call cost nothing."""
    llm = f"name: llm\nupstream: {provider.url}\nlimits: [{{ limit: 1000, period: 1h, unit: tokens }}]\n"
    with make_daemon(llm).client() as client:
        assert client.capacity("llm", {"tokens": 1000})
        assert not client.capacity("llm", {"tokens": 1001})
        permit = client.acquire("llm", {"tokens": 900})
        assert not client.capacity("llm", {"tokens": 200})
        permit.report(status=200, cost={"tokens": 0})
        assert client.capacity("llm", {"tokens": 1000})
        with pytest.raises(BadRequest) as wrong:
            client.capacity("llm", {"miles": 1})
        assert wrong.value.hint


def test_a_caller_asks_on_the_gateway_with_its_token(daemon):
    with tollgate.Client(daemon.gateway + "/-", token="canary-app-token") as client:  # tidy:canary
        with client.acquire("wide") as permit:
            permit.report(status=200)
        assert client.capacity("wide")
        with pytest.raises(NotServed):
            client.get_status("wide")
    with tollgate.Client(daemon.gateway + "/-", token="canary-wrong-token") as client:  # tidy:canary
        with pytest.raises(NotAllowed) as wrong:
            client.acquire("wide")
    assert "canary-wrong" not in str(wrong.value) + repr(wrong.value) + repr(client)


def test_nothing_shows_the_token(daemon):
    secret = "canary-secret-token"  # tidy:canary
    client = tollgate.Client("http://127.0.0.1:1", token=secret)
    with pytest.raises(tollgate.TollgateUnavailable) as away:
        client.acquire("x")
    shown = [str(away.value), repr(away.value), repr(client), repr(client.address)]
    assert not any(secret in text for text in shown)
    with pytest.raises(BadRequest) as wrong:
        tollgate.Client("http://127.0.0.1:1", token=secret + "\r\nX-Evil: 1")
    assert secret not in str(wrong.value)


@pytest.mark.parametrize("token", [5, b"secret", "a\nb"])
def test_wrong_tokens_are_told(token):
    with pytest.raises(BadRequest) as wrong:
        tollgate.Client("127.0.0.1:1", token=token)
    assert wrong.value.hint and "secret" not in str(wrong.value)


@pytest.mark.parametrize(
    "url", [5, "ftp://h", "http://", "http://h:99999", "http://h/v1", "http://a:b@h", "http://h?x=1"]
)
def test_wrong_addresses_are_told(url):
    with pytest.raises(BadRequest) as wrong:
        tollgate.Client(url)
    assert "4291" in str(wrong.value)


def test_a_daemon_that_is_away_is_a_typed_error():
    with pytest.raises(tollgate.TollgateUnavailable) as away:
        tollgate.Client("127.0.0.1:1").acquire("x")
    assert "127.0.0.1:1" in str(away.value) and "tollgate serve" in str(away.value)


def test_threads_share_one_client(client, used):
    """Sixteen threads ask for more than there is: exactly the limit is granted."""
    def one(_: int) -> bool:
        try:
            with client.acquire("x", timeout=5) as permit:
                permit.report(status=200)
            return True
        except RateLimitExceeded:
            return False

    with ThreadPoolExecutor(16) as pool:
        granted = list(pool.map(one, range(100)))
    assert sum(granted) == 5 and used(client, "x") == 5


def _in_child(client, permit, results) -> None:
    assert client._pool._idle == []
    own = client.acquire("wide")
    own.report(status=200)
    with permit:  # the parent's: left alone
        pass
    try:
        permit.report(status=200)
        results.put("reported")
    except PermitError as error:
        results.put(str(error))


def test_a_forked_worker_has_connections_of_its_own(client, used):
    permit = client.acquire("wide")
    assert client._pool._idle
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    workers = [context.Process(target=_in_child, args=(client, permit, results)) for _ in range(3)]
    for worker in workers:
        worker.start()
    texts = [results.get(timeout=PATIENCE) for _ in workers]
    for worker in workers:
        worker.join(PATIENCE)
        assert worker.exitcode == 0
    assert all("belongs to the process" in text for text in texts)
    permit.report(status=200)
    assert used(client, "wide") == 4


def test_a_fork_under_a_held_lock_does_not_block(client):
    """Another thread may hold the lock of the pool at the moment of a fork."""
    client.acquire("wide").release()
    with client._pool._lock:
        pid = os.fork()
        if pid == 0:
            signal_alarm()
            client.acquire("wide").report(status=200)
            os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0


def signal_alarm() -> None:
    import signal

    signal.alarm(PATIENCE)  # a child that blocks dies, and the test fails
