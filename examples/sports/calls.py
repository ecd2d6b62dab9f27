"""Entities, both counts, shared calls, metadata and cool-downs (S1 to S5, S7, S9, S11, S12)."""

import json
import threading
import time
from pathlib import Path

from harness import AT_ONCE, Daemon, Received, Reply, call, gaps, not_early, together, wait_until
from sportmonks import sports, STRIP, FIELDS, env, variant, metrics, get


@sports.scenario("S1", "S2", "S9", "S12")
def entities() -> None:
    sim = sports.sim(*STRIP, "--rule", "first-use 3000/1h", "--style", "x-ratelimit", "--key", "query:api_token")
    daemon = sports.serve(env(sim.url))
    for number in range(12):
        get(daemon, f"fixtures/{number}")
    get(daemon, "odds/fixtures/123")
    get(daemon, "livescores")
    named = get(daemon, "anything/1", X_Tollgate_Entity="fixtures")
    scopes = {one["scope"].split("/")[0]: one["accepted"] for one in sim.report()["scopes"]}
    found = {entity: metrics(daemon, entity)["requests_in_window"] for entity in ("fixtures", "odds", "livescores")}
    held = found == {"fixtures": 13, "odds": 1, "livescores": 1} and scopes == {"fixtures": 12, "odds": 1, "livescores": 1, "anything": 1}
    sports.check(
        "S1",
        "the entity is the first segment after /v3/football, or named by the caller",
        held and named.status == 200,
        " ".join(f"{k} {v}" for k, v in found.items()),
    )
    one = metrics(daemon, "fixtures")
    # 3000 an hour refill 0.83 tokens a second.
    held = one["requests_in_window"] == 13 and one["capacity"] == 3000 and 2987 <= one["tokens_remaining"] <= 3000
    sports.check(
        "S2",
        "a bucket of 3000 an hour and the calls of the window are shown side by side",
        held,
        f"tokens_remaining {one['tokens_remaining']}, requests_in_window {one['requests_in_window']}",
    )
    body = daemon.api("/api/rate-limit/metrics?entity=fixtures").json()
    numbers = [
        name
        for name in FIELDS - {"entity", "is_in_cooldown", "is_degraded"}
        if not isinstance(body["metrics"]["entities"]["fixtures"][name], (int, float))
    ]
    held = (
        set(body) == {"success", "metrics", "alerts"}
        and body["success"] is True
        and set(body["metrics"]) == {"entities"}
        and set(one) == FIELDS
        and not numbers
    )
    sports.check("S9", "the document's JSON, field for field", held, f"{len(FIELDS)} fields" if held else sorted(set(one) ^ FIELDS))
    unknown = daemon.api("/api/rate-limit/metrics?entity=players")
    sports.check(
        "S9",
        "an unknown entity is 404 UnknownEntity",
        (unknown.status, unknown.json()) == (404, {"success": False, "error": "UnknownEntity"}),
        unknown.status,
    )
    keys = {scope["scope"] for scope in sim.report()["scopes"]}
    sports.check(
        "S12",
        "SPORTMONKS_API_TOKEN is sent with every call, and responses are cached locally",
        len(keys) == 4 and get(daemon, "fixtures/1").source == "cache",
        f"{len(keys)} scopes with one key",
    )


@sports.scenario("S2")
def both_counts_must_allow() -> None:
    soon = {"timeout": "500ms"}

    def exhausted(config: Path) -> tuple[Daemon, list[int], str]:
        sim = sports.sim(*STRIP)
        daemon = sports.serve(env(sim.url), config=config)
        responses = [get(daemon, f"fixtures/{n}", **soon) for n in range(6)]
        return daemon, [r.status for r in responses], responses[-1].json().get("limit", "")

    no_degrade = ("degrade: { below: 200, recover: 400 }", "degrade: off")
    tokens = variant(
        no_degrade,
        ("limit: 3000, period: 1h, algorithm: token-bucket, burst: 3000", "limit: 720, period: 1h, algorithm: token-bucket, burst: 5"),
    )
    daemon, statuses, limit = exhausted(tokens)
    other = get(daemon, "odds/1").status
    time.sleep(11)
    after = [get(daemon, f"fixtures/{n}", **soon).status for n in range(10, 14)]
    sports.check(
        "S2",
        "the bucket alone rejects (5 here), other entities go on",
        statuses == [200] * 5 + [429] and limit == "tokens" and other == 200,
        f"{limit}; odds {other}",
    )
    sports.check(
        "S2",
        "tokens come back in proportion to time (one in 5 s here)",
        after[:2] == [200, 200] and after[-1] == 429,
        " ".join(map(str, after)),
    )
    window = variant(no_degrade, ("limit: 3000, period: 1h, algorithm: sliding-window", "limit: 5, period: 1h, algorithm: sliding-window"))
    daemon, statuses, limit = exhausted(window)
    sports.check("S2", "the window alone rejects (5 here)", statuses == [200] * 5 + [429] and limit == "window", limit)


