"""What the scenarios of this profile share: the profile itself, its metrics and its alerts."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from harness import ROOT, Daemon, Profile  # noqa: E402

sys.path.insert(0, str(ROOT / "clients" / "python" / "src"))

HERE = Path(__file__).resolve().parent
sports = Profile("sports", HERE, [f"S{n}" for n in range(1, 16)])
sports.notes = [
    "S2, S6, S13: where a row says so, the numbers are smaller than 3000 an hour and the times shorter; S2, S6 and S8 show the document's",
]
BASE = "/sportmonks/v3/football"
STRIP = ["--per-entity", "--strip", "/v3/football"]
TOKEN = "token-of-the-backend"
FIELDS = {
    "entity", "tokens_remaining", "requests_in_window", "capacity", "api_remaining", "api_limit", "reset_at", "reset_in_seconds", "is_in_cooldown",
    "is_degraded", "total_requests", "total_429_errors", "recent_429_rate", "cache_hits", "cache_misses", "cache_hit_rate",
}  # fmt: skip


def env(url: str, **more: str) -> dict[str, str]:
    return {"SPORTMONKS_URL": url, "SPORTMONKS_API_TOKEN": TOKEN, **more}


def variant(*changes: tuple[str, str]) -> Path:
    return sports.variant("sportmonks.yaml", *changes)


def metrics(daemon: Daemon, entity: str) -> dict:
    return daemon.api(f"/api/rate-limit/metrics?entity={entity}").json()["metrics"]["entities"][entity]


def alerts(daemon: Daemon, entity: str) -> list[dict]:
    return [alert for alert in daemon.api("/api/rate-limit/metrics").json()["alerts"] if alert["entity"] == entity]


def get(daemon: Daemon, path: str, **options: str):
    return daemon.get(f"{BASE}/{path}", **options)
