"""Settings, threads, processes and time (A1, A12 to A14, A18)."""

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

from harness import environment, most_in_any, to_set, together, wait_until
from anivault import HERE, cli, env, health, calls, amount


@cli.scenario("A1", "A14")
def settings() -> None:
    file = cli.new_folder("env") / "anivault.env"
    shutil.copy(HERE / "anivault.env", file)
    file.chmod(0o600)
    shown = cli.tollgate(env("http://127.0.0.1:9"), "provider", "show", "tmdb", "--all", "--env-file", str(file)).stdout
    values = {line.split()[0]: line.split()[1] for line in shown.splitlines() if len(line.split()) >= 2}
    wanted = {
        "limits[0].limit": "35", "limits[0].burst": "35", "concurrency.normal": "4", "window": "30s", "window_results": "300", "confirm": "2",
        "p_throttle": "0.2", "n_throttle": "3", "throttle_factor": "0.5", "throttle_min_rate": "5", "throttle_min_concurrency": "1", "p_recover": "0.1",
        "s_recover": "10", "n_cacheonly": "5", "p_sleep": "0.6", "p_sleep_for": "5m", "sleep_first": "30s", "sleep_min": "2s", "sleep_max": "5m",
        "cooldown_factor": "2", "retry_after_floor": "1s", "probe_success": "5", "probe_rate": "3", "probe_concurrency": "1", "p_probe": "0.1",
        "ramp.factor": "1.1", "ramp.every": "5m", "ramp.after": "any", "when_blocked": "reject", "failure_threshold": "off", "scope": "provider", "count": "attempt",
    }  # fmt: skip
    found = {name: values.get(name) or values.get(f"health.{name}") or "" for name in wanted}
    wrong = {name: text for name, text in found.items() if amount(text) != amount(wanted[name])}
    cli.check("A1", "every threshold of the document is set", not wrong, f"{len(wanted)} settings" if not wrong else wrong)
    names = [line.split("=")[0] for line in file.read_text().splitlines() if line.startswith("ANIVAULT_")]
    missing = [name for name in names if f"environment {name}" not in shown]
    cli.check(
        "A14",
        "each of the document's variables sets its threshold",
        not missing and len(names) == 11,
        f"{len(names)} variables" if not missing else missing,
    )
    checked = cli.tollgate(env("http://127.0.0.1:9"), "check", "--env-file", str(file))
    cli.check(
        "A14",
        "`tollgate check` accepts the document's block",
        checked.returncode == 0 and "0 warnings" in checked.stdout,
        checked.stdout.splitlines()[-1],
    )


@cli.scenario("A12")
def one_bucket_for_all_threads() -> None:
    sim = cli.sim("--rule", "bucket 35/1s burst 35", "--rule", "in-flight 4", "--work", "5ms")
    daemon = cli.serve(env(sim.url))
    statuses = sum(together([lambda t=t: calls(daemon, 1000 * t, 12) for t in range(16)]), [])
    report = sim.report()
    bucket, at_once = report["scopes"][0]["rules"]
    held = report["violations"] == 0 and set(statuses) == {200} and at_once["most_accepted"] == 4
    cli.check(
        "A12",
        "16 threads: 35 a second with a burst of 35, four at a time, no 429",
        held,
        f"{report['arrivals']} calls, {bucket['quota']['percent']:.0f} % of the quota, {at_once['most_accepted']} at a time",
    )


