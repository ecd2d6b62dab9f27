"""What an operator sees: the document's three metrics, and its four Grafana panels on a real Prometheus (C7, C8)."""

import json
import re
import subprocess
import urllib.parse

from harness import ROOT, call, free_port, program, wait_until
from inbound import QUEUE, System, inbound, visit

BUCKETS = ["0.1", "0.5", "1", "5", "10", "30", "60", "+Inf"]
PANELS = {
    "Rate limit hits by type": "ip",
    "Average wait": "task",
    "Queue depth": QUEUE,
    "Tokens available per bucket": "global",
}


@inbound.scenario("C7", "C8")
def metrics_and_panels() -> None:
    system = System()
    prometheus = _prometheus(system.daemon.admin)
    address = system.start_api()
    wait_until("the first scrape", lambda: _query(prometheus, "up == 1"))
    for _ in range(8):
        visit(address, "/files", "127.0.0.2")
    for number in range(2):
        visit(address, f"/transcribe/{number}", "127.0.0.3", method="POST")
    system.drain("task", "waits")
    system.client.acquire("waits", guard="task")
    _metrics(call(system.daemon.admin, "/metrics").body.decode())
    _bounded(system)
    _panels(prometheus)


def _metrics(text: str) -> None:
    hits = re.findall(r'^rate_limit_hits_total\{type="ip",identifier="127\.0\.0\.2"\} (\d+)$', text, re.M)
    waits = re.findall(r'^rate_limit_waits_total\{type="task"\} (\d+)$', text, re.M)
    inbound.check("C7", "rate_limit_hits_total and rate_limit_waits_total count rejections and waits", hits == ["3"] and waits == ["1"], f"hits {hits}, waits {waits}")
    buckets = re.findall(r'^rate_limit_wait_duration_seconds_bucket\{type="task",le="([^"]+)"\} (\d+)$', text, re.M)
    held = [edge for edge, _ in buckets] == BUCKETS and dict(buckets)["1"] == "0" and dict(buckets)["5"] == "1"
    inbound.check("C7", "rate_limit_wait_duration_seconds has the document's buckets", held, " ".join(edge for edge, _ in buckets))
    judged = subprocess.run([program("promtool", "prometheus"), "check", "metrics"], input=text, capture_output=True, text=True)
    complaints = [line for line in (judged.stdout + judged.stderr).splitlines() if "rate_limit_" in line]
    inbound.check("C7", "promtool has nothing to say about them", not complaints, complaints or "none")


def _bounded(system: System) -> None:
    """Many callers are rejected; the label has a bounded number of values."""
    for number in range(400):
        system.client.limiter("ip").acquire(f"198.51.{number // 250}.{number % 250}", 6, wait=False)
    text = call(system.daemon.admin, "/metrics").body.decode()
    named = re.findall(r'^rate_limit_hits_total\{type="ip",identifier="([^"]+)"\} (\d+)$', text, re.M)
    total = sum(int(count) for _, count in named)
    other = dict(named).get("other", "0")
    inbound.check("C7", "400 callers more: the label is bounded, and every rejection is counted", len(named) < 401 and int(other) > 0 and total == 403, f"{len(named)} values, other {other}")


def _prometheus(target: str) -> str:
    """A Prometheus that scrapes this daemon each second; its address."""
    folder, address = inbound.new_folder("prometheus"), f"127.0.0.1:{free_port()}"
    scrape = {"job_name": "tollgate", "scrape_interval": "1s", "static_configs": [{"targets": [target]}]}
    (folder / "prometheus.yml").write_text(json.dumps({"scrape_configs": [scrape]}))
    options = ["--config.file=prometheus.yml", "--storage.tsdb.path=tsdb", f"--web.listen-address={address}"]
    inbound._start("prometheus", [program("prometheus", "prometheus"), *options], {}, folder)
    return address


def _query(prometheus: str, query: str) -> list[dict]:
    """What Prometheus finds; nothing before it listens."""
    try:
        response = call(prometheus, "/api/v1/query?query=" + urllib.parse.quote(query))
    except OSError:
        return []
    if response.status == 503:  # it is still starting
        return []
    body = response.json()
    assert body["status"] == "success", f"{query}: {body}"
    return body["data"]["result"]


def _panels(prometheus: str) -> None:
    dashboard = json.loads((ROOT / "grafana" / "tollgate.json").read_text())
    panels = {panel["title"]: panel["targets"][0]["expr"] for panel in dashboard["panels"]}
    for title, expected in PANELS.items():

        def shown() -> dict | None:
            found = _query(prometheus, panels[title])
            series = [one for one in found if expected in one["metric"].values() and one["value"][1] not in ("NaN", "0")]
            return series[0] if series else None

        one = wait_until(f"the panel {title} shows {expected}", shown, 20)
        inbound.check("C8", f"Grafana panel: {title}", True, f"{expected} {float(one['value'][1]):.3g}")
