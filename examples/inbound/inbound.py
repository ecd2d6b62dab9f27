"""What the scenarios of this profile share: the profile, its Redis, its service, its worker, and Cloud.ru played here."""

import logging
import os
import re
import sys
import time
from pathlib import Path

import celery
import celery.result
import redis

import tollgate
from harness import ROOT, Daemon, Process, Profile, Provider, Received, Reply, Response, call, redis_server, wait_until

CLIENT_LIBRARY = ROOT / "clients" / "python" / "src"
HERE = Path(__file__).resolve().parent
QUEUE = "chunks"
logging.getLogger("tollgate").addHandler(logging.NullHandler())  # rows say what was rejected here
inbound = Profile("inbound", HERE, [f"C{n}" for n in range(1, 14)])
inbound.notes = [
    "C5: retries have the document's 1, 2 and 4 s and the countdown its 60 s; to see a task put back and run again, TASK_* and QUEUE_RETRY_DELAY_SECONDS are smaller where a row says so",
    "C4: several callers are several addresses of 127.0.0.0/8; where they are counted, guards refill in ten minutes what the document's do in one",
    "C13: a day is not waited for; the row shows when it ends",
]


class Cloud(Provider):
    """Cloud.ru: takes a moment for each chunk, fails for those named `broken…`, and counts its connections."""

    def __init__(self, work: float = 0.0) -> None:
        self.connections = self.at_once = self.most_at_once = 0

        def reply(got: Received) -> Reply:
            with self._lock:
                self.at_once += 1
                self.most_at_once = max(self.most_at_once, self.at_once)
            time.sleep(work)
            with self._lock:
                self.at_once -= 1
            return (500, {}, {"error": "broken"}) if "/broken" in got.path else (200, {}, {"text": got.path})

        super().__init__(reply)
        accept = self._server.process_request

        def count(*request: object) -> None:
            self.connections += 1
            accept(*request)

        self._server.process_request = count


class System:
    """The document's system: Redis, Tollgate with this folder's files, and on demand the API and a worker."""

    def __init__(self, cloud: Provider | None = None, config: Path | None = None, own_broker: bool = False, **settings: str) -> None:
        self.redis_server = redis_server(inbound)
        self.redis_url = f"redis://127.0.0.1:{self.redis_server.port}/0"
        self.redis = redis.Redis.from_url(self.redis_url, decode_responses=True)
        self.broker_url = f"redis://127.0.0.1:{redis_server(inbound).port}/0" if own_broker else self.redis_url
        self.visibility = "3600"
        self.cloud = cloud or Cloud()
        inbound._running.append(self.cloud)
        self.settings, self.config = settings, config
        self.daemon = self.gateway()
        self.client = tollgate.Client(f"http://{self.daemon.admin}")
        self.celery = celery.Celery(broker=self.broker_url, backend=self.broker_url)
        self.api_process: Process | None = None

    def gateway(self) -> Daemon:
        """A gateway; a second one counts in the same Redis."""
        return inbound.serve({"REDIS_URL": self.redis_url, "CLOUDRU_URL": self.cloud.url, **self.settings}, config=self.config)

    def _python(self, name: str, *args: str) -> Process:
        env = {
            "PYTHONPATH": os.pathsep.join([str(CLIENT_LIBRARY), str(HERE)]),
            "PYTHONDONTWRITEBYTECODE": "1",
            "TOLLGATE_ADMIN": self.daemon.admin,
            "TOLLGATE_GATEWAY": f"http://{self.daemon.gateway}",
            "BROKER_URL": self.broker_url,
            "VISIBILITY_SECONDS": self.visibility,
        }
        return inbound._start(name, [sys.executable, "-m", *args], env)

    def start_api(self) -> str:
        """uvicorn with `app.main`; its address."""
        process = self._python("uvicorn", "uvicorn", "app.main:app", "--host", "127.0.0.1", "--port", "0", "--no-proxy-headers")
        self.api_process = process
        running = re.compile(r"running on http://(127\.0\.0\.1:\d+)")
        found = wait_until("uvicorn listens", lambda: running.search(process.log()) or _is_alive(process))
        return found.group(1)

    def start_worker(self) -> Process:
        """A Celery worker with `app.tasks`, four chunks at a time."""
        quiet = ["--without-gossip", "--without-mingle", "--without-heartbeat"]
        process = self._python("celery", "celery", "-A", "app.tasks", "worker", "--pool", "threads", "-c", "4", "-l", "INFO", *quiet)
        wait_until("the worker is ready", lambda: " ready." in process.log() or _is_alive(process))
        return process

    def submit(self, chunk: str, **options: object) -> celery.result.AsyncResult:
        return self.celery.send_task("app.tasks.transcribe_chunk", (chunk,), queue=QUEUE, **options)

    def tokens(self, guard: str, identifier: str) -> float:
        return self.client.get_status(identifier, guard=guard)["tokens_available"]

    def drain(self, guard: str, identifier: str) -> None:
        """Takes every token of a bucket."""
        burst = self.client.get_status(identifier, guard=guard)["burst_size"]
        assert self.client.limiter(guard).acquire(identifier, burst, wait=False)


def _is_alive(process: Process) -> None:
    """Nothing, while the process runs; what it said, if it has ended."""
    assert process.child.poll() is None, process.log()[-2000:]


def visit(address: str, path: str, ip: str, headers: dict[str, str] | None = None, method: str = "GET") -> Response:
    """One request of the caller with this address of 127.0.0.0/8."""
    return call(address, path, headers, method, ip=ip)
