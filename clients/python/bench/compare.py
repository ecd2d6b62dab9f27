"""CPU per call, violations and use of the Python client beside aiolimiter, pyrate-limiter and
requests-ratelimiter, side by side in one run. The simulated provider is the judge.

    TOLLGATE_BIN=…/tollgate TOLLGATE_SIM=…/tollgate-sim python bench/compare.py --seconds 30

Workloads: S = sliding log 40 per 10 s, T = token bucket 50/s burst 50; 32 callers that never pause;
5 ms (lognormal) before the provider counts, 20 ms for the response. Each limiter is set as its
documentation says for that limit. requests-ratelimiter cannot give up a wait: its run ends later. CPU is of the calling process; the daemon's is a column of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, Tuple

import aiolimiter
import httpx
import pyrate_limiter
import requests
import requests_ratelimiter

import tollgate

CALLERS = 32
#: name: (rule of the simulator, limit of Tollgate, calls, seconds)
WORKLOADS = {
    "S": ("sliding 40/10s", "{ limit: 40, period: 10s, algorithm: sliding-window }", 40, 10.0),
    "T": ("bucket 50/1s burst 50", "{ limit: 50, period: 1s, algorithm: token-bucket, burst: 50 }",
          50, 1.0),
}


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


def flood_tollgate(workload: str, seconds: float) -> Tuple[Dict[str, Any], float]:
    rule, limit, _, _ = WORKLOADS[workload]
    simulator = Simulator(rule)
    with tempfile.TemporaryDirectory() as folder, daemon_for(folder, simulator.url, limit) as daemon:
        client, until = daemon.client(), time.monotonic() + seconds

        def call(session: requests.Session) -> None:
            left = until - time.monotonic()
            if left <= 0:
                return
            try:
                with client.acquire("bench", timeout=left) as permit:
                    permit.report(session.get(simulator.url + "/x"))
            except tollgate.RateLimitExceeded as denied:  # the wait is longer than what is left
                time.sleep(min(denied.retry_in or 0.05, left))

        threads(call, until)
        daemon_cpu = cpu_of(daemon.pid)
    return simulator.stop(), daemon_cpu


def flood_pyrate(workload: str, seconds: float) -> Tuple[Dict[str, Any], float]:
    rule, _, calls, period = WORKLOADS[workload]
    simulator = Simulator(rule)
    rate = pyrate_limiter.Rate(calls, int(period * 1000))
    limiter = pyrate_limiter.Limiter(rate)
    until = time.monotonic() + seconds

    def call(session: requests.Session) -> None:
        left = until - time.monotonic()
        if left > 0 and limiter.try_acquire("bench", blocking=True, timeout=left):
            session.get(simulator.url + "/x")

    threads(call, until)
    return simulator.stop(), 0.0


def flood_requests_ratelimiter(workload: str, seconds: float) -> Tuple[Dict[str, Any], float]:
    rule, _, calls, period = WORKLOADS[workload]
    simulator = Simulator(rule)
    limiter = pyrate_limiter.Limiter(pyrate_limiter.Rate(calls, int(period * 1000)))
    adapter = requests_ratelimiter.LimiterAdapter(limiter=limiter, per_host=False)
    until = time.monotonic() + seconds

    def call(session: requests.Session) -> None:
        session.mount("http://", adapter)
        session.get(simulator.url + "/x")

    threads(call, until)
    return simulator.stop(), 0.0


def flood_aiolimiter(workload: str, seconds: float) -> Tuple[Dict[str, Any], float]:
    rule, _, calls, period = WORKLOADS[workload]
    simulator = Simulator(rule)

    async def main() -> None:
        limiter = aiolimiter.AsyncLimiter(calls, period)
        until = time.monotonic() + seconds
        async with httpx.AsyncClient(trust_env=False) as http:

            async def loop() -> None:
                while time.monotonic() < until:
                    async with limiter:
                        await http.get(simulator.url + "/x")

            tasks = [asyncio.ensure_future(loop()) for _ in range(CALLERS)]
            await asyncio.wait(tasks, timeout=seconds + 1)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(main())
    return simulator.stop(), 0.0


FLOODS = {
    "tollgate": flood_tollgate,
    "aiolimiter": flood_aiolimiter,
    "pyrate-limiter": flood_pyrate,
    "requests-ratelimiter": flood_requests_ratelimiter,
}


def judged(name: str, workload: str, seconds: float) -> List[str]:
    before = cpu_of_self()
    report, daemon_cpu = FLOODS[name](workload, seconds)
    calls = max(report["arrivals"], 1)
    per_call = (cpu_of_self() - before) / calls * 1e6
    quota = report["scopes"][0]["rules"][0]["quota"] if report["scopes"] else {"percent": 0.0}
    return [
        name, workload, str(report["arrivals"]), str(report["violations"]),
        f"{quota['percent']:.1f} %", f"{per_call:.0f}",
        f"{daemon_cpu / calls * 1e6:.0f}" if daemon_cpu else "–",
    ]


# --------------------------------------------------------------- decision


def per_decision(calls: int) -> List[List[str]]:
    """CPU of one decision that need not wait, without the call itself."""
    rows = []

    def row(name: str, run: Callable[[], None], pid: int = 0) -> None:
        before, daemon = cpu_of_self(), cpu_of(pid) if pid else 0.0
        run()
        own = (cpu_of_self() - before) / calls * 1e6
        other = f"{(cpu_of(pid) - daemon) / calls * 1e6:.0f}" if pid else "–"
        rows.append([name, f"{own:.0f}", other])

    limit = f"{{ limit: {calls * 20}, period: 1h, algorithm: token-bucket }}"
    with tempfile.TemporaryDirectory() as folder, daemon_for(folder, "http://127.0.0.1:9", limit) as daemon:
        client = daemon.client()

        def blocking() -> None:
            for _ in range(calls):
                client.acquire("bench").report(status=200)

        async def loop() -> None:
            async with daemon.async_client() as own:
                for _ in range(calls):
                    await (await own.acquire("bench")).report(status=200)

        row("tollgate Client (acquire + report)", blocking, daemon.pid)
        row("tollgate AsyncClient (acquire + report)", lambda: asyncio.run(loop()), daemon.pid)

    async def with_aiolimiter() -> None:
        limiter = aiolimiter.AsyncLimiter(calls * 2, 3600)
        for _ in range(calls):
            async with limiter:
                pass

    def with_pyrate() -> None:
        limiter = pyrate_limiter.Limiter(pyrate_limiter.Rate(calls * 2, 3_600_000))
        for _ in range(calls):
            limiter.try_acquire("bench")

    row("aiolimiter (one process only)", lambda: asyncio.run(with_aiolimiter()))
    row("pyrate-limiter (in memory, one process only)", with_pyrate)
    return rows


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
    parser.add_argument("--seconds", type=float, default=30.0, help="per limiter and workload")
    parser.add_argument("--calls", type=int, default=2000, help="decisions for the CPU per call")
    parser.add_argument("--out", type=Path, help="the page whose section is replaced")
    options = parser.parse_args()
    head = ["decision", "µs CPU of the caller", "µs CPU of the daemon"]
    decisions = table(head, per_decision(options.calls))
    print()
    runs = [judged(name, load, options.seconds) for load in WORKLOADS for name in FLOODS]
    head = ["limiter", "workload", "arrived", "violations", "use", "µs CPU per call", "of the daemon"]
    judgements = table(head, runs)
    if options.out:
        place(options.out, f"{decisions}\n\n{judgements}")


if __name__ == "__main__":
    main()
