"""Sources that the daemon itself fetches: capacity first, workers ask again, nothing is lost by a crash (H5, H6)."""

import json
import time
from pathlib import Path

from harness import Daemon, wait_until
from pipeline import FMP, env, pipeline

SOURCES = 10


@pipeline.scenario("H5", "H6")
def daemons_own_scheduler() -> None:
    """Ten sources of one domain that allows four in 3 s, each fetched every 2 s."""
    sim = pipeline.sim("--rule", "first-use 4/3s")
    where = env(FMP_URL=sim.url)
    config = pipeline.variant("fmp.yaml", ("limit: 300", "limit: 4"), ("period: 1m", "period: 3s"))
    state, own = pipeline.state(), pipeline.new_folder("own")
    start = lambda: pipeline.serve({**where, "TOLLGATE_STATE_DIR": str(own)}, state=state, config=config)  # noqa: E731
    daemon = start()
    for number in range(SOURCES):
        source = {"name": f"s{number}", "url": f"{FMP}/S{number}", "every": "2s", "output": "{name}.json"}
        assert daemon.api("/v1/sources", "POST", source).status == 201
    wait_until("each source was fetched", lambda: len(_fetched(sim)) == SOURCES)
    daemon.kill()
    before = len(sim.log())
    daemon = start()
    wait_until("sources are fetched after the crash", lambda: len(sim.log()) > before + 4)
    _judge(sim, daemon, Path(own))
    listed = pipeline.tollgate(where, "source", "list", "--admin", daemon.admin).stdout
    held = len([line for line in listed.splitlines() if "limited by fmp" in line]) == SOURCES
    pipeline.check("H5", "sources, their schedule and their last result survive kill -9, and are listed", held, f"{SOURCES} sources")


def _fetched(sim) -> set[str]:
    return {line["path"].rsplit("/", 1)[-1] for line in sim.log()}


def _judge(sim, daemon: Daemon, own: Path) -> None:
    # The provider judges by its own window, which opens with its first call; around an edge any 3 s may hold more than four.
    report = sim.report()
    held = report["violations"] == 0
    pipeline.check("H6", "the daemon queues no more than there is capacity (10 sources, 4 in 3 s here)", held, f"{report['accepted']} fetched, 429s {report['violations']}")
    sources = {one["name"]: one for one in daemon.api("/v1/sources").json()["sources"]}
    health = daemon.provider("fmp")["health"]
    held = not any(one.get("failures") for one in sources.values()) and health["failure_count"] == 0
    pipeline.check("H6", "sources that had to wait have not failed, and have lost no retry", held, "0 failures")
    files = list(own.rglob("s*.json")) + list(daemon.folder.rglob("s*.json"))
    held = len({file.name for file in files}) == SOURCES and all(json.loads(file.read_text()) is not None for file in files)
    pipeline.check("H5", "each response is in the file that its source names", held, f"{len({file.name for file in files})} files")
