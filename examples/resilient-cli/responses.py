"""What responses mean: Retry-After, jitter, kinds of errors (A9 to A11)."""

import email.utils
import statistics
import threading
import time

from harness import Received, Reply, gaps, not_early, to_set, together
from anivault import cli, NO_RETRY, env, health, calls, failing


@cli.scenario("A9", "A18")
def retry_after() -> None:
    """Scenario 1: seconds, dates, a clock that is wrong, and what cannot be read."""
    seen: dict[str, int] = {}
    lock = threading.Lock()

    def date(ahead: float) -> str:
        return email.utils.formatdate(int(time.time() + ahead + 0.999), usegmt=True)

    def reply(got: Received) -> Reply:
        kind = got.path.rsplit("/", 1)[-1]
        with lock:
            seen[kind] = seen.get(kind, 0) + 1
            if seen[kind] > 1:
                return 200, {}, {"id": 1}
        headers = {
            "seconds": {"Retry-After": "2"},
            "zero": {"Retry-After": "0"},
            "date": {"Retry-After": date(3)},
            "past": {"Retry-After": date(-3600)},
            "malformed": {"Retry-After": "soon"},
            "signed": {"Retry-After": "-30"},
            "skewed": {"Date": date(7200), "Retry-After": date(7203)},
        }[kind]
        return 429, headers, {}

    provider = cli.play(reply)
    daemon = cli.serve(env(provider.url))
    bounds = {
        "seconds": (2, 2),
        "zero": (1, 1),
        "date": (2.9, 4.1),
        "past": (1, 1),
        "malformed": (0, 1.5),
        "signed": (0, 1.5),
        "skewed": (1.9, 4.1),
    }
    found = {}
    for kind in bounds:
        response = daemon.get(f"/tmdb/3/{kind}")
        found[kind] = (response.status, gaps([got.at for got in provider.log(f"/3/{kind}")]))
    pauses = dict(zip(bounds, daemon.pauses(len(bounds))))
    right = [found[kind][0] == 200 and not_early(found[kind][1], [low]) and low <= pauses[kind] <= high for kind, (low, high) in bounds.items()]
    wrong = [kind for kind, is_right in zip(bounds, right) if not is_right]
    shown = " ".join(f"{kind} {sum(value[1]):.1f}" for kind, value in found.items())
    cli.check("A9", "Retry-After in seconds and as a date; 0 and past are 1 s; malformed is absent; Date corrects skew", not wrong, shown)
    cli.check(
        "A18",
        "scenario 1: Retry-After 2 is waited for, then the call succeeds",
        "seconds" not in wrong,
        f"{sum(found['seconds'][1]):.2f} s, then {found['seconds'][0]}",
    )


@cli.scenario("A10", "A18")
def jitter() -> None:
    """Scenario 2: the waits before the first and the second retry."""
    seen: dict[str, int] = {}
    lock = threading.Lock()

    def reply(got: Received) -> Reply:
        with lock:
            seen[got.path] = seen.get(got.path, 0) + 1
            return (503 if seen[got.path] <= 2 else 200), {}, {"id": 1}

    provider = cli.play(reply)
    daemon = cli.serve(
        env(provider.url),
        *to_set(
            "tmdb.health.mode=off",
            "tmdb.retry.budget.min_per_second=1000",
            "tmdb.concurrency=64",
            "tmdb.rate_base=1000",
            "tmdb.bucket_cap=1000",
        ),
    )
    responses = together([lambda n=n: daemon.get(f"/tmdb/3/movie/{n}") for n in range(60)])
    waits = [gaps([got.at for got in provider.log(f"/3/movie/{n}")]) for n in range(60)]
    # The waits that were drawn: those of the provider's log have the machine's delays too.
    drawn = [daemon.retry_waits(response) for response in responses]
    kept = all(r.status == 200 for r in responses) and all(not_early(wait, [one - 0.05 for one in plan]) for wait, plan in zip(waits, drawn))
    for place, ceiling in ((0, 1.5), (1, 3.0)):
        sample = [one[place] for one in drawn]
        mean, spread = statistics.mean(sample), statistics.stdev(sample)
        # 60 draws: four standard errors of the mean.
        held = kept and abs(mean - ceiling / 2) < 0.17 * ceiling and abs(spread - ceiling / 12**0.5) < 0.1 * ceiling and max(sample) <= ceiling
        what = f"retry {place + 1}: uniform between 0 and {ceiling} s (60 calls)"
        cli.check("A10", what, held, f"mean {mean:.2f} s, deviation {spread:.2f} s, longest {max(sample):.2f} s")
        if place == 0:
            cli.check(
                "A18", "scenario 2: mean and deviation of full jitter", held, f"expected {ceiling / 2:.2f} and {ceiling / 12**0.5:.2f}"
            )


@cli.scenario("A11", "A18")
def kinds_of_errors() -> None:
    """Scenario 5: network errors count, the client's own mistakes do not."""
    sim = cli.sim()
    daemon = cli.serve(env(sim.url))
    statuses = [401, 403, 404, 422] * 8
    returned = failing(sim, daemon, 0, statuses)
    after = health(daemon)
    held = (
        returned == statuses
        and after["state"] == "normal"
        and after["count_other"] == 32
        and after["err_rate_30s"] == 0
        and sim.report()["arrivals"] == 32
    )
    cli.check(
        "A11",
        "32 responses 401, 403, 404, 422: one attempt each, no effect on the state",
        held,
        f"count_other {after['count_other']}, {after['state']}",
    )
    lines = [line for line in daemon.log().splitlines() if "event=client_error" in line]
    logged = bool(lines) and all("provider=tmdb status=4" in line and "/3/movie" not in line for line in lines)
    cli.check("A11", "they are logged, at most once a second, with provider and status and no path", logged, f"{len(lines)} lines")
    network = cli.sim()
    broken = cli.serve(env(network.url), *to_set(NO_RETRY, "tmdb.timeout.first_byte=700ms"))
    calls(broken, 0, 8)
    network.fault("reset-before next 2")
    calls(broken, 100, 2)
    network.fault("hang next 2")
    calls(broken, 200, 2)
    after = health(broken)
    held = after["net_errors"] == 4 and after["state"] == "throttle"
    cli.check("A11", "connections that break and time-outs count", held, f"net_errors {after['net_errors']} of {after['total']}")
    cli.check("A18", "scenario 5: network errors lead to Throttle, 404 does not", held, after["state"])
    dead = cli.serve(env("http://127.0.0.1:9"), *to_set(NO_RETRY))
    calls(dead, 0, 12)
    after = health(dead)
    cli.check(
        "A11",
        "connections that are refused count",
        after["net_errors"] >= 10 and after["state"] in ("throttle", "sleep"),
        f"net_errors {after['net_errors']}, {after['state']}",
    )
    # A name that no server has: the resolver of the host says so, or is not there.
    unnamed = cli.serve(env("http://tmdb.invalid"), *to_set(NO_RETRY, "tmdb.timeout.connect=2s"))
    returned = calls(unnamed, 0, 12)
    after = health(unnamed)
    held = set(returned) <= {502, 503, 504} and after["net_errors"] >= 10 and after["state"] in ("throttle", "sleep")
    what = f"{sorted(set(returned))}, net_errors {after['net_errors']}, {after['state']}"
    cli.check("A11", "DNS errors count", held, what)
    cli.check("A18", "scenario 5: DNS errors lead to Throttle or Sleep", held, what)
