"""Violations, use of the token quota, time to first byte, CPU and memory: Tollgate beside the LiteLLM proxy
and the bare SDK with its retries. The simulated provider is the judge.

    TOLLGATE_BIN=…/tollgate TOLLGATE_SIM=…/tollgate-sim target/clients/venv/bin/python benches/llm/compare.py

One account of 60,000 tokens a minute, 400 ms until the first token; batch callers that want more than three
times of it, and people who call one after another; all with the SDK of OpenAI and its two retries. Each
subject in turn against a provider of its own, with the same callers. Tollgate is told nothing, LiteLLM the
limit (`tpm`, `usage-based-routing-v2`), the SDK nothing. LiteLLM is installed to target/litellm.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

ROOT = Path(__file__).resolve().parents[2]
LITELLM = "litellm[proxy]==1.106.2"
TPM = 60_000
BATCH, PEOPLE = 72, 5
# Far beyond the start of any subject on a busy machine.
PATIENCE = 180.0
ENVIRONMENT = {**os.environ, "NO_PROXY": "127.0.0.1", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}


def program(variable: str) -> str:
    return os.environ.get(variable) or sys.exit(f"set {variable} to a release binary")


# What is ended with the run, however that ends.
RUNNING: List[Process] = []


class Process:
    """A process and its children, ended with the run."""

    def __init__(self, command: List[str], **options: Any):
        # A group of its own: its children end with it.
        self._process = subprocess.Popen(command, text=True, env=ENVIRONMENT, start_new_session=True, **options)
        RUNNING.append(self)
        self.pid = self._process.pid
        self.stdout = self._process.stdout

    def tree(self) -> List[int]:
        pids, todo = [], [self.pid]
        while todo:
            pid = todo.pop()
            pids.append(pid)
            try:
                todo += map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
            except OSError:
                pass
        return pids

    def cpu(self) -> float:
        return sum(cpu_of(pid) for pid in self.tree())

    def peak_mib(self) -> float:
        return sum(peak_of(pid) for pid in self.tree()) / 1024

    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def wait(self) -> str:
        """What it prints until it ends by itself."""
        out, _ = self._process.communicate()
        if self._process.returncode:
            sys.exit(f"{self._process.args} failed")
        return out or ""

    def stop(self) -> str:
        """Ends the process and whatever it has started; what it has printed."""
        RUNNING.remove(self)
        self._process.terminate()
        try:
            out, _ = self._process.communicate(timeout=30)
        except subprocess.TimeoutExpired:
            self._kill_all()
            out, _ = self._process.communicate()
        self._kill_all()
        return out or ""

    def _kill_all(self) -> None:
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


def cpu_of(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def peak_of(pid: int) -> int:
    try:
        found = re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    except OSError:
        return 0
    return int(found[1]) if found else 0


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def wait_for(process: Process, url: str) -> None:
    until = time.monotonic() + PATIENCE
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    while True:
        try:
            with opener.open(url, timeout=5):
                return
        except OSError as error:
            if process.has_ended() or time.monotonic() > until:
                sys.exit(f"{url} does not respond: {error}")
            time.sleep(0.2)


# ------------------------------------------------------------------ callers


async def call(client: Any, output: int, priority: str) -> Optional[float]:
    """One stream; the time until its first event. `None`: it was not served."""
    started, first = time.monotonic(), None
    text = "x" * 200 if priority == "low" else "hi"
    try:
        stream = await client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": text}], max_tokens=output + 20,
            stream=True, extra_body={"sim_output": output}, extra_headers={"X-Tollgate-Priority": priority})
        async for _ in stream:
            first = first or time.monotonic() - started
    except Exception:  # of the SDK: after its retries
        await asyncio.sleep(0.05)
        return None
    return first


def used(provider: str) -> int:
    """All tokens that the provider has counted so far."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"{provider}/-/report", timeout=5) as response:
        report = json.load(response)
    return int(report["input_tokens"] + report["output_tokens"])


async def work(url: str, provider: str, seconds: float) -> Dict[str, Any]:
    """People alone, then people beside the batches."""
    import httpx
    import openai

    http = httpx.AsyncClient(trust_env=False, limits=httpx.Limits(max_connections=None))
    client = openai.AsyncOpenAI(base_url=url, api_key="unused", max_retries=2, http_client=http)
    failed = 0

    async def person(until: float, least: int, times: List[float]) -> None:
        nonlocal failed
        while time.monotonic() < until or least > 0:
            least -= 1
            took = await call(client, 8, "high")
            failed += took is None
            if took is not None:
                times.append(took)

    async def batch(index: int, until: float) -> None:
        while time.monotonic() < until:
            await call(client, 40 + 7 * (index % 24), "low")

    def give_up(task: Any) -> None:
        nonlocal failed
        failed += 1
        task.cancel()

    async def people(until: float, least: int) -> List[float]:
        times: List[float] = []
        running = [asyncio.ensure_future(person(until, least, times)) for _ in range(PEOPLE)]
        # An SDK that waits for its retry may do so for a minute: a call that failed.
        _, waiting = await asyncio.wait(running, timeout=max(until - time.monotonic(), 0) + 30)
        for task in waiting:
            give_up(task)
        await asyncio.gather(*running, return_exceptions=True)
        return sorted(times)

    alone = await people(0, 20 if seconds >= 30 else 2)
    failed, used_before = 0, used(provider)
    started, until = time.monotonic(), time.monotonic() + seconds
    flood = [asyncio.ensure_future(batch(index, until)) for index in range(BATCH)]
    beside = await people(until, 0)
    await asyncio.wait(flood, timeout=5)
    for task in flood:
        task.cancel()
    await asyncio.gather(*flood, return_exceptions=True)
    took = time.monotonic() - started
    return {"alone": alone, "beside": beside, "failed": failed, "seconds": took,
            "used": used(provider) - used_before}


