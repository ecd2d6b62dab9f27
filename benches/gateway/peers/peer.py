"""One client library of PyPI under one workload: `python peer.py TOOL SCENARIO.json`.

A call is handed to the library when the scenario says; the library decides when it is sent. What it
sent is judged by the provider's own log; what is printed here is only what became of the calls.
"""
import asyncio
import json
import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

TOOL, FILE = sys.argv[1], sys.argv[2]
with open(FILE) as file:
    SCENARIO = json.load(file)
URL, CALLS = SCENARIO["url"], SCENARIO["calls"]
LIMIT, PERIOD = SCENARIO["limit"], SCENARIO["period_ms"] / 1000
UNTIL = SCENARIO["until_ms"] / 1000
TALLY = {"sent": 0, "ok": 0, "refused": 0, "failed": 0}


def headers(index, priority, submitted):
    return {"x-call-id": f"{TOOL}-{SCENARIO['number']}-{index}", "x-priority": priority, "x-submitted-at": f"{submitted:.6f}"}


def note(status):
    kind = "refused" if status == 429 else "ok" if status < 300 else "failed"
    TALLY[kind] += 1


def ready():
    """All that takes time to load is there; the calls begin when everybody's is."""
    if SCENARIO["on_word"]:
        print("ready", flush=True)
        sys.stdin.readline()


def end():
    print(json.dumps(TALLY), flush=True)
    os._exit(0)


async def with_asyncio():
    import aiohttp

    if TOOL == "aiolimiter":
        from aiolimiter import AsyncLimiter

        acquire = AsyncLimiter(LIMIT, PERIOD).acquire
    else:
        from pyrate_limiter import Limiter, Rate, SQLiteBucket

        rate = Rate(LIMIT, int(PERIOD * 1000))
        if TOOL == "pyrate-sqlite":
            # One file for all processes, behind a lock.
            file = SCENARIO["shared"] + "/bucket.sqlite"
            limiter = Limiter(SQLiteBucket.init_from_file([rate], db_path=file, use_file_lock=True))
        else:
            limiter = Limiter(rate)

        async def acquire():
            await limiter.try_acquire_async("bench", blocking=True)

    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as session:

        async def call(index, at, priority):
            await asyncio.sleep(at / 1000)
            submitted = time.time()
            await acquire()
            TALLY["sent"] += 1
            try:
                async with session.get(URL, headers=headers(index, priority, submitted)) as answer:
                    await answer.read()
                    note(answer.status)
            except aiohttp.ClientError:
                TALLY["failed"] += 1

        ready()
        tasks = [asyncio.create_task(call(i, at, p)) for i, (at, p) in enumerate(CALLS)]
        await asyncio.sleep(UNTIL)
        for task in tasks:
            task.cancel()
    end()


def with_threads():
    from pyrate_limiter import Limiter, Rate
    from requests_ratelimiter import LimiterSession

    session = LimiterSession(limiter=Limiter(Rate(LIMIT, int(PERIOD * 1000))))
    pool = ThreadPoolExecutor(max_workers=64)

    def call(index, priority, submitted):
        try:
            answer = session.get(URL, headers=headers(index, priority, submitted))
            TALLY["sent"] += 1
            note(answer.status_code)
        except Exception:
            TALLY["failed"] += 1

    ready()
    threading.Timer(UNTIL, end).start()
    began = time.time()
    for index, (at, priority) in enumerate(CALLS):
        time.sleep(max(0, began + at / 1000 - time.time()))
        pool.submit(call, index, priority, time.time())


if TOOL == "requests-ratelimiter":
    with_threads()
else:
    asyncio.run(with_asyncio())
