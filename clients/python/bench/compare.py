"""CPU per call, violations and use of the Python client beside aiolimiter, pyrate-limiter and
requests-ratelimiter, side by side in one run. The simulated provider is the judge.

    TOLLGATE_BIN=…/tollgate TOLLGATE_SIM=…/tollgate-sim python bench/compare.py

Workloads: S = sliding log 40 per 10 s, T = token bucket 50/s burst 50; 32 callers that never pause;
5 ms (lognormal) before the provider counts, 20 ms for the response. Each limiter is set as its
documentation says for that limit, and stands beside Tollgate with the same HTTP library. CPU is of the
calling process, HTTP included; the daemon's is a column of its own. requests-ratelimiter cannot give up
a wait: its run ends later. Three rounds take about five and a half minutes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Awaitable, Callable, Dict, List, Tuple

import aiolimiter
import httpx
import pyrate_limiter
import requests
import requests_ratelimiter

import tollgate

CALLERS = 32


@dataclass(frozen=True)
class Workload:
    """One limit, as the simulator, Tollgate and the others know it, and how long a run of it takes."""

    name: str
    rule: str
    limit: str
    calls: int
    period: float
    seconds: float


WORKLOADS = (
    # Long enough for a second window: a limiter that is wrong at its edge is wrong there.
    Workload("S", "sliding 40/10s", "{ limit: 40, period: 10s, algorithm: sliding-window }",
             40, 10.0, 13.0),
    Workload("T", "bucket 50/1s burst 50",
             "{ limit: 50, period: 1s, algorithm: token-bucket, burst: 50 }", 50, 1.0, 5.0),
)


class Simulator:
    """One provider for one run."""

    def __init__(self, rule: str):
        program = os.environ.get("TOLLGATE_SIM") or sys.exit("set TOLLGATE_SIM to tollgate-sim")
        command = [program, "serve", "--rule", rule, "--up", "5ms~0.5", "--work", "20ms"]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.url = self._process.stdout.readline().strip()

    def stop(self) -> Dict[str, Any]:
        """Its report."""
        self._process.terminate()
        out, _ = self._process.communicate(timeout=30)
        report: Dict[str, Any] = json.loads(out.strip().splitlines()[-1])
        return report


def cpu_of_self() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def cpu_of(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def cpu_while(run: Callable[[], None]) -> float:
    before = cpu_of_self()
    run()
    return cpu_of_self() - before


def daemon_for(folder: str, upstream: str, limit: str) -> tollgate.LocalDaemon:
    file = Path(folder) / "bench.yaml"
    file.write_text(f"name: bench\nupstream: {upstream}\nlimits: [{limit}]\n")
    file.chmod(0o600)
    return tollgate.local(Path(folder) / "state", providers=[file])


# ------------------------------------------------------------------ flood


def threads(call: Callable[[requests.Session], None], until: float) -> None:
    """So many threads that call until the time is over."""

    def loop() -> None:
        with requests.Session() as session:
            session.trust_env = False
            while time.monotonic() < until:
                call(session)

    workers = [threading.Thread(target=loop) for _ in range(CALLERS)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


async def tasks(call: Callable[[httpx.AsyncClient], Awaitable[None]], until: float) -> None:
    """So many tasks that call until the time is over; what waits then is cancelled."""
    async with httpx.AsyncClient(trust_env=False) as http:

        async def loop() -> None:
            while time.monotonic() < until:
                await call(http)

        running = [asyncio.ensure_future(loop()) for _ in range(CALLERS)]
        await asyncio.wait(running, timeout=until - time.monotonic() + 1)
        for task in running:
            task.cancel()
        for result in await asyncio.gather(*running, return_exceptions=True):
            if isinstance(result, Exception):
                raise result


def flood_tollgate(load: Workload, url: str, seconds: float, daemon: tollgate.LocalDaemon) -> None:
    client, until = daemon.client(), time.monotonic() + seconds

    def call(session: requests.Session) -> None:
        left = until - time.monotonic()
        if left <= 0:
            return
        try:
            with client.acquire("bench", timeout=left) as permit:
                permit.report(session.get(url))
        except tollgate.RateLimitExceeded as denied:  # the wait is longer than what is left
            time.sleep(min(denied.retry_in or 0.05, left))

    threads(call, until)


def flood_tollgate_async(
    load: Workload, url: str, seconds: float, daemon: tollgate.LocalDaemon
) -> None:
    async def main() -> None:
        until = time.monotonic() + seconds
        async with daemon.async_client() as client:

            async def call(http: httpx.AsyncClient) -> None:
                left = until - time.monotonic()
                if left <= 0:
                    return
                try:
                    async with await client.acquire("bench", timeout=left) as permit:
                        await permit.report(await http.get(url))
                except tollgate.RateLimitExceeded as denied:
                    await asyncio.sleep(min(denied.retry_in or 0.05, left))

            await tasks(call, until)

    asyncio.run(main())


def flood_pyrate(load: Workload, url: str, seconds: float, _: Any) -> None:
    limiter, until = pyrate(load), time.monotonic() + seconds

    def call(session: requests.Session) -> None:
        left = until - time.monotonic()
        if left > 0 and limiter.try_acquire("bench", blocking=True, timeout=left):
            session.get(url)

    threads(call, until)


def flood_requests_ratelimiter(load: Workload, url: str, seconds: float, _: Any) -> None:
    adapter = requests_ratelimiter.LimiterAdapter(limiter=pyrate(load), per_host=False)
    until = time.monotonic() + seconds

    def call(session: requests.Session) -> None:
        session.mount("http://", adapter)
        session.get(url)

    threads(call, until)


def flood_aiolimiter(load: Workload, url: str, seconds: float, _: Any) -> None:
    async def main() -> None:
        limiter = aiolimiter.AsyncLimiter(load.calls, load.period)

        async def call(http: httpx.AsyncClient) -> None:
            async with limiter:
                await http.get(url)

        await tasks(call, time.monotonic() + seconds)

    asyncio.run(main())


def pyrate(load: Workload) -> pyrate_limiter.Limiter:
    return pyrate_limiter.Limiter(pyrate_limiter.Rate(load.calls, int(load.period * 1000)))


#: Each HTTP library by itself: CPU per call compares only within one of them.
FLOODS: Dict[str, Tuple[str, Callable[..., None]]] = {
    "tollgate AsyncClient": ("asyncio, httpx", flood_tollgate_async),
    "aiolimiter": ("asyncio, httpx", flood_aiolimiter),
    "tollgate Client": ("threads, requests", flood_tollgate),
    "pyrate-limiter": ("threads, requests", flood_pyrate),
    "requests-ratelimiter": ("threads, requests", flood_requests_ratelimiter),
}


def judged(name: str, load: Workload) -> Dict[str, float]:
    """One run; arrivals, violations and use are the simulator's."""
    flood, simulator = FLOODS[name][1], Simulator(load.rule)
    url = simulator.url + "/x"
    try:
        if not name.startswith("tollgate"):
            own, daemon_cpu = cpu_while(lambda: flood(load, url, load.seconds, None)), 0.0
        else:
            with tempfile.TemporaryDirectory() as folder:
                with daemon_for(folder, simulator.url, load.limit) as daemon:
                    started = cpu_of(daemon.pid)
                    own = cpu_while(lambda: flood(load, url, load.seconds, daemon))
                    daemon_cpu = cpu_of(daemon.pid) - started
    finally:
        report = simulator.stop()
    calls = max(report["arrivals"], 1)
    use = report["scopes"][0]["rules"][0]["quota"]["percent"] if report["scopes"] else 0.0
    return {
        "arrivals": report["arrivals"], "violations": report["violations"], "use": use,
        "own": own / calls * 1e6, "daemon": daemon_cpu / calls * 1e6,
    }


