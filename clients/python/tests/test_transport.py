"""S11: httpx through a real gateway; the provider's log is the judge."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections import Counter

import httpx
import pytest

import tollgate

PATIENCE = 30


@pytest.fixture
def gateway(make_daemon, provider):
    return make_daemon(
        f"name: site\ndomain: site.test\nupstream: {provider.url}\nlimits: [1000/1h]\n"
        "entities: { from: path }\ncache: { mode: ttl, ttl: 1h }\n",
        f"name: small\ndomain: small.test\nupstream: {provider.url}\nlimits: [1/1h]\n",
        f"name: shared\ndomain: shared.test\nupstream: {provider.url}\n"
        "limits: [{ limit: 1, period: 1h, per: entity }]\n",
        f"name: single\ndomain: single.test\nupstream: {provider.url}\nlimits: [1000/1h]\n"
        "concurrency: 1\nlate_arrival: 100ms\n",
        config="callers: { app: { token: canary-app-token } }\n",  # tidy:canary
    )


def client(gateway, **options) -> httpx.Client:
    transport = tollgate.Transport(gateway.gateway, **options)
    return httpx.Client(transport=transport, timeout=PATIENCE)


def test_a_call_goes_through_the_gateway(gateway, provider):
    with client(gateway) as http:
        response = http.get("http://site.test/a/b?c=d%20e")
        posted = http.post("http://site.test/post", content=b"12345")
    assert response.json()["path"] == "/a/b?c=d%20e"
    assert response.headers["x-tollgate-source"] == "upstream"
    assert response.url == "http://site.test/a/b?c=d%20e"
    assert posted.json()["length"] == 5
    assert [path for _, path, _ in provider.requests] == ["/a/b?c=d%20e", "/post"]
    names = [name.lower() for name in provider.requests[0][2]]
    assert not any(name.startswith("x-tollgate") for name in names)


def test_a_provider_can_be_named(gateway, provider):
    with client(gateway, provider="site") as http:
        assert http.get("http://any.test/a").json()["path"] == "/a"


def test_redirects_are_governed_too(gateway, provider):
    with client(gateway) as http:
        response = http.get("http://site.test/moved", follow_redirects=True)
    assert response.json()["path"] == "/target" and response.url == "http://site.test/target"
    with client(gateway, provider="site", use_cache=False) as http:
        response = http.get("http://site.test/moved", follow_redirects=True)
    assert response.json()["path"] == "/target" and response.url == "http://site.test/target"
    with gateway.client() as own:
        assert own.get_status("site")["limits"][0]["used"] == 4


def test_a_redirect_to_another_host_leaves_the_named_provider(gateway, provider):
    """It went to the named provider, with the path of the other host."""
    with client(gateway, provider="site", use_cache=False) as http:
        url = "http://any.test/away?http://small.test/file"
        assert http.get(url, follow_redirects=True).url == "http://small.test/file"
        url = "http://any.test/away?http://shared.test/away?http://any.test/file"
        assert http.get(url, follow_redirects=True).url == "http://any.test/file"
    with gateway.client() as own:
        used = {name: own.get_status(name)["limits"][0]["used"] for name in ("site", "small")}
    assert used == {"site": 3, "small": 1}
    there = "/away?http://shared.test/away?http://any.test/file"
    back = "/away?http://any.test/file"
    paths = ["/away?http://small.test/file", "/file", there, back, "/file"]
    assert [path for _, path, _ in provider.requests] == paths


@pytest.mark.parametrize(
    "location, path",
    [
        ("https://a.test/b", "/site/b"),
        ("http://A.test:80/b", "/site/b"),
        ("/b", "/site/b"),
        ("http://a.test:8080/b", "/http://a.test:8080/b"),
        ("https://cdn.other.test/b", "/https://cdn.other.test/b"),
    ],
)
@pytest.mark.parametrize("kind", ["blocking", "async"])
def test_the_first_host_of_a_call_is_the_named_providers(kind, location, path):
    seen = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request.url.raw_path.decode())
        assert not [name for name in request.extensions if "tollgate" in name]
        is_first = request.url.path == "/site/a"
        return httpx.Response(302 if is_first else 200, headers={"Location": location} if is_first else {})

    inner = httpx.MockTransport(answer)
    options = {"provider": "site", "transport": inner}

    async def main() -> None:
        transport = tollgate.AsyncTransport("http://gw:4290", **options)
        async with httpx.AsyncClient(transport=transport, follow_redirects=True) as http:
            await http.get("http://a.test/a")

    if kind == "async":
        asyncio.run(main())
    else:
        transport = tollgate.Transport("http://gw:4290", **options)
        with httpx.Client(transport=transport, follow_redirects=True) as http:
            http.get("http://a.test/a")
            both = {"timeout": {"read": 5}}  # a call says nothing about the next with the same mapping
            for host in ("c.test", "d.test"):
                http.get(f"http://{host}/c", extensions=both)
        assert seen[2:] == ["/site/c"] * 2
    assert seen[:2] == ["/site/a", path]


@pytest.mark.parametrize(
    "provider, link, expected",
    [
        (None, "/https://a.test/b", "https://a.test/b"),
        (None, "http://gw:4290/https://a.test/b?c", "https://a.test/b?c"),
        (None, "//cdn.test/b", "//cdn.test/b"),
        (None, "relative", "relative"),
        ("site", "/site/b", "https://a.test:8/b"),
        ("site", "http://gw:4290/site?c", "https://a.test:8?c"),
        ("site", "/site2/b", "/site2/b"),
        ("site", "https://other.test/site/b", "https://other.test/site/b"),
    ],
)
def test_links_lead_to_the_provider_again(provider, link, expected):
    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, headers={"Location": link, "Link": f'<{link}>; rel="next"'})

    inner = httpx.MockTransport(answer)
    transport = tollgate.Transport("http://gw:4290", provider=provider, transport=inner)
    with httpx.Client(transport=transport) as http:
        response = http.get("https://a.test:8/x")
    assert response.headers["location"] == expected
    assert response.headers["link"] == f'<{expected}>; rel="next"'


def test_s11_switches_for_all_calls_and_for_one(gateway, provider):
    with client(gateway) as http:
        first, second = (http.get("http://site.test/same") for _ in range(2))
        assert second.headers["x-tollgate-source"] == "cache"
        for use_cache, source in ((False, "upstream"), ("refresh", "upstream"), ("only", "cache")):
            switches = {"tollgate": {"use_cache": use_cache}}
            response = http.get("http://site.test/same", extensions=switches)
            assert response.headers["x-tollgate-source"] == source, use_cache
        missing = http.get("http://site.test/new", extensions={"tollgate": {"use_cache": "only"}})
        assert missing.status_code == 504
        for wrong in ({"use_cahce": False}, {"use_cache": "never"}, "no", ["use_cache"]):
            with pytest.raises(tollgate.BadRequest):
                http.get("http://site.test/", extensions={"tollgate": wrong})
    with client(gateway, use_cache=False, entity="odds", use_deduplication=False) as http:
        http.get("http://site.test/same")
    assert provider.paths() == {"/same": 4}


def test_s11_a_switch_of_one_call_wins_in_both_directions():
    """A transport without the cache could not be told to use it for one call."""
    seen = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(tuple(request.headers.get(f"x-tollgate-{name}") for name in ("cache", "dedup")))
        return httpx.Response(200)

    inner = httpx.MockTransport(answer)
    off = tollgate.Transport(transport=inner, use_cache=False, use_deduplication=False)
    with httpx.Client(transport=off) as http:
        for switches in ({}, {"use_cache": True}, {"use_deduplication": True}, {"use_cache": "only"}):
            http.get("http://a.test/", extensions={"tollgate": switches})
        http.get("http://a.test/", headers={"X-Tollgate-Cache": "refresh"})
    assert seen == [("no", "no"), (None, "no"), ("no", None), ("only", "no"), ("refresh", "no")]


@pytest.mark.parametrize("one_call", [False, True])
@pytest.mark.parametrize("switches", [{}, {"use_deduplication": False}])
def test_s11_equal_calls_at_once_are_shared_unless_a_switch_says_no(
    switches, one_call, gateway, provider
):
    """The first response is held until the other nine are with the gateway."""
    for_all, for_one = ({}, switches) if one_call else (switches, {})
    sent = []

    async def trace(event: str, info: dict) -> None:
        if event == "http11.send_request_body.complete":
            sent.append(event)

    async def main() -> list:
        transport = tollgate.AsyncTransport(gateway.gateway, use_cache=False, **for_all)
        async with httpx.AsyncClient(transport=transport, timeout=PATIENCE) as http:
            extensions = {"trace": trace, "tollgate": for_one}
            get = (http.get("http://site.test/held", extensions=extensions) for _ in range(10))
            calls = asyncio.gather(*get)
            while len(sent) < 10 or not provider.requests:
                await asyncio.sleep(0.01)
            for number in range(3):  # the gateway has come to what was sent before these
                await http.get(f"http://site.test/later{number}")
            while switches and provider.paths()["/held"] < 10:
                await asyncio.sleep(0.01)
            provider.let_go.set()
            return await calls

    responses = asyncio.run(asyncio.wait_for(main(), 2 * PATIENCE))
    sources = Counter(response.headers["x-tollgate-source"] for response in responses)
    assert provider.paths()["/held"] == sources["upstream"]
    if switches:
        assert sources == {"upstream": 10}
    else:
        assert sources["shared"] >= 5 and sources["upstream"] + sources["shared"] == 10


def test_s11_calls_of_one_entity_have_its_limit(gateway, provider):
    """One call an hour for each entity, for all calls of a transport or for one of them."""
    with client(gateway, entity="a", timeout=5) as http:
        assert http.get("http://shared.test/1").status_code == 200
        denied = http.get("http://shared.test/2")
        assert denied.status_code == 429 and denied.json()["limit"] == "1/1h"
        for_one = {"tollgate": {"entity": "b"}}
        assert http.get("http://shared.test/3", extensions=for_one).status_code == 200
        assert http.get("http://shared.test/4", extensions=for_one).status_code == 429
    assert provider.paths() == {"/1": 1, "/3": 1}
    with gateway.client() as own:
        assert set(own.get_status("shared")["entities"]) == {"a", "b"}


def test_a_rejection_is_a_response_of_the_gateway(gateway, provider):
    with client(gateway, timeout=0.5) as http:
        assert http.get("http://small.test/1").status_code == 200
        denied = http.get("http://small.test/2")
    assert denied.status_code == 429 and denied.headers["x-tollgate-source"] == "tollgate"
    assert denied.json()["limit"] == "1/1h" and denied.headers["retry-after"]
    assert provider.paths() == {"/1": 1}


def test_a_caller_shows_its_token_to_the_gateway_only(gateway, provider):
    with client(gateway, caller="app", token="canary-app-token") as http:  # tidy:canary
        assert http.get("http://site.test/a").status_code == 200
    with client(gateway, caller="app", token="canary-wrong") as http:  # tidy:canary
        assert http.get("http://site.test/b").status_code == 403
    assert "canary" not in str(provider.requests)


def in_both(work) -> bool:
    """Whether ``work("parent")`` and, in a forked process at the same time, ``work("child")`` hold."""
    pid = os.fork()
    if pid == 0:
        signal.alarm(PATIENCE)  # a child that blocks dies, and the test fails
        try:
            os._exit(0 if work("child") else 1)
        finally:
            os._exit(2)
    held = work("parent")
    return os.waitpid(pid, 0)[1] == 0 and held


def test_a_forked_process_never_gets_the_responses_of_its_parent(gateway, provider):
    with client(gateway) as http:
        http.get("http://site.test/before")

        def each_has_its_own(tag: str) -> bool:
            paths = [f"/{tag}{number}" for number in range(200)]
            return all(http.get("http://site.test" + of).json()["path"] == of for of in paths)

        assert in_both(each_has_its_own)
        assert http.get("http://site.test/after").json()["path"] == "/after"
    assert len(provider.paths()) == len(provider.requests) == 402


def test_a_forked_process_never_gets_the_responses_of_its_parent_with_asyncio(gateway, provider):
    """Forked while the loop of the parent has connections; the child has a loop of its own."""
    http = httpx.AsyncClient(transport=tollgate.AsyncTransport(gateway.gateway), timeout=PATIENCE)

    async def each_has_its_own(tag: str) -> bool:
        paths = [f"/{tag}{number}" for number in range(200)]
        return all([(await http.get("http://site.test" + of)).json()["path"] == of for of in paths])

    async def main() -> None:
        await http.get("http://site.test/before")
        pid = os.fork()
        if pid == 0:
            signal.alarm(PATIENCE)
            held = []
            thread = threading.Thread(
                target=lambda: held.append(asyncio.run(each_has_its_own("child")))
            )
            thread.start()
            thread.join()
            os._exit(0 if held == [True] else 1)
        assert await each_has_its_own("parent")
        assert os.waitpid(pid, 0)[1] == 0
        await http.aclose()

    asyncio.run(main())
    assert len(provider.paths()) == len(provider.requests) == 401


def test_a_fork_leaves_direct_calls_apart_too(provider):
    with httpx.Client(transport=tollgate.Transport("127.0.0.1:1", fallback="direct")) as http:
        http.get(provider.url + "/before")

        def each_has_its_own(tag: str) -> bool:
            paths = [f"/{tag}{number}" for number in range(20)]
            return all(http.get(provider.url + of).json()["path"] == of for of in paths)

        pid = os.fork()
        if pid == 0:
            signal.alarm(PATIENCE)
            os._exit(0 if each_has_its_own("child") else 1)
        assert os.waitpid(pid, 0)[1] == 0
        assert each_has_its_own("parent")
        http.get(provider.url + "/after")
    assert provider.ports["/before"] == provider.ports["/after"]
    used = [{provider.ports[f"/{of}{number}"] for number in range(20)} for of in ("parent", "child")]
    assert used[0] == {provider.ports["/before"]} and not used[0] & used[1]


def is_cut(descriptor: int) -> bool:
    return os.readlink(f"/proc/self/fd/{descriptor}") == os.devnull


@pytest.mark.parametrize("way", ["gateway", "direct"])
def test_a_forked_process_keeps_no_copy_of_its_parents_connections(way, gateway, provider):
    """The gateway would not see that the parent has left a call that waits for its permit."""
    at = gateway.gateway if way == "gateway" else "127.0.0.1:1"
    site = "http://site.test" if way == "gateway" else provider.url
    with httpx.Client(transport=tollgate.Transport(at, fallback="direct")) as http:
        response = http.get(site + "/before")
        descriptor = response.extensions["network_stream"].get_extra_info("socket").fileno()
        assert in_both(lambda process: is_cut(descriptor) == (process == "child"))
        after = http.get(site + "/after")
    stream = after.extensions["network_stream"]
    assert after.status_code == 200 and stream is response.extensions["network_stream"]


def test_a_forked_process_keeps_no_copy_of_a_connection_that_waits_for_a_response(gateway, provider):
    async def main() -> None:
        transport = tollgate.AsyncTransport(gateway.gateway)
        async with httpx.AsyncClient(transport=transport, timeout=PATIENCE) as http:
            call = asyncio.ensure_future(http.get("http://site.test/held"))
            while not provider.requests:
                await asyncio.sleep(0.01)
            (connection,) = transport._transports.gateway()._pool.connections
            stream = connection._connection._network_stream
            descriptor = stream.get_extra_info("socket").fileno()
            assert in_both(lambda process: is_cut(descriptor) == (process == "child"))
            provider.let_go.set()
            assert (await call).status_code == 200

    asyncio.run(asyncio.wait_for(main(), 2 * PATIENCE))


def test_a_transport_of_the_user_is_not_used_by_a_forked_process():
    """Only its owner knows how to make another one."""
    inner = httpx.MockTransport(lambda request: httpx.Response(200))
    asynchronous = tollgate.AsyncTransport("http://gw:4290", transport=inner)

    def is_typed(process: str) -> bool:
        async def call() -> int:
            request = httpx.Request("GET", "http://a.test/")
            return (await asynchronous.handle_async_request(request)).status_code

        def kind(calls) -> str:
            try:
                return str(calls())
            except tollgate.BadRequest as error:
                return f"{error.code} {'after the fork' in str(error)}"

        found = [kind(lambda: http.get("http://a.test/").status_code), kind(lambda: asyncio.run(call()))]
        return found == ["200" if process == "parent" else "ForkedTransport True"] * 2

    with httpx.Client(transport=tollgate.Transport("http://gw:4290", transport=inner)) as http:
        assert in_both(is_typed)


async def until(holds) -> None:
    """Asks until it holds: sooner than a call would end by its timeout."""
    until = time.monotonic() + PATIENCE / 2
    while not await asyncio.get_running_loop().run_in_executor(None, holds):
        assert time.monotonic() < until
        await asyncio.sleep(0.02)


def cancelled(gateway, work) -> None:
    """Runs ``work(http, own)``, with a client of the gateway and one of its daemon."""

    async def main() -> None:
        transport = tollgate.AsyncTransport(gateway.gateway)
        async with httpx.AsyncClient(transport=transport, timeout=PATIENCE) as http:
            with gateway.client() as own:
                await work(http, own)
                # One call at a time: it waits for whatever the cancelled one has left behind.
                began = time.monotonic()
                assert (await http.get("http://single.test/next")).status_code == 200
                assert time.monotonic() - began < PATIENCE / 2

    asyncio.run(asyncio.wait_for(main(), 2 * PATIENCE))


def test_a_call_that_is_cancelled_while_it_waits_for_a_permit_leaves_the_queue(gateway, provider):
    async def work(http: httpx.AsyncClient, own: tollgate.Client) -> None:
        def waiting() -> int:
            return sum(own.get_status("single")["queue"][of] for of in ("high", "normal", "low"))

        held = asyncio.ensure_future(http.get("http://single.test/held"))
        await until(lambda: provider.paths()["/held"])
        call = asyncio.ensure_future(http.get("http://single.test/cancelled"))
        await until(lambda: waiting() == 1)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await until(lambda: waiting() == 0)
        provider.let_go.set()
        assert (await held).status_code == 200

    cancelled(gateway, work)
    assert provider.paths() == {"/held": 1, "/next": 1}


def test_a_call_that_is_cancelled_while_the_provider_works_gives_its_slot_back(gateway, provider):
    async def work(http: httpx.AsyncClient, own: tollgate.Client) -> None:
        call = asyncio.ensure_future(http.get("http://single.test/held"))
        await until(lambda: provider.paths()["/held"])
        assert not own.capacity("single")
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await until(lambda: own.capacity("single").available)

    cancelled(gateway, work)
    assert provider.paths() == {"/held": 1, "/next": 1}


def test_a_call_that_is_cancelled_while_its_response_arrives_gives_its_slot_back(gateway, provider):
    async def work(http: httpx.AsyncClient, own: tollgate.Client) -> None:
        has_begun = asyncio.Event()

        async def read() -> None:
            async with http.stream("GET", "http://single.test/half") as response:
                async for _ in response.aiter_raw():
                    has_begun.set()

        call = asyncio.ensure_future(read())
        await has_begun.wait()
        assert not own.capacity("single")
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await until(lambda: own.capacity("single").available)

    cancelled(gateway, work)
    assert provider.paths() == {"/half": 1, "/next": 1}


def test_fallback_error_is_typed_for_httpx_and_for_tollgate():
    with httpx.Client(transport=tollgate.Transport("http://127.0.0.1:1")) as http:
        with pytest.raises(tollgate.TollgateUnavailable) as away:
            http.get("http://site.test/")
        with pytest.raises(httpx.ConnectError):
            http.get("http://site.test/")
    assert "127.0.0.1:1" in str(away.value) and "tollgate serve" in str(away.value)
    assert away.value.request.url == "http://site.test/"


def test_fallback_direct_sends_nothing_of_tollgates(provider, caplog):
    options = {"fallback": "direct", "token": "canary-token", "entity": "e"}  # tidy:canary
    with httpx.Client(transport=tollgate.Transport("127.0.0.1:1", **options)) as http:
        headers = {"X-Tollgate-Priority": "high"}
        response = http.post(provider.url + "/direct", content=b"12", headers=headers)
    assert response.json() == {"path": "/direct", "length": 2}
    assert "tollgate" not in str(provider.requests).lower().replace("tollgate-python", "")
    assert "sent without limits" in caplog.text and "canary" not in caplog.text

    async def main() -> None:
        transport = tollgate.AsyncTransport("127.0.0.1:1", fallback="direct")
        async with httpx.AsyncClient(transport=transport) as http:
            assert (await http.get(provider.url + "/again")).json()["path"] == "/again"
        async with httpx.AsyncClient(transport=tollgate.AsyncTransport("127.0.0.1:1")) as http:
            with pytest.raises(tollgate.GatewayUnavailable):
                await http.get(provider.url + "/never")

    asyncio.run(main())
    assert provider.paths() == {"/direct": 1, "/again": 1}


@pytest.mark.parametrize(
    "gateway, options",
    [
        ("ftp://h", {}),
        ("http://h/path", {}),
        ("http://a:b@h", {}),
        (None, {"fallback": "maybe"}),
        (None, {"provider": "a/b"}),
        (None, {"provider": "a b"}),
        (None, {"provider": "a?b"}),
        (None, {"provider": ""}),
        (None, {"provider": 5}),
        (None, {"colour": "red"}),
        (None, {"timeout": -1}),
        (None, {"use_cache": "never"}),
        (None, {"use_cache": 0}),
        (None, {"use_deduplication": "no"}),
        (None, {"use_deduplication": 0}),
        (None, {"entity": "a\nb"}),
        (None, {"entity": 5}),
        (None, {"cost": -1}),
        (None, {"cost": {"tokens": "many"}}),
        (None, {"token": "a\rb"}),
    ],
)
def test_wrong_options_are_told(gateway, options):
    with pytest.raises(tollgate.BadRequest) as wrong:
        tollgate.Transport(gateway, **options)
    assert wrong.value.hint
