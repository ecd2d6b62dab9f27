"""``QueueManager``: whether a task may be submitted, and how full the queues are.

Promises: with a Celery ``app`` the broker's own count decides; otherwise the daemon's count of the
events that were reported to it. Beyond ``max_pending`` (that of the daemon's guard ``task``, or a
smaller one that is given here) it says no and logs the depth.
Never: submits a task, or waits for a token.
"""

from __future__ import annotations

import logging
from typing import Any, Dict, Optional
from urllib.parse import quote

from . import _protocol as protocol
from . import _replies as replies
from ._wire import Request
from .client import Client
from .errors import BadRequest, TollgateUnavailable
from .tasks import blocking, default_client

log = logging.getLogger("tollgate")

#: How long workers have to respond to an inspection.
INSPECT_TIMEOUT = 1.0
EVENTS = ("submitted", "started", "scheduled", "finished", "failed")


class QueueManager:
    """``QueueManager(app=celery_app).can_submit_task("transcribe")``."""

    def __init__(
        self,
        client: Optional[Client] = None,
        *,
        app: Any = None,
        max_pending: Optional[int] = None,
        inspect_timeout: float = INSPECT_TIMEOUT,
    ):
        if max_pending is not None:
            protocol.count_of("max_pending", max_pending)
        self._client = default_client() if client is None else blocking(client)
        self._app = app
        self._max_pending = max_pending
        self._inspect_timeout = protocol.seconds("inspect_timeout", inspect_timeout)

    def can_submit_task(self, name: str, *, pending: Optional[int] = None) -> bool:
        """Takes one token of the guard ``task`` for this queue, if the queue is not full.

        ``pending`` is a count of your own; without it the broker of ``app`` is asked, and without an
        ``app`` the daemon's count is taken.
        """
        protocol.text("name", name)
        protocol.admin_only(self._client.address, "can_submit_task")
        if pending is not None:
            protocol.count_of("pending", pending)
        if pending is None and self._app is not None:
            pending = self.pending(name)
        if self._max_pending is not None:
            depth = self._counted(name) if pending is None else pending
            if depth > self._max_pending:
                self._log_depth(name, depth)
                return False
        body: Dict[str, Any] = {"queue": name}
        if pending is not None:
            body["pending"] = pending
        request = Request("POST", "/v1/tasks/can-submit", body, is_repeatable=False)
        verdict = self._ask(request)
        if verdict.get("reason") == "queue_full":
            self._log_depth(name, pending)
        return bool(verdict.get("can_submit"))

    def get_queue_status(self) -> Dict[str, Any]:
        """``active_queues``, ``active``, ``scheduled``, ``reserved`` and ``pending``.

        With ``app``: as its workers respond, by worker, and ``pending`` by queue. Otherwise the
        daemon's counts, by queue."""
        if self._app is None:
            protocol.admin_only(self._client.address, "get_queue_status")
            return _by_queue(self._ask(Request("GET", "/v1/tasks")))
        inspect = self._app.control.inspect(timeout=self._inspect_timeout)
        queues = inspect.active_queues() or {}
        names = sorted({queue["name"] for of in queues.values() for queue in of})
        return {
            "active_queues": queues,
            "active": inspect.active() or {},
            "scheduled": inspect.scheduled() or {},
            "reserved": inspect.reserved() or {},
            "pending": {name: self.pending(name) for name in names},
        }

    def pending(self, name: str) -> int:
        """Messages of the queue that no worker has fetched, in the broker of ``app``."""
        if self._app is None:
            raise BadRequest("there is no broker to ask", hint="make QueueManager(app=celery_app)")
        from kombu.exceptions import ChannelError, OperationalError

        try:
            with self._app.connection_for_read() as connection:
                connection.ensure_connection(max_retries=1, timeout=self._inspect_timeout or None)
                declared = connection.default_channel.queue_declare(queue=name, passive=True)
                return int(declared.message_count)
        except ChannelError:
            return 0  # a queue that nobody has used
        except (OperationalError, OSError) as error:
            raise TollgateUnavailable(
                f"the broker cannot be asked how full `{name}` is ({type(error).__name__})",
                hint="is it running? Or give pending=…",
            ) from error

    def report_event(self, name: str, task_id: str, event: str) -> Dict[str, Any]:
        """What became of a task, for the daemon's counts: submitted, started, scheduled, finished,
        failed."""
        if event not in EVENTS:
            raise BadRequest("the event is not known", hint="one of " + ", ".join(EVENTS))
        protocol.text("name", name)
        protocol.text("task_id", task_id)
        protocol.admin_only(self._client.address, "report_event")
        body = {"id": task_id, "event": event}
        return self._ask(Request("POST", "/v1/tasks/" + quote(name, safe=""), body))

    def _counted(self, name: str) -> int:
        """The daemon's count of what waits in this queue."""
        counts = _by_queue(self._ask(Request("GET", "/v1/tasks")))
        pending = counts["pending"].get(name, 0)
        return pending if isinstance(pending, int) else 0

    def _ask(self, request: Request) -> Dict[str, Any]:
        return replies.checked(self._client.send(request), self._client.address)

    def _log_depth(self, name: str, pending: Optional[int]) -> None:
        depth = "too many" if pending is None else str(pending)
        log.warning("queue %s is full: %s tasks are pending", name, depth)


def _by_queue(tasks: Dict[str, Any]) -> Dict[str, Any]:
    queues: Dict[str, Dict[str, Any]] = tasks.get("queues", {})
    words = ("active", "scheduled", "reserved", "pending")
    counts = {word: {name: of.get(word, 0) for name, of in queues.items()} for word in words}
    return {"active_queues": list(tasks.get("active_queues", [])), **counts}