def floods(rounds: int) -> List[List[str]]:
    """Medians of the rounds. Each round has all of them, in another order: a machine that slows down
    slows all of them down."""
    names = list(FLOODS)
    seen: Dict[Tuple[str, str], List[Dict[str, float]]] = {}
    for number in range(rounds):
        first = number * 2 % len(names)
        for load in WORKLOADS:
            for name in names[first:] + names[:first]:
                seen.setdefault((load.name, name), []).append(judged(name, load))
    rows = []
    for load in WORKLOADS:
        for name in names:
            runs = seen[load.name, name]
            middle = {key: statistics.median(run[key] for run in runs) for key in runs[0]}
            violations = "/".join(f"{run['violations']:.0f}" for run in runs)
            daemon = f"{middle['daemon']:.0f}" if middle["daemon"] else "–"
            rows.append([
                name, FLOODS[name][0], load.name, f"{middle['arrivals']:.0f}", violations,
                f"{middle['use']:.1f} %", f"{middle['own']:.0f}", daemon,
            ])
    return rows


# --------------------------------------------------------------- decision


def decisions(calls: int, rounds: int) -> List[List[str]]:
    """CPU of one decision that need not wait, without the call itself; medians of the rounds."""
    limit = f"{{ limit: {calls * rounds * 20}, period: 1h, algorithm: token-bucket }}"
    with tempfile.TemporaryDirectory() as folder:
        with daemon_for(folder, "http://127.0.0.1:9", limit) as daemon:
            loops = _loops(calls, daemon)
            seen: Dict[str, List[Tuple[float, float]]] = {name: [] for name in loops}
            for _ in range(rounds):
                for name, loop in loops.items():
                    started = cpu_of(daemon.pid)
                    own = cpu_while(loop)
                    seen[name].append((own, cpu_of(daemon.pid) - started))
    rows = []
    for name, runs in seen.items():
        own, other = (statistics.median(of) / calls * 1e6 for of in zip(*runs))
        rows.append([name, f"{own:.0f}", f"{other:.0f}" if name.startswith("tollgate") else "–"])
    return rows


