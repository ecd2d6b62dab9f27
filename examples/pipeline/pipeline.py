"""What the scenarios of this profile share: the profile itself, its variables and its counters."""

from pathlib import Path

from harness import Daemon, Profile

HERE = Path(__file__).resolve().parent
pipeline = Profile("pipeline", HERE, [f"H{n}" for n in range(1, 11)])
pipeline.notes = ["H6, H7, H10: windows of a minute and an hour are seconds where a row says so"]

NOWHERE = "http://127.0.0.1:9"
FMP = "https://financialmodelingprep.com/api/v3/historical-price-full"


def env(**more: str) -> dict[str, str]:
    urls = {f"{name}_URL": NOWHERE for name in ("FMP", "ALPHAVANTAGE", "YAHOO")}
    return {"FMP_API_KEY": "canary-key-of-fmp", "ALPHAVANTAGE_API_KEY": "canary-key-of-alphavantage", **urls, **more}  # tidy:canary


def limit(daemon: Daemon, name: str = "fmp") -> dict:
    return daemon.provider(name)["limits"][0]
