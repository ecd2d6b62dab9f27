"""The state machine: Throttle, Sleep, HalfOpen, CacheOnly, and the way back (A2 to A8, A15 to A17)."""

import json
import math
import threading
import time

from harness import AT_ONCE, Received, Reply, gaps, most_in_any, to_set, together, wait_until
from anivault import cli, NO_RETRY, env, health, state, calls, failing, sleep


@cli.scenario("A2", "A3", "A4", "A8", "A15", "A16", "A17", "A18")
def error_ratio() -> None:
    """Scenario 3: 11 errors among 50 results; then the way back."""
    sim = cli.sim("--rule", "in-flight 4", "--work", "20ms")
    daemon = cli.serve(env(sim.url), *to_set(NO_RETRY))
    responses = [200] * 15 + [500, 200, 200, 200] * 8 + [502, 502]
    failing(sim, daemon, 0, responses)
    before = health(daemon)
    cli.check(
        "A8",
        "20 % seen once changes nothing: it must hold twice in a row",
        before["state"] == "normal",
        f"ratio {before['err_rate_30s']:.3f}, {before['state']}",
    )
    failing(sim, daemon, 100, [503])
    after = health(daemon)
    counts = {name: after[name] for name in ("count_2xx", "count_429", "count_5xx", "count_other", "net_errors", "total")}
    expected = {"count_2xx": 39, "count_429": 0, "count_5xx": 11, "count_other": 0, "net_errors": 0, "total": 50}
    cli.check(
        "A2",
        "the counts of the window are shown",
        counts == expected and abs(after["err_rate_30s"] - 0.22) < 0.001,
        f"ratio {after['err_rate_30s']:.2f} of {after['total']}",
    )
    cli.check("A18", "scenario 3: 11 errors among 50 results lead to Throttle", after["state"] == "throttle", after["state"])
    cli.check(
        "A3",
        "there 17 calls a second and 2 at a time (half of 35 and 4)",
        (after["rate"], after["sem"]) == (17, 2),
        f"rate {after['rate']}, sem {after['sem']}",
    )
    sim.reset()
    began = time.monotonic()
    together([lambda t=t: calls(daemon, 1000 + 100 * t, 8) for t in range(6)])
    report, times = sim.report(), sim.times()
    at_once = report["scopes"][0]["rules"][0]["most_accepted"]
    late = [at for at in times if at > times[0] + 1.0]
    most = most_in_any(late, 1.0) if late else 0
    cli.check(
        "A3",
        "the provider's log shows the slower pace",
        at_once <= 2 and most <= 18 and len(times) == 48,
        f"{at_once} at a time, {most} in 1 s, 48 calls in {time.monotonic() - began:.1f} s",
    )
    seen = [state(daemon)]
    number = 5000
    while seen[-1] == "throttle" and number < 5100:
        calls(daemon, number, 1)
        number += 1
        seen.append(state(daemon))
    ratio = health(daemon)["err_rate_30s"]
    cli.check(
        "A4", "10 successes and a ratio below 10 % lead to HalfOpen", seen[-1] == "half_open", f"after {number - 5000 + 48} successes"
    )
    cli.check(
        "A2", "HalfOpen starts with an empty window", ratio == 0.0 and health(daemon)["total"] == 0, f"total {health(daemon)['total']}"
    )
    calls(daemon, 6000, 5)
    back = health(daemon)
    cli.check(
        "A15",
        "back in Normal, the rate starts at Throttle's 17 and climbs in steps of 5 min",
        back["state"] == "normal" and back["rate"] == 17,
        f"{back['state']}, rate {back['rate']}",
    )
    transitions = daemon.logged("event=state_transition", 3)
    keys = ["ts", "lvl", "comp", "state", "event", "sleep", "consec429", "err_rate_30s", "rate", "sem", "retry_after"]
    shaped = all([part.split("=")[0] for part in line.split()[:11]] == keys and "comp=ratelimiter" in line for line in transitions)
    path = [(dict(part.split("=", 1) for part in line.split() if "=" in part)) for line in transitions]
    steps = [(one["from"], one["to"], one["reason"]) for one in path]
    expected_steps = [
        ("Normal", "Throttle", "err_ratio"),
        ("Throttle", "HalfOpen", "success_window_ok"),
        ("HalfOpen", "Normal", "probe_ok"),
    ]
    cli.check(
        "A16",
        "every transition is a line with all keys in order, from, to and reason",
        shaped and steps == expected_steps,
        f"{len(steps)} lines" if shaped else transitions[:1],
    )

    def samples() -> dict[str, str]:
        lines = (daemon.folder / "anivault.ndjson").read_text().splitlines()[:-1]
        return {one["name"]: one["type"] for one in map(json.loads, lines)}

    names = {
        "requests_total": "counter",
        "cache_hits_total": "counter",
        "cache_miss_total": "counter",
        "rate_current": "gauge",
        "concurrency_current": "gauge",
        "err_rate_30s": "gauge",
        "latency_ms": "histogram",
        "sleep_ms": "histogram",
    }
    wait_until("metrics in the file", lambda: set(names) <= set(samples()))
    found = samples()
    cli.check(
        "A17",
        "NDJSON has the document's counters, gauges and histograms",
        all(found[name] == kind for name, kind in names.items()),
        f"{len(names)} names",
    )


