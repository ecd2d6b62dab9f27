"""What the scenarios of this profile share: the profile itself, and calls that fail as told."""

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from harness import Daemon, Profile, Sim  # noqa: E402

HERE = Path(__file__).resolve().parent
cli = Profile("resilient-cli", HERE, [f"A{n}" for n in range(1, 19)], log_file="anivault.log")
cli.notes = [
    "times of minutes are seconds where a row says so; the same thresholds hold, and A1 shows that the profile sets the document's values",
    "A18.7: three hours run in virtual time in the tests of `core`; here the gateway runs for some seconds under load",
]
NO_RETRY = "tmdb.retry.retries.normal=0"


def env(url: str) -> dict[str, str]:
    return {"TMDB_URL": url, "TMDB_API_KEY": "key-of-tmdb", "METRICS_EVERY": "500ms"}


def health(daemon: Daemon) -> dict:
    return daemon.provider("tmdb")["health"]


def state(daemon: Daemon) -> str:
    return health(daemon)["state"]


def calls(daemon: Daemon, start: int, count: int, **options: str) -> list[int]:
    """One call after the other, each to a URL of its own; their statuses."""
    return [daemon.get(f"/tmdb/3/movie/{start + n}", **options).status for n in range(count)]


def failing(sim: Sim, daemon: Daemon, start: int, statuses: list[int]) -> list[int]:
    """Calls whose responses have these statuses."""
    seen = []
    for number, status in enumerate(statuses):
        if status != 200:
            sim.fault(f"outage next 1 {status}")
        seen += calls(daemon, start + number, 1)
    return seen


def sleep(sim: Sim, daemon: Daemon) -> None:
    """Two 429s, with `n_throttle=1` and `n_cacheonly=2`."""
    for number in range(2):
        failing(sim, daemon, 900 + number, [429])
        time.sleep(0.1)


def amount(text: str) -> object:
    """A number or a length of time as a number, whatever its spelling: `2`, `2.0s`, `5m`, `300s`; other texts as they are."""
    factor = {"s": 1, "m": 60, "h": 3600}.get(text[-1:], None)
    try:
        return float(text[:-1]) * factor if factor else float(text)
    except ValueError:
        return text
