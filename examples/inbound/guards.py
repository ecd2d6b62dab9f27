"""The buckets themselves: in Redis, exact, set by the document's variables, and without Redis (C1, C2, C3, C9, C12)."""

import inspect
import time
from pathlib import Path

import tollgate
from harness import HELD, call, together, wait_until
from inbound import HERE, System, inbound

IP = "203.0.113.7"
CLASSES = {"ip": (10, 5), "api": (100, 20), "user": (20, 10), "task": (50, 15)}
BUCKETS = {"ip": IP, "api": "global", "user": "alice", "task": "transcribe"}


@inbound.scenario("C1", "C2", "C3")
def buckets_in_redis() -> None:
    system = System()
    _classes_and_keys(system)
    _status_takes_nothing(system)
    _one_script(system)
    _two_gateways(system)
    _waiting(system)


def _classes_and_keys(system: System) -> None:
    for guard, identifier in BUCKETS.items():
        system.client.acquire(identifier, wait=False, guard=guard)
    keys = sorted(system.redis.keys("*"))
    expected = sorted(f"ratelimit:{guard}:{identifier}" for guard, identifier in BUCKETS.items())
    inbound.check("C3", "the keys are the document's, letter for letter, and no others", keys == expected, " ".join(keys))
    hashes = {key: system.redis.hgetall(key) for key in keys}
    held = all(
        hashes[f"ratelimit:{guard}:{BUCKETS[guard]}"].get("tokens") == str(burst - 1) and "last_refill" in hashes[f"ratelimit:{guard}:{BUCKETS[guard]}"]
        for guard, (_, burst) in CLASSES.items()
    )
    figure = ", ".join(f"{guard} {hashes[f'ratelimit:{guard}:{who}'].get('tokens')}" for guard, who in BUCKETS.items())
    inbound.check("C3", "each is a hash with tokens and last_refill, one token taken", held, figure)
    found = {}
    for guard, identifier in BUCKETS.items():
        status = system.client.get_status(identifier, guard=guard)
        found[guard] = (status["tokens_per_minute"], status["burst_size"])
    inbound.check("C3", "four classes with the document's numbers", found == CLASSES, ", ".join(f"{g} {m}/min burst {b}" for g, (m, b) in found.items()))


def _status_takes_nothing(system: System) -> None:
    before = system.redis.hgetall(f"ratelimit:ip:{IP}")
    statuses = [system.client.limiter("ip").get_status(IP) for _ in range(10)]
    fields = {"tokens_available", "tokens_per_minute", "burst_size", "last_refill"}
    unknown = system.client.get_status("198.51.100.1", guard="ip")["tokens_available"]
    held = all(set(one) == fields and 4 <= one["tokens_available"] <= 5 for one in statuses)
    held = held and unknown == 5 and before == system.redis.hgetall(f"ratelimit:ip:{IP}")
    held = held and not system.redis.exists("ratelimit:ip:198.51.100.1")
    inbound.check("C2", "get_status has the document's four fields; asked ten times it changes nothing in Redis", held, statuses[-1])


def _one_script(system: System) -> None:
    with system.redis.monitor() as monitor:
        system.client.acquire_all([{"guard": "user", "identifier": "bob"}, {"guard": "task", "identifier": "q"}], wait=False)
        heard = []
        for line in monitor.listen():
            heard.append((line["client_type"], line["command"].split()[0].upper()))
            if heard[-1][1] == "PEXPIRE" and len([one for one in heard if one[1] == "PEXPIRE"]) == 2:
                break
    scripts = [word for kind, word in heard if kind != "lua"]
    inside = [word for kind, word in heard if kind == "lua"]
    held = scripts == ["EVALSHA"] and inside.count("TIME") == 1
    inbound.check("C1", "one script decides two buckets, by Redis's own clock", held, f"{' '.join(scripts)}: {' '.join(inside)}")


def _two_gateways(system: System) -> None:
    other = tollgate.Client(f"http://{system.gateway().admin}")
    limiters = [system.client.limiter("ip"), other.limiter("ip")]
    taken = together([lambda one=limiters[n % 2]: one.acquire("203.0.113.9", wait=False) for n in range(60)])
    inbound.check("C1", "60 callers at once at two gateways: 5 tokens, so 5 of them", taken.count(True) == 5, f"{taken.count(True)} granted")


