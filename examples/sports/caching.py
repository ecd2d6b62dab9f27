"""Lifetimes, fixed and adaptive (S8, S13)."""

import time

from harness import Received, Reply, gaps
from sportmonks import sports, STRIP, env, variant, metrics, get, gaps_pairs


@sports.scenario("S8", "S14")
def lifetimes() -> None:
    sim = sports.sim(*STRIP)
    daemon = sports.serve(env(sim.url))
    names = ["teams", "leagues", "markets", "standings", "sidelined", "fixtures", "livescores", "odds", "events"]
    first = [get(daemon, f"{name}/1").source for name in names]
    second = [get(daemon, f"{name}/1").source for name in names]
    time.sleep(4.3)
    third = {name: get(daemon, f"{name}/1").source for name in names}
    held = (
        set(first) == {"upstream"}
        and set(second) == {"cache"}
        and [name for name, source in third.items() if source != "cache"] == ["livescores", "odds", "events"]
    )
    sports.check(
        "S8",
        "live entities are fetched again after 4 s, the others are not",
        held,
        " ".join(name for name, source in third.items() if source == "upstream"),
    )
    shown = sports.tollgate(env(sim.url), "provider", "show", "sportmonks").stdout
    table = {
        "teams": "24h",
        "leagues": "24h",
        "markets": "24h",
        "standings": "5m..10m",
        "sidelined": "5m..10m",
        "fixtures": "3m",
        "livescores": "4s",
        "odds": "4s",
        "events": "4s",
    }
    sports.check(
        "S8", "the document's table of lifetimes", all(f"{name} {ttl}\n" in shown for name, ttl in table.items()), f"{len(table)} entities"
    )
    for number in range(10):
        get(daemon, f"teams/hit{number}")
    for _ in range(3):
        for number in range(10):
            get(daemon, f"teams/hit{number}")
    one = metrics(daemon, "teams")
    hits, misses = one["cache_hits"], one["cache_misses"]
    held = (
        (hits, misses) == (2 + 30, 1 + 10)
        and abs(one["cache_hit_rate"] - hits / (hits + misses)) < 0.01
        and one["total_requests"] == hits + misses
    )
    sports.check("S14", "cache hit rate: 32 of 43 look-ups", held, f"{hits} hits, {misses} misses, rate {one['cache_hit_rate']:.2f}")


@sports.scenario("S13")
def adaptive_lifetimes() -> None:
    content = {"tag": "one"}

    def reply(got: Received) -> Reply:
        if got.headers.get("if-none-match") == f'"{content["tag"]}"':
            return 304, {"ETag": f'"{content["tag"]}"'}, b""
        return 200, {"ETag": f'"{content["tag"]}"'}, {"data": content["tag"]}

    provider = sports.play(reply)
    daemon = sports.serve(env(provider.url), config=variant(("standings: 5m..10m", "standings: 1s..4s")))

    def fetched(count: int) -> list[float]:
        while len(provider.log()) < count:
            get(daemon, "standings/1")
            time.sleep(0.02)
        return gaps([got.at for got in provider.log()])

    waits = fetched(4)
    held = len(waits) == 3 and 1 <= waits[0] < 1.45 and all(1.3 < later / earlier < 1.75 for earlier, later in gaps_pairs(waits))
    sports.check(
        "S13", "adaptive TTL: x 1.5 for each unchanged response (1 s to 4 s here)", held, " ".join(f"{wait:.2f}" for wait in waits)
    )
    content["tag"] = "two"
    waits = fetched(6)[-2:]
    sports.check("S13", "x 0.5 when the content has changed", 0.4 < waits[1] / waits[0] < 0.68, " ".join(f"{wait:.2f}" for wait in waits))
