"""``rate_limited``: Celery tasks that wait for a token before they run.

Promises: a task waits up to ``wait`` seconds; then it goes back to its queue with a countdown, which
is not a retry and costs none. After a failure it is retried ``retries`` times, after 1, 2, 4 seconds.
Never: imports Celery before a task runs.
"""

from __future__ import annotations

import functools
import logging
import threading
from typing import Any, Callable, Optional, TypeVar

from . import _protocol as protocol
from ._protocol import Cost
from .client import Client
from .errors import BadRequest, QueueFull, RateLimitExceeded, TollgateUnavailable

F = TypeVar("F", bound=Callable[..., Any])

log = logging.getLogger("tollgate")

_default_client: Optional[Client] = None
_default_lock = threading.Lock()


def default_client() -> Client:
    """The client of the environment; one per process, forks included."""
    global _default_client
    with _default_lock:
        if _default_client is None:
            _default_client = Client()
        return _default_client


def rate_limited(
    identifier: Optional[str] = None,
    *,
    guard: str = "task",
    provider: Optional[str] = None,
    tokens: Cost = 1,
    wait: float = 300.0,
    retry_delay: float = 60.0,
    retries: int = 3,
    factor: float = 2.0,
    client: Optional[Client] = None,
) -> Callable[[F], F]:
    """Stands below ``@app.task``. ``identifier`` (default: the task's name) counts under ``guard``;
    with ``provider`` each run takes a permit of that provider instead."""
    if callable(identifier):
        raise BadRequest("`rate_limited` is used without parentheses", hint="write @rate_limited()")
    protocol.cost_of(tokens)
    protocol.seconds("wait", wait)
    protocol.seconds("retry_delay", retry_delay)
    if isinstance(retries, bool) or not isinstance(retries, int) or retries < 0:
        raise BadRequest("`retries` is not a number", hint="give a whole number from 0")
    if not 1.0 <= factor <= 100.0:
        raise BadRequest("`factor` is not a factor", hint="give a number from 1 to 100")

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            task = _current_task(args)
            if task is None:  # called as a plain function
                name = identifier or function.__name__
                with _acquire(client, name, guard, provider, tokens, wait):
                    return function(*args, **kwargs)
            try:
                with _acquire(client, identifier or task.name, guard, provider, tokens, wait):
                    return function(*args, **kwargs)
            except (RateLimitExceeded, QueueFull, TollgateUnavailable) as denied:
                raise _put_back(task, denied, retry_delay) from denied
            except Exception as error:
                if _is_of_celery(error):
                    raise
                countdown = factor ** (task.request.retries or 0)
                log.warning("task %s failed (%s)", task.name, type(error).__name__)
                raise task.retry(exc=error, countdown=countdown, max_retries=retries) from error

        return run  # type: ignore[return-value]

    return decorate


def _acquire(
    client: Optional[Client],
    name: str,
    guard: str,
    provider: Optional[str],
    tokens: Cost,
    wait: float,
) -> Any:
    client = client or default_client()
    if provider is not None:
        return client.acquire(provider=provider, tokens=tokens, wait=wait > 0, timeout=wait)
    return client.acquire(name, tokens, wait > 0, wait, guard=guard)


def _current_task(args: "tuple[Any, ...]") -> Any:
    """The task that runs: the first argument of a bound one, else the worker's current one."""
    from celery import Task, current_task

    if args and isinstance(args[0], Task):
        task: Any = args[0]
    else:
        task = current_task
    # Called as a function, `task.request` has no id.
    return task if task and task.request.id and not task.request.called_directly else None


def _is_of_celery(error: Exception) -> bool:
    from celery.exceptions import TaskPredicate

    return isinstance(error, TaskPredicate)  # Retry, Ignore, Reject


def _put_back(task: Any, denied: Exception, retry_delay: float) -> Any:
    """Queues the task again with the same id and the same number of retries."""
    from celery.exceptions import Reject, Retry

    retry_in = getattr(denied, "retry_in", None)
    countdown = max(retry_delay, retry_in or 0.0)
    if task.request.is_eager:
        return denied  # without a broker there is no queue to go back to
    log.info("task %s is queued again in %.0f s: %s", task.name, countdown, denied)
    signature = task.signature_from_request(countdown=countdown, retries=task.request.retries)
    try:
        signature.apply_async()
    except Exception as error:
        return Reject(error, requeue=False)  # as Celery's own retry does
    return Retry(exc=denied, when=countdown, sig=signature)
