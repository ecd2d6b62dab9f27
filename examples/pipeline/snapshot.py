"""The document's table in Postgres: written every 10 s, one row per domain, read at start (H8)."""

import datetime
import time

from harness import Postgres, wait_until
from pipeline import HERE, env, limit, pipeline

COLUMNS = {
    "domain": "text",
    "request_count": "integer",
    "window_start": "timestamp with time zone",
    "updated_at": "timestamp with time zone",
}
ROW = "SELECT request_count, extract(epoch FROM window_start), extract(epoch FROM updated_at) FROM rate_limiter_state WHERE domain = 'financialmodelingprep.com'"


@pipeline.scenario("H8", "H10")
def table_in_postgres() -> None:
    """Scenario 4 as the document has it: the state is a few seconds old after a crash."""
    postgres = Postgres(pipeline)
    sim = pipeline.sim("--rule", "first-use 300/1m")
    where = env(FMP_URL=sim.url, DATABASE_URL=postgres.url)
    config = HERE / "tollgate-postgres.yaml"
    daemon = pipeline.serve(where, state=postgres.url, config=config)
    began = time.monotonic()
    assert [daemon.get(f"/fmp/{number}").status for number in range(45)] == [200] * 45
    counted = limit(daemon)
    row = wait_until("the state is written", lambda: _row(postgres))
    took = time.monotonic() - began
    columns = dict(postgres.sql("SELECT column_name, data_type FROM information_schema.columns WHERE table_name = 'rate_limiter_state'"))
    keys = postgres.sql("SELECT a.attname FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY(i.indkey) WHERE i.indisprimary AND i.indrelid = 'rate_limiter_state'::regclass")
    pipeline.check("H8", "the table has the document's four columns, and the domain is its key", columns == COLUMNS and keys == [["domain"]], ", ".join(columns))
    # A state that is written once a minute, or with the next permit only, would be there after a minute.
    held = row[0] == 45 and abs(row[1] - counted["window_start"]) < 1 and abs(row[2] - time.time()) < 30 and took < 30
    started = datetime.datetime.fromtimestamp(row[1], datetime.timezone.utc)
    pipeline.check("H8", "every 10 s the count and the start of the window are written", held, f"45 since {started:%H:%M:%S}, after {took:.1f} s")
    daemon.kill()
    daemon = pipeline.serve(where, state=postgres.url, config=config)
    after = limit(daemon)
    held = after["used"] == 45 and abs(after["window_start"] - row[1]) < 1
    pipeline.check("H8 H10", "scenario 4: after kill -9 the counter is loaded, with its window", held, f"used {after['used']}, window of {after['window_start'] - row[1]:+.1f} s")
    statuses = [daemon.get(f"/fmp/again{number}", timeout="500ms").status for number in range(260)]
    report = sim.report()
    held = statuses.count(200) == 255 and report["violations"] == 0 and report["accepted"] == 300
    pipeline.check("H8", "so the day's quota is not used twice: 255 of the next 260 calls pass", held, f"{report['accepted']} of 300, 429s {report['violations']}")
    rows = wait_until("the new count is written", lambda: _row(postgres, 300) and postgres.sql("SELECT domain FROM rate_limiter_state"))
    pipeline.check("H8", "one row per domain, however many calls", [name for name, in rows].count("financialmodelingprep.com") == 1, f"{len(rows)} rows")


def _row(postgres: Postgres, count: int = 45) -> list[float] | None:
    """The row of fmp, once it has this count."""
    if postgres.sql("SELECT to_regclass('rate_limiter_state') IS NOT NULL") != [["t"]]:
        return None
    rows = [[float(value) for value in row] for row in postgres.sql(ROW)]
    return rows[0] if rows and rows[0][0] == count else None