# ------------------------------------------------------------------ subjects


def tollgate(folder: Path, upstream: str) -> Tuple[Optional[Process], str]:
    file = folder / "openai.yaml"
    file.write_text(f"name: openai\npreset: openai\nupstream: {upstream}\napi_key: k1\n")
    file.chmod(0o600)
    port = free_port()
    command = [program("TOLLGATE_BIN"), "serve", "--listen", f"127.0.0.1:{port}", "--admin", "127.0.0.1:0",
               "--provider", str(file), "--store", f"sqlite:{folder / 'state'}"]
    process = Process(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_for(process, f"http://127.0.0.1:{port}/health")
    return process, f"http://127.0.0.1:{port}/openai/v1"


def litellm(folder: Path, upstream: str) -> Tuple[Optional[Process], str]:
    venv = ROOT / "target/litellm"
    if not (venv / "bin/litellm").exists():
        subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
        subprocess.run([str(venv / "bin/pip"), "install", "-q", LITELLM], check=True)
    file, port = folder / "litellm.yaml", free_port()
    file.write_text(json.dumps({  # JSON is YAML
        "model_list": [{"model_name": "m", "litellm_params": {
            "model": "openai/m", "api_base": f"{upstream}/v1", "api_key": "k1", "tpm": TPM}}],
        "router_settings": {"routing_strategy": "usage-based-routing-v2", "enable_pre_call_checks": True},
        "litellm_settings": {"telemetry": False},
        # It does not start without a key of its own otherwise; the others check none either.
        "general_settings": {"dangerously_permit_weak_or_unset_master_key": True},
    }))
    command = [str(venv / "bin/litellm"), "--config", str(file), "--host", "127.0.0.1", "--port", str(port)]
    process = Process(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=folder)
    wait_for(process, f"http://127.0.0.1:{port}/health/liveliness")
    return process, f"http://127.0.0.1:{port}/v1"


def bare(_folder: Path, upstream: str) -> Tuple[Optional[Process], str]:
    return None, f"{upstream}/v1"


SUBJECTS = {"Tollgate": tollgate, f"LiteLLM proxy ({LITELLM.rpartition('=')[2]})": litellm,
            "openai SDK, 2 retries": bare}


def p(times: List[float], percent: int) -> str:
    if not times:
        return "–"
    return f"{times[(len(times) * percent + 99) // 100 - 1] * 1000:.0f} ms"


def measure(name: str, seconds: float) -> List[str]:
    """One row."""
    with tempfile.TemporaryDirectory(prefix="tollgate-llm-") as place_of_run:
        folder = Path(place_of_run)
        sim = Process([program("TOLLGATE_SIM"), "llm", "--tpm", str(TPM), "--first-token", "400",
                       "--speed", "1000"], stdout=subprocess.PIPE)
        assert sim.stdout is not None
        try:
            provider = sim.stdout.readline().strip()
            subject, url = SUBJECTS[name](folder, provider)
            before = subject.cpu() if subject else 0.0
            worker = [sys.executable, __file__, "--worker", url, "--provider", provider, "--seconds", str(seconds)]
            callers = Process(worker, stdout=subprocess.PIPE)
            seen = json.loads(callers.wait().strip().splitlines()[-1])
            cpu = subject.cpu() - before if subject else 0.0
            peak = subject.peak_mib() if subject else 0.0
        finally:
            # The provider, which is first, goes last.
            printed = [process.stop() for process in reversed(RUNNING.copy())][-1]
    report = json.loads(printed.strip().splitlines()[-1])
    calls = report["accepted"]
    # From the start of the flood, as what is allowed.
    allowed = TPM + TPM * seen["seconds"] / 60
    of_subject = [f"{cpu / max(calls, 1) * 1000:.1f} ms", f"{peak:.0f} MiB"] if subject else ["–", "–"]
    row = [name, f"{report['rejected']} of {calls + report['rejected']}", f"{seen['used'] / allowed * 100:.1f} %",
           p(seen["alone"], 50), p(seen["alone"], 99), p(seen["beside"], 50), p(seen["beside"], 99),
           str(seen["failed"]), *of_subject]
    print(row, file=sys.stderr, flush=True)
    return row


def table(seconds: float, rows: List[List[str]]) -> str:
    head = ["", "rejected by the provider", "of the token quota", "person alone, p50", "p99",
            "beside the flood, p50", "p99", "calls of people that failed", "CPU per call", "memory"]
    lines = [head, ["---"] * len(head), *rows]
    text = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    return f"{seconds:.0f} s each; time to first byte; CPU and memory of the proxy (`/proc`).\n\n{text}"


def place(page: Path, text: str) -> None:
    """Writes the table between the markers of the page."""
    begin, end = "<!-- llm:begin -->", "<!-- llm:end -->"
    before, _, rest = page.read_text().partition(begin)
    _, found, after = rest.partition(end)
    if not found:
        sys.exit(f"{page} has no {begin} … {end}")
    page.write_text(f"{before}{begin}\n{text}\n{end}{after}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60, help="of each subject")
    parser.add_argument("--only", choices=["tollgate", "litellm", "sdk"], help="one subject")
    parser.add_argument("--out", type=Path, help="the page whose section is replaced")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--provider", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        print(json.dumps(asyncio.run(work(options.worker, options.provider, options.seconds))))
        return
    # Processes are ended also if this one is.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))
    names = dict(zip(["tollgate", "litellm", "sdk"], SUBJECTS))
    chosen = [names[options.only]] if options.only else list(SUBJECTS)
    text = table(options.seconds, [measure(name, options.seconds) for name in chosen])
    print(text)
    if options.out:
        place(options.out, text)


if __name__ == "__main__":
    main()