def _waiting(system: System) -> None:
    signature = inspect.signature(tollgate.client.Limiter.acquire)
    defaults = {name: one.default for name, one in signature.parameters.items() if one.default is not inspect.Parameter.empty}
    tasks = system.client.limiter("task")
    system.drain("task", "slow")
    began = time.monotonic()
    impatient = tasks.acquire("slow", timeout=0.3), time.monotonic() - began
    began = time.monotonic()
    patient = tasks.acquire("slow"), time.monotonic() - began
    # One that went on waiting would have got the token.
    held = defaults == {"tokens": 1, "wait": True, "timeout": 60.0} and not impatient[0] and patient[0] and patient[1] < HELD
    inbound.check(
        "C1",
        "acquire(identifier, tokens=1, wait=True, timeout=60.0): waits for the next token (1.2 s), or says no in time",
        held,
        f"got it after {patient[1]:.2f} s; with timeout=0.3 no after {impatient[1]:.2f} s",
    )


@inbound.scenario("C1")
def polled_often() -> None:
    """Two empty buckets of 10 a minute, asked again and again until ours had two tokens: ours, and that of the document's script.

    A token is due each 6 s. Where every fraction counts, no poll that began after that is denied, however late a busy machine polls.
    Redis alone decides here: with the profile's `local-share`, a Redis that takes longer than 500 ms to answer, as on a machine
    without a free processor, is lost for that moment, and the gateway's own share decides.
    """
    system = System(config=_without_local_share())
    document = system.redis.register_script((HERE / "document.lua").read_text())
    before = time.monotonic()
    system.drain("ip", IP)
    after = time.monotonic()
    document(keys=["document"], args=[5, time.time(), 10, 5])
    tokens, late, theirs, polls = [], [], 0, 0
    while len(tokens) < 2 and time.monotonic() - after < 17:
        began, polls = time.monotonic(), polls + 1
        reply = system.daemon.api("/v1/acquire", "POST", {"guard": "ip", "identifier": IP, "wait": False}).json()
        if reply["granted"]:
            tokens.append(time.monotonic())
        elif reply["reason"] != "store_lost" and began > after + 6 * (len(tokens) + 1) + 0.05:  # the clocks of two processes
            late.append(began - after)
        theirs += document(keys=["document"], args=[1, time.time(), 10, 5])
        time.sleep(0.02)
    held = len(tokens) == 2 and not late and all(at - before >= due for at, due in zip(tokens, (6, 12))) and theirs == 0
    at = " and ".join(f"{one - after:.2f} s" for one in tokens)
    inbound.check("C1", "polled often no fraction is lost: a token each 6 s", held, f"{polls} polls: tokens at {at}; denied after that: {len(late)}; the document's script {theirs}")


def _without_local_share() -> Path:
    text = (HERE / "tollgate.yaml").read_text()
    assert text.count("on_store_loss: local-share") == 2
    config = inbound.new_folder("closed") / "tollgate.yaml"
    config.write_text(text.replace("on_store_loss: local-share", "on_store_loss: closed").replace("providers: providers", f"providers: {HERE / 'providers'}"))
    return config


@inbound.scenario("C1", "C12")
def settings() -> None:
    """Every setting of the document, changed, and what then happens."""
    numbers = {
        "IP_REQUESTS_PER_MINUTE": "1",
        "IP_BURST_SIZE": "4",
        "API_REQUESTS_PER_MINUTE": "300",
        "API_BURST_SIZE": "30",
        "USER_REQUESTS_PER_MINUTE": "40",
        "USER_BURST_SIZE": "2",
        "QUEUE_MAX_DEPTH": "7",
        "QUEUE_RETRY_DELAY_SECONDS": "5",
        "RATE_LIMIT_RETRY_MAX_ATTEMPTS": "2",
        "RATE_LIMIT_RETRY_BACKOFF_MULTIPLIER": "1.5",
    }
    system = System(**numbers)
    found = {guard: system.client.get_status("x", guard=guard) for guard in ("ip", "api", "user")}
    rates = {guard: (one["tokens_per_minute"], one["burst_size"]) for guard, one in found.items()}
    bursts = {guard: _burst(system, guard) for guard in ("ip", "api", "user")}
    held = rates == {"ip": (1, 4), "api": (300, 30), "user": (40, 2)} and (bursts["ip"], bursts["user"]) == (4, 2) and bursts["api"] >= 30
    inbound.check("C12", "IP_, API_, USER_ REQUESTS_PER_MINUTE and BURST_SIZE", held, f"granted at once: {bursts}")
    task = system.daemon.api("/v1/acquire", "POST", {"guard": "task", "identifier": "q"}).json()["task"]
    manager = tollgate.QueueManager(system.client)
    depth = [manager.can_submit_task("q", pending=count) for count in (7, 8)]
    held = depth == [True, False] and task == {"max_pending": 7, "retry_delay": 5.0, "retries": 2, "factor": 1.5, "wait": 300.0}
    inbound.check("C12", "QUEUE_MAX_DEPTH, QUEUE_RETRY_DELAY_SECONDS, RATE_LIMIT_RETRY_…", held, task)
    retries = [system.daemon.api("/v1/tasks/q", "POST", {"id": "1", "event": event}).json()["retry_in"] for event in ("started", "failed") * 3]
    inbound.check("C12", "a failed task is retried as they say: after 1 and 1.5 s, then no more", retries[1::2] == [1.0, 1.5, None], retries[1::2])
    left = system.redis.pttl("ratelimit:ip:x") / 1000
    inbound.check("C1", "a slow bucket (1 a minute, 4 at once) is not refilled by its expiry", 225 <= left <= 600, f"expires in {left:.0f} s, full in 240 s; the document's in 120 s")


