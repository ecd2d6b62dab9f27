"""Chunks as Celery tasks: waiting, put back, retried; and the queue that takes no more (C5, C6)."""

import datetime
import re
import time

from celery.result import AsyncResult

from harness import HELD, gaps, not_early, wait_until
from inbound import QUEUE, System, inbound, visit

PATIENCE = 40


def _retries(system: System, chunk: str) -> tuple[list[float], list[str]]:
    """When Cloud.ru got a chunk, and which retry Celery said it was."""
    got = system.cloud.log(f"/v1/transcribe/{chunk}")
    return [one.at for one in got], [one.headers["x-celery-retries"] for one in got]


@inbound.scenario("C5", "C6")
def tasks_of_the_document() -> None:
    """The document's own numbers: 50 a minute, 15 at once, wait 300 s, three retries."""
    system = System()
    worker, address = system.start_worker(), system.start_api()
    broken = system.submit("broken")
    first = visit(address, "/transcribe/one", "127.0.0.2", method="POST")
    result = AsyncResult(first.json()["task"], app=system.celery).get(timeout=PATIENCE)
    rate = [first.headers.get(f"x-ratelimit-{name}") for name in ("limit", "remaining")]
    inbound.check("C4", "with the document's guards the headers of the first request are 10 a minute, 4 left", rate == ["10", "4"], "/".join(map(str, rate)))
    inbound.check("C5", "an upload becomes a task that calls Cloud.ru", result == {"text": "/v1/transcribe/one"} and first.status == 202, result)
    _waits(system)
    _status(address)
    wait_until("the last retry", lambda: broken.state == "FAILURE" or worker.child.poll() is not None, PATIENCE)
    times, retries = _retries(system, "broken")
    between = gaps(times)
    planned = re.findall(rf"\[{broken.id}\] retry: Retry in ([\d.]+)s", worker.log())
    held = retries == ["0", "1", "2", "3"] and [float(one) for one in planned] == [1, 2, 4] and not_early(between, [0.98, 1.98, 3.98])
    inbound.check("C5", "a task that fails is retried three times, after 1, 2 and 4 s", held, " ".join(f"{gap:.2f} s" for gap in between))


def _waits(system: System) -> None:
    """The bucket is emptied when most of the next token is still to come: 50 a minute are one each 1.2 s."""
    while (left := system.tokens("task", "transcribe")) > 0.25:
        if left >= 1:
            system.client.limiter("task").acquire("transcribe", int(left), wait=False)
        time.sleep(0.02)
    began = time.monotonic()
    due = (1 - system.tokens("task", "transcribe")) * 1.2
    system.submit("waits").get(timeout=PATIENCE)
    took = time.monotonic() - began
    times, retries = _retries(system, "waits")
    held = took >= due - 0.05 and due > 0.5 and retries == ["0"]
    inbound.check("C5", "without a token a task waits for the next one (up to 300 s)", held, f"{took:.2f} s; due after {due:.2f} s")


def _status(address: str) -> None:
    status = visit(address, "/queues", "127.0.0.3").json()
    names = {queue["name"] for queues in status["active_queues"].values() for queue in queues}
    held = set(status) == {"active_queues", "active", "scheduled", "reserved", "pending"} and names == {QUEUE} and QUEUE in status["pending"]
    inbound.check("C6", "the queue status has the document's parts, and what is pending", held, f"{sorted(status)}, pending {status['pending']}")


@inbound.scenario("C5")
def put_back() -> None:
    """A wait that would be too long: 1 s here in place of 300, for a token every 2 s."""
    system = System(TASK_REQUESTS_PER_MINUTE="30", TASK_BURST_SIZE="1", TASK_WAIT_SECONDS="1", QUEUE_RETRY_DELAY_SECONDS="2")
    system.start_worker()
    began = time.monotonic()  # before the first token is taken; the third is there 4 s later, whatever the calls then take
    results = [system.submit(f"chunk{n}") for n in range(3)]
    done = [result.get(timeout=PATIENCE) for result in results]
    seen = [_retries(system, f"chunk{n}") for n in range(3)]
    last = max(times[0] for times, _ in seen) - began
    held = len(done) == 3 and all(retries == ["0"] for _, retries in seen) and last >= 3.95
    inbound.check("C5", "a task put back (here for 2 s) runs later, and that was no retry", held, f"retries 0 0 0, the last after {last:.1f} s")


@inbound.scenario("C5")
def countdown_of_the_document() -> None:
    """The document's 60 s, as the worker has planned it; nobody waits for it here."""
    system = System(TASK_REQUESTS_PER_MINUTE="1", TASK_BURST_SIZE="1", TASK_WAIT_SECONDS="1")
    system.start_worker()
    system.drain("task", "transcribe")
    began = time.time()
    result = system.submit("later")

    def planned() -> list[dict]:
        scheduled = system.celery.control.inspect(timeout=1).scheduled() or {}
        return [one for of in scheduled.values() for one in of if one["request"]["id"] == result.id]

    one = wait_until("the task is put back", planned, PATIENCE)[0]
    after = datetime.datetime.fromisoformat(one["eta"]).timestamp() - began
    noticed = time.time() - began
    held = 59 <= after <= 61 + noticed and not system.cloud.log("/v1/transcribe/later")
    inbound.check("C5", "put back for the document's 60 s (TASK_WAIT_SECONDS=1 here)", held, f"runs again after {after:.1f} s, retries {one['request'].get('retries', 0)}")


@inbound.scenario("C6")
def full_queue() -> None:
    """Without a worker everything stays pending; no token comes back meanwhile (1 a minute here)."""
    system = System(TASK_REQUESTS_PER_MINUTE="1")
    address = system.start_api()
    first = visit(address, "/transcribe/one", "127.0.0.2", method="POST")
    left = system.tokens("task", QUEUE)
    inbound.check("C6", "can_submit_task takes a token of `task` without waiting", first.status == 202 and 14 <= left < 15, f"{left:.1f} of 15 left")
    for number in range(49):
        system.submit(f"chunk{number}")
    at_bound = visit(address, "/transcribe/fifty", "127.0.0.2", method="POST").status
    before = system.tokens("task", QUEUE)
    beyond = visit(address, "/transcribe/more", "127.0.0.2", method="POST")
    after = system.tokens("task", QUEUE)
    pending = system.redis.llen(QUEUE)
    held = at_bound == 202 and beyond.status == 503 and pending == 51 and after >= before
    inbound.check("C6", "with 50 pending one more is taken, with 51 none, and no token for it", held, f"{at_bound}, then {beyond.status} with {pending} pending")
    line = f"queue {QUEUE} is full: 51 tasks are pending"
    wait_until("the depth is logged", lambda: line in system.api_process.log(), 5)
    inbound.check("C6", "and the depth is in the log", line in system.api_process.log(), line)
    began = time.monotonic()
    system.drain("task", "elsewhere")
    manager = system.daemon.api("/v1/tasks/can-submit", "POST", {"queue": "elsewhere", "pending": 0}).json()
    held = manager["can_submit"] is False and manager["reason"] == "limit" and time.monotonic() - began < HELD
    inbound.check("C6", "without a token it says no at once", held, manager)