@cli.scenario("A13", "A18")
def several_processes() -> None:
    """Scenario 6: command-line processes without a daemon, one of them killed; gateways that share a folder."""
    sim = cli.sim("--rule", "bucket 6/1s burst 6", "--rule", "in-flight 4")
    where, store = env(sim.url), cli.state()
    script = (
        "import subprocess, sys, urllib.request\n"
        "for n in range(12):\n"
        "    got = subprocess.run(sys.argv[2:], capture_output=True, text=True)\n"
        "    if got.returncode: sys.exit(got.stderr)\n"
        "    urllib.request.urlopen(sys.argv[1] + '/3/movie/%d' % n).read()\n"
        "    permit = got.stdout.split()[0]\n"
        "    subprocess.run([sys.argv[2], 'report', permit, '--status', '200', *sys.argv[8:]], capture_output=True)\n"
    )
    small = to_set("tmdb.rate_base=6", "tmdb.bucket_cap=6")
    acquire = [cli.tollgate_bin, "acquire", "tmdb", "--wait", "--timeout", "150s", "--store", store, *small]
    variables = environment({**where, "TOLLGATE_CONFIG": str(HERE / "tollgate.yaml"), "TOLLGATE_STATE_DIR": str(cli.temporary)})
    command = [sys.executable, "-c", script, sim.url, *acquire]
    workers = [subprocess.Popen(command, env=variables, cwd=cli.temporary, stderr=subprocess.PIPE, text=True) for _ in range(3)]
    wait_until("the first calls of three processes", lambda: sim.report()["arrivals"] >= 8)
    workers[0].kill()
    errors = [worker.communicate(timeout=150)[1] for worker in workers][1:]
    report = sim.report()
    held = report["violations"] == 0 and all(worker.returncode == 0 for worker in workers[1:]) and report["arrivals"] >= 24
    cli.check(
        "A13",
        "three command-line processes without a daemon share one bucket, one is killed",
        held,
        f"{report['arrivals']} calls, 429s {report['violations']}" + "".join(errors)[-200:],
    )

    # Ten a second: with four at a time the quota, and not the machine, is what holds the calls.
    shared = cli.sim("--rule", "bucket 10/1s burst 10", "--rule", "in-flight 4")
    store, ten = cli.state(), to_set("tmdb.rate_base=10", "tmdb.bucket_cap=10")
    gateways = [cli.serve(env(shared.url), *ten, state=store) for _ in range(2)]
    spare = cli.serve(env(shared.url), *ten, state=store)
    ends = time.monotonic() + 10

    def press(which: int, caller: int) -> None:
        number = 0
        while time.monotonic() < ends:
            try:
                (gateways + [spare])[which].get(f"/tmdb/3/movie/{which}-{caller}-{number}")
            except OSError:
                return  # killed
            number += 1

    killer = threading.Timer(2, spare.kill)
    killer.start()
    together([lambda w=w, c=c: press(w, c) for w in range(3) for c in range(6)])
    report = shared.report()
    # A bucket is used fully while the calls on their way fit into its burst. A process that is killed takes what it had under
    # way with it: four permits at most, which may have been counted and never sent. A machine that stalls loses some more;
    # a third of the bucket that was lost with its process would be 26 calls, in the eight seconds after it.
    quota = report["scopes"][0]["rules"][0]["quota"]
    lost = quota["allowed"] - quota["accepted"]
    held = report["violations"] == 0 and lost <= 20
    cli.check(
        "A13",
        "three gateways on one folder, one killed: within the limit, and the others use all of it",
        held,
        f"{quota['accepted']} of {quota['allowed']} calls that the bucket allowed, 429s {report['violations']}",
    )
    cli.check("A18", "scenario 6: processes side by side keep one rate", held, f"429s {report['violations']}")

    alone = cli.sim("--rule", "bucket 34/1s burst 34")
    config = cli.new_folder("nodes") / "tollgate.yaml"
    config.write_text((HERE / "tollgate.yaml").read_text().replace("providers: providers", f"providers: {HERE / 'providers'}\nnodes: 2"))
    nodes = [cli.serve(env(alone.url), state="memory:", config=config) for _ in range(2)]
    statuses = sum(together([lambda n=n, c=c: calls(nodes[n], 1000 * n + 100 * c, 12) for n in (0, 1) for c in range(6)]), [])
    report = alone.report()
    held = report["violations"] == 0 and set(statuses) == {200}
    cli.check("A13", "with memory: and nodes: 2 each process keeps to 17 of 35", held, f"429s of a bucket of 34: {report['violations']}")


