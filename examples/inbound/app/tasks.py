"""The Celery tasks of the document (its `backend/app/tasks.py`).

Promises: a chunk takes a token of the guard `task` before it runs, waits for it, and is put back into its
queue if the wait would be too long; a chunk that fails is retried. The numbers are those of `tollgate.yaml`.
A chunk leaves the broker only when it is done: if its worker is killed, or the broker is away when the chunk should
be put back, it runs again, at the latest VISIBILITY_SECONDS later. So a chunk may run twice, and never not at all.
What becomes of each task is reported to Tollgate, so that its metrics have the depth of the queue; a task does not
depend on it.

Reads TOLLGATE_ADMIN and TOLLGATE_GATEWAY (the daemon), BROKER_URL (Redis) and VISIBILITY_SECONDS (default 3600: longer
than a chunk may wait, run and be put back for).
"""

import logging
import os

import celery
import httpx
import tollgate
from celery import signals

QUEUE = "chunks"
BROKER = os.environ["BROKER_URL"]

app = celery.Celery("app.tasks", broker=BROKER, backend=BROKER)
app.conf.update(
    task_default_queue=QUEUE,
    broker_connection_retry_on_startup=True,
    broker_transport_options={"polling_interval": 0.1, "visibility_timeout": int(os.environ.get("VISIBILITY_SECONDS", "3600"))},
    task_acks_late=True,
    task_reject_on_worker_lost=True,
)


@app.task(bind=True)
@tollgate.rate_limited("transcribe")
def transcribe_chunk(self: celery.Task, chunk_id: str, credits: int = 1) -> dict:
    """Sends one chunk to Cloud.ru through the gateway, which knows its limits and what a day may cost."""
    url = f"{os.environ['TOLLGATE_GATEWAY']}/cloudru/v1/transcribe/{chunk_id}"
    headers = {"X-Tollgate-Cost": f"credits={credits}", "X-Celery-Retries": str(self.request.retries)}
    with httpx.Client(trust_env=False, timeout=60) as http:
        response = http.post(url, headers=headers)
    if response.status_code == 429:  # a limit is no failure: the task is put back
        raise tollgate.RateLimitExceeded("Cloud.ru is limited", retry_in=float(response.headers.get("retry-after", 60)))
    return response.raise_for_status().json()


def report(task_id: str, event: str) -> None:
    try:
        tollgate.QueueManager().report_event(QUEUE, task_id, event)
    except tollgate.TollgateError as error:
        logging.getLogger("app").warning("task %s: %s is not in the metrics: %s", task_id, event, error)


@signals.after_task_publish.connect
def submitted(headers: dict, **_: object) -> None:
    report(headers["id"], "submitted")


@signals.task_prerun.connect
def started(task_id: str, **_: object) -> None:
    report(task_id, "started")


@signals.task_retry.connect
def scheduled(request: object, **_: object) -> None:
    report(request.id, "scheduled")  # type: ignore[attr-defined]


@signals.task_success.connect
def finished(sender: celery.Task, **_: object) -> None:
    report(sender.request.id, "finished")


@signals.task_failure.connect
def failed(task_id: str, **_: object) -> None:
    report(task_id, "failed")
