"""Cloud.ru behind the gateway: what a day may cost, pooled connections, and calls that wait (C10, C13)."""

import datetime
import zoneinfo

from harness import call, together
from inbound import Cloud, System, inbound

PATH = "/cloudru/v1/transcribe"


def _spend(system: System, chunk: str, credits: int):
    return call(system.daemon.gateway, f"{PATH}/{chunk}", {"X-Tollgate-Cost": f"credits={credits}"}, "POST")


def _limits(system: System) -> dict[str, dict]:
    return {limit["name"]: limit for limit in system.daemon.provider("cloudru")["limits"]}


@inbound.scenario("C13")
def cost_cap() -> None:
    system = System(CLOUDRU_CREDITS_PER_DAY="100")
    responses = [_spend(system, f"c{n}", credits) for n, credits in enumerate((60, 60, 40, 1))]
    statuses = [r.status for r in responses]
    limits = _limits(system)
    held = statuses == [200, 429, 200, 429] and len(system.cloud.log()) == 2 and limits["spend"]["remaining"] == 0
    inbound.check("C13", "a day costs 100 credits here: 60 and 40 pass, what would be more does not", held, f"{statuses}, {len(system.cloud.log())} arrived")
    held = responses[1].json()["limit"] == responses[3].json()["limit"] == "spend" and limits["calls"]["used"] == 2
    inbound.check("C13", "it is decided with the other limits: a rejected call is charged to none", held, f"calls used {limits['calls']['used']}, limit {responses[3].json()['limit']}")
    moscow = zoneinfo.ZoneInfo("Europe/Moscow")
    ends = datetime.datetime.fromtimestamp(limits["spend"]["reset_at"], moscow)
    now = datetime.datetime.now(moscow)
    midnight = (now + datetime.timedelta(days=1)).replace(hour=0, minute=0, second=0, microsecond=0)
    held = abs((ends - midnight).total_seconds()) < 5  # edge_margin: two seconds after it
    inbound.check("C13", "the day is the calendar's, in Moscow", held, f"ends {ends:%Y-%m-%d %H:%M:%S %Z}")


@inbound.scenario("C10", "C13")
def connections() -> None:
    cloud = Cloud(work=0.1)
    system = System(cloud)
    responses = together([lambda n=n: _spend(system, f"p{n}", 1) for n in range(40)])
    decisions = [r.headers.get("x-tollgate-decision") for r in responses]
    held = [r.status for r in responses] == [200] * 40 and cloud.connections <= 4 and cloud.most_at_once <= 4
    inbound.check("C13", "40 calls at once share at most 4 connections", held, f"{cloud.connections} connections, {cloud.most_at_once} calls at a time")
    waits = [float(r.headers.get("x-tollgate-wait", "0")) for r in responses if r.headers.get("x-tollgate-decision") == "queue"]
    held = set(decisions) == {"allow", "queue"} and waits and max(waits) > 0
    inbound.check("C10", "calls that waited say queue, and how long", held, f"allow {decisions.count('allow')}, queue {decisions.count('queue')}, at most {max(waits, default=0):.2f} s")
