"""C4: the middleware in front of a real FastAPI application, served by a real uvicorn."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import socket
import threading
import time
import uuid
from http.client import HTTPConnection
from typing import Iterator, List

import fastapi
import httpx
import pytest
import uvicorn
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

import tollgate
from tollgate import _attempt as bounds
from conftest import CONFIG
from fake_server import Fake, closes_first, full, silent

PATIENCE = 30


def application(calls: list, **options) -> fastapi.FastAPI:
    app = fastapi.FastAPI()
    app.add_middleware(tollgate.RateLimitMiddleware, **options)

    @app.get("/hello")
    async def hello() -> dict:
        calls.append("hello")
        return {"hello": "world"}

    @app.get("/health/live")
    async def health() -> dict:
        return {"ok": True}

    @app.websocket("/socket")
    async def socket(websocket: fastapi.WebSocket) -> None:
        await websocket.accept()
        await websocket.send_text("hello")
        await websocket.close()

    return app


@contextlib.contextmanager
def served(app: fastapi.FastAPI) -> Iterator[str]:
    config = uvicorn.Config(app, host="127.0.0.1", port=0, log_level="error", proxy_headers=False)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    until = time.monotonic() + PATIENCE
    while not server.started:
        assert thread.is_alive() and time.monotonic() < until, "uvicorn did not start"
        thread.join(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(PATIENCE)


@pytest.fixture
def daemon(make_daemon) -> tollgate.LocalDaemon:
    """Its buckets refill so slowly (one a minute) that no token comes back while a busy machine makes a few requests."""
    config = CONFIG
    for guard in ("ip:   { limit: 10, ", "user: { limit: 20, ", "api:  { limit: 100,"):
        assert f"{guard} period: 1m" in config
        config = config.replace(f"{guard} period: 1m", f"{guard} period: 10m")
    return make_daemon(config=config)


@pytest.fixture
def http() -> Iterator[httpx.Client]:
    with httpx.Client(trust_env=False, timeout=PATIENCE) as client:
        yield client


def test_c4_the_documents_limit_is_said_per_minute(make_daemon, http):
    with served(application([], client=make_daemon().async_client())) as url:
        passed = http.get(f"{url}/hello")
    assert passed.headers["x-ratelimit-limit"] == "10"
    assert passed.headers["x-ratelimit-remaining"] == "4"
    assert 0 <= int(passed.headers["x-ratelimit-reset"]) - time.time() <= 32


def test_c4_requests_beyond_the_guard_get_429_with_headers(daemon, client, http):
    calls: list = []
    with served(application(calls, client=daemon.async_client())) as url:
        for number in range(5):
            passed = http.get(f"{url}/hello")
            assert passed.status_code == 200
            assert passed.headers["x-ratelimit-limit"] == "1"
            assert passed.headers["x-ratelimit-remaining"] == str(4 - number)
            assert 0 <= int(passed.headers["x-ratelimit-reset"]) - time.time() <= 302
        denied = http.get(f"{url}/hello")
        assert denied.status_code == 429
        assert denied.headers["x-ratelimit-limit"] == "1"
        assert denied.headers["x-ratelimit-remaining"] == "0"
        assert 200 <= int(denied.headers["x-ratelimit-reset"]) - time.time() <= 303
        assert 1 <= int(denied.headers["retry-after"]) <= 60
        body = denied.json()
        assert body["error"] == "RateLimitExceeded" and body["guard"] == "ip"
        assert body["message"] == body["detail"] == "Rate limit exceeded. Please try again later."
        assert body["limit"] == "10/10m" and body["reason"] == "limit"
        assert 0 < body["retryIn"] <= 60_000
        assert http.get(f"{url}/health/live").status_code == 200
        assert "x-ratelimit-limit" not in http.get(f"{url}/health/live").headers
        # A path that the application may read in another way is no way around the guard.
        for path in ("/health/../hello", "/health%2f..%2fhello", "/health//hello"):
            connection = HTTPConnection(url[len("http://") :], timeout=PATIENCE)
            connection.request("GET", path)  # httpx would resolve the dots
            assert connection.getresponse().status == 429, path
            connection.close()
    assert calls == ["hello"] * 5


def test_c4_c10_one_request_to_the_daemon_also_at_the_gateways_address(daemon, http, monkeypatch):
    """The rate headers come with the decision: before, they cost a second request, and a caller at
    the gateway's address had none."""
    sent: list = []
    send = tollgate.AsyncClient.send

    async def counted(self, request):
        sent.append(request.path)
        return await send(self, request)

    monkeypatch.setattr(tollgate.AsyncClient, "send", counted)
    own = tollgate.AsyncClient(daemon.gateway + "/-", token="canary-app-token")  # tidy:canary
    with served(application([], client=own)) as url:
        responses = [http.get(f"{url}/hello") for _ in range(6)]
    assert [response.status_code for response in responses] == [200] * 5 + [429]
    remaining = [response.headers["x-ratelimit-remaining"] for response in responses]
    assert remaining == ["4", "3", "2", "1", "0", "0"]
    for response in responses:
        assert response.headers["x-ratelimit-limit"] == "1"
        assert 0 <= int(response.headers["x-ratelimit-reset"]) - time.time() <= 303
        assert '"ip";q=10' in response.headers["ratelimit-policy"]
    decisions = [response.headers["x-tollgate-decision"] for response in responses]
    assert decisions == ["allow"] * 5 + ["reject"]
    assert responses[-1].json()["hint"] and responses[-1].json()["reason"] == "limit"
    assert sent == ["/v1/acquire"] * 6