def _burst(system: System, guard: str) -> int:
    """How many tokens are granted one after the other."""
    limiter, count = system.client.limiter(guard), 0
    while limiter.acquire("global" if guard == "api" else "x", wait=False):
        count += 1
    return count


@inbound.scenario("C9")
def redis_lost() -> None:
    system = System(NODES="2", IP_BURST_SIZE="6")
    address = system.start_api()
    assert call(address, "/files").status == 200
    assert system.client.limiter("task").acquire("kept", 10, wait=False)
    system.redis_server.kill()
    _degrades(system, address)
    system.redis_server.start()
    wait_until("Redis is back", lambda: _guards(system)["store"] == "up")
    kept, up = system.tokens("task", "kept"), _metric(system, "tollgate_store_up")
    held = up == "1" and 5 <= kept < 15 and system.daemon.logged("event=guard_store_back")
    inbound.check("C9", "Redis back: Tollgate returns by itself, with what Redis had counted", held, f"store_up {up}, task has {kept:.1f} of 15 tokens")
    _switched_off(system)


def _degrades(system: System, address: str) -> None:
    ip, user, task = (system.client.limiter(guard) for guard in ("ip", "user", "task"))
    wait_until("the loss is noticed", lambda: user.acquire("poll", wait=False) and _guards(system)["store"] == "lost")
    log = wait_until("the log has it", lambda: system.daemon.log_lines("event=guard_store_lost"), 5)
    up = _metric(system, "tollgate_store_up")
    inbound.check("C9", "Redis killed: the log, the status and the metrics say so", up == "0" and log, log[0].split("event=")[-1] if log else "no line")
    shares = [ip.acquire("198.51.100.2", wait=False) for _ in range(6)]
    inbound.check("C9", "ip goes on with its share (6 at once, 2 nodes)", shares == [True] * 3 + [False] * 3, f"{shares.count(True)} of 6 pass")
    before = int(_metric(system, "tollgate_fail_open_total"))
    passed = [user.acquire("carol", wait=False) for _ in range(30)]
    uncounted = int(_metric(system, "tollgate_fail_open_total")) - before
    inbound.check("C9", "user is open: all pass, and are counted as such", all(passed) and uncounted == 30, f"fail_open_total +{uncounted}")
    closed = system.daemon.api("/v1/acquire", "POST", {"guard": "task", "identifier": "q", "wait": False})
    held = closed.json()["reason"] == "store_lost" and not task.acquire("q", wait=False)
    inbound.check("C9", "task is closed: tasks are put back", held, f"{closed.status} {closed.json()['reason']}")
    response = call(address, "/files")
    inbound.check("C9", "the API goes on", response.status == 200 and response.seconds < HELD, f"{response.status} in {response.seconds * 1000:.0f} ms")


def _switched_off(system: System) -> None:
    system.drain("user", "dave")
    user = system.client.limiter("user")
    granted = []
    for mode in ("on", "off", "on"):
        system.daemon.api("/v1/limiting", "POST", {"mode": mode})
        granted.append(user.acquire("dave", 5, wait=False))
    inbound.check("C9", "limiting is switched off and on again while it runs", granted == [False, True, False], "on off on: " + " ".join(map(str, granted)))


def _guards(system: System) -> dict:
    return system.daemon.api("/v1/guards").json()


def _metric(system: System, name: str) -> str:
    lines = call(system.daemon.admin, "/metrics").body.decode().splitlines()
    return next((line.split()[-1] for line in lines if line.startswith(name)), "")
