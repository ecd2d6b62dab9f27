"""One Python process of several that share a quota: permits of its own daemon on the shared folder.

    python quota_worker.py FOLDER PROVIDER_FILE PROVIDER_URL SECONDS

Prints how many calls the provider accepted, as `accepted N`. `crates/cli/tests/it/shared_quota.rs` starts it.
"""

from __future__ import annotations

import sys
import threading
import urllib.request
from time import monotonic

import tollgate

CALLERS = 4


def calls(client: tollgate.Client, url: str, until: float) -> int:
    """Calls until the time is up; returns how many were accepted."""
    accepted = 0
    while True:
        rest = until - monotonic()
        if rest <= 0:
            return accepted
        try:
            with client.acquire("x", timeout=rest) as permit:
                with urllib.request.urlopen(url + "/items") as response:
                    response.read()
                    permit.report(response)
                    accepted += 1
        except tollgate.RateLimitExceeded:
            pass  # the time is up: no permit before its end


def main() -> None:
    """Runs some callers at a time."""
    folder, file, url, seconds = sys.argv[1:]
    with tollgate.local(folder, providers=[file]) as daemon:
        client = daemon.client()
        print("ready", flush=True)
        sys.stdin.readline()
        until = monotonic() + float(seconds)
        counts = [0] * CALLERS

        def one(index: int) -> None:
            counts[index] = calls(client, url, until)

        threads = [threading.Thread(target=one, args=(index,)) for index in range(CALLERS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    print("accepted", sum(counts), flush=True)


if __name__ == "__main__":
    main()