def test_c4_the_user_is_asked_if_its_header_is_there_and_c11_all_or_none(daemon, client, http):
    """The user's tokens are used up: its address and the global guard are not charged."""
    client.acquire("ann", 10, guard="user")
    with served(application([], client=daemon.async_client())) as url:
        denied = http.get(f"{url}/hello", headers={"X-User-Id": "ann"})
        assert denied.status_code == 429 and denied.json()["guard"] == "user"
        assert denied.headers["x-ratelimit-limit"] == "2"
        assert client.get_status("127.0.0.1", guard="ip")["tokens_available"] == 5
        assert client.get_status(guard="api")["tokens_available"] == 20
        assert http.get(f"{url}/hello", headers={"X-User-Id": "bob"}).status_code == 200
        assert http.get(f"{url}/hello").status_code == 200
    assert 9 <= client.get_status("bob", guard="user")["tokens_available"] < 10


def test_c4_the_global_guard_has_its_own_text(daemon, client, http):
    client.acquire(None, 20, guard="api")
    with served(application([], client=daemon.async_client())) as url:
        denied = http.get(f"{url}/hello")
    assert denied.status_code == 429 and denied.json()["guard"] == "api"
    assert denied.json()["detail"] == "API rate limit exceeded. Please try again later."
    assert client.get_status("127.0.0.1", guard="ip")["tokens_available"] == 5


def test_forwarded_for_is_believed_from_trusted_proxies_only(daemon, client, http):
    header = {"X-Forwarded-For": "198.51.100.9, 203.0.113.7:4711"}
    with served(application([], client=daemon.async_client())) as url:
        http.get(f"{url}/hello", headers=header)
    assert client.get_status("203.0.113.7", guard="ip")["tokens_available"] == 5
    options = {"client": daemon.async_client(), "trusted_proxies": ["127.0.0.0/8"]}
    with served(application([], **options)) as url:
        http.get(f"{url}/hello", headers=header)
    assert client.get_status("203.0.113.7", guard="ip")["tokens_available"] < 5
    assert client.get_status("198.51.100.9", guard="ip")["tokens_available"] == 5


def test_websockets_are_guarded(daemon, client):
    with served(application([], client=daemon.async_client())) as url:
        at = url.replace("http://", "ws://") + "/socket"
        with connect(at, open_timeout=PATIENCE, proxy=None) as socket:
            assert socket.recv(timeout=PATIENCE) == "hello"
        client.acquire("127.0.0.1", 4, guard="ip")
        with pytest.raises(InvalidStatus) as denied:
            connect(at, open_timeout=PATIENCE, proxy=None)
        assert denied.value.response.status_code == 429
        assert denied.value.response.headers["retry-after"]


@pytest.mark.parametrize("mode, status", [("open", 200), ("closed", 503)])
def test_the_fail_mode_decides_while_the_daemon_is_away(http, mode, status, caplog):
    options = {"client": tollgate.AsyncClient("127.0.0.1:1"), "on_unavailable": mode}
    calls: list = []
    with served(application(calls, **options)) as url:
        for _ in range(3):
            response = http.get(f"{url}/hello")
            assert response.status_code == status
        assert http.get(f"{url}/health/live").status_code == 200
    assert len(calls) == (3 if mode == "open" else 0)
    if mode == "closed":
        assert response.headers["retry-after"] == "1" and "detail" in response.json()
    assert "cannot be reached" in caplog.text


@pytest.mark.parametrize("name", ["u" * 300, "a\tb", "\u00e9" * 300])
def test_a_user_that_the_daemon_would_refuse_is_limited_all_the_same(daemon, client, http, name):
    with served(application([], client=daemon.async_client())) as url:
        headers = {"X-User-Id": name.encode("latin-1")}
        seen = [http.get(f"{url}/hello", headers=headers).status_code for _ in range(6)]
    assert seen == [200] * 5 + [429]
    assert client.get_status("127.0.0.1", guard="ip")["tokens_available"] < 1