@cli.scenario("A14")
def hot_patch() -> None:
    sim = cli.sim("--rule", "in-flight 4", "--work", "30ms")
    file = cli.new_folder("env") / "anivault.env"
    text = (HERE / "anivault.env").read_text()
    file.write_text(text)
    file.chmod(0o600)
    daemon = cli.serve(env(sim.url), "--env-file", str(file))
    together([lambda t=t: calls(daemon, 1000 * t, 6) for t in range(6)])
    before = sim.report()["scopes"][0]["rules"][0]["most_accepted"]
    replaced = (
        text.replace("CONCURRENCY=4", "CONCURRENCY=1")
        .replace("RATE_BASE=35.0", "RATE_BASE=8")
        .replace("BUCKET_CAP=35", "BUCKET_CAP=1")
        .replace("N_THROTTLE=3", "N_THROTTLE=7")
    )
    new = file.with_suffix(".new")
    new.write_text(replaced)
    new.chmod(0o600)
    new.rename(file)
    wait_until("the reload", lambda: health(daemon)["rate"] == 8)
    sim.reset()
    together([lambda t=t: calls(daemon, 50_000 + 1000 * t, 4) for t in range(6)])
    at_once, most = sim.report()["scopes"][0]["rules"][0]["most_accepted"], most_in_any(sim.times(), 1.0)
    cli.check(
        "A14",
        "a changed variable applies while it runs: 4 at a time, then 1; 35/s, then 8/s",
        (before, at_once) == (4, 1) and most <= 9,
        f"{before}, then {at_once} at a time; most in 1 s: {most}",
    )

    def value(key: str) -> str | None:
        shown = json.loads(cli.tollgate(env(sim.url), "status", "tmdb", "--json", "--admin", daemon.admin).stdout)
        return next((one["value"] for one in shown["settings"] if one["key"] == key), None)

    by_file = value("health.n_throttle")
    cli.tollgate(env(sim.url), "set", "tmdb", "p_throttle=0.33", "--admin", daemon.admin)
    by_set = value("health.p_throttle")
    daemon.api("/v1/providers/tmdb/settings", "PATCH", {"sleep_max": 60})
    by_api = value("health.sleep_max")
    flag = cli.tollgate(env(sim.url), "provider", "show", "tmdb", "--set", "tmdb.s_recover=12").stdout
    by_flag = any(line.split()[:2] == ["health.s_recover", "12"] for line in flag.splitlines())
    cli.check(
        "A14",
        "thresholds by file of variables, `tollgate set`, API and --set",
        (by_file, by_set, by_api, by_flag) == ("7", "0.33", "60s", True),
        f"{by_file} {by_set} {by_api} {by_flag}",
    )


@cli.scenario("A18", "A17")
def soak() -> None:
    """Scenario 7, short: load, outages and broken connections for some seconds."""
    sim = cli.sim("--rule", "bucket 200/1s burst 200")
    small = [
        "rate_base=200",
        "bucket_cap=200",
        "concurrency=32",
        "sleep_first=1s",
        "sleep_min=1s",
        "probe_rate=50",
        "retry.base=50ms",
        "ramp_every=100ms",
    ]
    daemon = cli.serve(env(sim.url), *to_set(*[f"tmdb.{one}" for one in small]))
    pid = daemon.process.child.pid

    def sample() -> tuple[int, int, int]:
        status = Path(f"/proc/{pid}/status").read_text()
        number = lambda name: int(next(line for line in status.splitlines() if line.startswith(name)).split()[1])  # noqa: E731
        try:
            handles = len(os.listdir(f"/proc/{pid}/fd"))
        except PermissionError:
            handles = 0
        return number("VmRSS:"), number("FDSize:"), handles

    def load(seconds: float, start: int) -> int:
        ends = time.monotonic() + seconds
        counts = [0] * 6

        def press(caller: int) -> None:
            while time.monotonic() < ends:
                daemon.get(f"/tmdb/3/movie/{start}-{caller}-{counts[caller]}", timeout="3s")
                counts[caller] += 1

        together([lambda c=c: press(c) for c in range(6)])
        return sum(counts)

    made = load(4, 0)
    first = sample()
    sim.fault("outage next 20 503")
    made += load(5, 1)
    sim.fault("reset-before next 10")
    made += load(5, 2)
    last = sample()
    log = (daemon.folder / "anivault.log").stat().st_size
    per_call = log / max(1, made)
    held = last[0] - first[0] < 24 * 1024 and last[1] <= max(128, 2 * first[1]) and last[2] - first[2] < 32 and log < 200_000
    cli.check(
        "A18",
        "scenario 7: memory, handles and the log do not grow with the calls",
        held,
        f"{made} calls; {first[0] // 1024} then {last[0] // 1024} MiB, {first[2]} then {last[2]} handles, log {log // 1024} KiB ({per_call:.0f} B a call)",
    )
