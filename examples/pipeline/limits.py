"""Provider files, keys, domains, sources, both checks, windows and a crash (H1 to H7, H9, H10)."""

import json
import shutil
import threading
import time
from pathlib import Path

from harness import Daemon, Received, Reply, together, wait_until
from pipeline import FMP, HERE, env, limit, pipeline


@pipeline.scenario("H1", "H2")
def files_and_flags() -> None:
    folder = pipeline.new_folder("document")
    for file in (HERE / "document").iterdir():
        shutil.copy(file, folder)
        (folder / file.name).chmod(0o600)
    checked = pipeline.tollgate(env(), "check", str(folder))
    pipeline.check(
        "H1", "the document's three files load unchanged", "3 providers, 0 errors" in checked.stdout, checked.stdout.splitlines()[-1]
    )
    more = pipeline.new_folder("more")
    (folder / "yahoo.yaml").rename(more / "yahoo.yaml")
    own = pipeline.new_folder("start")
    command = [pipeline.tollgate_bin, "start", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--store", pipeline.state()]
    command += ["--provider", str(folder / "fmp.yaml"), "--provider", str(folder / "alphavantage.yaml"), "--provider-dir", str(more)]
    daemon = Daemon(pipeline._start("tollgate", command, {"TOLLGATE_STATE_DIR": str(own)}, own), own)
    listed = json.loads(daemon.api("/v1/providers").body)
    text = json.dumps(listed)
    pipeline.check(
        "H2",
        "`start --provider --provider --provider-dir`, mixed",
        all(f'"{name}"' in text for name in ("fmp", "alphavantage", "yahoo")),
        "fmp alphavantage yahoo",
    )


@pipeline.scenario("H3")
def keys() -> None:
    seen: list[Received] = []

    def reply(got: Received) -> Reply:
        seen.append(got)
        return 200, {}, {"ok": True}

    provider = pipeline.play(reply)
    state = pipeline.new_folder("state")
    daemon = pipeline.serve(env(FMP_URL=provider.url), state=f"sqlite:{state}")
    response = daemon.get("/fmp/api/v3/quote/AAPL")
    broken = daemon.get("/alphavantage/query", timeout="1s")
    key = env()["FMP_API_KEY"].encode()
    sent = any(key.decode() in (*got.query.values(), *got.headers.values()) for got in seen)
    places = {
        "responses": response.body + broken.body + json.dumps(response.headers).encode(),
        "log": daemon.log().encode(),
        "arguments": Path(f"/proc/{daemon.process.child.pid}/cmdline").read_bytes(),
        "database": b"".join(file.read_bytes() for folder in (state, daemon.folder) for file in folder.iterdir() if file.is_file()),
    }
    for path in ("/metrics", "/v1/providers/fmp", "/v1/config", "/", "/v1/decisions"):
        places[path] = daemon.api(path).body
    found = [place for place, text in places.items() if b"canary-key" in text]
    pipeline.check(
        "H3", "the key reaches the provider, and nothing else", sent and not found, f"{len(places)} places searched" if not found else found
    )
    open_file = pipeline.new_folder("open") / "fmp.yaml"
    shutil.copy(HERE / "document" / "fmp.yaml", open_file)
    open_file.chmod(0o644)
    warned = pipeline.tollgate({}, "check", str(open_file))
    pipeline.check("H3", "a key file that others can read is warned about", "chmod 600" in warned.stderr + warned.stdout, "chmod 600")


@pipeline.scenario("H4", "H5")
def domains_and_sources() -> None:
    sim = pipeline.sim("--rule", "first-use 300/1m")
    where = env(FMP_URL=sim.url)
    daemon = pipeline.serve(where)
    spellings = [
        f"{FMP}/AAPL",
        "https://api.financialmodelingprep.com/x",
        "https://FinancialModelingPrep.com./x",
        "https://financialmodelingprep.com:443/x",
    ]
    statuses = [daemon.get(f"/{url}").status for url in spellings]
    used = limit(daemon)["used"]
    pipeline.check(
        "H4", "a URL finds its provider: subdomain, case, trailing dot, port", statuses == [200] * 4 and used == 4, f"{used} counted"
    )
    others = [daemon.api(f"/v1/capacity?url=https://{host}/x").json() for host in ("weather.example.org", "notfinancialmodelingprep.com")]
    held = (
        all(one["available"] and (one["provider"], one["remaining"]) == ("unknown", None) for one in others) and limit(daemon)["used"] == 4
    )
    pipeline.check(
        "H4",
        "an unknown domain has no limits; one that only ends alike is not ours",
        held,
        "weather.example.org, notfinancialmodelingprep.com",
    )
    order = lambda *args: pipeline.tollgate(where, "source", *args, "--admin", daemon.admin)  # noqa: E731
    limited = order("add", str(HERE / "sources" / "fmp-aapl-prices.yaml")).stdout
    free = order("add", str(HERE / "sources" / "weather.yaml")).stdout
    listed = order("list").stdout
    removed = order("remove", "weather")
    left = order("list").stdout
    pipeline.check("H5", "adding a source says who limits it", "limited by fmp" in limited and "not limited" in free, limited.strip()[-20:])
    held = "weather" in listed and removed.returncode == 0 and "weather" not in left and "fmp-aapl-prices" in left
    pipeline.check("H5", "sources are listed and removed", held, f"{len(left.splitlines())} left")


@pipeline.scenario("H6", "H7", "H10")
def approaching_the_limit() -> None:
    """Scenarios 1 and 2."""
    sim = pipeline.sim("--rule", "first-use 300/1m")
    where = env(FMP_URL=sim.url)
    daemon = pipeline.serve(where)
    three = [daemon.get(f"/{FMP}/{source}").status for source in "ABC"]
    one = limit(daemon)
    held = three == [200] * 3 and one["used"] == 3 and abs(one["window_start"] - time.time()) < 30
    pipeline.check("H10", "scenario 1: three sources, one domain, one counter", held, f"used {one['used']}")
    shown = json.loads(pipeline.tollgate(where, "status", "fmp", "--json", "--admin", daemon.admin).stdout)["limits"][0]
    pipeline.check(
        "H7",
        "status --json shows used and window_start",
        shown["used"] == 3 and abs(shown["window_start"] - one["window_start"]) < 0.1,
        f"window_start {shown['window_start']:.0f}",
    )
    together([lambda c=c: [daemon.get(f"/{FMP}/{c}-{n}") for n in range(73)] for c in range(4)])
    capacity = lambda: daemon.api(f"/v1/capacity?url={FMP}/X").json()  # noqa: E731
    asked = [capacity()["remaining"] for _ in range(3)]
    pipeline.check(
        "H6",
        "the scheduler asks for capacity without using any",
        asked == [5, 5, 5] and limit(daemon)["used"] == 295,
        f"remaining {asked[0]}, used {limit(daemon)['used']}",
    )
    queued = list(range(10))[: asked[0]]
    worker = lambda: daemon.api("/v1/acquire", "POST", {"url": f"{FMP}/X", "wait": False})  # noqa: E731
    granted = [worker() for _ in queued]
    late = worker()
    body = late.json()
    held = [one.status for one in granted] == [200] * 5 and late.status == 429 and body["reason"] == "limit" and body["granted"] is False
    pipeline.check(
        "H6 H10",
        "scenario 2: of ten sources five are queued; a worker that comes later is denied at once",
        held,
        f"retry in {body.get('retry_in')} s",
    )
    again = daemon.get(f"/{FMP}/Y", timeout="1s")
    held = again.status == 429 and again.json()["error"] == "RateLimitExceeded" and again.headers.get("x-tollgate-attempts", "0") == "0"
    pipeline.check(
        "H6",
        "a denial is RateLimitExceeded, no failure, and costs no attempt",
        held and daemon.provider("fmp")["health"]["failure_count"] == 0,
        again.json()["error"],
    )
    for one in granted:
        daemon.api("/v1/release", "POST", {"permit": one.json()["permit"]})
    exit_code = pipeline.tollgate(where, "acquire", "--admin", daemon.admin, f"{FMP}/Z").returncode
    pipeline.check("H6", "`tollgate acquire URL` of a worker: exit 0 when the permit is there", exit_code == 0, f"exit {exit_code}")


@pipeline.scenario("H7", "H10")
def windows() -> None:
    """Scenario 3 and the hourly example."""
    sim = pipeline.sim("--rule", "first-use 5/4s")
    daemon = pipeline.serve(
        env(YAHOO_URL=sim.url), config=pipeline.variant("yahoo.yaml", ("limit: 2000", "limit: 5"), ("period: 1h", "period: 4s"))
    )
    first = [daemon.get(f"/yahoo/{n}", timeout="500ms").status for n in range(7)]
    began = limit(daemon, "yahoo")["window_start"]
    time.sleep(max(0.0, began + 5.5 - time.time()))
    second = [daemon.get(f"/yahoo/b{n}", timeout="500ms").status for n in range(7)]
    later = limit(daemon, "yahoo")["window_start"]
    held = first == second == [200] * 5 + [429] * 2 and sim.report()["violations"] == 0
    pipeline.check(
        "H7 H10",
        "scenario 3: when the period has passed, the counter starts anew (4 s here)",
        held,
        f"{first.count(200)} and {second.count(200)} calls",
    )
    pipeline.check(
        "H10",
        "the hourly example: the new window starts with the call at 11:00:05, not at the edge",
        later - began >= 5.4,
        f"{later - began:.1f} s after the first of 4 s",
    )


@pipeline.scenario("H9", "H10")
def crash() -> None:
    """Scenario 4, without its loss."""
    sim = pipeline.sim("--rule", "first-use 300/1m")
    state = pipeline.state()
    running = {"daemon": pipeline.serve(env(FMP_URL=sim.url), state=state)}
    done, lock = [0], threading.Lock()
    ends = time.monotonic() + 45  # inside the window of a minute; ends when the quota is used up

    def client(number: int) -> None:
        count = 0
        while time.monotonic() < ends:
            count += 1
            try:
                status = running["daemon"].get(f"/fmp/{number}-{count}", timeout="1s").status
            except OSError:
                time.sleep(0.05)  # the crash
                continue
            if status == 200:
                with lock:
                    done[0] += 1
            elif done[0] > 200:
                return

    def kill() -> int:
        wait_until("150 calls", lambda: done[0] >= 150)
        running["daemon"].kill()
        at = done[0]
        running["daemon"] = pipeline.serve(env(FMP_URL=sim.url), state=state)
        return at

    at = together([kill] + [lambda n=n: client(n) for n in range(6)])[0]
    report = sim.report()
    held = report["violations"] == 0 and 294 <= report["accepted"] <= 300
    pipeline.check(
        "H9 H10",
        "scenario 4: after kill -9 the count continues; nothing is lost",
        held,
        f"killed after {at}; {report['accepted']} of 300, 429s {report['violations']}",
    )
