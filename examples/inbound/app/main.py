"""The API of the document (its `backend/app/main.py`): uploads become chunks, chunks become Celery tasks.

Promises: every request but `/health…` passes the guards `ip`, `user` and `api` in one decision; an upload
is taken only if the queue has room for it.

Reads TOLLGATE_ADMIN (the daemon) and BROKER_URL (Redis).
"""

import logging

import fastapi
import tollgate

from app.tasks import QUEUE, app as celery_app, transcribe_chunk

logging.basicConfig(format="%(levelname)s %(name)s: %(message)s", level=logging.WARNING)

app = fastapi.FastAPI()
app.add_middleware(tollgate.RateLimitMiddleware)
queues = tollgate.QueueManager(app=celery_app)


@app.get("/health/live")
async def live() -> dict:
    return {"ok": True}


@app.get("/files")
async def files() -> dict:
    return {"files": []}


@app.post("/transcribe/{chunk_id}", status_code=202)
def transcribe(chunk_id: str) -> dict:
    if not queues.can_submit_task(QUEUE):
        raise fastapi.HTTPException(503, "The queue is full. Please try again later.")
    return {"task": transcribe_chunk.delay(chunk_id).id}


@app.get("/queues")
def queue_status() -> dict:
    return queues.get_queue_status()
