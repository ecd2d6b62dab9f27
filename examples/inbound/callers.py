"""Callers of the service: the middleware in FastAPI, the gateway in front of it, one decision for all guards (C4, C10, C11)."""

import time
from pathlib import Path

from harness import Response
from inbound import HERE, System, inbound, visit

IP_TEXT = "Rate limit exceeded. Please try again later."
API_TEXT = "API rate limit exceeded. Please try again later."


def _rate(response: Response) -> tuple[str, ...]:
    return tuple(response.headers.get(f"x-ratelimit-{name}", "-") for name in ("limit", "remaining"))


def _has_reset(response: Response) -> bool:
    """The second at which the bucket is full lies ahead, within the 300 s that it takes here."""
    return -1 <= int(response.headers.get("x-ratelimit-reset", "0")) - time.time() <= 303


def _slow() -> Path:
    """The document's guards, refilled ten times slower: no token comes back while a busy machine makes a few requests."""
    text = (HERE / "tollgate.yaml").read_text()
    assert text.count("period: 1m") == 4
    config = inbound.new_folder("slow") / "tollgate.yaml"
    config.write_text(text.replace("period: 1m", "period: 10m").replace("providers: providers", f"providers: {HERE / 'providers'}"))
    return config


@inbound.scenario("C4", "C10")
def one_address() -> None:
    system = System(config=_slow())
    address = system.start_api()
    ip = "127.0.0.2"
    passed = [visit(address, "/files", ip) for _ in range(5)]
    denied = visit(address, "/files", ip)
    held = [r.status for r in passed] == [200] * 5 and [_rate(r) for r in passed] == [("1", str(n)) for n in (4, 3, 2, 1, 0)]
    held = held and all(_has_reset(r) for r in passed)
    inbound.check("C4", "FastAPI: five pass with X-RateLimit-Limit, -Remaining and -Reset", held, " ".join("/".join(reversed(_rate(r))) for r in passed))
    held = denied.status == 429 and _rate(denied) == ("1", "0") and _has_reset(denied) and 1 <= int(denied.headers["retry-after"]) <= 60
    inbound.check("C4", "the sixth is 429 with the same headers and Retry-After", held, f"Retry-After {denied.headers.get('retry-after')}")
    inbound.check(
        "C10",
        "allow and reject are in X-Tollgate-Decision, with the document's text",
        {r.headers.get("x-tollgate-decision") for r in passed} == {"allow"} and denied.headers.get("x-tollgate-decision") == "reject" and denied.json()["detail"] == IP_TEXT,
        denied.json()["detail"],
    )
    health = [visit(address, "/health/live", ip) for _ in range(10)]
    held = all(r.status == 200 and "x-ratelimit-limit" not in r.headers for r in health)
    inbound.check("C4", "/health… is exempt, also for an address without tokens", held, f"{len(health)} pass")
    other = visit(address, "/files", "127.0.0.3")
    inbound.check("C4", "another address has its own bucket", other.status == 200 and _rate(other) == ("1", "4"), "/".join(reversed(_rate(other))))
    forged = visit(address, "/files", ip, {"X-Forwarded-For": "198.51.100.4"})
    inbound.check("C4", "X-Forwarded-For of somebody untrusted is no way around", forged.status == 429, forged.status)


@inbound.scenario("C4", "C10", "C11")
def user_and_global() -> None:
    system = System(config=_slow())
    address = system.start_api()
    alice = {"X-User-Id": "alice"}
    passed = [visit(address, "/files", f"127.0.0.{10 + n // 4}", alice).status for n in range(10)]
    denied = visit(address, "/files", "127.0.0.20", alice)
    held = passed == [200] * 10 and denied.status == 429 and denied.json()["guard"] == "user" and _rate(denied)[0] == "2"
    inbound.check("C4", "a user has ten at once, from whatever address", held, f"then {denied.status} of {denied.json().get('guard')}")
    untouched = not system.redis.exists("ratelimit:ip:127.0.0.20")
    inbound.check("C11", "a rejection by `user` takes no token of the address", untouched, "no key ratelimit:ip:127.0.0.20")
    _global(system, address)


def _global(system: System, address: str) -> None:
    # As many as are there; some come back (one each 6 s) while the rest is taken.
    while system.client.limiter("api").acquire("global", max(1, int(system.tokens("api", "global"))), wait=False):
        pass
    denied = visit(address, "/files", "127.0.0.21")
    held = denied.status == 429 and denied.json()["guard"] == "api" and denied.json()["detail"] == API_TEXT
    inbound.check("C4 C10", "the global limit rejects with its own text", held, denied.json().get("detail", denied.status))
    left, exists = system.tokens("ip", "127.0.0.21"), system.redis.exists("ratelimit:ip:127.0.0.21")
    held = denied.status == 429 and left == 5 and not exists
    inbound.check("C11", "if the global limit rejects, the address keeps its token (the document's middleware spends it)", held, f"{left:g} of 5 left")
    system.drain("ip", "127.0.0.22")
    both = visit(address, "/files", "127.0.0.22")
    inbound.check("C4", "the address is asked first: of two empty buckets it is the one named", both.json().get("guard") == "ip", both.json().get("guard"))


@inbound.scenario("C4", "C10")
def in_the_gateway() -> None:
    """The same guards without a line in the service: the gateway stands in front of it."""
    service = inbound.play(lambda got: (200, {}, {"path": got.path}))
    system = System(config=_slow(), BACKEND_URL=service.url)
    gateway = system.daemon.gateway
    passed = [visit(gateway, "/backend/files", "127.0.0.2") for _ in range(5)]
    denied = visit(gateway, "/backend/files", "127.0.0.2")
    health = visit(gateway, "/backend/health/live", "127.0.0.2")
    held = [_rate(r) for r in passed] == [("1", str(n)) for n in (4, 3, 2, 1, 0)] and denied.status == 429 and _rate(denied) == ("1", "0")
    held = held and int(denied.headers["retry-after"]) <= 60 and health.status == 200 and len(service.log("/files")) == 5
    inbound.check("C4", "the gateway does the same in front of any service", held, f"{len(service.log('/files'))} of 6 arrived, /health {health.status}")
    held = denied.json()["message"] == IP_TEXT and denied.headers["x-tollgate-decision"] == "reject" and passed[0].headers["x-tollgate-decision"] == "allow"
    inbound.check("C10", "and says the decision with the document's text", held, denied.json()["message"])