@cli.scenario("A3", "A4", "A5", "A16")
def too_many_requests() -> None:
    sim = cli.sim("--rule", "in-flight 4")
    fast = ["tmdb.cooldown.base=50ms", "tmdb.cooldown.max=50ms"]
    daemon = cli.serve(env(sim.url), *to_set(NO_RETRY, *fast))
    seen = []
    for number in range(5):
        failing(sim, daemon, number, [429])
        seen.append(state(daemon))
        time.sleep(0.1)
    cli.check("A3", "three consecutive 429s lead to Throttle", seen[:3] == ["normal", "normal", "throttle"], " ".join(seen[:3]))
    cli.check("A4", "five lead to Sleep", seen[3:] == ["throttle", "sleep"], " ".join(seen[3:]))
    rejected = daemon.get("/tmdb/3/movie/99")
    body = rejected.json()
    held = (
        rejected.status == 503
        and body["error"] == "ProviderUnavailableError"
        and body["health"] == "sleep"
        and 27_000 <= body["resetIn"] <= 30_000
    )
    cli.check(
        "A5",
        "Sleep rejects every call at once, for 30 s",
        held and rejected.waited < AT_ONCE,
        f"resetIn {body.get('resetIn')} ms, {rejected.seconds * 1000:.0f} ms",
    )
    arrivals = sim.report()["arrivals"]
    cli.check("A5", "nothing reaches the provider meanwhile", arrivals == 5, f"{arrivals} arrivals")
    line = next(line for line in daemon.logged("to=Sleep") if "event=state_transition" in line)
    cli.check(
        "A16",
        "the line of the 429s: state, sleep, consec429, reason",
        all(part in line for part in ("state=Sleep", "consec429=5", "reason=consec_429", "sleep=")),
        line.split("event=")[1][:60],
    )

    def long(got: Received) -> Reply:
        return 429, ({"Retry-After": "45"} if got.path.endswith("/1") else {}), {}

    told = cli.serve(env(cli.play(long).url), *to_set(NO_RETRY, *fast, "tmdb.n_throttle=1", "tmdb.n_cacheonly=2"))
    for number in range(2):
        calls(told, number, 1)
        time.sleep(0.1)
    body = told.get("/tmdb/3/movie/99").json()
    cli.check(
        "A5",
        "a longer Retry-After (45 s) wins over the 30 s",
        42_000 <= body.get("resetIn", 0) <= 45_000,
        f"resetIn {body.get('resetIn')} ms",
    )


