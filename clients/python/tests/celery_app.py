"""Tasks of the Celery tests; a real worker imports this."""

from __future__ import annotations

import os
import time

import celery
import redis

import tollgate

BROKER = os.environ["TEST_BROKER"]

app = celery.Celery("celery_app", broker=BROKER, backend=BROKER)
app.conf.update(
    broker_connection_retry_on_startup=True,
    worker_prefetch_multiplier=1,
    task_acks_late=False,
    broker_transport_options={"socket_timeout": 10, "polling_interval": 0.1},
)
notes = redis.Redis.from_url(BROKER)


def note(what: str, task: celery.Task) -> None:
    """The log of what really ran: name, time, retries that Celery counts."""
    notes.rpush("notes", f"{what} {time.time():.3f} {task.request.retries}")


@app.task(bind=True)
@tollgate.rate_limited("plain")
def plain(self, number: int) -> int:
    note(f"plain-{number}", self)
    return number * 2


@app.task(bind=True)
@tollgate.rate_limited("once", guard="once", wait=0, retry_delay=1)
def denied(self) -> str:
    note("denied", self)
    return "ran"


@app.task(bind=True)
@tollgate.rate_limited("failing", retries=3)
def failing(self) -> None:
    note("failing", self)
    raise RuntimeError("broken")


@app.task(bind=True)
@tollgate.rate_limited("fails-twice", guard="brisk")
def failing_by_guard(self) -> None:
    note("failing_by_guard", self)
    raise RuntimeError("broken")


@app.task(bind=True)
@tollgate.rate_limited("waits", guard="impatient")
def denied_by_guard(self) -> str:
    note("denied_by_guard", self)
    return "ran"


@app.task(bind=True)
@tollgate.rate_limited("recovers", retries=3)
def recovers(self) -> str:
    note("recovers", self)
    if self.request.retries < 1:
        raise RuntimeError("once")
    return "recovered"


@app.task
@tollgate.rate_limited(provider="x", wait=0, retry_delay=0)
def unbound() -> str:
    return "called"


@app.task(bind=True, soft_time_limit=1)
@tollgate.rate_limited("patient", guard="patient", wait=60, retry_delay=1)
def waits_long(self) -> str:
    note("waits_long", self)
    return "ran"


@app.task(bind=True)
@tollgate.rate_limited("inner")
def denied_inside(self) -> str:
    note("inside", self)
    if notes.incr("inside") == 1:
        raise tollgate.RateLimitExceeded("another limit", retry_in=0.2)
    return "second time"