@sports.scenario("S3", "S7", "S14", "S11")
def order_and_deduplication() -> None:
    sim = sports.sim(*STRIP, "--work", "300ms")
    daemon = sports.serve(env(sim.url))
    same = together([lambda n=n: get(daemon, "fixtures/1?" + ("a=1&b=2" if n % 2 else "b=2&a=1")) for n in range(50)])
    arrivals = sim.report()["arrivals"]
    held = arrivals == 1 and all(r.status == 200 and r.body == same[0].body for r in same)
    sports.check(
        "S7 S14",
        "50 identical calls at once, parameters in any order: one upstream call",
        held,
        f"{arrivals} arrival; " + ", ".join(sorted({r.source for r in same})),
    )
    cached = [get(daemon, "fixtures/1?a=1&b=2").source for _ in range(5)]
    used = metrics(daemon, "fixtures")["requests_in_window"]
    sports.check(
        "S3",
        "cache, then in-flight, then permit: 55 calls cost one permit",
        cached == ["cache"] * 5 and used == 1,
        f"requests_in_window {used}",
    )
    different = together([lambda n=n: get(daemon, f"fixtures/{n}") for n in (2, 3)])
    sports.check(
        "S7",
        "different calls are not shared",
        sim.report()["arrivals"] == 3 and all(r.source == "upstream" for r in different),
        f"{sim.report()['arrivals']} arrivals",
    )
    no_dedup = together([lambda: get(daemon, "odds/9", X_Tollgate_Dedup="no", X_Tollgate_Cache="no") for _ in range(3)])
    fresh = get(daemon, "fixtures/1?a=1&b=2", X_Tollgate_Cache="refresh").source
    only = get(daemon, "teams/404", X_Tollgate_Cache="only").status
    held = all(r.source == "upstream" for r in no_dedup) and sim.report()["arrivals"] == 7 and fresh == "upstream" and only == 504
    sports.check(
        "S11", "per call: without dedup, without cache, refresh, cache only", held, f"{sim.report()['arrivals']} arrivals, miss {only}"
    )
    import tollgate

    with tollgate.Client(f"http://{daemon.admin}") as client:
        one = client.metrics("fixtures")
        noted = client.alerts()
    text = json.dumps(one)
    sports.check(
        "S11",
        "metrics(entity) and alerts() of the Python client",
        "requests_in_window" in text and isinstance(noted, list),
        f"{len(text)} bytes of metrics",
    )


@sports.scenario("S3", "S7")
def failed_leader() -> None:
    seen = []
    lock = threading.Lock()

    def reply(got: Received) -> Reply:
        with lock:
            seen.append(got.at)
            first = len(seen) == 1
        time.sleep(0.3)
        return (503 if first else 200), {}, {"data": {"id": 1}}

    daemon = sports.serve(env(sports.play(reply).url))
    responses = together([lambda: get(daemon, "fixtures/1") for _ in range(10)])
    sports.check(
        "S7",
        "a leader that fails does not fail its followers",
        all(r.status == 200 for r in responses) and len(seen) == 2,
        f"{len(seen)} upstream calls for 10 callers",
    )
    used = metrics(daemon, "fixtures")["requests_in_window"]
    sports.check("S3", "each attempt costs a permit, each caller does not", used == 2, f"requests_in_window {used}")