@cli.scenario("A4", "A8")
def lasting_errors() -> None:
    sim = cli.sim()
    daemon = cli.serve(env(sim.url), *to_set(NO_RETRY, "tmdb.p_sleep_for=2s"))
    sim.fault("outage now 500")
    began, number = time.monotonic(), 0
    while state(daemon) != "sleep" and time.monotonic() - began < 30:
        calls(daemon, number, 1)
        number += 1
        time.sleep(0.05)
    took = time.monotonic() - began
    reasons = [line.split("reason=")[1].split()[0] for line in daemon.logged("event=state_transition", 2)]
    cli.check(
        "A4",
        "60 % errors for 5 min (2 s here) lead from Throttle to Sleep",
        took >= 2 and reasons == ["err_ratio", "err_ratio"],
        f"after {took:.1f} s: {' '.join(reasons)}",
    )


@cli.scenario("A5", "A6", "A18")
def probing() -> None:
    """Scenario 4: one failure among three probes, then five successes of five."""
    sim = cli.sim("--rule", "in-flight 4", "--work", "30ms")
    settings = ["sleep_first=4s", "n_throttle=1", "n_cacheonly=2", "cooldown.base=50ms", "cooldown.max=50ms"]
    daemon = cli.serve(env(sim.url), *to_set(NO_RETRY, *[f"tmdb.{one}" for one in settings]))
    sleep(sim, daemon)
    first = daemon.get("/tmdb/3/movie/1").json()["resetIn"]
    wait_until("HalfOpen", lambda: state(daemon) == "half_open")
    failing(sim, daemon, 10, [200, 200, 500])
    again = state(daemon)
    second = daemon.get("/tmdb/3/movie/2").json()["resetIn"]
    cli.check("A18", "scenario 4: one failure among three probes leads to Sleep again", again == "sleep", again)
    cli.check("A5 A6", "the next sleep is twice as long (4 s, then 8 s here)", first <= 4000 < second <= 8000, f"{first} ms, {second} ms")
    wait_until("HalfOpen", lambda: state(daemon) == "half_open")
    sim.reset()
    # Four callers press at the same time; those that are rejected come back.
    done: list[float] = []
    began = time.monotonic()

    def press(caller: int) -> None:
        number = 0
        while len(done) < 5:
            if daemon.get(f"/tmdb/3/tv/{caller}-{number}").status == 200:
                done.append(time.monotonic() - began)
            number += 1

    together([lambda c=c: press(c) for c in range(4)])
    # The n-th permit is there n/3 s after the first, however long a call then takes to arrive. One at a time: each takes 30 ms.
    early = [at for number, at in enumerate(sorted(done)[:5]) if at < number / 3]
    closest = min(gaps(sim.times()[:5]))
    cli.check(
        "A6", "probes: at most 3 a second, one at a time", not early and closest >= 0.03, f"closest {closest:.3f} s, five in {max(sorted(done)[:5]):.2f} s"
    )
    wait_until("Normal", lambda: state(daemon) == "normal")
    cli.check("A18", "scenario 4: five of five lead to Normal", True, "normal")


@cli.scenario("A15")
def ramp() -> None:
    sim = cli.sim()
    settings = [
        "sleep_first=2s",
        "n_throttle=1",
        "n_cacheonly=2",
        "cooldown.base=50ms",
        "cooldown.max=50ms",
        "ramp_every=500ms",
        "probe_rate=50",
    ]
    daemon = cli.serve(env(sim.url), *to_set(NO_RETRY, *[f"tmdb.{one}" for one in settings]))
    sleep(sim, daemon)
    wait_until("HalfOpen", lambda: state(daemon) == "half_open")
    began = time.monotonic()
    calls(daemon, 10, 5)
    rates: list[float] = []
    ends = time.monotonic() + 20
    while time.monotonic() < ends and (not rates or rates[-1] < 35):
        rate = health(daemon)["rate"]
        if not rates or rate != rates[-1]:
            rates.append(rate)
        time.sleep(0.05)
    took = time.monotonic() - began
    # On a machine that stalls some steps are not seen: then the rate has grown by 1.1 for each of them, and in no less time.
    steps = [later / earlier for earlier, later in zip(rates, rates[1:-1])]
    passed = [round(math.log(step, 1.1)) for step in steps]
    by_tenths = all(count >= 1 and abs(step / 1.1**count - 1) < 0.03 for step, count in zip(steps, passed))
    held = rates[0] == 17 and rates[-1] == 35 and by_tenths and took >= 8 * 0.5  # 17 x 1.1^8 is more than 35
    cli.check("A15", "x 1.1 every 5 min (0.5 s here) up to 35", held, " ".join(f"{rate:.1f}" for rate in rates) + f" in {took:.1f} s")


