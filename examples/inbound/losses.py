"""Redis and workers that are lost while a chunk is on its way: it is late, not lost (C5, C9)."""

import time

from celery.result import AsyncResult

from harness import wait_until
from inbound import Cloud, System, inbound

PATIENCE = 40


def _scheduled(system: System, result: AsyncResult) -> bool:
    """Whether a worker holds this task for later, as Celery says."""
    by_worker = system.celery.control.inspect(timeout=1).scheduled() or {}
    return any(one["request"]["id"] == result.id for tasks in by_worker.values() for one in tasks)


@inbound.scenario("C5", "C9")
def guards_lost() -> None:
    """The broker has a Redis of its own; that of the guards is killed while the worker is at work."""
    system = System(own_broker=True, TASK_WAIT_SECONDS="2", QUEUE_RETRY_DELAY_SECONDS="4")
    system.start_worker()
    first = system.submit("before").get(timeout=PATIENCE)
    system.redis_server.kill()
    result = system.submit("late")
    wait_until("the task is put back", lambda: _scheduled(system, result), PATIENCE)
    state, arrived = result.state, len(system.cloud.log("/v1/transcribe/late"))
    held = first == {"text": "/v1/transcribe/before"} and state == "RETRY" and not arrived
    inbound.check("C9", "the guards' Redis killed: the worker puts its task back", held, f"{state}, scheduled, {arrived} sent")
    system.redis_server.start()
    done = result.get(timeout=PATIENCE)
    got = system.cloud.log("/v1/transcribe/late")
    held = done == {"text": "/v1/transcribe/late"} and [one.headers["x-celery-retries"] for one in got] == ["0"]
    inbound.check("C5", "Redis back: the task runs, and that was no retry", held, f"{len(got)} sent")


@inbound.scenario("C5")
def worker_killed() -> None:
    """kill -9 while Cloud.ru works on a chunk."""
    cloud = Cloud(work=1.5)
    system = System(cloud)
    system.visibility = "2"  # an hour in earnest
    worker = system.start_worker()
    result = system.submit("held")
    wait_until("the chunk is at Cloud.ru", lambda: cloud.log("/v1/transcribe/held"), PATIENCE)
    worker.kill()
    killed = time.monotonic()
    wait_until("the message may be given to another", lambda: time.monotonic() > killed + 2.5, PATIENCE)
    system.start_worker()
    done = result.get(timeout=PATIENCE)
    sent = len(cloud.log("/v1/transcribe/held"))
    held = done == {"text": "/v1/transcribe/held"} and sent == 2
    inbound.check("C5", "a worker killed with -9: another one does its task", held, f"{sent} sent, {time.monotonic() - killed:.1f} s after the kill")


@inbound.scenario("C9")
def broker_lost_too() -> None:
    """Broker and guards in one Redis, which is killed while a chunk waits for its token."""
    system = System(TASK_REQUESTS_PER_MINUTE="10", TASK_BURST_SIZE="1", QUEUE_RETRY_DELAY_SECONDS="1")
    system.visibility = "3"
    system.start_worker()
    system.submit("before").get(timeout=PATIENCE)
    result = system.submit("late")  # the next token comes 6 s later
    wait_until("the worker has it", lambda: not system.redis.llen("chunks") and system.redis.hlen("unacked"), PATIENCE)
    system.redis_server.kill()
    lost = time.monotonic()
    wait_until("longer than the worker tries", lambda: time.monotonic() > lost + 4, PATIENCE)
    system.redis_server.start()
    done = result.get(timeout=PATIENCE)
    sent = len(system.cloud.log("/v1/transcribe/late"))
    held = done == {"text": "/v1/transcribe/late"} and sent >= 1
    inbound.check("C9", "broker and guards in one Redis, killed for 4 s: the waiting task is late, not lost", held, f"{sent} sent, {time.monotonic() - lost:.1f} s after the kill")
