"""Lifetimes, fixed and adaptive, and the cache that hosts share (S8, S12, S13)."""

import time

from harness import HELD, Received, Reply, gaps, redis_server, wait_until
from sportmonks import STRIP, TOKEN, env, get, metrics, sports, variant

PASSWORD = "password-of-redis"


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

    hits: list[float] = []  # when calls began that the cache served

    def fetched(count: int) -> list[tuple[float, float]]:
        """Each time between two fetches, and how old the response was that the cache served last: the lifetime lies between
        the two, however late a busy machine asks."""
        while len(provider.log()) < count:
            response = get(daemon, "standings/1")
            if response.source == "cache":
                hits.append(response.began)
            time.sleep(0.02)
        at = [got.at for got in provider.log()]
        ages = [max([hit - first for hit in hits if first < hit < later], default=0.0) for first, later in zip(at, at[1:])]
        return list(zip(gaps(at), ages))

    lives = fetched(4)
    held = len(lives) == 3 and all(ttl <= wait and age < 1.2 * ttl for (wait, age), ttl in zip(lives, (1, 1.5, 2.25)))
    sports.check("S13", "adaptive TTL: x 1.5 for each unchanged response (1 s to 4 s here)", held, _shown(lives))
    content["tag"] = "two"
    lives = fetched(6)[-2:]
    # After 3.4 s the change is seen: 1.7 s from then on.
    held = lives[0][0] >= 3.3 and lives[1][0] >= 1.6 and lives[1][1] < 2.1
    sports.check("S13", "x 0.5 when the content has changed", held, _shown(lives))


def _shown(lives: list[tuple[float, float]]) -> str:
    return ", ".join(f"{age:.2f} to {wait:.2f} s" for wait, age in lives)


@sports.scenario("S12")
def shared_cache() -> None:
    """REDIS_HOST, REDIS_PORT and REDIS_PASSWORD, as the document names them; each host has a ledger of its own."""
    sim = sports.sim(*STRIP)
    redis = redis_server(sports, "--requirepass", PASSWORD)
    variables = {"REDIS_HOST": "127.0.0.1", "REDIS_PORT": str(redis.port), "REDIS_PASSWORD": PASSWORD}
    hosts = [sports.serve(env(sim.url, **variables)) for _ in range(2)]
    sources = [get(hosts[0], "teams/1").source]
    time.sleep(0.3)
    sources.append(get(hosts[1], "teams/1").source)
    held = sources == ["upstream", "cache"] and len(sim.log()) == 1
    sports.check("S12", "with REDIS_HOST, _PORT and _PASSWORD a second host serves what the first has fetched", held, f"{' '.join(sources)}, {len(sim.log())} call")
    apart = sports.serve(env(sim.url))
    alone = [get(apart, "teams/1").source for _ in range(2)]
    sports.check("S12", "without them the cache is local", alone == ["upstream", "cache"], " ".join(alone))
    redis.kill()
    lost = get(hosts[1], "teams/2")
    again = [get(hosts[1], "teams/2").source for _ in range(2)]
    held = lost.status == 200 and lost.seconds < HELD and again == ["cache", "cache"]
    sports.check("S12", "Redis killed: calls go on, and responses are cached in memory", held, f"{lost.status} in {lost.seconds * 1000:.0f} ms, then {' '.join(again)}")
    redis.start()

    def is_shared() -> bool:
        number = len(sim.log())
        get(hosts[1], f"teams/back{number}")
        time.sleep(0.3)  # a response is stored after it was passed on
        return get(hosts[0], f"teams/back{number}").source == "cache"

    wait_until("the hosts share their cache again", is_shared)
    sports.check("S12", "Redis back: they share again", True, "by itself")
    logs = "".join(host.log() for host in hosts)
    sports.check("S12", "the token of SportMonks is sent, and neither it nor Redis's password is in a log", TOKEN not in logs and PASSWORD not in logs, "no line")