def _loops(calls: int, daemon: tollgate.LocalDaemon) -> Dict[str, Callable[[], None]]:
    client = daemon.client()

    def blocking() -> None:
        for _ in range(calls):
            client.acquire("bench").report(status=200)

    async def with_tasks() -> None:
        async with daemon.async_client() as own:
            for _ in range(calls):
                await (await own.acquire("bench")).report(status=200)

    async def with_aiolimiter() -> None:
        limiter = aiolimiter.AsyncLimiter(calls * 2, 3600)
        for _ in range(calls):
            async with limiter:
                pass

    def with_pyrate() -> None:
        limiter = pyrate_limiter.Limiter(pyrate_limiter.Rate(calls * 2, 3_600_000))
        for _ in range(calls):
            limiter.try_acquire("bench")

    return {
        "tollgate Client (acquire + report)": blocking,
        "tollgate AsyncClient (acquire + report)": lambda: asyncio.run(with_tasks()),
        "aiolimiter (one process only)": lambda: asyncio.run(with_aiolimiter()),
        "pyrate-limiter (in memory, one process only)": with_pyrate,
    }


def table(head: List[str], rows: List[List[str]]) -> str:
    lines = ["| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *rows]]
    print("\n".join(lines), flush=True)
    return "\n".join(lines)


def place(page: Path, text: str) -> None:
    """Writes the tables between the markers of the page."""
    begin, end = "<!-- python:begin -->", "<!-- python:end -->"
    before, _, rest = page.read_text().partition(begin)
    _, found, after = rest.partition(end)
    if not found:
        sys.exit(f"{page} has no {begin} … {end}")
    page.write_text(f"{before}{begin}\n{text}\n{end}{after}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3, help="of which the medians are shown")
    parser.add_argument("--calls", type=int, default=2000, help="decisions for the CPU per call")
    parser.add_argument("--out", type=Path, help="the page whose section is replaced")
    options = parser.parse_args()
    head = ["decision", "µs CPU of the caller", "µs CPU of the daemon"]
    per_decision = table(head, decisions(options.calls, options.rounds))
    print()
    head = ["limiter", "calls by", "workload", "arrived", "violations of each round", "use",
            "µs CPU per call", "of the daemon"]
    judgements = table(head, floods(options.rounds))
    if options.out:
        place(options.out, f"{per_decision}\n\n{judgements}")


if __name__ == "__main__":
    main()