@cli.scenario("A5", "A7")
def operator() -> None:
    sim = cli.sim()
    where = env(sim.url)
    daemon = cli.serve(where, "--offline")
    order = lambda *args: cli.tollgate(where, *args, "--admin", daemon.admin)  # noqa: E731
    offline = daemon.get("/tmdb/3/movie/1")
    order("resume", "tmdb")
    fetched = daemon.get("/tmdb/3/movie/1")
    order("offline", "tmdb")
    cached, missing = daemon.get("/tmdb/3/movie/1"), daemon.get("/tmdb/3/movie/2")
    held = (offline.status, fetched.status, missing.status, cached.source) == (503, 200, 503, "cache")
    cli.check(
        "A5",
        "--offline and `tollgate offline`: rejected, cached responses are served, resume ends it",
        held,
        f"{offline.status} {fetched.status} {missing.status} {cached.source}",
    )
    order("resume", "tmdb")
    order("pause", "tmdb", "--for", "2s")
    waited = daemon.get("/tmdb/3/movie/3")
    cli.check("A5", "`tollgate pause --for 2s` lets calls wait", waited.status == 200 and waited.seconds >= 1.5, f"{waited.seconds:.1f} s")
    order("cache-only", "tmdb")
    cached, missing = daemon.get("/tmdb/3/movie/1"), daemon.get("/tmdb/3/movie/4")
    held = cached.source == "cache" and missing.status == 504 and missing.json()["error"] == "NotInCache" and state(daemon) == "cache_only"
    cli.check("A7", "CacheOnly by an operator: the cache only, a miss is 504 NotInCache", held, f"{cached.source}, {missing.status}")
    time.sleep(1)
    still = state(daemon)
    order("resume", "tmdb")
    cli.check(
        "A7", "an operator ends it, nothing else", still == "cache_only" and state(daemon) == "normal", f"{still}, then {state(daemon)}"
    )
    broken = cli.sim()
    broken.fault("outage now 500")
    settings = ["cache_only_after=3s", "sleep_first=2s", "p_sleep_for=1s", "auto_recover=3s", "probe_rate=20"]
    policy = cli.serve(env(broken.url), *to_set(NO_RETRY, *[f"tmdb.{one}" for one in settings]))
    stop = threading.Event()

    def load() -> None:
        number = 0
        while not stop.is_set():
            calls(policy, number, 1)
            number += 1
            time.sleep(0.05)

    loader = threading.Thread(target=load)
    loader.start()
    try:
        wait_until("CacheOnly by policy", lambda: state(policy) == "cache_only")
        broken.fault("clear")
        wait_until("Normal by --auto-recover", lambda: state(policy) == "normal")
    finally:
        stop.set()
        loader.join()
    policy.logged("reason=auto_recover")
    log = [line.split("from=")[1] for line in policy.log_lines("event=state_transition")]
    text = " ".join(log)
    cli.check(
        "A7",
        "lasting errors lead to CacheOnly (3 s here), auto_recover to Sleep, HalfOpen, Normal",
        "reason=policy" in text and "reason=auto_recover" in text,
        f"{len(log)} transitions",
    )
    flag = cli.serve(where, "--auto-recover", "15")
    shown = json.loads(cli.tollgate(where, "status", "tmdb", "--json", "--admin", flag.admin).stdout)
    value = next((one["value"] for one in shown.get("settings", []) if one["key"] == "health.auto_recover"), None)
    cli.check("A7", "--auto-recover 15 is 15 minutes", value == "15m", value)