@sports.scenario("S4")
def metadata() -> None:
    headers = sports.sim(*STRIP, "--rule", "first-use 3000/1h", "--style", "x-ratelimit")
    daemon = sports.serve(env(headers.url))
    for number in range(100):  # the token is also used elsewhere
        call(headers.address, f"/v3/football/fixtures/elsewhere{number}")
    get(daemon, "fixtures/1")
    one = metrics(daemon, "fixtures")
    held = (
        (one["api_remaining"], one["api_limit"]) == (2899, 3000) and 0 < one["reset_in_seconds"] <= 3601 and one["reset_at"] > time.time()
    )
    sports.check(
        "S4",
        "X-RateLimit headers: remaining, limit, reset",
        held,
        f"{one['api_remaining']} of {one['api_limit']}, reset in {one['reset_in_seconds']} s",
    )
    capacity = daemon.api("/v1/capacity?provider=sportmonks&entity=fixtures").json()["remaining"]
    sports.check("S4", "the local count follows the provider's when that is smaller", capacity is not None and capacity <= 2899, f"{capacity} remain")
    body = sports.sim(*STRIP, "--rule", "first-use 3000/1h", "--style", "sportmonks")
    second = sports.serve(env(body.url))
    get(second, "odds/1")
    one = metrics(second, "odds")
    sports.check(
        "S4",
        "SportMonks' own body: resets_in_seconds, remaining, requested_entity",
        one["api_remaining"] == 2999 and 3500 < one["reset_in_seconds"] <= 3601,
        f"{one['api_remaining']}, reset in {one['reset_in_seconds']} s",
    )
    reset_at = int(time.time()) + 1800
    played = sports.play(lambda got: (200, {}, {"data": [], "rate_limit": {"remaining": 1234, "limit": 3000, "reset_at": reset_at}}))
    third = sports.serve(env(played.url))
    get(third, "teams/1")
    one = metrics(third, "teams")
    sports.check(
        "S4",
        "the document's body: rate_limit.remaining, limit, reset_at",
        (one["api_remaining"], one["api_limit"], one["reset_at"]) == (1234, 3000, reset_at),
        f"{one['api_remaining']} of {one['api_limit']}",
    )


@sports.scenario("S5", "S14")
def too_many_requests() -> None:
    state = {"left": 0, "headers": {}, "body": {}}
    lock = threading.Lock()

    def reply(got: Received) -> Reply:
        with lock:
            if "/odds/" in got.path and state["left"] > 0:
                state["left"] -= 1
                body = state["body"]
                return 429, state["headers"], body() if callable(body) else body
        return 200, {}, {"data": {}}

    provider = sports.play(reply)
    daemon = sports.serve(env(provider.url))

    def round_of(name: str, count: int, headers: dict, body: object, patience: str = "300ms") -> tuple[list[float], object, object]:
        with lock:
            state.update(left=count, headers=headers, body=body)
        result: list = []
        caller = threading.Thread(target=lambda: result.append(get(daemon, f"odds/{name}")))
        caller.start()
        # Unknown before its first call.
        known = lambda: daemon.api("/api/rate-limit/metrics?entity=odds").status == 200  # noqa: E731
        wait_until("the cool-down", lambda: known() and metrics(daemon, "odds")["is_in_cooldown"])
        rejected = get(daemon, f"odds/{name}-soon", timeout=patience)
        other = get(daemon, f"fixtures/{name}")
        caller.join()
        at = [got.at for got in provider.log(f"/v3/football/odds/{name}")]
        assert result[0].status == 200, result[0].status
        return gaps(at), rejected, other

    waits, rejected, other = round_of("header", 1, {"Retry-After": "6"}, {}, patience="2s")
    held = (
        rejected.status == 429
        and rejected.json()["reason"] == "cooldown"
        and rejected.json()["error"] == "RateLimitExceeded"
        and int(rejected.headers["retry-after"]) <= 8
    )
    sports.check(
        "S5",
        "during a cool-down a call that cannot wait is rejected at once",
        held and rejected.waited < AT_ONCE,
        f"429 {rejected.json()['reason']}, Retry-After {rejected.headers.get('retry-after')}",
    )
    sports.check(
        "S5",
        "other entities go on",
        other.status == 200 and other.headers["x-tollgate-decision"] == "allow",
        f"fixtures {other.status} after {other.seconds * 1000:.0f} ms",
    )
    held = not_early(waits, [6.0]) and 6.0 <= daemon.pauses(1)[0] <= 1.3 * 6.0
    sports.check("S5", "Retry-After 6 s first, and 0 to 30 % more", held, f"{waits[0]:.2f} s")
    waits, _, _ = round_of("body", 1, {}, lambda: {"rate_limit": {"remaining": 0, "limit": 3000, "reset_at": int(time.time()) + 4}})
    held = not_early(waits, [2.9]) and 2.9 <= daemon.pauses(2)[1] <= 1.3 * 4.0
    sports.check("S5", "then reset_at of the body (3 to 4 s), and 0 to 30 % more", held, f"{waits[0]:.2f} s")
    waits, _, _ = round_of("neither", 3, {}, {})
    pauses, least = daemon.pauses(5)[2:], [1, 2, 4]
    held = not_early(waits, least) and len(pauses) == 3 and all(low <= pause <= 1.3 * low for pause, low in zip(pauses, least))
    sports.check("S5 S14", "else 1 s x 2^n, and 0 to 30 % more", held, " ".join(f"{wait:.2f}" for wait in waits))
    one = metrics(daemon, "odds")
    sports.check(
        "S14",
        "429 simulation: counted by entity",
        one["total_429_errors"] == 5 and metrics(daemon, "fixtures")["total_429_errors"] == 0,
        f"odds {one['total_429_errors']}",
    )