def test_a_guard_that_does_not_exist_is_an_error_and_not_open(daemon, http):
    with served(application([], client=daemon.async_client(), ip="nobody")) as url:
        assert http.get(f"{url}/hello").status_code == 500


def test_the_application_keeps_headers_of_its_own(daemon, http):
    app = application([], client=daemon.async_client())

    @app.get("/own")
    async def own() -> fastapi.Response:
        return fastapi.Response("x", headers={"X-RateLimit-Limit": "7"})

    with served(app) as url:
        assert http.get(f"{url}/own").headers.get_list("x-ratelimit-limit") == ["7"]


@pytest.mark.parametrize(
    "options",
    [
        {"on_unavailable": "maybe"},
        {"trusted_proxies": ["nonsense"]},
        {"exempt_paths": "/health"},
        {"client": tollgate.Client("127.0.0.1:1")},
    ],
)
def test_wrong_options_are_told(options):
    with pytest.raises(tollgate.BadRequest):
        tollgate.RateLimitMiddleware(None, **options)


def test_a_user_may_be_a_number():
    """As an id of a database is; it was a TypeError, and so a 500."""
    some_id = uuid.uuid4()
    users = ((0, ["0"]), (17, ["17"]), ("a", ["a"]), ("", []), (None, []), (some_id, [str(some_id)]))
    for user, asked in users:
        middleware = tollgate.RateLimitMiddleware(
            None, tollgate.AsyncClient("127.0.0.1:1"), ip=None, api=None, identify=lambda _: user
        )
        assert [ask["identifier"] for ask in middleware._asks({"headers": []})] == asked


async def _app(scope, receive, send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b""})


def statuses(url: str, times: int, **options) -> List[int]:
    """So many requests at once through the middleware; its default mode is open."""

    async def main() -> List[int]:
        async with tollgate.AsyncClient(url) as client:
            middleware = tollgate.RateLimitMiddleware(_app, client, **options)
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


def test_a_flood_is_limited_as_a_few_requests_are(make_daemon):
    url = make_daemon().admin
    began = time.monotonic()
    seen = statuses(url, 600)
    refilled = (time.monotonic() - began) / 6  # 10 a minute
    assert len(seen) == 600 and 5 <= seen.count(200) <= 6 + refilled
    assert set(seen) == {200, 429}


@pytest.mark.parametrize("mode, status", [("open", 200), ("closed", 503)])
def test_a_daemon_that_keeps_silent_is_away(mode, status, fake, monkeypatch, caplog):
    """It may have counted the requests; for guards that takes nothing from anybody."""
    monkeypatch.setattr(bounds, "CONTINUE_WITHIN", 0.05)
    monkeypatch.setattr(bounds, "GRACE", 0.2)
    server = fake(silent)
    assert statuses(server.url, 3, on_unavailable=mode) == [status] * 3
    assert "did not respond in time" in caplog.text


@pytest.mark.parametrize("mode", ["open", "closed"])
def test_a_daemon_that_closes_a_connection_before_it_responds_never_opens_the_middleware(mode, fake):
    assert statuses(fake(takes_and_dies).url, 3, on_unavailable=mode) == [503] * 3


def takes_and_dies(fake: Fake, connection: socket.socket, number: int) -> None:
    fake.body_of(connection)


async def identify_later(scope) -> str:
    return "ann"


class IdentifiesLater:
    async def __call__(self, scope) -> str:
        return "ann"


NO_FUNCTIONS = [
    identify_later,
    functools.partial(identify_later),
    IdentifiesLater(),
    IdentifiesLater().__call__,
    "x-user-id",
    5,
]


@pytest.mark.parametrize("identify", NO_FUNCTIONS)
def test_an_identify_that_cannot_be_called_as_a_function_is_told_when_it_is_given(identify):
    """A coroutine named every request by another text, so that no user was ever limited."""
    with pytest.raises(tollgate.BadRequest) as wrong:
        tollgate.RateLimitMiddleware(_app, identify=identify)
    assert "`identify`" in str(wrong.value) and "def identify(scope)" in wrong.value.hint


class Nameless:
    pass


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "result, kind",
    [
        (lambda: identify_later({}), "coroutine"),
        (Nameless, "Nameless"),
        (lambda: (name for name in ("ann",)), "generator"),
    ],
)
def test_an_identify_whose_result_names_nobody_is_an_error_and_not_open(result, kind):
    client = tollgate.AsyncClient("127.0.0.1:1")
    middleware = tollgate.RateLimitMiddleware(_app, client, identify=lambda scope: result())
    scope = {"type": "http", "path": "/x", "headers": [], "client": ("10.0.0.1", 1)}
    with pytest.raises(tollgate.BadRequest) as wrong:
        asyncio.run(middleware(scope, None, None))
    assert kind in str(wrong.value) and "def identify(scope)" in wrong.value.hint
